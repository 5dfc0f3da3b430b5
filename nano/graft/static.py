"""What two checkpoints are, side by side, without running them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from nano.graft.checkpoint import Checkpoint
from nano.graft.linalg import spectrum_facts
from nano.graft.report import progress
from nano.graft.texts import Codec, Corpus


def check(name: str, a: Any, b: Any, verdict: str | None = None) -> dict[str, Any]:
    return {"check": name, "a": a, "b": b,
            "verdict": verdict or ("same" if a == b else "mappable")}


def vocabulary(codec: Codec, size: int) -> set[bytes]:
    return {s for s in (codec.spell(i) for i in range(min(codec.size(), size))) if s}


def tokenizer_checks(a: Checkpoint, b: Checkpoint, corpus: Corpus,
                     share: float) -> list[dict[str, Any]]:
    ca, cb = corpus.codecs
    va, vb = vocabulary(ca, a.cfg.vocab), vocabulary(cb, b.cfg.vocab)
    both = va & vb

    def used(model: int, codec: Codec) -> float:
        counts = Counter(t for p in corpus.pieces for t in p.tokens[model].ids[1:])
        total = sum(counts.values())
        hit = sum(n for t, n in counts.items() if codec.spell(t) in both)
        return hit / max(total, 1)

    size = sum(p.bytes for p in corpus.pieces)
    per = [size / max(1, sum(len(p.tokens[i].ids) - 1 for p in corpus.pieces)) for i in (0, 1)]
    return [
        check("tokenizer", ca.name[:12], cb.name[:12]),
        check("vocabulary", a.cfg.vocab, b.cfg.vocab),
        check("tokens of both vocabularies", len(both), len(both),
              "same" if va == vb else "mappable"),
        check("share of used tokens in both", used(0, ca), used(1, cb), "mappable"
              if va != vb else "same"),
        check("shared positions", share, share, "same" if ca.name == cb.name else
              "mappable" if share > 0.05 else "blocked"),
        check("bytes per token", per[0], per[1]),
    ]


def active_parameters(source: Checkpoint) -> int:
    """Parameters that one token uses."""
    c = source.cfg
    total = source.parameters()
    for layer in range(c.n_layers):
        if c.ffn_kind[layer] != "dense":
            width = c.latent or c.hidden
            total -= (c.n_experts - c.top_k) * 3 * c.inter[layer] * width
    return total


def model_checks(a: Checkpoint, b: Checkpoint) -> list[dict[str, Any]]:
    x, y = a.cfg, b.cfg
    rows = [check("architecture", a.arch, b.arch)]
    for name, key in (("width", "hidden"), ("layers", "n_layers"), ("heads", "heads"),
                      ("experts", "n_experts"), ("experts per token", "top_k"),
                      ("shared inner width", "shared_inter"), ("latent width", "latent"),
                      ("context", "context"), ("tied head", "tied"), ("positions", "positions"),
                      ("scale of embeddings", "embed_scale"), ("norm eps", "norm_eps"),
                      ("norms store w for 1 + w", "zero_centred"), ("residual", "residual")):
        rows.append(check(name, getattr(x, key), getattr(y, key)))
    rows += [
        check("inner width", _set(x.inter), _set(y.inter)),
        check("activation", f"{x.act}{list(x.act_params) or ''}",
              f"{y.act}{list(y.act_params) or ''}"),
        check("attention", _set(x.attn_kind), _set(y.attn_kind)),
        check("feed-forward", _set(x.ffn_kind), _set(y.ffn_kind)),
        check("norm behind feed-forward", a.arch == "gemma3", b.arch == "gemma3"),
        check("parameters", a.parameters(), b.parameters()),
        check("parameters per token", active_parameters(a), active_parameters(b)),
    ]
    return rows


def _set(values: Sequence[Any]) -> str:
    return ", ".join(str(v) for v in sorted(set(values)))


def how_to_transfer(a: Checkpoint, la: int, b: Checkpoint, lb: int) -> str:
    """How the feed-forward function of one layer can be brought into another."""
    x, y = a.layers[la].ffn, b.layers[lb].ffn
    if x.kind != "dense":
        way = "mixture of experts: neurons of the busiest, reduced, down refitted"
    elif b.cfg.inter[lb] < a.cfg.inter[la] and y.kind == "dense":
        way = "neurons chosen, down refitted"
    elif x.act != y.act:
        way = "composition with scales, down refitted"
    else:
        way = "composition"
    if y.kind == "latent_moe":
        return f"into the shared expert: {way}"
    if y.kind == "moe":
        return f"into the shared or a routed expert: {way}"
    return way if b.arch != "gemma3" else f"{way}; the norm behind keeps the size"


def spread(n: int, count: int) -> list[int]:
    """At most `count` of n layers, evenly, with both ends."""
    if n <= count:
        return list(range(n))
    return sorted({round(i * (n - 1) / (count - 1)) for i in range(count)})


def spectra(source: Checkpoint, layers: Sequence[int], seed: int = 0) -> list[dict[str, Any]]:
    """Facts of every matrix role in the layers; of routed experts the first stands for all."""
    out = []
    for index in progress(layers, f"spectra of {source.path.name}"):
        layer = source.layers[index]
        found = {f"attention {name.split('.', 1)[1]}": m for name, m in layer.attention.items()
                 if len(m.shape) == 2 and min(m.shape) >= 8}
        mlps = [("dense", layer.ffn.dense), ("expert 0", next(iter(layer.ffn.experts), None)),
                ("shared", next(iter(layer.ffn.shared), None))]
        for kind, mlp in mlps:
            if mlp is not None:
                found |= {f"{kind} gate": mlp.gate, f"{kind} up": mlp.up, f"{kind} down": mlp.down}
        for role, matrix in found.items():
            out.append({"layer": index, "role": role, **spectrum_facts(matrix.read(), seed)})
    return out


def spectra_summary(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians over layers of both, and their ratio, for roles of either."""
    facts = ("sigma_max", "stable_rank", "effective_rank", "tail_exponent", "kurtosis")
    out = []
    for role in sorted({r["role"] for r in (*a, *b)}):
        row: dict[str, Any] = {"role": role}
        for fact in facts:
            ma, mb = (float(np.median([r[fact] for r in side if r["role"] == role] or [math.nan]))
                      for side in (a, b))
            row[fact] = {"a": ma, "b": mb, "a_over_b": ma / mb if mb else math.nan}
        out.append(row)
    return out
