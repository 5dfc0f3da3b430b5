"""`python -m nano.ops install RUN.toml | print RUN.toml | status | uninstall NAME`."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from nano.checkpoint import CheckpointError, open_checkpoint
from nano.curve import read_log
from nano.files import write_atomic
from nano.ops.unit import PREFIX, RunFileError, read_run_file, unit_text


def unit_directory() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "systemd" / "user"


def systemctl(*args: str) -> int:
    if shutil.which("systemctl") is None:
        print("nano.ops: no systemctl here; start the unit by hand", file=sys.stderr)
        return 0
    return subprocess.run(["systemctl", "--user", *args], check=False).returncode


def install(path: Path) -> int:
    run = read_run_file(path)
    folder = unit_directory()
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / run.unit_name, unit_text(run).encode())
    print(f"{folder / run.unit_name}")
    print("To keep it running after logout: loginctl enable-linger", file=sys.stderr)
    return systemctl("daemon-reload") or systemctl("enable", "--now", run.unit_name)


def status() -> int:
    """One line per installed unit, with the last record of its log."""
    for unit in sorted(unit_directory().glob(f"{PREFIX}*.service")):
        out = run_directory(unit)
        log = out / "train.jsonl" if out else None
        records = read_log(log) if log and log.is_file() else []
        last = next((r for r in reversed(records) if "loss" in r), None)
        course = f"step {last['step']}, loss {last['loss']:.4g}" if last else "not started"
        print(f"{unit.name.removeprefix(PREFIX).removesuffix('.service')}: {course} ({out})")
    return 0


def run_directory(unit: Path) -> Path | None:
    words = unit.read_text(encoding="utf-8").split()
    return Path(words[words.index("--out") + 1]) if "--out" in words else None


def uninstall(name: str) -> int:
    unit = unit_directory() / f"{PREFIX}{name}.service"
    if not unit.is_file():
        print(f"nano.ops: {unit}: not installed", file=sys.stderr)
        return 66
    systemctl("disable", "--now", unit.name)
    unit.unlink()
    return systemctl("daemon-reload")


def export_when_finished(run: Path, flags: list[str]) -> int:
    """Exports a finished run; stops that will be resumed do nothing."""
    try:
        source = open_checkpoint(run)
    except CheckpointError as err:
        print(f"nano.ops: {err}", file=sys.stderr)
        return 0
    if not source.state.get("finished"):
        return 0
    from nano import export

    return export.main(["--ckpt", str(source.path), *flags])


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="nano.ops", description=__doc__)
    commands = p.add_subparsers(dest="command", required=True)
    for name in ("install", "print"):
        commands.add_parser(name).add_argument("run", type=Path)
    commands.add_parser("status")
    commands.add_parser("uninstall").add_argument("name")
    commands.add_parser("export-when-finished").add_argument("run", type=Path)
    args, rest = p.parse_known_args(argv)
    if rest and args.command != "export-when-finished":
        p.error(f"unknown flag {rest[0]}")
    try:
        if args.command == "install":
            return install(args.run)
        if args.command == "print":
            print(unit_text(read_run_file(args.run)), end="")
            return 0
        if args.command == "status":
            return status()
        if args.command == "uninstall":
            return uninstall(args.name)
        return export_when_finished(args.run, rest)
    except RunFileError as err:
        print(f"nano.ops: {err}", file=sys.stderr)
        return 65


if __name__ == "__main__":
    sys.exit(main())
