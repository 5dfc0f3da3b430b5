"""Scorecards of `mk eval` against the same measures made with PyTorch in f64, from the same files.

Needs built programs: MK_BIN names their folder (default build/release/bin).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nano.loading import load_model, tokenizer_beside
from nano.tests.test_engine_parity import BIN, STORY, STORY_DSV4, Engine, engine

__all__ = ["engine"]  # the fixture

DATA = Path(__file__).parents[2] / "eval" / "data"
WINDOW = 512
PROBES = 5

pytestmark = pytest.mark.skipif(
    not (BIN / "mk").is_file() or not (BIN / "microkimid").is_file(),
    reason=f"no built engine in {BIN} (set MK_BIN)",
)


def lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().splitlines()]


class Twin:
    """Log-probabilities of token ids by a model in PyTorch."""

    def __init__(self, path: Path) -> None:
        self.model = load_model(path).double()
        self.tokenizer = tokenizer_beside(path, None)

    @torch.no_grad()
    def rows(self, ids: list[int]) -> torch.Tensor:
        """Of every id, behind the id that begins a text: [ids, vocab]."""
        tokens = torch.tensor([[self.tokenizer.bos, *ids[:-1]]])
        return self.model(tokens)[0].log_softmax(dim=1)

    def windows(self, text: str) -> Iterator[list[int]]:
        ids = self.tokenizer.encode(text)
        for at in range(0, len(ids), WINDOW):
            yield ids[at : at + WINDOW]

    def choice(self, prompt: str, choice: str) -> float:
        """Log-likelihood of a choice: the tokens that reach beyond the prompt."""
        ids = self.tokenizer.encode(prompt + choice)
        first = len(ids)
        while first > 0 and len(self.tokenizer.decode(ids[: first - 1]).encode()) >= len(
            prompt.encode()
        ):
            first -= 1
        rows = self.rows(ids)
        return sum(float(rows[i, ids[i]]) for i in range(first, len(ids)))


@pytest.mark.parametrize("path", [STORY, STORY_DSV4], ids=["k3", "dsv4"])
def test_scorecards_are_those_of_the_twin(engine: Engine, path: Path) -> None:
    if not path.is_file():
        pytest.skip("the bundled model is not in this checkout")
    texts = [one["text"] for one in lines("fables")]
    # One that fills a window and goes on in the next, and two that do not.
    documents = [" ".join(texts[:3]), texts[6], texts[16]]
    file = engine.folder / "documents.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    told = json.loads(engine.mk("eval", str(path), "--precision", "exact", "--json",
                                "--text", str(file), "--task", "stories", "--limit", str(PROBES)))
    (card,) = told["models"]
    twin = Twin(path)
    nats, tokens, top1, top5, size = 0.0, 0, 0, 0, 0
    for document in documents:
        size += len(document.encode())
        for ids in twin.windows(document):
            rows = twin.rows(ids)
            of_ids = rows.gather(1, torch.tensor(ids)[:, None])
            ranks = (rows > of_ids).sum(dim=1)
            nats -= float(of_ids.sum())
            tokens += len(ids)
            top1 += int((ranks == 0).sum())
            top5 += int((ranks < 5).sum())
    (text,) = card["texts"]
    assert tokens > WINDOW and text["tokens"] == tokens and text["bytes"] == size
    assert text["perplexity"] == pytest.approx(math.exp(nats / tokens), rel=1e-4)
    assert text["bits_per_byte"] == pytest.approx(nats / math.log(2) / size, rel=1e-5)
    # Rounding may exchange tokens that are as good as equal.
    assert abs(text["top1"]["hits"] - top1) <= 2 and abs(text["top5"]["hits"] - top5) <= 2
    (task,) = card["tasks"]
    for probe, outcome in zip(lines("stories")[:PROBES], task["outcomes"], strict=True):
        sums = [twin.choice(probe["prompt"], " " + choice) for choice in probe["choices"]]
        right = sums.pop(probe["answer"])
        assert outcome["margin"] == pytest.approx(right - max(sums), abs=1e-3)
        assert outcome["score"] == (1 if right > max(sums) else 0)
