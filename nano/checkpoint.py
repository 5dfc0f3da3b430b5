"""Checkpoints: a directory per step, complete or absent.

`ckpt-%08d/` holds
    model.safetensors   parameters and router biases, under the names of the `.bin` format with
                        stacked experts
    ema.safetensors     the averaged parameters, if averaging is on (biases as in the model)
    optim.safetensors   optimizer state by parameter name
    config.json         the model config
    state.json          step, tokens, sampler position, progress, arguments, data fingerprints
It is written under a temporary name, synced and renamed; `latest` is a symbolic link.
Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from nano.arch import Config, load_config
from nano.files import sync_directory

PREFIX = "ckpt-"
MODEL, EMA, OPTIM = "model.safetensors", "ema.safetensors", "optim.safetensors"


class CheckpointError(ValueError):
    """A checkpoint that is missing, incomplete or of another run."""


@dataclass
class Checkpoint:
    path: Path
    config: Config
    state: dict[str, Any]

    def model(self) -> dict[str, Tensor]:
        return _load(self.path / MODEL)

    def optim(self) -> dict[str, Tensor]:
        return _load(self.path / OPTIM)

    def ema(self) -> dict[str, Tensor] | None:
        path = self.path / EMA
        return _load(path) if path.is_file() else None


def _load(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except Exception as err:  # safetensors raises its own type
        raise CheckpointError(f"{path}: {err}") from err


def save(
    run: Path, step: int, config: Config, state: dict[str, Any],
    model: dict[str, Tensor], optim: dict[str, Tensor], ema: dict[str, Tensor] | None,
) -> Path:
    """Writes `ckpt-<step>` and points `latest` at it."""
    final = run / f"{PREFIX}{step:08d}"
    temporary = run / f".tmp-{step:08d}-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    for name, tensors in ((MODEL, model), (OPTIM, optim), (EMA, ema)):
        if tensors is not None:
            save_file({k: t.detach().contiguous() for k, t in tensors.items()}, temporary / name)
    (temporary / "config.json").write_text(json.dumps(config.to_json(), indent=1))
    (temporary / "state.json").write_text(json.dumps(state, indent=1))
    for item in temporary.iterdir():
        _sync(item)
    sync_directory(temporary)
    if final.exists():
        shutil.rmtree(final)
    temporary.rename(final)
    sync_directory(run)
    _point(run, "latest", final.name)
    return final


def _sync(path: Path) -> None:
    with path.open("rb") as handle:
        os.fsync(handle.fileno())


def _point(run: Path, link: str, target: str) -> None:
    temporary = run / f".{link}.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    temporary.replace(run / link)


def mark_best(run: Path, path: Path) -> None:
    """Points `best` at the checkpoint with the lowest held-out loss; pruning spares it."""
    _point(run, "best", path.name)


def prune(run: Path, keep: int) -> None:
    """Deletes all but the `keep` newest checkpoints and the best one; removes left-over parts."""
    spared = {p.resolve().name for p in (run / "latest", run / "best") if p.exists()}
    found = sorted(p for p in run.glob(f"{PREFIX}*") if p.is_dir())
    for path in found[: max(0, len(found) - keep)]:
        if path.name not in spared:
            shutil.rmtree(path)
    for path in run.glob(".tmp-*"):
        shutil.rmtree(path, ignore_errors=True)


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens a checkpoint directory, or the latest one of a run directory."""
    if (path / "latest").exists():
        path = path / "latest"
    try:
        state = json.loads((path / "state.json").read_text())
        config = load_config(path / "config.json")
    except FileNotFoundError as err:
        raise CheckpointError(f"{path}: no complete checkpoint here") from err
    except ValueError as err:
        raise CheckpointError(f"{path}: {err}") from err
    return Checkpoint(path.resolve(), config, state)


def load_into(target: dict[str, Tensor], source: dict[str, Tensor], what: str) -> None:
    """Copies tensors by name; names and shapes must agree exactly."""
    if set(target) != set(source):
        odd = sorted(set(target) ^ set(source))[:3]
        raise CheckpointError(f"{what}: tensors differ from the config's model: {', '.join(odd)}")
    for name, t in target.items():
        if t.shape != source[name].shape:
            raise CheckpointError(
                f"{what}: {name} is {tuple(source[name].shape)}, expected {tuple(t.shape)}"
            )
        t.data.copy_(source[name])
