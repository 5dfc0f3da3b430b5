"""`paired`: is the difference between two models real?

Documents are scored teacher-forced by each model with its own tokens; the unit of comparison is
bits per byte, the unit of resampling the document (for probes the fact).
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nano.graft import stats
from nano.graft.errors import GraftError
from nano.graft.report import progress, table
from nano.graft.runner import Runner
from nano.graft.texts import Codec, Tokens, batches, padded, tokenize

RESAMPLES = 10_000
MARGIN_BITS, MARGIN_POINTS = 0.005, 0.02
BATCH_TOKENS = 4096


@dataclass
class DocScore:
    """nll: nats of all tokens of the document; `spelled`: no token stands for unknown text."""

    doc: str
    bytes: int
    tokens: int
    nll: float
    spelled: bool = True


# -- measuring -----------------------------------------------------------------------------------


def windows(length: int, seq: int) -> list[tuple[int, int, int]]:
    """(start, end, first scored) over `length` tokens: every token but the first is scored once,
    with at least half a window before it where the document allows it."""
    if length <= seq:
        return [(0, length, 1)]
    out, scored, step = [(0, seq, 1)], seq, max(1, seq // 2)
    while scored < length:
        end = min(length, scored + step)
        out.append((end - seq, end, scored))
        scored = end
    return out


@torch.no_grad()
def token_nats(runner: Runner, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """For every row of ids the nats of each id but the first, given those before it."""
    out: list[np.ndarray] = [np.zeros(0)] * len(rows)
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    groups = [[order[i] for i in g]
              for g in batches([len(rows[i]) for i in order], BATCH_TOKENS)]
    for group in progress(groups, "scoring"):
        hidden = runner.trunk(padded([rows[i] for i in group]))
        for at, i in enumerate(group):
            targets = torch.tensor(list(rows[i][1:]), dtype=torch.long)
            out[i] = runner.token_nats(hidden[at, : len(targets)], targets).numpy()
    return out


def score_documents(runner: Runner, codec: Codec, texts: Sequence[str], seq: int
                    ) -> list[DocScore]:
    tokens: list[Tokens] = [tokenize(codec, t) for t in texts]
    cuts = [(i, w) for i, t in enumerate(tokens) for w in windows(len(t.ids), seq)]
    found = token_nats(runner, [tokens[i].ids[s:e] for i, (s, e, _) in cuts])
    sums = np.zeros(len(texts))
    for (i, (start, _, first)), nats in zip(cuts, found, strict=True):
        sums[i] += nats[first - start - 1 :].sum()
    return [DocScore(str(i), len(text.encode()), len(t.ids) - 1, float(sums[i]), t.spelled)
            for i, (text, t) in enumerate(zip(texts, tokens, strict=True))]


def read_scores(path: Path) -> list[DocScore]:
    """A table made elsewhere: CSV or JSON Lines with doc_id (or id), bytes, tokens and nll; lines
    of `mk score --json` (logprob) and report.json of this instrument (with --side) do too."""
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".csv":
            rows: list[Any] = list(csv.DictReader(io.StringIO(text)))
        else:
            rows = [json.loads(line) for line in text.splitlines() if line.strip()]
        out = []
        for number, row in enumerate(rows):
            if "total" in row:
                continue
            nll = float(row["nll"]) if "nll" in row else -float(row["logprob"])
            name = row.get("doc_id", row.get("id", number))
            out.append(DocScore(str(name), int(row["bytes"]), int(row["tokens"]), nll,
                                not int(row.get("unk", 0) or 0)))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise GraftError(f"{path}: not a table of doc_id, bytes, tokens, nll: {err!r}") from err
    if len({d.doc for d in out}) != len(out):
        raise GraftError(f"{path}: a document occurs twice")
    for d in out:
        if d.bytes <= 0 or not math.isfinite(d.nll):
            raise GraftError(f"{path}: document {d.doc} has {d.bytes} bytes and {d.nll} nats")
    return out


def match(a: list[DocScore], b: list[DocScore], keep_unspelled: bool = False
          ) -> tuple[list[DocScore], list[DocScore], list[str]]:
    """Both in the same order, and documents left out because a model cannot spell them."""
    by_id = {d.doc: d for d in b}
    if set(by_id) != {d.doc for d in a}:
        odd = sorted(set(by_id) ^ {d.doc for d in a})[:3]
        raise GraftError(f"the two runs are of different documents, such as {', '.join(odd)}")
    for d in a:
        if d.bytes != by_id[d.doc].bytes:
            raise GraftError(f"document {d.doc} has {d.bytes} bytes in one run and "
                             f"{by_id[d.doc].bytes} in the other")
    left = [d.doc for d in a if not (d.spelled and by_id[d.doc].spelled)]
    kept = [d for d in a if keep_unspelled or d.doc not in set(left)]
    return kept, [by_id[d.doc] for d in kept], left


# -- comparing -----------------------------------------------------------------------------------


@dataclass
class Comparison:
    """B - A; `unit` is what the estimate is in."""

    unit: str
    estimate: float
    interval: stats.Interval
    clusters: int
    tests: dict[str, float]
    mde: float
    needed: int | None
    verdict: str
    margin: float
    a: float
    b: float
    d: list[float] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def headline(self) -> str:
        low, high = self.interval.low, self.interval.high
        span = "" if math.isnan(low) else f" [{low:+.4f}, {high:+.4f}]"
        kind = self.interval.kind if self.interval.kind != "none" else "no interval"
        units = "facts" if self.unit == "points" else "docs"
        return (f"B - A = {self.estimate:+.4f} {self.unit}{span} (95 % {kind}, {self.clusters} "
                f"{units}, MDE {self.mde:.3g}): {self.verdict}")

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "interval": self.interval.to_json(),
                "interval_kind": self.interval.kind, "headline": self.headline()}


def compare(x_a: np.ndarray, x_b: np.ndarray, m: np.ndarray, unit: str, margin: float,
            higher_is_better: bool, seed: int = 0, resamples: int = RESAMPLES) -> Comparison:
    """Clusters' sums x of both models and their weights m."""
    d = x_b - x_a
    estimate = stats.ratio(d, m)
    warnings = []
    if len(d) < stats.MIN_CLUSTERS:
        warnings.append(f"{len(d)} clusters are too few for intervals (at least "
                        f"{stats.MIN_CLUSTERS})")
        interval = stats.Interval(math.nan, math.nan, "none")
        p = math.nan
    else:
        stars = stats.bootstrap(d, m, resamples, seed)
        interval = stats.bca_interval(d, m, stars)
        if interval.warning:
            warnings.append(interval.warning)
        p = stats.bootstrap_p(stars)
    tests = {"bootstrap_p": p, "sign_p": stats.sign_test(d), "wilcoxon_p": stats.wilcoxon(d)}
    return Comparison(unit, estimate, interval, len(d), tests, stats.detectable(d, m),
                      stats.needed(d, m), _verdict(interval, margin, higher_is_better), margin,
                      stats.ratio(x_a, m), stats.ratio(x_b, m), [float(v) for v in d], warnings)


