"""Merges a healing checkpoint into a copy of its base `.bin`.

Corrected tensors are patched in place, everything else is copied byte for byte; only the recorded
content digest follows.  A trained seam adapter cannot be merged exactly and is refused unless
`--force-seam-fold` accepts the approximation, whose effect on the logits is then measured.

Exit codes: 0 written, 64 usage, 65 bad data, 66 missing input, 74 disk, 76 checkpoint of another
base.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nano import lora, seam
from nano.checkpoint import Checkpoint, CheckpointError, open_checkpoint
from nano.files import sha256_of, sync_directory, write_json
from nano.heal import HealConfig, attach_all, heal_state
from nano.lora import LoraSpec
from nano.mkim import DType, MkimError, MkimFile
from nano.mkim_writer import DIGEST_KEY, content_digest, write_at
from nano.packed import load_packed
from nano.seam import SeamError, SeamSpec

FICLONE = 0x40049409  # ioctl: share the blocks of another file (Linux)
PROBE_TOKENS = 64


class Merge:
    """The patches of one checkpoint, computed tensor by tensor."""

    def __init__(self, found: Checkpoint, force_seam_fold: bool = False) -> None:
        described = heal_state(found)
        self.found, self.described = found, described
        self.spec = LoraSpec.from_json(described["lora"])
        self.tensors = found.model()
        self.pairs, self.gains = self._sort()
        self.seam = SeamSpec.from_json(described["seam"]) if described["seam"] else None
        self.folds = self.seam is not None and not seam.is_untrained(self.tensors[seam.B])
        if self.folds and not force_seam_fold:
            raise SeamError(
                f"the seam adapter after layer {self.seam.after} is trained, and folding it into "
                "the weights is only an approximation; --force-seam-fold does it and measures the "
                "error"
            )

    def _sort(self) -> tuple[list[str], list[str]]:
        """Names of matrices with an adapter and of gains; every A needs its B."""
        names = [n for n in self.tensors if n not in (seam.A, seam.B)]
        heads = {n.removesuffix(lora.A) for n in names if n.endswith(lora.A)}
        for name in names:
            base = name.removesuffix(lora.B)
            if name.endswith(lora.B) and base not in heads:
                raise CheckpointError(f"{self.found.path}: {name} lacks its A")
        for head in sorted(heads):
            if head + lora.B not in self.tensors:
                raise CheckpointError(f"{self.found.path}: {head}{lora.A} lacks its B")
        if (seam.A in self.tensors) != (seam.B in self.tensors):
            raise CheckpointError(f"{self.found.path}: half of the seam adapter is missing")
        if bool(self.described["seam"]) != (seam.A in self.tensors):
            raise CheckpointError(f"{self.found.path}: the seam adapter is not as described")
        return sorted(heads), [n for n in names if not n.endswith((lora.A, lora.B))]

    def patched(self, base: MkimFile) -> Iterator[tuple[str, Tensor]]:
        """(name, new f32 values) of every tensor that changes."""
        folded = set(seam.readers(base.k3(), self.seam)) if self.folds and self.seam else set()
        for name in self.gains:
            old = self._read(base, name, tuple(self.tensors[name].shape))
            yield name, self.tensors[name].view(old.shape)
        for name in sorted(folded | set(self.pairs)):
            yield name, self._matrix(base, name, name in folded)

    def _matrix(self, base: MkimFile, name: str, fold: bool) -> Tensor:
        if name in self.pairs:
            a, b = self.tensors[name + lora.A], self.tensors[name + lora.B]
            old = self._read(base, name, (b.shape[0], a.shape[1]))
            new = old.double() + lora.correction(a, b, self.spec.factor)
        else:
            old = torch.from_numpy(np.array(base.read(name)))
            new = old.double()
        if fold:
            new = seam.fold(new, self.tensors[seam.A], self.tensors[seam.B])
        if not bool(new.isfinite().all()):
            raise MkimError(f"{self.found.path}: the correction of {name} is not finite")
        # Unchanged values keep their bits: -0 plus 0 would become +0.
        return torch.where(new == old.double(), old, new.float())

    def _read(self, base: MkimFile, name: str, shape: tuple[int, ...]) -> Tensor:
        if name not in base.entries:
            raise MkimError(f"{base.path}: there is no tensor {name} to merge into")
        entry = base.entries[name]
        if entry.dtype != DType.F32:
            raise MkimError(f"{base.path}: {name} is {entry.dtype.name}; only F32 can be merged "
                            "into, export the base with --spine f32")
        if tuple(d for d in entry.dims if d != 1) != tuple(d for d in shape if d != 1):
            raise MkimError(f"{base.path}: {name} is {list(entry.dims)}, "
                            f"its correction {list(shape)}")
        return torch.from_numpy(np.array(base.read(name)))


def merge(
    ckpt: Path, base: Path, out: Path, force_seam_fold: bool = False
) -> dict[str, Any]:
    """Writes `out`; returns a report."""
    work = Merge(open_checkpoint(ckpt), force_seam_fold)
    if out.exists() and out.samefile(base):
        raise MkimError(f"{out}: the merged model cannot replace its base")
    if sha256_of(base) != work.described["base_sha256"]:
        raise CheckpointError(f"{base}: is not the file that {work.found.path} was trained on")
    temporary = out.with_name(f"{out.name}.tmp.{os.getpid()}")
    try:
        copy_file(base, temporary)
        with MkimFile(base) as model, temporary.open("r+b") as target:
            names = []
            for name, values in work.patched(model):
                data = values.contiguous().numpy().astype("<f4").reshape(-1).view(np.uint8)
                write_at(target.fileno(), memoryview(data), model.entries[name].offset)
                names.append(name)
            refresh_digest(model, target.fileno())
            os.fsync(target.fileno())
        MkimFile(temporary).close()
        temporary.replace(out)
        sync_directory(out.resolve().parent)
    finally:
        temporary.unlink(missing_ok=True)
    report: dict[str, Any] = {"model": str(out), "patched": names, "seam_folded": work.folds}
    if work.folds:
        report |= seam_error(work, base, out)
    return report


def copy_file(source: Path, target: Path) -> None:
    """Copies by sharing blocks where the file system can, else byte for byte."""
    with source.open("rb") as old, target.open("wb") as new:
        try:
            fcntl.ioctl(new.fileno(), FICLONE, old.fileno())
        except OSError:
            shutil.copyfileobj(old, new, 1 << 22)


def refresh_digest(model: MkimFile, fd: int) -> None:
    """Replaces the recorded digest, if there is one, by that of the patched blobs."""
    old = model.config.get(DIGEST_KEY)
    if not isinstance(old, str):
        return
    config = os.pread(fd, model.data_start, 0)
    if len(old) != 64 or config.count(old.encode()) != 1:
        raise MkimError(f"{model.path}: {DIGEST_KEY} in the config is not a digest")
    new = content_digest(fd, model.entries.values())
    write_at(fd, memoryview(new.encode()), config.index(old.encode()))


@torch.no_grad()
def seam_error(work: Merge, base: Path, merged: Path) -> dict[str, float]:
    """Largest logit difference between the adapter and its fold, on random tokens."""
    adapted = load_packed(base).eval()
    trained = attach_all(adapted, HealConfig(work.spec, work.seam))
    for name, p in trained.items():
        p.copy_(work.tensors[name])
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, adapted.config.vocab, (1, PROBE_TOKENS), generator=generator)
    expected = adapted(tokens)
    difference = float((load_packed(merged).eval()(tokens) - expected).abs().max())
    span = float(expected.max() - expected.min())
    return {"logit_error": difference, "logit_span": span}


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="nano.merge", description="Merge adapters into a .bin copy.")
    p.add_argument("--ckpt", type=Path, required=True, help="healing checkpoint or run directory")
    p.add_argument("--bin", type=Path, required=True, help="the base model it was trained on")
    p.add_argument("--out", type=Path, required=True, help="merged model to write")
    p.add_argument("--force-seam-fold", action="store_true",
                   help="fold a trained seam adapter although that is only an approximation")
    p.add_argument("--json", type=Path, help="write a machine-readable result here")
    args = p.parse_args(argv)
    try:
        report = merge(args.ckpt, args.bin, args.out, args.force_seam_fold)
        if args.json:
            write_json(args.json, report)
    except FileNotFoundError as err:
        code, message = 66, str(err)
    except CheckpointError as err:
        code, message = 76 if args.ckpt.exists() else 66, str(err)
    except ValueError as err:
        code, message = 65, str(err)
    except OSError as err:
        code, message = 74, str(err)
    else:
        print(f"{args.out}: {len(report['patched'])} tensors patched", file=sys.stderr)
        if report["seam_folded"]:
            share = 100 * report["logit_error"] / report["logit_span"]
            print(f"seam folded: logits differ by up to {report['logit_error']:.3g} "
                  f"({share:.2f} % of their span)", file=sys.stderr)
        return 0
    print(f"nano.merge: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
