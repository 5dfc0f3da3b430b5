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

from nano.arch import Config, model_tensors
from nano.checkpoint import MODEL
from nano.export import IMPORTED
from nano.files import sha256_of, sync_directory, write_json
from nano.mkim import MkimError, MkimFile
from nano.safetensors_stream import SafetensorsWriter
from nano.tensors import Tensor, stack_of

Declared = tuple[str, str, tuple[int, ...]]


def spine_tensors(config: Config) -> Iterator[Tensor]:
    return (tensor for tensor in model_tensors(config) if not tensor.expert)


def stacks(config: Config) -> dict[str, list[Tensor]]:
    """The matrices of every stack of routed experts, by expert."""
    out: dict[str, list[Tensor]] = {}
    for tensor in model_tensors(config):
        if tensor.expert:
            out.setdefault(stack_of(tensor.name), []).append(tensor)
    return out


def read_state(model: MkimFile) -> dict[str, NDArray[Any]]:
    """The whole state dict of the model, decoded, for models that fit in memory."""
    config = model.model_config()
    state = {t.name: model.read(t.name).reshape(t.dims) for t in spine_tensors(config)}
    for name, members in stacks(config).items():
        state[name] = np.stack([model.read(t.name) for t in members])
    return state


def _declare(config: Config) -> list[Declared]:
    out: list[Declared] = [
        (t.name, "I32" if t.integer else "F32", t.dims) for t in spine_tensors(config)
    ]
    for name, members in stacks(config).items():
        out.append((name, "F32", (len(members), *members[0].dims)))
    return out


def _stream(model: MkimFile, config: Config, path: Path) -> None:
    writer = SafetensorsWriter(path, _declare(config))
    for tensor in spine_tensors(config):
        writer.write(model.read(tensor.name))
    for members in stacks(config).values():
        for tensor in members:
            writer.write(model.read(tensor.name))
    writer.close()


def import_model(source: Path, out: Path) -> dict[str, Any]:
    """Writes the checkpoint directory `out`, which must not exist; returns a report."""
    if out.exists():
        raise MkimError(f"{out} exists already; choose another directory")
    temporary = out.with_name(f".tmp-{out.name}-{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    with MkimFile(source) as model:
        config = model.model_config()
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
