"""mk in a place of its own, for tests of the prefix cache."""

from __future__ import annotations

import itertools
import json
import subprocess
from pathlib import Path

from daemon_harness import BIN, PATIENCE, Daemon

PRECISIONS = ["exact", "bf16", "q8"]


class Mk:
    """mk in a place of its own, with a small random model of one architecture."""

    def __init__(self, place: Daemon, folder: Path, arch: str) -> None:
        self.place = place
        self.folder = folder
        self.model = str(folder / f"{arch}.bin")
        self.numbers = itertools.count()
        self("build", "--arch", arch, "--preset", "tiny", "--out", self.model)

    def __call__(self, *args: str) -> str:
        done = subprocess.run(
            [str(BIN / "mk"), *args], env=self.place.env(), capture_output=True, timeout=PATIENCE
        )
        assert done.returncode == 0, (done.returncode, done.stdout[:500], done.stderr[:2000])
        return done.stdout.decode()

    def run(self, ids: list[int], *args: str, precision: str = "exact") -> tuple[dict, bytes]:
        """The answer, and the logits after the prompt and after every token."""
        logits = self.folder / f"logits{next(self.numbers)}"
        told = self(
            "run", "-m", self.model, "--precision", precision, "-n", "5", "--json",
            "--dump-logits", str(logits), *args, "--ids", ",".join(map(str, ids)),
        )  # fmt: skip
        return json.loads(told), logits.read_bytes()

    def status(self) -> dict:
        return json.loads(self("status", "--json"))


def prompt(length: int, start: int = 0) -> list[int]:
    return [(37 * i + start) % 251 for i in range(length)]
