"""Low-rank healing: trains adapters on a `.bin` model whose experts stay packed.

The base file is mapped and never changed; only adapters, gains that train along, and their
optimizer state are held and saved.  `nano.merge` puts the result into a copy of the base.

A run directory holds checkpoints as `nano.train` writes them, with the trained tensors only.
Exit codes: 0 finished, 64 usage, 65 bad data, 66 missing input, 70 diverged, 74 disk, 75 stopped
early (run again with --resume), 76 checkpoint of another run.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nano import checkpoint, lora, seam, watchdog
from nano.checkpoint import Checkpoint, CheckpointError
from nano.config import ConfigError
from nano.documents import DataError
from nano.files import sha256_of, write_json
from nano.lora import LoraError, LoraSpec
from nano.mkim import MkimError
from nano.packed import MOE_CHUNK, load_packed
from nano.sampler import EpochSampler, sequential_batches
from nano.schedule import Schedule
from nano.seam import SeamError, SeamSpec
from nano.stream import TokenStream, open_shards, open_stream

MAX_SKIPPED = 20  # steps in a row whose gradient was not finite


class Diverged(RuntimeError):
    """The loss stopped being a number."""


@dataclass(frozen=True)
class HealConfig:
    lora: LoraSpec
    seam: SeamSpec | None = None
    batch: int = 1
    seq: int = 512
    accum: int = 1
    lr: float = 1e-4
    warmup: int = 100
    min_lr_frac: float = 0.1
    weight_decay: float = 0.0
    clip: float = 1.0
    steps: int = 3000
    seed: int = 1
    device: str = "cpu"
    moe_chunk: int = MOE_CHUNK


class Healer:
    """One healing run: model, adapters, optimizer, data position."""

    def __init__(self, base: Path, shards: list[TokenStream], config: HealConfig) -> None:
        self.base, self.config = base, config
        self.base_sha256 = sha256_of(base)
        self.model = load_packed(base, config.device, config.moe_chunk).train()
        self.trainable = attach_all(self.model, config)
        for shard in shards:
            if int(shard.tokens.max()) >= self.model.config.vocab:
                raise DataError(f"{shard.prefix}: ids do not fit vocabulary "
                                f"{self.model.config.vocab}; prepare the data with its vocabulary")
        self.optimizer = torch.optim.AdamW(
            self.trainable.values(), lr=config.lr, betas=(0.9, 0.95), eps=1e-8,
            weight_decay=config.weight_decay,
        )
        self.schedule = Schedule("cosine", config.warmup, config.min_lr_frac)
        self.sampler = EpochSampler(shards, config.batch, config.seq, config.seed, "docs",
                                    pad=self.model.config.specials.get("eos", 0))
        self.fingerprints = [shard.fingerprint() for shard in shards]
        self.step = self.tokens = self._skipped = 0

    def train_step(self) -> dict[str, float]:
        """One optimizer step over `accum` batches; loss in nats per target."""
        c = self.config
        batches = [self.sampler.next() for _ in range(c.accum)]
        targets = max(1, sum(batch.target_count for batch in batches))
        total = 0.0
        for batch in batches:
            loss = self._loss(batch.tokens, batch.targets, batch.docs) / targets
            loss.backward()
            total += float(loss.detach())
        norm = float(nn.utils.clip_grad_norm_(self.trainable.values(), c.clip))
        scale = self.schedule.scale(self.step, self.step / c.steps)
        if math.isfinite(total) and math.isfinite(norm):
            self._skipped = 0
            for group in self.optimizer.param_groups:
                group["lr"] = c.lr * scale
            self.optimizer.step()
        else:
            self._skipped += 1
            if self._skipped >= MAX_SKIPPED:
                raise Diverged(f"{MAX_SKIPPED} steps in a row were not finite; lower --lr")
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.tokens += targets
        return {"loss": total, "norm": norm, "lr": c.lr * scale}

    def _loss(self, tokens: Tensor, targets: Tensor, docs: Tensor | None) -> Tensor:
        device = self.config.device
        moved = None if docs is None else docs.to(device)
        return self.model.loss(tokens.to(device), targets.to(device), moved)

    @torch.no_grad()
    def evaluate(self, stream: TokenStream) -> float:
        """Nats per target over every document of the stream."""
        self.model.eval()
        total, count = 0.0, 0
        for batch in sequential_batches(stream, self.config.batch, self.config.seq, 0):
            total += float(self._loss(batch.tokens, batch.targets, batch.docs))
            count += batch.target_count
        self.model.train()
        return total / max(1, count)

    # -- checkpoints -------------------------------------------------------------------------

    def save(self, run: Path, keep: int) -> Path:
        state = {
            "step": self.step, "tokens": self.tokens, "sampler": self.sampler.state(),
            "data": self.fingerprints,
            "heal": {
                "base": str(self.base), "base_sha256": self.base_sha256,
                "lora": self.config.lora.to_json(),
                "seam": self.config.seam.to_json() if self.config.seam else None,
                "names": list(self.trainable),
            },
        }
        tensors = {n: p.detach().cpu() for n, p in self.trainable.items()}
        path = checkpoint.save(run, self.step, self.model.config, state, tensors,
                               self._optimizer_tensors(), None)
        checkpoint.prune(run, keep)
        return path

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        out = {}
        for name, p in self.trainable.items():
            for key, value in self.optimizer.state.get(p, {}).items():
                out[f"{name}|{key}"] = value.detach().cpu()
        return out

    def restore(self, found: Checkpoint) -> list[str]:
        """Continues a checkpoint of the same base; returns remarks.

        A seam adapter may be added (it starts at zero) or left out (it is dropped); everything
        else must agree.
        """
        described = heal_state(found)
        if described["base_sha256"] != self.base_sha256:
            raise CheckpointError(f"{found.path}: was trained on another base than {self.base}")
        if LoraSpec.from_json(described["lora"]) != self.config.lora:
            raise CheckpointError(f"{found.path}: its adapters differ: {described['lora']}")
        if found.state["data"] != self.fingerprints:
            raise CheckpointError(f"{found.path}: was trained on other data")
        remarks = self._seam_remarks(found, described)
        tensors, moments = found.model(), found.optim()
        for name, p in self.trainable.items():
            if name not in tensors and name in (seam.A, seam.B):
                continue
            if name not in tensors or tensors[name].shape != p.shape:
                raise CheckpointError(f"{found.path}: {name} is missing or has another shape")
            p.data.copy_(tensors[name])
            state = {k.split("|")[1]: v for k, v in moments.items() if k.startswith(f"{name}|")}
            if state:  # the step counter stays on the CPU, where AdamW keeps it
                self.optimizer.state[p] = {
                    k: v if k == "step" else v.to(p.device) for k, v in state.items()
                }
        self.step, self.tokens = int(found.state["step"]), int(found.state["tokens"])
        self.sampler.load(found.state["sampler"])
        return remarks

    def _seam_remarks(self, found: Checkpoint, described: dict[str, Any]) -> list[str]:
        before = SeamSpec.from_json(described["seam"]) if described["seam"] else None
        if before and self.config.seam and before != self.config.seam:
            raise CheckpointError(f"{found.path}: its seam differs: {described['seam']}")
        if before and not self.config.seam:
            return [f"the seam adapter after layer {before.after} is dropped"]
        if self.config.seam and not before:
            return [f"a new seam adapter after layer {self.config.seam.after} starts at zero"]
        return []


def attach_all(model: Any, config: HealConfig) -> dict[str, nn.Parameter]:
    """Adapters, gains and seam of a healing run on a packed model; parameters by name."""
    trainable = lora.attach(model, config.lora, config.seed)
    if config.seam:
        device = torch.device(config.device)
        trainable |= seam.attach(model, config.seam, device, config.seed + 1)
    return trainable


def heal_state(found: Checkpoint) -> dict[str, Any]:
    """The healing record of a checkpoint; CheckpointError for one of another kind."""
    described = found.state.get("heal")
    if not isinstance(described, dict) or not {"base_sha256", "lora", "seam"} <= set(described):
        raise CheckpointError(f"{found.path}: not a checkpoint of nano.heal")
    return described


# -- command -------------------------------------------------------------------------------------


def parse(argv: list[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(
        prog="nano.heal", description="Train low-rank adapters on a .bin model.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    p.add_argument("--bin", type=Path, required=True, help="base model")
    p.add_argument("--data", type=Path, required=True, help="token stream prefix")
    p.add_argument("--valid", type=Path, help="held-out token stream prefix")
    p.add_argument("--out", type=Path, required=True, help="run directory")
    p.add_argument("--resume", action="store_true", help="continue the run in --out")
    p.add_argument("--rank", type=int, default=8)
    p.add_argument("--alpha", type=float, help="the correction is alpha/rank B A; default rank")
    p.add_argument("--targets", default="attn", help=f"comma list of {', '.join(lora.TARGETS)}")
    p.add_argument("--lora-layers", help='layers that get adapters, e.g. "0,2,5-7"')
    norms = p.add_mutually_exclusive_group()
    norms.add_argument("--lora-norms", action="store_true", help="train all norm gains too")
    norms.add_argument("--lora-final-norm", action="store_true", help="train the last two gains")
    p.add_argument("--seam-adapter", type=int, metavar="R", help="rank of a seam adapter")
    p.add_argument("--seam-after", type=int, metavar="N", help="layer before the seam")
    p.add_argument("--lr", type=float, default=1e-4)
    p.add_argument("--warmup", type=int, default=100)
    p.add_argument("--min-lr-frac", type=float, default=0.1)
    p.add_argument("--wd", type=float, default=0.0)
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--batch", type=int, default=1)
    p.add_argument("--seq", type=int, default=512)
    p.add_argument("--accum", type=int, default=1)
    p.add_argument("--steps", type=int, default=3000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--device", default="cpu")
    p.add_argument("--moe-chunk", type=int, default=MOE_CHUNK, help="experts decoded at a time")
    p.add_argument("--save-every", type=int, default=250, metavar="STEPS")
    p.add_argument("--save-secs", type=float, default=1800)
    p.add_argument("--keep", type=int, default=2, help="checkpoints to keep")
    p.add_argument("--log-every", type=int, default=10)
    p.add_argument("--max-hours", type=float)
    p.add_argument("--rss-cap", type=float, metavar="GB")
    p.add_argument("--json", type=Path, help="write a machine-readable result here")
    args = p.parse_args(argv)
    for name in ("rank", "batch", "seq", "accum", "steps", "moe_chunk", "save_every", "log_every",
                 "keep"):
        if getattr(args, name) < 1:
            p.error(f"--{name.replace('_', '-')} must be at least 1")
    if not (math.isfinite(args.lr) and args.lr > 0 and args.clip > 0 and args.warmup >= 0):
        p.error("--lr and --clip must be positive, --warmup not negative")
    if (args.seam_adapter is None) != (args.seam_after is None):
        p.error("--seam-adapter and --seam-after go together")
    return args


def heal_config(args: argparse.Namespace) -> HealConfig:
    norms = "all" if args.lora_norms else "final" if args.lora_final_norm else "none"
    layers = lora.parse_layers(args.lora_layers) if args.lora_layers else None
    spec = LoraSpec(args.rank, args.alpha, tuple(args.targets.split(",")), layers, norms)
    joint = None if args.seam_adapter is None else SeamSpec(args.seam_adapter, args.seam_after)
    return HealConfig(
        spec, joint, args.batch, args.seq, args.accum, args.lr, args.warmup, args.min_lr_frac,
        args.wd, args.clip, args.steps, args.seed, args.device, args.moe_chunk,
    )


def run(args: argparse.Namespace) -> int:
    if not args.bin.is_file():
        raise FileNotFoundError(f"{args.bin}: no such file")
    found = checkpoint.open_checkpoint(args.out) if args.resume else None
    if found is None and (args.out / "latest").exists():
        raise CheckpointError(f"{args.out}: holds a run already (use --resume)")
    shards = open_shards(args.data)
    healer = Healer(args.bin, shards, heal_config(args))
    valid = open_stream(args.valid, healer.model.config.vocab) if args.valid else None
    if found is not None:
        for remark in healer.restore(found):
            print(f"nano.heal: {remark}", file=sys.stderr)
    args.out.mkdir(parents=True, exist_ok=True)
    return _loop(args, healer, valid)


def _loop(args: argparse.Namespace, healer: Healer, valid: TokenStream | None) -> int:
    dog = watchdog.Watchdog(args.out, args.max_hours, args.rss_cap)
    dog.install()
    result: dict[str, Any] = {"trained": sum(p.numel() for p in healer.trainable.values())}
    if valid is not None:
        result["valid_before"] = healer.evaluate(valid)
    saved, average, why = time.monotonic(), None, None
    while healer.step < healer.config.steps and why is None:
        metrics = healer.train_step()
        average = metrics["loss"] if average is None else 0.95 * average + 0.05 * metrics["loss"]
        if healer.step % args.log_every == 0:
            print(f"step {healer.step} loss {metrics['loss']:.4f} mean {average:.4f} "
                  f"lr {metrics['lr']:.2e} norm {metrics['norm']:.3f}", file=sys.stderr)
        due = healer.step % args.save_every == 0 or time.monotonic() - saved > args.save_secs
        if due and healer.step < healer.config.steps:
            healer.save(args.out, args.keep)
            saved = time.monotonic()
        why = dog.reason()
    result["checkpoint"] = str(healer.save(args.out, args.keep))
    result |= {"step": healer.step, "tokens": healer.tokens, "mean_loss": average, "stopped": why}
    if valid is not None and why is None:
        result["valid_after"] = healer.evaluate(valid)
        print(f"held out: {result['valid_before']:.4f} -> {result['valid_after']:.4f} nats",
              file=sys.stderr)
    if args.json:
        write_json(args.json, result)
    finished = healer.step >= healer.config.steps
    return watchdog.EXIT_DONE if finished else watchdog.EXIT_RESUME


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    try:
        return run(args)
    except FileNotFoundError as err:
        code, message = watchdog.EXIT_MISSING, str(err)
    except Diverged as err:
        code, message = watchdog.EXIT_DIVERGED, str(err)
    except CheckpointError as err:
        code, message = watchdog.EXIT_CONFIG, str(err)
    except (LoraError, SeamError) as err:
        code, message = watchdog.EXIT_USAGE, str(err)
    except (DataError, MkimError, ConfigError, ValueError) as err:
        code, message = watchdog.EXIT_DATA, str(err)
    except OSError as err:
        code, message = watchdog.EXIT_DISK, str(err)
    print(f"nano.heal: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