def _verdict(interval: stats.Interval, margin: float, higher_is_better: bool) -> str:
    low, high = interval.low, interval.high
    if math.isnan(low):
        return "inconclusive"
    if -margin <= low and high <= margin:
        return "equivalent"
    if low > 0 or high < 0:
        return "better" if (low > 0) == higher_is_better else "worse"
    return "inconclusive"


def compare_documents(a: list[DocScore], b: list[DocScore], margin: float = MARGIN_BITS,
                      seed: int = 0, same_tokens: bool = False) -> dict[str, Any]:
    """Bits per byte, and nats per token when both have the same tokens."""
    m = np.array([d.bytes for d in a], float)
    to_bits = 1 / math.log(2)
    bits = compare(np.array([d.nll for d in a]) * to_bits, np.array([d.nll for d in b]) * to_bits,
                   m, "bits/byte", margin, False, seed)
    out: dict[str, Any] = {"bits_per_byte": bits.to_json()}
    if same_tokens:
        t = np.array([d.tokens for d in a], float)
        out["nats_per_token"] = compare(np.array([d.nll for d in a]),
                                        np.array([d.nll for d in b]), t, "nats/token",
                                        margin, False, seed).to_json()
    order = np.argsort(-np.abs(bits.d))[:10]
    out["largest"] = [{"doc": a[i].doc, "bytes": a[i].bytes, "bits": bits.d[i]} for i in order]
    return out


def document_lines(results: dict[str, Any]) -> list[str]:
    bits = results["bits_per_byte"]
    lines = [bits["headline"], ""]
    lines += table(("", "A", "B"), [("bits per byte", bits["a"], bits["b"])]
                   + ([("nats per token", results["nats_per_token"]["a"],
                        results["nats_per_token"]["b"])] if "nats_per_token" in results else []))
    tests = bits["tests"]
    lines += ["", f"p: bootstrap {tests['bootstrap_p']:.3g}, sign {tests['sign_p']:.3g}, Wilcoxon "
                  f"{tests['wilcoxon_p']:.3g}. Documents that the observed effect needs: "
                  f"{bits['needed']}.", "", "Largest differences:", ""]
    return lines + table(("document", "bytes", "B - A, bits"),
                         [(r["doc"], r["bytes"], r["bits"]) for r in results["largest"]])
