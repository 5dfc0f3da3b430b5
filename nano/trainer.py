"""The training loop as an object: one step, evaluation, saving and restoring."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nano import checkpoint
from nano.arch import Config
from nano.balance import balance_step, load_statistics
from nano.distributed import Group
from nano.files import write_atomic
from nano.model import ForwardOptions
from nano.models import build_model, initialise
from nano.optim import Ema, OptimConfig, Optimizer, clip_gradients
from nano.sampler import Batch, EpochSampler, sequential_batches
from nano.schedule import Budget, Schedule, balance_rate
from nano.stream import TokenStream

MAX_SKIPS = 10  # non-finite steps among the last SKIP_WINDOW that end the run
SKIP_WINDOW = 100


class Diverged(RuntimeError):
    """Too many steps with a non-finite loss or gradient."""


@dataclass
class TrainConfig:
    """Everything besides the model's dimensions that decides the result of a run."""

    batch: int = 32
    seq: int = 256
    accum: int = 1
    seed: int = 1
    clip: float = 1.0
    dropout: float = 0.0
    dropout_from: float = 0.0  # progress at which dropout begins
    dropout_until: float = 0.9  # and ends
    ema: float = 0.0
    qat_frac: float = 0.0  # last share of the budget with experts in MXFP4
    bf16: bool = False
    sampler: str = "docs"
    doc_mask: bool = True
    checkpoint_layers: bool = False
    optim: OptimConfig = field(default_factory=OptimConfig)
    schedule: Schedule = field(default_factory=Schedule)


