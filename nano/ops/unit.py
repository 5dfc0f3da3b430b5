"""A systemd user unit for one training run, from a TOML file.

    name = "story"                       # unit microkimi-train-story.service
    directory = "/home/me/microkimi"     # where `python -m nano.train` runs
    python = "/usr/bin/python3"          # optional
    out = "/home/me/runs/story"          # run directory, given to nano.train as --out
    memory_gb = 12                       # optional: MemoryHigh, MemoryMax and --rss-cap
    watchdog_seconds = 600               # optional: a step must end within this time
    [train]                              # flags of nano.train
    data = "/home/me/data/train"
    steps = 2000
    [export]                             # optional: flags of nano.export, run after the end
    out = "/home/me/models/story.bin"

The service restarts after a crash, after memory or signal stops (exit code 75), and not after
errors that would repeat.
"""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PREFIX = "microkimi-train-"
NO_RESTART = (64, 65, 66, 70, 76)
KEYS = {"name", "directory", "python", "out", "memory_gb", "watchdog_seconds", "train", "export"}


class RunFileError(ValueError):
    """A run description that no unit can be made from."""


@dataclass
class RunFile:
    name: str
    directory: Path
    out: Path
    train: dict[str, Any]
    python: Path = Path(sys.executable)
    memory_gb: float | None = None
    watchdog_seconds: int = 600
    export: dict[str, Any] = field(default_factory=dict)

    @property
    def unit_name(self) -> str:
        return f"{PREFIX}{self.name}.service"


def read_run_file(path: Path) -> RunFile:
    """Parses and checks; every error names the key."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise RunFileError(f"{path}: {err}") from err
    unknown = set(data) - KEYS
    if unknown:
        raise RunFileError(f"{path}: unknown key {sorted(unknown)[0]}")
    for key in ("name", "directory", "out", "train"):
        if key not in data:
            raise RunFileError(f"{path}: key {key} is missing")
    name = data["name"]
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        raise RunFileError(f"{path}: name: letters, digits, - and _ only")
    paths: dict[str, Path] = {}
    for key in ("directory", "out", "python"):
        if key in data:
            paths[key] = Path(str(data[key]))
            if not paths[key].is_absolute():
                raise RunFileError(f"{path}: {key}: must be an absolute path")
    for key in ("train", "export"):
        if not isinstance(data.get(key, {}), dict):
            raise RunFileError(f"{path}: {key}: must be a table of flags")
    if "out" in data["train"]:
        raise RunFileError(f"{path}: train.out: give `out` at the top instead")
    seconds = data.get("watchdog_seconds", 600)
    if not isinstance(seconds, int) or seconds < 120:
        raise RunFileError(f"{path}: watchdog_seconds: must be at least 120")
    memory = data.get("memory_gb")
    if memory is not None and (not isinstance(memory, (int, float)) or memory <= 0):
        raise RunFileError(f"{path}: memory_gb: must be positive")
    return RunFile(name, paths["directory"], paths["out"], data["train"],
                   paths.get("python", Path(sys.executable)), memory, seconds,
                   data.get("export", {}))


def flags_of(table: dict[str, Any]) -> list[str]:
    """TOML table to command line: true = bare flag, lists repeat the flag."""
    out: list[str] = []
    for key, value in table.items():
        flag = "--" + key.replace("_", "-")
        for item in value if isinstance(value, list) else [value]:
            if item is True:
                out.append(flag)
            elif item is not False:
                out += [flag, str(item)]
    return out


def quote(parts: list[str]) -> str:
    """systemd command line: % and $ have a meaning there, spaces need quotes."""
    escaped = (p.replace("%", "%%").replace("$", "$$") for p in parts)
    return " ".join(
        p if re.fullmatch(r"[\w@=+:,./%$-]+", p) else '"' + p.replace("\\", "\\\\").replace(
            '"', '\\"') + '"'
        for p in escaped
    )


def unit_text(run: RunFile) -> str:
    train = [*flags_of(run.train), "--out", str(run.out)]
    if run.memory_gb:
        train += ["--rss-cap", f"{0.9 * run.memory_gb:g}"]
    begin = quote([str(run.python), "-m", "nano.train", *train])
    # A shell decides between a first start and a resume; the run directory knows.
    script = f'if [ -e {shlex.quote(str(run.out / "latest"))} ]; then exec "$@" --resume; fi; ' \
             'exec "$@"'
    lines = [
        "[Unit]", f"Description=microkimi training run {run.name}",
        "StartLimitIntervalSec=3600", "StartLimitBurst=10", "",
        "[Service]", "Type=notify", "NotifyAccess=all", f"WorkingDirectory={run.directory}",
        f"ExecStart=/bin/sh -c {quote([script])} sh {begin}",
    ]
    if run.export:
        export = quote([str(run.python), "-m", "nano.ops", "export-when-finished", str(run.out),
                        *flags_of(run.export)])
        lines.append(f"ExecStopPost={export}")
    lines += [
        "Environment=OMP_WAIT_POLICY=PASSIVE PYTHONUNBUFFERED=1",
        "Environment=MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=1073741824",
        f"WatchdogSec={run.watchdog_seconds}", "TimeoutStartSec=infinity",
        "Restart=on-failure", "RestartForceExitStatus=75",
        "RestartPreventExitStatus=" + " ".join(map(str, NO_RESTART)), "RestartSec=15",
        "KillSignal=SIGTERM", "TimeoutStopSec=120", "OOMPolicy=stop", "Nice=10",
    ]
    if run.memory_gb:
        lines += [f"MemoryHigh={int(0.95 * run.memory_gb * 1e9)}",
                  f"MemoryMax={int(run.memory_gb * 1e9)}"]
    return "\n".join([*lines, "", "[Install]", "WantedBy=default.target", ""])
