"""What commands that measure share: a folder with a daemon of its own, the machine's name."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Place:
    """A folder with a daemon of its own."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder = folder
        self.programs = programs
        names = ("HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
        self.environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("XDG_", "MICROKIMI"))
        }
        self.environment.update({name: str(folder) for name in names})
        sockets = folder / "run"
        sockets.mkdir(mode=0o700)
        self.socket = sockets / "s"
        self.environment["MICROKIMI_SOCKET"] = str(self.socket)

    def mk(self, *arguments: str) -> str:
        done = subprocess.run(
            [str(self.programs / "mk"), *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise SystemExit(f"mk {' '.join(arguments)} failed with code {done.returncode}")
        return done.stdout

    def build(self, preset: str) -> str:
        path = self.folder / f"{preset}.bin"
        self.mk("build", "--arch", "k3", "--preset", preset, "--out", str(path))
        return str(path)

    def stop(self) -> None:
        subprocess.run(
            [str(self.programs / "mk"), "stop"],
            env=self.environment,
            stdout=subprocess.DEVNULL,
            check=False,
        )


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def machine() -> str:
    """The processor, how many of it, how busy it is with other things, and the day."""
    name = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    return f"{name}, {cores} processors, load {load:.1f} at the start, {datetime.date.today()}"
