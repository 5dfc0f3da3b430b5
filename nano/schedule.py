"""Budgets and learning-rate schedules as pure functions of progress in [0, 1]."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass


@dataclass
class Budget:
    """When training ends; exactly one of the limits is set.

    Steps and tokens give the same progress on every run.  `minutes` (training time) and
    `deadline` (seconds since the epoch) follow the clock; the log records progress per step.
    """

    steps: int | None = None
    tokens: int | None = None
    minutes: float | None = None
    deadline: float | None = None

    def __post_init__(self) -> None:
        given = [v for v in (self.steps, self.tokens, self.minutes, self.deadline) if v is not None]
        if len(given) != 1 or given[0] <= 0:
            raise ValueError("give one positive budget: --steps, --tokens, --minutes or --deadline")
        self._origin: tuple[float, float] | None = None  # deadline mode: (clock, progress)

    def progress(self, step: int, tokens: int, seconds: float, previous: float) -> float:
        """Share of the budget used before the next step.

        `seconds`: training time so far over all runs; `previous`: progress of the step before,
        from which a resumed deadline run continues.
        """
        if self.steps is not None:
            return min(1.0, step / self.steps)
        if self.tokens is not None:
            return min(1.0, tokens / self.tokens)
        if self.minutes is not None:
            return min(1.0, seconds / (60 * self.minutes))
        assert self.deadline is not None
        now = time.time()
        if self._origin is None:
            self._origin = (now, previous)
        start, base = self._origin
        if now >= self.deadline:
            return 1.0
        return min(1.0, base + (1 - base) * (now - start) / (self.deadline - start))


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up over `warmup` steps, then the chosen curve over progress."""

    kind: str = "cosine"  # or "wsd": constant, then linear
    warmup: int = 200
    min_frac: float = 0.1
    decay_from: float = 0.6  # wsd: progress at which the decay starts

    def scale(self, step: int, progress: float) -> float:
        ramp = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        if self.kind == "wsd":
            over = max(0.0, progress - self.decay_from) / max(1e-9, 1 - self.decay_from)
            return ramp * (1 - (1 - self.min_frac) * min(1.0, over))
        wave = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
        return ramp * (self.min_frac + (1 - self.min_frac) * wave)


def balance_rate(progress: float) -> float:
    """Step of the router bias: quick at first, almost still at the end."""
    if progress < 0.1:
        return 5e-3
    return 1e-3 if progress < 0.8 else 1e-4