class Trainer:
    def __init__(
        self, model_config: Config, config: TrainConfig, shards: list[TokenStream],
        valid: TokenStream | None, budget: Budget, run: Path, group: Group | None = None,
    ) -> None:
        self.config, self.budget, self.run = config, budget, run
        self.group = group or Group()
        self.model = build_model(model_config)
        initialise(self.model, torch.Generator().manual_seed(config.seed))
        self.params = [p for _, p in self.model.named_parameters()]
        self.optimizer = Optimizer(self.model.named_parameters(), config.optim)
        self.ema = Ema(self.model.named_parameters(), config.ema) if config.ema else None
        pad = model_config.specials.get("pad", 0)
        self.sampler = EpochSampler(
            shards, config.batch, config.seq, config.seed, config.sampler,
            self.group.rank, self.group.world, pad,
        )
        self.valid = valid
        self.valid_batches = (
            sequential_batches(valid, config.batch, config.seq, pad) if valid else []
        )
        self.fingerprints = [s.fingerprint() for s in shards]
        self.step, self.tokens, self.seconds, self.progress = 0, 0, 0.0, 0.0
        self.skipped: list[int] = []
        self.best: float | None = None
        self.loads: dict[int, Tensor] = {}

    # -- one step ----------------------------------------------------------------------------

    def next_progress(self) -> float:
        """Progress before the coming step, agreed by all ranks."""
        mine = self.budget.progress(self.step, self.tokens, self.seconds, self.progress)
        return self.group.agree(mine)

    def options(self, progress: float) -> ForwardOptions:
        c = self.config
        dropping = c.dropout_from <= progress < c.dropout_until
        return ForwardOptions(
            dropout=c.dropout if dropping else 0.0,
            quantize_experts=c.qat_frac > 0 and progress >= 1 - c.qat_frac,
            checkpoint_layers=c.checkpoint_layers,
        )

    def train_step(self) -> dict[str, float]:
        """Draws batches, updates weights, biases and averages; returns measurements."""
        started = time.monotonic()
        self.progress = self.next_progress()
        self.model.train()
        self.model.options = self.options(self.progress)
        # Dropout depends on (seed, step, rank) alone: a resumed run draws the same masks.
        torch.manual_seed(hash((self.config.seed, self.step, self.group.rank)) & 0x7FFFFFFF)
        batches = [self.sampler.next() for _ in range(self.config.accum)]
        count = self.group.sum(torch.tensor([float(sum(b.target_count for b in batches))]))
        total = torch.zeros(1, dtype=torch.float64)
        for p in self.params:
            p.grad = None
        for batch in batches:
            loss = self._loss(batch, self.config.bf16) / float(count)
            loss.backward()
            total += loss.detach().double()
        loss_value = float(self.group.sum(total))
        self.group.sum_gradients(self.params)
        norm = clip_gradients(self.params, self.config.clip)
        scale = self.config.schedule.scale(self.step, self.progress)
        if self._finite(loss_value, norm):
            self.optimizer.step(scale)
            if self.ema:
                self.ema.update(self.step)
        self._balance()
        self.step += 1
        self.tokens += int(count)
        elapsed = time.monotonic() - started
        self.seconds += elapsed
        return {"loss": loss_value, "norm": norm, "scale": scale, "seconds": elapsed,
                "tokens": float(count)}

    def _loss(self, batch: Batch, bf16: bool) -> Tensor:
        docs = batch.docs if self.config.doc_mask else None
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            return self.model.loss(batch.tokens, batch.targets, docs)

    def _finite(self, loss: float, norm: float) -> bool:
        if math.isfinite(loss) and math.isfinite(norm):
            return True
        self.skipped = [s for s in self.skipped if s > self.step - SKIP_WINDOW] + [self.step]
        if len(self.skipped) > MAX_SKIPS:
            raise Diverged(f"{len(self.skipped)} non-finite steps, the last at step {self.step}")
        return False

    def _balance(self) -> None:
        for _, moe in self.model.moe_layers():
            self.group.sum(moe.load)
        balance_step(self.model, self.loads, balance_rate(self.progress))

    def router_report(self) -> dict[str, Any]:
        """Load statistics per layer since the last call."""
        report = {str(i): load_statistics(load) for i, load in self.loads.items()}
        self.loads = {}
        return report

    # -- evaluation --------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Held-out nats per token and bits per byte, of the weights and of their average."""
        out = self._evaluate_once("valid")
        if self.ema:
            self.ema.swap()
            out |= self._evaluate_once("valid_ema")
            self.ema.swap()
        return out

    def _evaluate_once(self, name: str) -> dict[str, float]:
        assert self.valid is not None
        self.model.eval()
        kept = self.model.options
        self.model.options = ForwardOptions(quantize_experts=kept.quantize_experts)
        nats, count = 0.0, 0
        for batch in self.valid_batches:
            nats += float(self._loss(batch, bf16=False))
            count += batch.target_count
        self.model.options = kept
        return {name: nats / count, f"{name}_bpb": nats / math.log(2) / self.valid.meta["bytes"]}

    # -- checkpoints -------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "step": self.step, "tokens": self.tokens, "seconds": self.seconds,
            "progress": self.progress, "updates": self.optimizer.updates,
            "sampler": self.sampler.state(), "skipped": self.skipped, "best": self.best,
            "data": self.fingerprints, "train": dataclasses.asdict(self.config),
            "budget": dataclasses.asdict(self.budget), "finished": self.finished,
        }

    @property
    def finished(self) -> bool:
        return self.budget.progress(self.step, self.tokens, self.seconds, self.progress) >= 1.0

    def save(self, keep: int = 3) -> Path | None:
        """Writes a checkpoint on rank 0."""
        path = None
        if self.group.is_main:
            model = dict(self.model.state_dict())
            ema = {**model, **self.ema.mean} if self.ema else None
            path = checkpoint.save(
                self.run, self.step, self.model.config, self.state(), model,
                self.optimizer.state_tensors(), ema,
            )
            checkpoint.prune(self.run, keep)
        self.group.barrier()
        return path

    def restore(self, source: checkpoint.Checkpoint, allow_data_change: bool = False) -> None:
        """Continues exactly where the checkpoint was written."""
        state = source.state
        if source.config != self.model.config:
            raise checkpoint.CheckpointError(f"{source.path}: model config differs from this run's")
        same_data = state["data"] == self.fingerprints
        if not same_data and not allow_data_change:
            raise checkpoint.CheckpointError(
                f"{source.path}: was trained on other data (--allow-data-change continues anyway)"
            )
        self.init_weights(source)
        self.optimizer.load_tensors(source.optim(), int(state["updates"]))
        averaged = source.ema()
        if self.ema and averaged:
            load = {n: averaged[n] for n in self.ema.mean}
            checkpoint.load_into(self.ema.mean, load, f"{source.path}: ema")
        if same_data:
            self.sampler.load(state["sampler"])
        self.step, self.tokens = int(state["step"]), int(state["tokens"])
        self.seconds, self.progress = float(state["seconds"]), float(state["progress"])
        self.skipped, self.best = list(state["skipped"]), state["best"]

    def init_weights(self, source: checkpoint.Checkpoint) -> None:
        """Weights and router biases only."""
        checkpoint.load_into(
            dict(self.model.state_dict()), source.model(), f"{source.path}: model"
        )
        if self.ema:
            for name, p in self.model.named_parameters():
                self.ema.mean[name].copy_(p.detach())


class Log:
    """JSON Lines in the run directory, and a short line for the eye."""

    def __init__(self, path: Path, enabled: bool = True) -> None:
        self.path, self.enabled = path, enabled

    def write(self, record: dict[str, Any]) -> None:
        if not self.enabled:
            return
        with self.path.open("a", encoding="utf-8") as out:
            out.write(json.dumps(_rounded(record)) + "\n")
        shown = {k: v for k, v in record.items() if not isinstance(v, dict)}
        print(" ".join(f"{k}={_short(v)}" for k, v in shown.items()), file=sys.stderr, flush=True)

    def truncate_after(self, step: int) -> None:
        """Drops records of steps that a resumed run will do again."""
        if not self.enabled or not self.path.is_file():
            return
        kept = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                if int(json.loads(line).get("step", 0)) <= step:
                    kept.append(line + "\n")
            except ValueError:
                continue  # a line cut off by a crash
        write_atomic(self.path, "".join(kept).encode())


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return value
