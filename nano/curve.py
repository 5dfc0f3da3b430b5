"""The loss curve of a run as a PNG, from its `train.jsonl`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_log(path: Path) -> list[dict[str, Any]]:
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue  # a line cut off by a crash
    return records


def plot(log: Path, out: Path) -> None:
    """Training and held-out nats per token over steps, the learning rate below."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    records = read_log(log)
    train = [r for r in records if "loss" in r]
    evals = [r for r in records if r.get("event") == "eval"]
    if not train:
        raise ValueError(f"{log}: no training records to draw")
    figure, (top, bottom) = plt.subplots(
        2, 1, sharex=True, figsize=(8, 6), height_ratios=[4, 1], layout="constrained"
    )
    top.plot([r["step"] for r in train], [r["loss"] for r in train], label="training", lw=1)
    for key, label in (("valid", "held-out"), ("valid_ema", "held-out, averaged weights")):
        points = [(r["step"], r[key]) for r in evals if key in r]
        if points:
            top.plot(*zip(*points, strict=True), marker="o", ms=3, label=label)
    losses = sorted(r["loss"] for r in train)
    top.set_ylim(losses[0] - 0.1, losses[int(0.97 * (len(losses) - 1))] + 0.1)
    top.set_ylabel("nats per token")
    top.grid(alpha=0.3)
    top.legend()
    bottom.plot([r["step"] for r in train], [r["lr_scale"] for r in train], color="gray")
    bottom.set_ylabel("learning rate")
    bottom.set_xlabel("step")
    figure.savefig(out, dpi=110)
    plt.close(figure)
