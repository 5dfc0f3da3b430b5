"""Holds a DeepSeek-V4 decoder against the values that `nano.dsv4.golden` recorded."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nano.dsv4.decode import StepDecoder
from nano.dsv4.golden import ARCH
from nano.dsv4.model import Dsv4Model
from nano.files import sha256_of
from nano.loading import load_model
from nano.mkim import MkimError, MkimFile

# The golden is an f64 run rounded to f32, so another f64 run can be held closer to it than an
# engine, for which the golden's own limit is meant.
STORED = 2e-6


@dataclass
class Golden:
    """Recorded values of a folder; `find_difference` holds a decoder against them."""

    folder: Path
    model: Dsv4Model
    config: dict[str, Any]
    states: dict[tuple[int, int, str], Tensor] = field(default_factory=dict)
    selections: dict[tuple[int, str], list[list[int]]] = field(default_factory=dict)
    tops: list[list[int]] = field(default_factory=list)  # ids of the largest logits

    @classmethod
    def load(cls, folder: Path, name: str = "golden.bin") -> Golden:
        model = load_model(folder / "model.bin")
        with MkimFile(folder / name, model_checks=False) as file:
            if file.config.get("arch") != ARCH or not isinstance(model, Dsv4Model):
                raise MkimError(f"{folder / name}: not a golden of a DeepSeek-V4 model")
            if file.config["model_sha256"] != sha256_of(folder / "model.bin"):
                raise MkimError(f"{folder / name}: was recorded from another model.bin")
            out = cls(folder, model.double(), file.config)
            if not file.config["act_qat"]:
                model.config.act_qat = False
            out._read(file)
        return out

    def _read(self, file: MkimFile) -> None:
        for name in file.entries:
            place, *rest = name.split("/")
            values = torch.from_numpy(file.read(name).copy())
            if place != "all":
                self.states[int(place[1:]), int(rest[0][1:]), rest[1]] = values
            elif name == "all/top":
                self.tops = values.tolist()
            else:
                rows = [[i for i in row if i >= 0] for row in values.tolist()]
                self.selections[int(rest[0][1:]), rest[1]] = rows

    def find_difference(
        self, decoder: type[StepDecoder] = StepDecoder,
        names: tuple[str, ...] | None = ("X", "logits"),
        limit: float = STORED,
    ) -> str | None:
        """Where a run first leaves the golden, or None.  Selections must be equal everywhere,
        the values of the given `names` (None: all) within the limit where they are recorded."""
        found: list[str] = []

        def observe(layer: int, name: str, value: Tensor) -> None:
            place = f"position {steps.position}, layer {layer}: {name}"
            rows = self.selections.get((layer, name))
            if rows is not None and rows[steps.position] != value[0].tolist():
                found.append(place)
            expected = self.states.get((steps.position, layer, name))
            if expected is None or (names is not None and name not in names):
                return
            worst = float((value[0].double() - expected.double()).abs().max())
            if not worst <= limit:
                found.append(f"{place} by {worst:.1e}")

        steps = decoder(self.model, 1, observe)
        for token in self.config["tokens"]:
            steps.step(torch.tensor([token]))
            if found:
                return found[0]
        return None
