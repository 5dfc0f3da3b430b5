"""Deliberate mistakes in the DeepSeek-V4 model, and whether a golden catches them.

`python -m nano.dsv4.mutations DIR` takes the folder that `nano.dsv4.golden` wrote, runs the model
with one mistake at a time and compares with the recorded values until the first difference.  The
place of it nearly names the mistake: a rotation shows at position 1, a compressor when its first
group closes, the indexer when it first has to choose, the window when it is full.  Exit code 1 when
a mistake goes unnoticed that must not, or the model itself is refused.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nano.dsv4.attention import Attention, Compressor
from nano.dsv4.config import OVERLAPPED
from nano.dsv4.decode import StepDecoder
from nano.dsv4.golden_check import Golden
from nano.dsv4.mixing import Mix
from nano.dsv4.model import Dsv4Model
from nano.dsv4.moe import Moe
from nano.dsv4.rotation import F32, plain_frequencies
from nano.dsv4.rounding import fp4_round_trip, hadamard, scaled_blocks

Mistake = type[StepDecoder]
MISTAKES: dict[str, Mistake] = {}
# No output can show these: the change is within the rounding of the arithmetic, or the case does
# not arise by chance.  What pins them is named.
INVISIBLE = {
    "FP4 ties away from zero": "codes of the quantizer (nano/tests/test_dsv4_parts.py)",
    "expert weight after w2": "nothing: the product is the same but for its last bit",
    "index scores not scaled": "nothing: a positive factor changes no ranking",
}


def mistake(name: str) -> Callable[[Mistake], Mistake]:
    def add(cls: Mistake) -> Mistake:
        MISTAKES[name] = cls
        return cls

    return add


def with_config(name: str, change: Callable[[Any], dict[str, Any]]) -> None:
    """A mistake that is another value in the config."""

    class Other(StepDecoder):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.c = dataclasses.replace(self.c, **change(self.c))

    MISTAKES[name] = Other


# -- rotation ------------------------------------------------------------------------------------


@mistake("no inverse rotation of the output")
class _NoInverse(StepDecoder):
    def rotate_back(self, x: Tensor, compressed: bool, position: int) -> Tensor:
        return x


@mistake("rotation of half-split pairs")
class _HalfSplit(StepDecoder):
    def rotate(self, x: Tensor, compressed: bool, position: int) -> Tensor:
        return self._halves(x, *self.turn(compressed, position))

    def rotate_back(self, x: Tensor, compressed: bool, position: int) -> Tensor:
        cos, sin = self.turn(compressed, position)
        return self._halves(x, cos, -sin)

    def _halves(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        n = x.shape[-1] - self.c.qk_rope_head_dim
        a, b = x[..., n:].chunk(2, dim=-1)
        return torch.cat([x[..., :n], a * cos - b * sin, a * sin + b * cos], dim=-1)


@mistake("rotation of the leading elements")
class _Leading(StepDecoder):
    def rotate(self, x: Tensor, compressed: bool, position: int) -> Tensor:
        return self._swapped(super().rotate(self._swapped(x, True), compressed, position), False)

    def rotate_back(self, x: Tensor, compressed: bool, position: int) -> Tensor:
        turned = super().rotate_back(self._swapped(x, True), compressed, position)
        return self._swapped(turned, False)

    def _swapped(self, x: Tensor, leading_last: bool) -> Tensor:
        r = self.c.qk_rope_head_dim
        return x.roll(-r if leading_last else r, dims=-1)


@mistake("one theta for all layers")
class _OneTheta(StepDecoder):
    def frequencies(self, compressed: bool) -> F32:
        return super().frequencies(False)


@mistake("no YaRN")
class _NoYarn(StepDecoder):
    def frequencies(self, compressed: bool) -> F32:
        c = self.c
        theta = c.compress_rope_theta if compressed else c.rope_theta
        return plain_frequencies(c.qk_rope_head_dim, theta)


@mistake("YaRN factor on the magnitude")
class _Magnitude(StepDecoder):
    def turn(self, compressed: bool, position: int) -> tuple[Tensor, Tensor]:
        factor = 0.1 * math.log(self.c.yarn_factor) + 1 if compressed else 1.0
        cos, sin = super().turn(compressed, position)
        return cos * factor, sin * factor


@mistake("compressed row rotated like the last token of its group")
class _LastToken(StepDecoder):
    def row_position(self, ratio: int) -> int:
        return self.position


# -- compressor ----------------------------------------------------------------------------------


@mistake("halves of the overlap swapped")
class _Swapped(StepDecoder):
    def entries(self, comp: Compressor, rows: Tensor) -> Tensor:
        if not comp.overlaps:
            return super().entries(comp, rows)
        return super().entries(comp, torch.cat(rows.chunk(2, dim=-1)[::-1], dim=-1))


@mistake("group before never carried over")
class _NoCarry(StepDecoder):
    def entries(self, comp: Compressor, rows: Tensor) -> Tensor:
        return super().entries(comp, rows[:, -comp.ratio :])


@mistake("no offsets of the slots in a group")
class _NoApe(StepDecoder):
    def gate_score(self, comp: Compressor, x: Tensor) -> Tensor:
        return F.linear(x, comp.wgate.weight)


@mistake("one weight per pooled token, not per channel")
class _PerToken(StepDecoder):
    def pooled(self, values: Tensor, scores: Tensor) -> Tensor:
        return super().pooled(values, scores.mean(dim=-1, keepdim=True))


@mistake("dense row visible one token late")
class _Late(StepDecoder):
    def dense_count(self, ratio: int) -> int:
        return self.position // ratio


# -- rounding ------------------------------------------------------------------------------------


@mistake("no FP8 rounding of rows")
class _NoFp8(StepDecoder):
    def round_row(self, row: Tensor) -> Tensor:
        return row


@mistake("no FP4 rounding in the indexer")
class _NoFp4(StepDecoder):
    def round_index(self, x: Tensor) -> Tensor:
        return hadamard(x)


@mistake("no Hadamard transform")
class _NoHadamard(StepDecoder):
    def round_index(self, x: Tensor) -> Tensor:
        return fp4_round_trip(x)


@mistake("FP4 ties away from zero")
class _TiesAway(StepDecoder):
    def round_index(self, x: Tensor) -> Tensor:
        q, scale = scaled_blocks(hadamard(x), "fp4")
        size = q.abs()
        step = torch.where(size < 1.75, 0.5, torch.where(size < 3.5, 1.0, 2.0)).to(q.dtype)
        away = torch.copysign(torch.floor(size / step + 0.5) * step, q)
        return (away * scale).flatten(-2)


# -- mixers --------------------------------------------------------------------------------------


@mistake("stream mixing transposed")
class _Transposed(StepDecoder):
    def streams(self, x: Tensor, y: Tensor, mix: Mix) -> Tensor:
        return super().streams(x, y, dataclasses.replace(mix, comb=mix.comb.mT))


@mistake("Sinkhorn without eps")
class _NoEps(StepDecoder):
    def sinkhorn(self, comb: Tensor) -> Tensor:
        kept, self.c = self.c, dataclasses.replace(self.c, hc_eps=0.0)
        try:
            return super().sinkhorn(comb)
        finally:
            self.c = kept


for _n in (1, 3, 10, 19):
    with_config(f"Sinkhorn with {_n} passes", lambda c, n=_n: {"hc_sinkhorn_iters": n})


# -- attention -----------------------------------------------------------------------------------


@mistake("sink ignored")
class _NoSink(StepDecoder):
    def attend(self, q: Tensor, rows: Tensor, sink: Tensor) -> Tensor:
        return super().attend(q, rows, torch.full_like(sink, -math.inf))


@mistake("queries not normed per head")
class _NoHeadNorm(StepDecoder):
    def query(self, a: Attention, latent: Tensor) -> Tensor:
        return F.linear(latent, a.wq_b.weight).view(self.batch, self.c.n_heads, self.c.head_dim)


@mistake("output groups interleaved")
class _Interleaved(StepDecoder):
    def grouped_output(self, a: Attention, o: Tensor) -> Tensor:
        groups = self.c.o_groups
        mixed = o.view(self.batch, -1, groups, self.c.head_dim).transpose(1, 2)
        return super().grouped_output(a, mixed.reshape(o.shape))


with_config("index top-k one less", lambda c: {"index_topk": c.index_topk - 1})
with_config("index top-k unlimited", lambda c: {"index_topk": 1 << 20})
with_config("window one less", lambda c: {"sliding_window": c.sliding_window - 1})


@mistake("index scores not scaled")
class _Unscaled(StepDecoder):
    def best_rows(self, score: Tensor) -> Tensor:
        scale = self.c.index_head_dim**-0.5 * self.c.index_n_heads**-0.5
        return super().best_rows(score / scale)


# -- experts -------------------------------------------------------------------------------------


@mistake("router bias ignored")
class _NoBias(StepDecoder):
    def selection(self, moe: Moe, score: Tensor, tokens: Tensor) -> Tensor:
        return super().selection(moe, score, tokens) if moe.hashed else self.best_experts(score)


@mistake("weights from biased scores")
class _BiasedWeights(StepDecoder):
    def weights(self, moe: Moe, score: Tensor, ids: Tensor) -> Tensor:
        return super().weights(moe, score if moe.hashed else score + moe.gate.bias, ids)


@mistake("sigmoid scores")
class _Sigmoid(StepDecoder):
    def scores(self, logits: Tensor) -> Tensor:
        return torch.sigmoid(logits)


@mistake("scores without the square root")
class _NoRoot(StepDecoder):
    def scores(self, logits: Tensor) -> Tensor:
        return super().scores(logits).square()


@mistake("weights not normalized")
class _NotNormalized(StepDecoder):
    def weights(self, moe: Moe, score: Tensor, ids: Tensor) -> Tensor:
        return score.gather(1, ids) * self.c.routed_scaling_factor


@mistake("shared expert missing")
class _NoShared(StepDecoder):
    def shared(self, moe: Moe, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


@mistake("shared expert not clamped")
class _SharedFree(StepDecoder):
    def shared(self, moe: Moe, x: Tensor) -> Tensor:
        kept, self.c = self.c, dataclasses.replace(self.c, swiglu_limit=0.0)
        try:
            return super().shared(moe, x)
        finally:
            self.c = kept


@mistake("gate clamped below too")
class _GateBelow(StepDecoder):
    def activate(self, gate: Tensor, up: Tensor) -> Tensor:
        return super().activate(gate.clamp(min=-self.c.swiglu_limit), up)


@mistake("up clamped above only")
class _UpAbove(StepDecoder):
    def activate(self, gate: Tensor, up: Tensor) -> Tensor:
        limit = self.c.swiglu_limit
        return F.silu(gate.clamp(max=limit)) * up.clamp(max=limit)


@mistake("clamp behind silu")
class _ClampLate(StepDecoder):
    def activate(self, gate: Tensor, up: Tensor) -> Tensor:
        limit = self.c.swiglu_limit
        return F.silu(gate).clamp(max=limit) * up.clamp(-limit, limit)


@mistake("expert weight after w2")
class _WeightLate(StepDecoder):
    def expert(self, x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, weight: Tensor) -> Tensor:
        return weight * super().expert(x, w1, w2, w3, torch.ones_like(weight))


@mistake("hashed layer routed by score")
class _Unhashed(StepDecoder):
    def selection(self, moe: Moe, score: Tensor, tokens: Tensor) -> Tensor:
        return self.best_experts(score) if moe.hashed else super().selection(moe, score, tokens)


with_config("route scale 1", lambda c: {"routed_scaling_factor": 1.0})
with_config("no clamp of the experts", lambda c: {"swiglu_limit": 0.0})
with_config("eps of the norms ten times too large", lambda c: {"rms_norm_eps": 10 * c.rms_norm_eps})


# -- the table ---------------------------------------------------------------------------------


def survey(golden: Golden, names: list[str]) -> list[dict[str, Any]]:
    """Every mistake with what noticed it, and whether that is as it should be."""
    rows = []
    for name in names:
        where = golden.find_difference(MISTAKES[name])
        expected = applies(name, golden.model)
        fine = (where is None) if name in INVISIBLE else (where is not None or not expected)
        silent = "not noticed" if expected else "does not apply here"
        note = where or INVISIBLE.get(name) or silent
        rows.append({"mistake": name, "noticed": where is not None, "where": note, "ok": fine})
    return rows


def applies(name: str, model: Dsv4Model) -> bool:
    """Whether the mistake changes anything in a model of this config."""
    c = model.config
    ratios = [c.ratio(i) for i in range(c.n_layers)]
    if "dense" in name:
        return any(r not in (0, OVERLAPPED) for r in ratios)
    if "passes" in name:
        return not name.endswith(f" {c.hc_sinkhorn_iters} passes")
    if name == "hashed layer routed by score":
        return c.num_hash_layers > 0
    return True


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="nano.dsv4.mutations", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=Path, help="model.bin and golden.bin")
    p.add_argument("--only", action="append", choices=tuple(MISTAKES), help="may be repeated")
    p.add_argument("--json", type=Path, help="write the table here")
    args = p.parse_args(argv)
    torch.set_num_threads(1)  # one token at a time: threads would only wait for each other
    try:
        golden = Golden.load(args.folder)
    except (ValueError, KeyError) as err:
        print(f"nano.dsv4.mutations: {err}", file=sys.stderr)
        return 65
    true = golden.find_difference(names=None)
    if true is not None:
        print(f"the model itself differs from its golden at {true}", file=sys.stderr)
        return 1
    rows = survey(golden, args.only or list(MISTAKES))
    for row in rows:
        print(f"{'ok' if row['ok'] else 'MISSED':6} {row['mistake']:58} {row['where']}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(row["ok"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
