"""Exact ablation: the loss of the model without an expert, with another in its place, or both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nano.graft import stats
from nano.graft.functions import Ablation, FfnModule
from nano.graft.report import progress
from nano.graft.runner import Runner
from nano.graft.texts import Corpus
from nano.graft.utility import batch_nats, make_batches

RESAMPLES = 2000


@dataclass(frozen=True)
class Change:
    """One ablation of a layer: experts left out, experts redirected to another."""

    layer: int
    banned: tuple[int, ...] = ()
    redirect: tuple[tuple[int, int], ...] = ()

    def experts(self) -> set[int]:
        return {*self.banned, *(old for old, _ in self.redirect)}


@torch.no_grad()
def measure(runner: Runner, corpus: Corpus, modules: dict[int, FfnModule],
            changes: Sequence[Change], mode: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Loss change [changes, docs] in nats, the unchanged loss [docs] and tokens [docs].

    `mode`: reroute (the next best expert enters: what deletion does) or drop (the term is left
    out: what zero weights do).  Layers before the changed one are not run again, and batches in
    which none of its experts was chosen keep their loss.
    """
    delta = np.zeros((len(changes), corpus.docs))
    base, tokens = np.zeros(corpus.docs), np.zeros(corpus.docs)
    work = make_batches(corpus, range(len(corpus.pieces)))
    for module in modules.values():
        module.record = True
    try:
        for batch in progress(work, "exact ablation"):
            docs = [corpus.pieces[i].doc for i in batch.pieces]
            calls, hidden = runner.record_calls(batch.ids)
            before = batch_nats(runner, hidden, batch).numpy()
            np.add.at(base, docs, before)
            np.add.at(tokens, docs, batch.targets.sum(dim=1).numpy())
            valid = batch.valid.reshape(-1)
            used = {}
            for i, m in modules.items():
                assert m.seen is not None
                used[i] = m.seen.ids.view(*batch.ids.shape, -1)
                used[i] = torch.where(valid.view(batch.ids.shape)[..., None], used[i], -1)
            for n, change in enumerate(changes):
                touched = torch.isin(used[change.layer], torch.tensor(sorted(change.experts())))
                rows = touched.flatten(1).any(dim=1).numpy()
                if not rows.any():
                    continue
                after = _with(runner, modules[change.layer], change, mode, calls, batch)
                np.add.at(delta[n], docs, np.where(rows, after - before, 0.0))
    finally:
        for module in modules.values():
            module.record, module.seen = False, None
    return delta, base, tokens


def _with(runner: Runner, module: FfnModule, change: Change, mode: str, calls: list[Any],
          batch: Any) -> np.ndarray:
    module.ablation = Ablation(set(change.banned), mode == "reroute", dict(change.redirect))
    module.record = False
    try:
        return batch_nats(runner, runner.tail(change.layer, calls), batch).numpy()
    finally:
        module.ablation, module.record = None, True


def summarise(delta: np.ndarray, tokens: np.ndarray, seed: int = 0) -> dict[str, Any]:
    """Nats per token that one change costs, with its interval over documents."""
    use = tokens > 0
    d, m = delta[use], tokens[use]
    value = stats.ratio(d, m)
    if len(d) < stats.MIN_CLUSTERS or not d.any():
        return {"delta": value, "interval": [value, value] if not d.any() else [None, None],
                "p": 1.0 if not d.any() else None}
    stars = stats.bootstrap(d, m, RESAMPLES, seed)
    p = float((np.sum(stars <= 0) + 1) / (len(stars) + 1))
    return {"delta": value, "interval": stats.bca_interval(d, m, stars).to_json(), "p": p}
