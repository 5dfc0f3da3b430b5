"""Turns a `.bin` model back into a checkpoint that training can start from.

Every f32 tensor keeps its values, experts are decoded to f32 and stacked per layer.  There is no
optimizer state: use the result with `nano.train --init` or `nano.export --ckpt`.  Tensors are
streamed, so memory stays at one expert or one spine tensor.

Exit codes: 0 written, 64 usage, 65 bad data, 66 missing input, 74 disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nano.checkpoint import MODEL
from nano.config import K3Config
from nano.export import IMPORTED
from nano.files import sha256_of, sync_directory, write_json
from nano.mkim import MkimError, MkimFile
from nano.safetensors_stream import SafetensorsWriter
from nano.tensors import (
    EXPERT_PARTS,
    Tensor,
    expert_dims,
    expert_name,
    k3_tensors,
    stack_name,
)

Declared = tuple[str, str, tuple[int, ...]]


def spine_tensors(config: K3Config) -> Iterator[Tensor]:
    return (tensor for tensor in k3_tensors(config) if not tensor.expert)


def stacks(config: K3Config) -> Iterator[tuple[int, str]]:
    """(layer, part) of every stack of routed experts."""
    for layer in range(config.n_layers):
        if not config.is_dense(layer):
            for part in EXPERT_PARTS:
                yield layer, part


def read_stack(model: MkimFile, config: K3Config, layer: int, part: str) -> NDArray[np.float32]:
    """[E, rows, cols] of one part of a layer's experts, decoded."""
    names = (expert_name(layer, e, part) for e in range(config.n_experts))
    return np.stack([model.read(name) for name in names])


def read_state(model: MkimFile) -> dict[str, NDArray[np.float32]]:
    """The whole state dict of the model, decoded, for models that fit in memory."""
    config = model.k3()
    state = {t.name: model.read(t.name).reshape(t.dims) for t in spine_tensors(config)}
    for layer, part in stacks(config):
        state[stack_name(layer, part)] = read_stack(model, config, layer, part)
    return state


def _declare(config: K3Config) -> list[Declared]:
    out: list[Declared] = [(t.name, "F32", t.dims) for t in spine_tensors(config)]
    for layer, part in stacks(config):
        shape = (config.n_experts, *expert_dims(config, part))
        out.append((stack_name(layer, part), "F32", shape))
    return out


def _stream(model: MkimFile, config: K3Config, path: Path) -> None:
    writer = SafetensorsWriter(path, _declare(config))
    for tensor in spine_tensors(config):
        writer.write(model.read(tensor.name))
    for layer, part in stacks(config):
        for e in range(config.n_experts):
            writer.write(model.read(expert_name(layer, e, part)))
    writer.close()


def import_model(source: Path, out: Path) -> dict[str, Any]:
    """Writes the checkpoint directory `out`, which must not exist; returns a report."""
    if out.exists():
        raise MkimError(f"{out} exists already; choose another directory")
    temporary = out.with_name(f".tmp-{out.name}-{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    with MkimFile(source) as model:
        config = model.k3()
        digest = sha256_of(source)
        temporary.mkdir(parents=True)
        try:
            _stream(model, config, temporary / MODEL)
            (temporary / "config.json").write_text(json.dumps(config.to_json(), indent=1))
            state = {"step": 0, IMPORTED: {"name": source.name, "sha256": digest}}
            write_json(temporary / "state.json", state)
            sync_directory(temporary)
            temporary.rename(out)
            sync_directory(out.resolve().parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return {
            "checkpoint": str(out), "source_sha256": digest, "tensors": len(_declare(config)),
            "warnings": model.warnings,
        }


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="nano.bin2pt", description="Read a .bin as a checkpoint.")
    p.add_argument("model", type=Path, help="the .bin file")
    p.add_argument("--out", type=Path, required=True, help="checkpoint directory to create")
    p.add_argument("--json", type=Path, help="write a machine-readable result here")
    args = p.parse_args(argv)
    if not args.model.is_file():
        print(f"nano.bin2pt: {args.model}: no such file", file=sys.stderr)
        return 66
    try:
        report = import_model(args.model, args.out)
        if args.json:
            write_json(args.json, report)
    except ValueError as err:
        print(f"nano.bin2pt: {err}", file=sys.stderr)
        return 65
    except OSError as err:
        print(f"nano.bin2pt: {err}", file=sys.stderr)
        return 74
    for warning in report["warnings"]:
        print(f"nano.bin2pt: warning: {warning}", file=sys.stderr)
    print(f"{args.out}: {report['tensors']} tensors", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
