"""What every instrument leaves behind: report.json, report.md, figures; and progress on stderr."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from nano.files import write_atomic

SCHEMA = 1
T = TypeVar("T")


def plain(value: Any) -> Any:
    """JSON values: numpy and torch scalars as numbers, what is not finite as null."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Path):
        return value.name
    return value


def write_report(out: Path, tool: str, args: dict[str, Any], models: list[dict[str, Any]],
                 texts: dict[str, Any], results: dict[str, Any], warnings: list[str],
                 lines: list[str], seconds: float) -> dict[str, Any]:
    """Writes both files to the directory `out`; returns the report."""
    out.mkdir(parents=True, exist_ok=True)
    report = plain({
        "tool": tool, "version": SCHEMA, "args": args, "models": models, "texts": texts,
        "results": results, "warnings": warnings, "seconds": round(seconds, 2),
    })
    write_atomic(out / "report.json", (json.dumps(report, indent=1) + "\n").encode())
    notes = ["", *(f"* warning: {w}" for w in warnings)] if warnings else []
    write_atomic(out / "report.md", ("\n".join([*lines, *notes]) + "\n").encode())
    return report


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """A Markdown table."""
    out = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return out + ["| " + " | ".join(number(c) for c in row) + " |" for row in rows]


def number(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    if isinstance(value, (float, np.floating)):
        return "" if math.isnan(value) else f"{value:.4g}"
    return str(value)


def progress(items: Sequence[T], what: str) -> Iterator[T]:
    """Goes through the items with a bar on a terminal, with nothing elsewhere."""
    shown, begin = sys.stderr.isatty(), time.monotonic()
    total = max(len(items), 1)
    for i, item in enumerate(items):
        if shown:
            done = round(24 * i / total)
            passed = time.monotonic() - begin
            left = f"{passed / i * (total - i):.0f} s left" if i else ""
            sys.stderr.write(f"\r{what:<24} [{'#' * done}{'.' * (24 - done)}] {i}/{total} {left}"
                             "\033[K")
            sys.stderr.flush()
        yield item
    if shown:
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()


# -- figures -------------------------------------------------------------------------------------


def _plot() -> Any:
    """matplotlib's pyplot, or None where it is not installed: reports do without figures then."""
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def _save(plt: Any, figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def draw_matrix(path: Path, values: np.ndarray, title: str, across: str, down: str,
                pairs: Sequence[tuple[int, int]] = ()) -> None:
    plt = _plot()
    if plt is None:
        return
    figure, axes = plt.subplots(figsize=(5, 4.2))
    image = axes.imshow(values, vmin=min(0.0, float(values.min())), vmax=1, aspect="auto")
    if pairs:
        axes.plot([j for _, j in pairs], [i for i, _ in pairs], "w.", markersize=4)
    axes.set(title=title, xlabel=across, ylabel=down)
    figure.colorbar(image)
    _save(plt, figure, path)


def draw_lorenz(path: Path, shares: dict[str, np.ndarray], title: str) -> None:
    plt = _plot()
    if plt is None:
        return
    figure, axes = plt.subplots(figsize=(5, 4.2))
    for name, values in shares.items():
        ordered = np.sort(np.maximum(values, 0))
        total = max(ordered.sum(), 1e-300)
        axes.plot(np.linspace(0, 1, len(ordered) + 1), [0, *np.cumsum(ordered) / total],
                  label=name, linewidth=1)
    axes.plot([0, 1], [0, 1], "k:", linewidth=0.7)
    axes.set(title=title, xlabel="share of experts", ylabel="share of the whole")
    axes.legend(fontsize=6)
    _save(plt, figure, path)


def draw_scatter(path: Path, x: np.ndarray, y: np.ndarray, title: str, across: str,
                 up: str) -> None:
    plt = _plot()
    if plt is None:
        return
    figure, axes = plt.subplots(figsize=(5, 4.2))
    axes.plot(x, y, ".", markersize=4)
    axes.axhline(0, color="k", linewidth=0.5)
    axes.set(title=title, xlabel=across, ylabel=up)
    _save(plt, figure, path)
