"""Writes a checkpoint as a `.bin` model that the engine runs.

Routed experts become MXFP4; everything else (the spine) stays f32 or, with `--spine bf16`, its
large matrices become bf16.  A vocabulary given with `--vocab` is placed beside the model, under the
model's name, where the engine looks for it.

Exit codes: 0 written, 64 usage, 65 bad data, 66 missing input, 74 disk.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nano import bpe, mxfp4
from nano.arch import Config, config_from_json, expert_count, model_tensors
from nano.checkpoint import EMA, MODEL, Checkpoint, CheckpointError, open_checkpoint
from nano.config import K3Config
from nano.dsv4 import tokenizer as dsv4
from nano.dsv4.config import Dsv4Config
from nano.files import sha256_of, write_atomic, write_json
from nano.mkim import EXTENDED_FORMAT, DType, MkimError
from nano.mkim_writer import MkimWriter, Spec
from nano.safetensors_stream import TensorSource
from nano.tensors import EXPERT_NAME, Tensor, stack_of

IMPORTED = "imported"  # key of state.json: the weights came out of a `.bin` and were not trained on


@dataclass(frozen=True)
class ExportOptions:
    weights: str = "auto"  # "model", "ema"; auto = ema when the checkpoint has one
    spine: str = "f32"  # or "bf16"
    search: bool = True  # exponent with the smaller squared error, not just the smallest
    fold_a_log: bool = False  # put the decay rates into f_b_proj and dt_bias
    expert_align: int = 64  # bytes; start of each expert's record


class Weights:
    """Tensors of a checkpoint under the names of the `.bin` format, checked against the config."""

    def __init__(self, path: Path, config: Config) -> None:
        self.config = config
        self.source = TensorSource(path)
        self._stack: tuple[str, NDArray[Any]] | None = None

    def get(self, tensor: Tensor) -> NDArray[Any]:
        """f32 (i32 for tables) in the dims of `tensor`.

        Convolutions may come as [P, 1, taps], rows as [1, d].
        """
        name, index = self._find(tensor.name)
        values = self._stacked(name)[index] if index is not None else self.source.get(name)
        if values.size != tensor.elements:
            raise MkimError(
                f"{self.source.path}: {name} is {list(values.shape)}, "
                f"the config calls for {list(tensor.dims)}"
            )
        return values.reshape(tensor.dims)

    def _find(self, name: str) -> tuple[str, int | None]:
        """Name in the checkpoint and, for a stack of experts, the index in it."""
        match = EXPERT_NAME.fullmatch(name)
        candidates = [name]
        if match:
            stack = stack_of(name)
            if stack in self.source.names:
                return stack, int(match[2])
            candidates = [f"{name}.weight", name]
        for candidate in candidates:
            if candidate in self.source.names:
                return candidate, None
        raise MkimError(f"{self.source.path}: the tensor {name} is missing")

    def _stacked(self, name: str) -> NDArray[Any]:
        if self._stack is None or self._stack[0] != name:
            stack = self.source.get(name)
            if stack.ndim != 3 or stack.shape[0] != expert_count(self.config):
                raise MkimError(
                    f"{self.source.path}: {name} is {list(stack.shape)}, not a stack of "
                    f"{expert_count(self.config)} matrices"
                )
            self._stack = (name, stack)
        return self._stack[1]


def tensor_type(tensor: Tensor, spine: str) -> DType:
    if tensor.expert:
        return DType.MXFP4
    if tensor.integer:
        return DType.I32
    return DType.BF16 if spine == "bf16" and tensor.is_spine_matrix else DType.F32


def fold_decay(
    config: K3Config, a_log: NDArray[Any], f_b: NDArray[Any], dt: NDArray[Any]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """f_b_proj [P, fa] and dt_bias [P] with the decay rates multiplied in.

    The decay is lower_bound * sigmoid(exp(A) * (f_b y + dt)), so exp(A) can scale the rows; with
    A = 0 a reader that takes A per head and one that takes it per channel agree.
    """
    rate = np.exp(a_log.astype(np.float64).reshape(-1))
    heads, dim = config.kda_heads, config.kda_dim
    rows = np.repeat(rate, dim) if config.kda_a_log == "head" else np.tile(rate, heads)
    return (f_b * rows[:, None]).astype(np.float32), (dt * rows).astype(np.float32)


class Exporter:
    """One export; `run` does the work and returns the report."""

    def __init__(
        self, source: Checkpoint, out: Path, options: ExportOptions, vocab: Path | None = None
    ) -> None:
        if "heal" in source.state:
            raise CheckpointError(f"{source.path} holds adapters only; use nano.merge")
        self.source, self.out, self.options, self.vocab = source, out, options, vocab
        self.weights_path = self._choose_weights()
        self.weights = Weights(self.weights_path, source.config)
        self._error = self._norm = 0.0  # of the experts: squared rounding error, squared weight

    def _choose_weights(self) -> Path:
        ema, model = self.source.path / EMA, self.source.path / MODEL
        if self.options.weights == "auto":
            return ema if ema.is_file() else model
        chosen = ema if self.options.weights == "ema" else model
        if not chosen.is_file():
            raise CheckpointError(f"{chosen} does not exist; use --weights auto")
        return chosen

    def run(self) -> dict[str, Any]:
        config = config_from_json(self.source.config.to_json())
        if self.vocab is not None:
            apply_vocabulary(config, self.vocab)
        if self.options.fold_a_log and isinstance(config, K3Config):
            config.kda_a_log = "channel"
        config.format = EXTENDED_FORMAT if self.options.spine == "bf16" else 2
        if not self.source.state.get(IMPORTED) or "provenance" not in config.extra:
            config.extra["provenance"] = self._provenance()
        tensors = list(model_tensors(config))
        specs = [Spec(t.name, tensor_type(t, self.options.spine), t.dims) for t in tensors]
        with MkimWriter(self.out, config.to_json(), specs, self.options.expert_align) as writer:
            for tensor, values in self._values(tensors):
                self._write(writer, tensor, values)
            writer.commit()
        files = [self.out]
        if self.vocab is not None:
            files += place_vocabulary(self.vocab, self.out)
        return self._report(files, len(specs))

    def _values(self, tensors: list[Tensor]) -> Iterator[tuple[Tensor, NDArray[np.float32]]]:
        folds = self.options.fold_a_log and isinstance(self.source.config, K3Config)
        folded = self._folded() if folds else {}
        for tensor in tensors:
            ready = folded.get(tensor.name)
            yield tensor, ready if ready is not None else self.weights.get(tensor)

    def _folded(self) -> dict[str, NDArray[np.float32]]:
        """The three decay tensors of every KDA layer, rates multiplied in."""
        config = self.source.config
        assert isinstance(config, K3Config)
        by_name = {t.name: t for t in model_tensors(config) if not t.expert}
        out = {}
        for name in [name for name in by_name if name.endswith(".A_log")]:
            prefix = name.removesuffix("A_log")
            f_b, dt = f"{prefix}f_b_proj.weight", f"{prefix}dt_bias"
            a_log, f_b_values, dt_values = (self.weights.get(by_name[n]) for n in (name, f_b, dt))
            out[f_b], out[dt] = fold_decay(config, a_log, f_b_values, dt_values)
            out[name] = np.zeros(config.kda_dim, np.float32)
        return out

    def _write(self, writer: MkimWriter, tensor: Tensor, values: NDArray[np.float32]) -> None:
        if not tensor.expert:
            writer.write(tensor.name, values)
            return
        try:
            blob = mxfp4.encode(values, self.options.search)
        except mxfp4.Mxfp4Error as err:
            raise MkimError(f"{self.weights_path}: {tensor.name}: {err}") from err
        writer.write_blob(tensor.name, blob)
        error = (mxfp4.decode(blob, *tensor.dims) - values).astype(np.float64)
        self._error += float((error * error).sum())
        self._norm += float((values.astype(np.float64) ** 2).sum())

    def _provenance(self) -> dict[str, Any]:
        train = self.source.state.get("train", {})
        return {
            "weights_sha256": sha256_of(self.weights_path),
            "weights": "ema" if self.weights_path.name == EMA else "model",
            "step": self.source.state.get("step"),
            "tokens": self.source.state.get("tokens"),
            "seed": train.get("seed"),
            "quantiser": "mxfp4-searched" if self.options.search else "mxfp4-simple",
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        }

    def _report(self, files: list[Path], tensors: int) -> dict[str, Any]:
        return {
            "model": str(self.out),
            "bytes": self.out.stat().st_size,
            "tensors": tensors,
            "weights": str(self.weights_path),
            "expert_relative_error": (self._error / self._norm) ** 0.5 if self._norm else 0.0,
            "files": [str(path) for path in files],
            "sha256": sha256_of(self.out),
        }


def export(
    checkpoint: Path, out: Path, options: ExportOptions | None = None, vocab: Path | None = None
) -> dict[str, Any]:
    """Exports a checkpoint directory (or the latest one of a run) to `out`; returns the report."""
    return Exporter(open_checkpoint(checkpoint), out, options or ExportOptions(), vocab).run()


# -- vocabulary files ----------------------------------------------------------------------------


def read_vocabulary(path: Path) -> dict[str, Any]:
    try:
        vocab = json.loads(path.read_text(encoding="utf-8"))
        {str(k): int(v) for k, v in vocab["specials"].items()}
        len(vocab["nano_to_kimi"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as err:
        raise bpe.VocabError(f"{path}: not a vocabulary file: {err!r}") from err
    if "base" in vocab:
        bpe.load_tokenizer(path)  # checks the rank file and its digest too
    return vocab


def apply_vocabulary(config: Config, path: Path) -> None:
    """Takes the special ids and the label from the vocabulary; sizes must agree."""
    if path.name.endswith(dsv4.SUFFIX):
        _apply_tokenizer_json(config, path)
        return
    vocab = read_vocabulary(path)
    size = int(vocab.get("vocab_size", len(vocab["nano_to_kimi"]) + 8))
    if size != config.vocab:
        raise bpe.VocabError(f"{path}: {size} tokens, but the model has {config.vocab}")
    config.specials = {str(k): int(v) for k, v in vocab["specials"].items()}
    config.tokenizer = str(vocab.get("format", bpe.REMAP_FORMAT))
    config.validate()


def _apply_tokenizer_json(config: Config, path: Path) -> None:
    tokenizer = dsv4.Tokenizer(path)
    if not isinstance(config, Dsv4Config):
        raise bpe.VocabError(f"{path}: a tokenizer.json is for DeepSeek-V4 models only")
    if tokenizer.vocab_size != config.vocab:
        raise bpe.VocabError(
            f"{path}: {tokenizer.vocab_size} tokens, but the model has {config.vocab}"
        )
    config.specials = dict(tokenizer.specials)
    config.tokenizer = "tokenizer.json"


def place_vocabulary(source: Path, model: Path) -> list[Path]:
    """Copies the vocabulary, and its rank file if it has one, beside the model under its stem."""
    if source.name.endswith(dsv4.SUFFIX):
        target = model.with_name(model.stem + dsv4.SUFFIX)
        write_atomic(target, source.read_bytes())
        return [target]
    vocab = read_vocabulary(source)
    placed = []
    if "base" in vocab:
        ranks = model.with_suffix(".tiktoken")
        data = (source.parent / vocab["base"]).read_bytes()
        write_atomic(ranks, data)
        vocab["base"] = ranks.name
        placed.append(ranks)
    target = model.with_suffix(".vocab.json")
    write_atomic(target, (json.dumps(vocab) + "\n").encode())
    return [target, *placed]


# -- command -------------------------------------------------------------------------------------


def parse(argv: list[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="nano.export", description="Write a checkpoint as a .bin.")
    p.add_argument("--ckpt", type=Path, required=True, help="checkpoint or run directory")
    p.add_argument("--out", type=Path, required=True, help="model file to write, ends in .bin")
    p.add_argument("--vocab", type=Path, help="vocabulary JSON to place beside the model")
    p.add_argument("--weights", choices=("auto", "model", "ema"), default="auto",
                   help="auto: the averaged weights when there are any")
    p.add_argument("--spine", choices=("f32", "bf16"), default="f32",
                   help="type of the matrices outside the routed experts")
    p.add_argument("--quant", choices=("searched", "simple"), default="searched",
                   help="how the MXFP4 exponents are chosen")
    p.add_argument("--a-log", choices=("keep", "fold"), default="keep",
                   help="fold: multiply the decay rates into f_b_proj and dt_bias")
    p.add_argument("--expert-align", type=int, choices=(64, 4096), default=64)
    p.add_argument("--json", type=Path, help="write a machine-readable result here")
    args = p.parse_args(argv)
    if args.out.suffix != ".bin":
        p.error("--out must end in .bin: the engine finds the vocabulary by that name")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    options = ExportOptions(args.weights, args.spine, args.quant == "searched",
                            args.a_log == "fold", args.expert_align)
    try:
        report = export(args.ckpt, args.out, options, args.vocab)
        if args.json:
            write_json(args.json, report)
    except FileNotFoundError as err:
        code, message = 66, str(err)
    except CheckpointError as err:
        code, message = (66 if not args.ckpt.exists() else 65), str(err)
    except ValueError as err:
        code, message = 65, str(err)
    except OSError as err:
        code, message = 74, str(err)
    else:
        print(f"{report['model']}: {report['bytes']} bytes, experts rounded by "
              f"{100 * report['expert_relative_error']:.2f} %", file=sys.stderr)
        return 0
    print(f"nano.export: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
