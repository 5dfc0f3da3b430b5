"""Probes: short questions with known answers, judged by greedy text or by choice.

A file has one object per line: {"id", "group", "prompt", "answers": [...], "mode": "generate"} or
{..., "mode": "choice", "choices": [...]} where `answers` lists the right ones.  Phrasings of one
fact share their group, which is what resampling draws.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nano.graft import stats
from nano.graft.errors import GraftError
from nano.graft.paired import MARGIN_POINTS, compare, token_nats
from nano.graft.runner import Runner
from nano.graft.texts import Codec, padded, tokenize

BUNDLED = Path(__file__).with_name("probes.jsonl")
MAX_NEW = 15


@dataclass(frozen=True)
class Probe:
    id: str
    group: str
    prompt: str
    answers: tuple[str, ...]
    choices: tuple[str, ...]  # empty: the model writes


def read_probes(path: Path) -> list[Probe]:
    out = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            mode, choices = row["mode"], tuple(map(str, row.get("choices", ())))
            answers = tuple(map(str, row["answers"]))
            out.append(Probe(str(row["id"]), str(row["group"]), str(row["prompt"]), answers,
                             choices))
        except (ValueError, KeyError, TypeError) as err:
            raise GraftError(f"{path}:{number}: not a probe: {err!r}") from err
        if mode not in ("generate", "choice") or (mode == "choice") != bool(choices):
            raise GraftError(f"{path}:{number}: mode is generate, or choice with choices")
        if not answers or not set(answers) <= set(choices or answers):
            raise GraftError(f"{path}:{number}: answers must be there, and be among the choices")
    if len({p.id for p in out}) != len(out) or not out:
        raise GraftError(f"{path}: probes need ids that differ")
    return out


def is_hit(text: str, answers: tuple[str, ...]) -> bool:
    """An answer stands in the text, in any case, with no letter or digit beside it."""
    return any(re.search(rf"(?<![^\W_]){re.escape(a)}(?![^\W_])", text, re.IGNORECASE)
               for a in answers)


@torch.no_grad()
def greedy(runner: Runner, codec: Codec, prompts: list[str], limit: int = MAX_NEW) -> list[str]:
    rows = [tokenize(codec, p).ids for p in prompts]
    starts = [len(r) for r in rows]
    for _ in range(limit):
        hidden = runner.trunk(padded(rows))
        last = torch.stack([hidden[i, len(r) - 1] for i, r in enumerate(rows)])
        for row, token in zip(rows, runner.head(last).argmax(dim=-1).tolist(), strict=True):
            row.append(int(token))
    return [b"".join(codec.spell(t) or b"" for t in row[at:]).decode("utf-8", "replace")
            for row, at in zip(rows, starts, strict=True)]


def choose(runner: Runner, codec: Codec, probes: list[Probe]) -> list[str]:
    """The likeliest choice of each, by nats per byte; the first of equals."""
    texts = [(p, c, tokenize(codec, p.prompt + c)) for p in probes for c in p.choices]
    nats = token_nats(runner, [t.ids for _, _, t in texts])
    best: dict[str, tuple[float, str]] = {}
    for (p, choice, t), n in zip(texts, nats, strict=True):
        edge = len(p.prompt.encode())
        score = -sum(x for x, end in zip(n, t.ends[1:], strict=True) if end > edge or end < 0)
        score /= max(1, len(choice.encode()))
        if p.id not in best or score > best[p.id][0]:
            best[p.id] = (score, choice)
    return [best[p.id][1] for p in probes]


def answer(runner: Runner, codec: Codec, probes: list[Probe]) -> list[dict[str, Any]]:
    """What the model says to each probe, and whether it is right."""
    writes = [p for p in probes if not p.choices]
    picks = [p for p in probes if p.choices]
    said = dict(zip([p.id for p in writes], greedy(runner, codec, [p.prompt for p in writes])
                    if writes else [], strict=True))
    said |= dict(zip([p.id for p in picks], choose(runner, codec, picks) if picks else [],
                     strict=True))
    return [{"id": p.id, "group": p.group, "said": said[p.id],
             "hit": said[p.id] in p.answers if p.choices else is_hit(said[p.id], p.answers)}
            for p in probes]


def compare_probes(a: list[dict[str, Any]], b: list[dict[str, Any]], seed: int = 0,
                   margin: float = MARGIN_POINTS) -> dict[str, Any]:
    """Points by fact, McNemar over single probes, and the table of groups that changed."""
    groups = list(dict.fromkeys(r["group"] for r in a))
    x = {g: [0, 0, 0] for g in groups}
    only = [0, 0]
    for ra, rb in zip(a, b, strict=True):
        cell = x[ra["group"]]
        cell[0] += ra["hit"]
        cell[1] += rb["hit"]
        cell[2] += 1
        only[0] += ra["hit"] and not rb["hit"]
        only[1] += rb["hit"] and not ra["hit"]
    sums = np.array([x[g] for g in groups], float)
    found = compare(sums[:, 0], sums[:, 1], sums[:, 2], "points", margin, True, seed)
    out = found.to_json()
    out["tests"]["mcnemar_p"] = stats.mcnemar(only[0], only[1])
    return {"points": out, "only_a": only[0], "only_b": only[1],
            "groups": [{"group": g, "a": x[g][0], "b": x[g][1], "of": x[g][2]} for g in groups]}
