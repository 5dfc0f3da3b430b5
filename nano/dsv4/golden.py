"""Recorded values of a certified random model: `python -m nano.dsv4.golden --model a --out DIR`.

The model is run token by token in f64, which gives the values, and in f32.  A seed is certified
when both agree to 5e-6 at every position and layer and in every selection: then no rounding and
no choice sits on an edge, and a correct engine can be held to a strict limit.  Seeds are tried
from --seed on.

Writes `model.bin`, `golden.bin` and `exact.bin`, the outputs of layers and sublayers without the
rounding of activations: it tells a wrong structure from a wrong rounding at a glance.

Goldens are containers like the model; their config holds the tokens and positions.  Names:
`p<position>/l<layer>/<value>` f32; `all/l<layer>/moe.sel` [T, k] and `all/l<layer>/idx.sel`
[T, index_topk] i32, ascending in idx.sel and padded with -1; `all/top` [T, 16] the ids of the
largest logits.  What belongs to no layer is under layer `n_layers`.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nano.dsv4.config import OVERLAPPED, Dsv4Config
from nano.dsv4.decode import StepDecoder
from nano.dsv4.model import Dsv4Model
from nano.dsv4.random_model import (
    RECIPES,
    Recipe,
    as_model,
    random_state,
    token_ids,
    write_model,
)
from nano.dsv4.rounding import e2m1_step, e4m3_step, hadamard, scaled_blocks
from nano.files import sha256_of
from nano.mkim import DType
from nano.mkim_writer import MkimWriter, Spec

ARCH = "dsv4_golden"
CERTIFIED = 5e-6  # largest difference between the f64 and the f32 run
LIMIT = 1e-5  # what an engine may differ
TOP = 16
POSITIONS = (0, 1, 2, 3, 4, 7, 8, 11, 63, 64, 126, 127, 128, 129, 191, 192, 254, 255, 256, 299)
SELECTIONS = ("moe.sel", "idx.sel")
OUTPUTS = ("attn.y", "moe.y", "X", "logits")
MAX_SEEDS = 50


class Watched(StepDecoder):
    """Also finds how near a choice or a rounding came to going the other way.

    Margins: router and index in units of the scores, rounding in units of the quantizer's step.
    """

    def __init__(self, model: Dsv4Model, observe: Any) -> None:
        super().__init__(model, 1, observe)
        self.margin = {"router": np.inf, "index": np.inf, "rounding": np.inf}

    def _note(self, kind: str, value: Tensor) -> None:
        if value.numel():
            self.margin[kind] = min(self.margin[kind], float(value.min()))

    def round_row(self, row: Tensor) -> Tensor:
        if self.c.act_qat:
            plain = row[..., : self.c.plain_width]
            self._note("rounding", _to_boundary(*scaled_blocks(plain, "fp8"), e4m3_step))
        return super().round_row(row)

    def round_index(self, x: Tensor) -> Tensor:
        if self.c.act_qat:
            turned = hadamard(x)
            self._note("rounding", _to_boundary(*scaled_blocks(turned, "fp4"), e2m1_step))
        return super().round_index(x)

    def best_experts(self, key: Tensor) -> Tensor:
        best = key.sort(dim=1, descending=True).values
        k = self.c.num_experts_per_tok
        self._note("router", (best[:, :-1] - best[:, 1:])[:, : k])
        return super().best_experts(key)

    def best_rows(self, score: Tensor) -> Tensor:
        k = self.c.index_topk
        if score.shape[1] > k:
            best = score.sort(dim=1, descending=True).values
            gap = best[:, k - 1] - best[:, k]
            self._note("index", gap[gap > 0])  # equal scores are decided by the row number
        return super().best_rows(score)


def _to_boundary(q: Tensor, scale: Tensor, step: Any) -> Tensor:
    """Distance of q from the middle between two codes, in steps."""
    place = (q / step(q)).abs()
    return (place - place.floor() - 0.5).abs()


@dataclass
class Record:
    """A run of one sequence: every value by (position, layer, name)."""

    config: Dsv4Config
    values: list[dict[tuple[int, str], Tensor]] = field(default_factory=list)
    margin: dict[str, float] = field(default_factory=dict)

    def logits(self, position: int) -> Tensor:
        return self.values[position][self.config.n_layers, "logits"]


def record(model: Dsv4Model, ids: list[int]) -> Record:
    out = Record(model.config)
    decoder = Watched(model, lambda layer, name, v: out.values[-1].__setitem__((layer, name), v[0]))
    for token in ids:
        out.values.append({})
        decoder.step(torch.tensor([token]))
    out.margin = {k: v for k, v in decoder.margin.items() if np.isfinite(v)}
    return out


def disagreement(a: Record, b: Record) -> str | None:
    """First reason why two runs differ by more than CERTIFIED."""
    for p, (mine, other) in enumerate(zip(a.values, b.values, strict=True)):
        for key, value in mine.items():
            if key[1] in SELECTIONS and not torch.equal(value, other[key]):
                return f"position {p}, layer {key[0]}: {key[1]} differs"
            if key[1] in ("X", "logits"):
                worst = float((value.double() - other[key].double()).abs().max())
                if worst > CERTIFIED:
                    return f"position {p}, layer {key[0]}: {key[1]} differs by {worst:.1e}"
        tops = [set(r.logits(p).topk(TOP).indices.tolist()) for r in (a, b)]
        if tops[0] != tops[1]:
            return f"position {p}: the {TOP} largest logits differ"
    return None


@dataclass
class Certified:
    """A model whose recorded values do not hang on the last bits of the arithmetic."""

    recipe: Recipe
    config: Dsv4Config
    seed: int
    state: dict[str, NDArray[Any]]
    ids: list[int]
    golden: Record
    exact: Record  # without the rounding of activations


def certify(recipe: Recipe, first_seed: int = 1) -> Certified:
    config = Dsv4Config.from_json(recipe.config)
    for seed in range(first_seed, first_seed + MAX_SEEDS):
        state = random_state(recipe, config, seed)
        ids = token_ids(recipe, config, seed)
        golden = record(as_model(config, state).double(), ids)
        why = disagreement(golden, record(as_model(config, state), ids))
        if why is None:
            plain = dataclasses.replace(config, act_qat=False)
            exact = record(as_model(plain, state).double(), ids)
            return Certified(recipe, config, seed, state, ids, golden, exact)
        print(f"seed {seed}: {why}", file=sys.stderr)
    raise RuntimeError(f"none of {MAX_SEEDS} seeds can be certified")


# -- files ---------------------------------------------------------------------------------------


def golden_tensors(run: Record, recipe: Recipe, positions: list[int]) -> dict[str, NDArray[Any]]:
    """Every value at `positions`; of a run without rounding only the outputs."""
    c = run.config
    layers = {*(recipe.layers or range(c.n_layers)), c.n_layers}
    out: dict[str, NDArray[Any]] = {}
    for p in positions:
        for (layer, name), value in run.values[p].items():
            if name in SELECTIONS or (name not in OUTPUTS and not c.act_qat):
                continue
            if layer in layers and value.numel():
                out[f"p{p}/l{layer}/{name}"] = value.to(torch.float32).numpy()
    for layer in range(c.n_layers):
        out[f"all/l{layer}/moe.sel"] = _padded(run, layer, "moe.sel", c.num_experts_per_tok)
        if c.ratio(layer) == OVERLAPPED:
            out[f"all/l{layer}/idx.sel"] = _padded(run, layer, "idx.sel", c.index_topk)
    tops = [run.logits(p).topk(TOP).indices for p in range(len(run.values))]
    out["all/top"] = torch.stack(tops).to(torch.int32).numpy()
    return out


def _padded(run: Record, layer: int, name: str, width: int) -> NDArray[np.int32]:
    table = np.full((len(run.values), width), -1, np.int32)
    for p, values in enumerate(run.values):
        if (layer, name) in values:
            picked = values[layer, name].numpy()
            table[p, : len(picked)] = picked
    return table


def write_golden(path: Path, found: Certified, run: Record, model_sha256: str) -> None:
    positions = [p for p in POSITIONS if p < len(found.ids)]
    tensors = golden_tensors(run, found.recipe, positions)
    config = {
        "arch": ARCH, "model_sha256": model_sha256, "seed": found.seed, "tokens": found.ids,
        "positions": positions, "act_qat": run.config.act_qat, "limit": LIMIT,
        "certified": CERTIFIED, "margin": run.margin, "n_layers": run.config.n_layers,
    }
    specs = [
        Spec(name, DType.I32 if v.dtype == np.int32 else DType.F32, v.shape)
        for name, v in tensors.items()
    ]
    with MkimWriter(path, config, specs, model_checks=False) as writer:
        for name, values in tensors.items():
            writer.write(name, values)
        writer.commit()


def write_all(out: Path, found: Certified) -> None:
    out.mkdir(parents=True, exist_ok=True)
    write_model(out / "model.bin", found.config, found.state)
    digest = sha256_of(out / "model.bin")
    write_golden(out / "golden.bin", found, found.golden, digest)
    write_golden(out / "exact.bin", found, found.exact, digest)


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="nano.dsv4.golden", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", choices=tuple(RECIPES), required=True)
    p.add_argument("--out", type=Path, required=True, help="folder for the three files")
    p.add_argument("--seed", type=int, default=1, help="first seed to try")
    args = p.parse_args(argv)
    torch.set_num_threads(1)  # one token at a time: threads would only wait for each other
    try:
        found = certify(RECIPES[args.model], args.seed)
        write_all(args.out, found)
    except RuntimeError as err:
        print(f"nano.dsv4.golden: {err}", file=sys.stderr)
        return 65
    except OSError as err:
        print(f"nano.dsv4.golden: {err}", file=sys.stderr)
        return 74
    margin = ", ".join(f"{k} {v:.1e}" for k, v in found.golden.margin.items())
    print(f"{args.out}: seed {found.seed}, {len(found.ids)} positions; smallest margins: {margin}",
          file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
