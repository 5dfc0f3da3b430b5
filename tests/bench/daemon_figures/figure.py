"""One figure and its bar, and how figures are told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Figure:
    """A measured value; `bar` is the most it may be, or with `at_least` the least."""

    group: str
    name: str
    value: float
    unit: str
    bar: float | None = None  # None: told for comparison
    at_least: bool = False
    detail: str = ""

    @property
    def met(self) -> bool:
        if self.bar is None:
            return True
        return self.value >= self.bar if self.at_least else self.value <= self.bar

    def value_text(self) -> str:
        digits = 0 if abs(self.value) >= 1000 else 1 if abs(self.value) >= 100 else 2
        return f"{self.value:,.{digits}f} {self.unit}".rstrip()

    def bar_text(self) -> str:
        if self.bar is None:
            return ""
        return f"{'at least' if self.at_least else 'at most'} {self.bar:g} {self.unit}".rstrip()


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest value, so that p99 of few is their worst."""
    if not values:
        raise ValueError("nothing was measured")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def as_text(figures: Sequence[Figure]) -> str:
    lines: list[str] = []
    group = ""
    for one in figures:
        if one.group != group:
            group = one.group
            lines += ["", group]
        verdict = "" if one.bar is None else "ok" if one.met else "MISSED"
        line = f"  {one.name:<44} {one.value_text():>14}  {one.bar_text():<18} {verdict:<6}"
        lines.append(f"{line} {one.detail}".rstrip())
    return "\n".join(lines[1:]) + "\n"


def as_json(figures: Sequence[Figure], machine: str) -> dict[str, object]:
    return {
        "machine": machine,
        "met": all(one.met for one in figures),
        "figures": [{**asdict(one), "met": one.met} for one in figures],
    }


def as_page(figures: Sequence[Figure], machine: str) -> str:
    lines = [
        "# The daemon in figures",
        "",
        "Written by `tests/bench/daemon --write`, which says what is measured and how. A bar is",
        "what the daemon is held to; a figure without one is there for comparison.",
        "",
        machine + ".",
    ]
    group = ""
    for one in figures:
        if one.group != group:
            group = one.group
            lines += ["", f"## {group}", "", "| | measured | bar | | |", "|---|---|---|---|---|"]
        verdict = "" if one.bar is None else "met" if one.met else "**missed**"
        cells = (one.name, one.value_text(), one.bar_text(), verdict, one.detail)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
