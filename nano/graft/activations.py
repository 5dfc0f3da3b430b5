"""Rows of activations at chosen tokens, in memory or in a mapped file when they are large."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nano.graft.errors import GraftError
from nano.graft.functions import FfnModule
from nano.graft.report import progress
from nano.graft.runner import Runner, Site
from nano.graft.texts import Corpus, batches, padded, shared_positions

F32 = NDArray[np.float32]
IN_MEMORY = 64 << 20  # bytes of one site above which it goes to a file
BATCH_TOKENS = 2048
TOLERANCE = 1e-5  # relative, of a layer recomputed from the view


@dataclass
class Chosen:
    """Which tokens of each piece are rows; the same rows for every model of the corpus."""

    picks: list[list[list[int]]]  # [model][piece] -> token indices
    docs: NDArray[np.int64]  # document of every row
    share: float  # of the first model's tokens that are rows

    @property
    def rows(self) -> int:
        return len(self.docs)


def choose_rows(corpus: Corpus, limit: int | None = None) -> Chosen:
    """All tokens of one model (behind the begin mark), or the shared positions of two."""
    picks: list[list[list[int]]] = [[] for _ in corpus.codecs]
    docs, rows = [], 0
    same = len({c.name for c in corpus.codecs}) == 1
    for piece in corpus.pieces:
        if same:
            found = [list(range(1, len(piece.tokens[0].ids)))] * len(picks)
        else:
            found = list(shared_positions(*piece.tokens))
        if limit is not None:
            found = [f[: limit - rows] for f in found]
        for side, f in zip(picks, found, strict=True):
            side.append(f)
        docs += [piece.doc] * len(found[0])
        rows += len(found[0])
    total = sum(len(p.tokens[0].ids) - 1 for p in corpus.pieces)
    if rows < 16:
        raise GraftError(f"{rows} shared positions are too few; give more text")
    return Chosen(picks, np.array(docs), rows / max(total, 1))


@dataclass
class Store:
    """Arrays by site; large ones in a directory that is removed at the end."""

    data: dict[Site, F32] = field(default_factory=dict)
    _folder: tempfile.TemporaryDirectory[str] | None = None

    def __getitem__(self, site: Site) -> F32:
        return self.data[site]

    def array(self, site: Site, rows: int, width: int) -> F32:
        if rows * width * 4 <= IN_MEMORY:
            self.data[site] = np.empty((rows, width), np.float32)
        else:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="graft-")
            path = Path(self._folder.name) / f"{site[0]}-{site[1]}.f32"
            self.data[site] = np.memmap(path, np.float32, "w+", shape=(rows, width))
        return self.data[site]


def cache_path(cache: Path, *key: object) -> Path:
    text = json.dumps([str(k) for k in key])
    return cache / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.npy"


@torch.no_grad()
def collect(runner: Runner, corpus: Corpus, model: int, chosen: Chosen, sites: Sequence[Site],
            cache: Path | None = None) -> Store:
    """[rows, d] f32 at every site, rows as chosen; keep the store as long as its arrays."""
    store = Store()
    keys = {}
    if cache is not None:
        cache.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(json.dumps(chosen.picks[model]).encode()).hexdigest()
        text = corpus.codecs[model].name
        keys = {s: cache_path(cache, runner.source.digest(), corpus.digest, digest, text, s,
                              runner.dtype) for s in sites}
        for site, path in keys.items():
            if path.is_file():
                store.data[site] = np.load(path, mmap_mode="r")
    missing = [s for s in sites if s not in store.data]
    if missing:
        _fill(runner, corpus, model, chosen, missing, store)
        for site in missing:
            if site in keys:
                temporary = keys[site].with_suffix(f".{os.getpid()}.npy")
                np.save(temporary, store.data[site])
                temporary.replace(keys[site])
    return store


def _fill(runner: Runner, corpus: Corpus, model: int, chosen: Chosen, sites: list[Site],
          store: Store) -> None:
    out = {s: store.array(s, chosen.rows, runner.cfg.hidden) for s in sites}
    picks = chosen.picks[model]
    starts = np.concatenate([[0], np.cumsum([len(p) for p in picks])])
    used = [i for i, p in enumerate(picks) if p]
    budget = BATCH_TOKENS * (8 if runner.stream else 1)
    groups = list(batches([len(corpus.pieces[i].tokens[model].ids) for i in used], budget))
    for group in progress(groups, f"running {runner.source.path.name}"):
        pieces = [used[i] for i in group]
        ids = padded([corpus.pieces[i].tokens[model].ids for i in pieces])
        seen, _ = runner.capture(ids, sites)
        for at, i in enumerate(pieces):
            rows = slice(int(starts[i]), int(starts[i + 1]))
            index = torch.tensor(picks[i])
            for site in sites:
                out[site][rows] = seen[site][at].index_select(0, index).float().numpy()


@torch.no_grad()
def check_extraction(runner: Runner, corpus: Corpus, model: int, layer: int) -> float:
    """Relative error of a layer recomputed from the view; GraftError above 1e-5.

    It proves that gate, up, down, transposition and gains are read as the model uses them.
    """
    ids = padded([corpus.pieces[0].tokens[model].ids[:64]])
    seen, _ = runner.capture(ids, [(layer, "ffn_in_gained"), (layer, "ffn_out")])
    x, y = seen[(layer, "ffn_in_gained")], seen[(layer, "ffn_out")]
    mine = FfnModule(runner.source.layers[layer].ffn, runner.dtype)(x, ids)
    error = float((mine - y).abs().max() / y.abs().max().clamp_min(1e-30))
    if error > TOLERANCE and runner.dtype == torch.float32:
        raise GraftError(f"{runner.source.path}: layer {layer} recomputed from the view is off by "
                         f"{error:.2g}: its matrices are not what the view takes them for")
    return error


def by_document(values: Tensor, docs: np.ndarray) -> np.ndarray:
    """Sums of rows' values [N] for each document that occurs."""
    _, inverse = np.unique(docs, return_inverse=True)
    return np.bincount(inverse, weights=values.double().numpy())


def splits(docs: np.ndarray, held: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Masks of rows: for fitting, for choosing lambda, held out."""
    out = held[docs]
    order = {d: i for i, d in enumerate(np.unique(docs[~out]))}
    choose = np.array([not o and order[d] % 5 == 4 for d, o in zip(docs, out, strict=True)])
    if not choose.any() or not out.any():  # too few documents: every fifth row
        step = np.arange(len(docs)) % 5
        return step < 3, step == 3, step == 4
    return ~out & ~choose, choose, out
