#!/usr/bin/env python3
"""Runs command-line cases: a command, what goes in, and what must come out, as data.

A case is a table `[[case]]` in `cases/*.toml`:

    name       what must hold
    setup      shell lines that run first and must succeed
    command    a shell line; `mk` and `microkimid` are the built ones
    stdin      text for standard input (else it is empty)
    stdin_hex  the same as bytes
    env        more environment variables
    exit       exit code (default 0)
    stdout     exact text, or a list of regular expressions that must all be found
    stderr     the same; by default nothing may be printed there
    after      a shell line that runs last and must succeed
    keeps      true: what `mk ping` said of the daemon's pid before the command holds after it
    user       "nobody": run as an ordinary user where the tests run as root

In all strings {golden} is the folder of the golden K3 models, {tmp} the case's own folder, where
its commands run. Each case has a daemon, sockets and folders of its own; the daemon is stopped at
the end, and whether it could be is part of the case.

    tests/e2e/run_cases.py [--bin build/release/bin] [-k PART_OF_NAME]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
GOLDEN = ROOT / "tests" / "data" / "golden" / "k3"
NOBODY = 65534
PATIENCE = 120  # seconds; a command that takes longer hangs

Expected = str | list[str]


class CaseError(AssertionError):
    """A case that did not go as it should."""


@dataclass
class Case:
    name: str
    command: str
    file: str = ""
    setup: list[str] = field(default_factory=list)
    stdin: str = ""
    stdin_hex: str = ""
    env: dict[str, str] = field(default_factory=dict)
    exit: int = 0
    stdout: Expected | None = None
    stderr: Expected = ""
    after: str = ""
    keeps: bool = False
    user: str = ""

    def input(self) -> bytes:
        return bytes.fromhex(self.stdin_hex) if self.stdin_hex else self.stdin.encode()


def load_cases(folder: Path = HERE / "cases") -> list[Case]:
    cases = []
    for path in sorted(folder.glob("*.toml")):
        for table in tomllib.loads(path.read_text())["case"]:
            cases.append(Case(file=path.stem, **table))
    names = [case.name for case in cases]
    doubled = {name for name in names if names.count(name) > 1}
    if doubled:
        raise ValueError(f"cases of the same name: {doubled}")
    return cases


class Place:
    """A case's own folders and environment."""

    def __init__(self, case: Case, binaries: Path, tmp: Path) -> None:
        self.case = case
        self.tmp = tmp
        self.as_nobody = case.user == "nobody" and os.geteuid() == 0
        for name in ("run", "state", "config", "data", "work"):
            (tmp / name).mkdir(mode=0o700)
        if self.as_nobody:
            for path in [tmp, *tmp.iterdir()]:
                os.chown(path, NOBODY, NOBODY)
        keep = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("XDG_", "MICROKIMI", "NOTIFY_", "LISTEN_", "NO_COLOR"))
        }
        self.env = (
            keep
            | {
                "PATH": f"{binaries}:{os.environ['PATH']}",
                "HOME": str(tmp),
                "XDG_RUNTIME_DIR": str(tmp / "run"),
                "XDG_STATE_HOME": str(tmp / "state"),
                "XDG_CONFIG_HOME": str(tmp / "config"),
                "XDG_DATA_HOME": str(tmp / "data"),
                "LC_ALL": "C.UTF-8",
            }
            | {key: self.fill(value) for key, value in case.env.items()}
        )

    def fill(self, text: str) -> str:
        return text.replace("{golden}", str(GOLDEN)).replace("{tmp}", str(self.tmp / "work"))

    def run(
        self, line: str, stdin: bytes = b"", env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        command = ["bash", "-c", self.fill(line)]
        if self.as_nobody:
            command = [
                "setpriv",
                f"--reuid={NOBODY}",
                f"--regid={NOBODY}",
                "--clear-groups",
                *command,
            ]
        return subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            env=env or self.env,
            cwd=self.tmp / "work",
            timeout=PATIENCE,
            check=False,
        )

    def must(self, line: str) -> str:
        done = self.run(line)
        if done.returncode != 0:
            raise CaseError(f"`{line}` ended with {done.returncode}: {text_of(done.stderr)}")
        return text_of(done.stdout)


def text_of(data: bytes) -> str:
    return data.decode("utf-8", errors="backslashreplace")


def check_text(what: str, found: str, expected: Expected | None, place: Place) -> None:
    if expected is None:
        return
    if isinstance(expected, str):
        if found != place.fill(expected):
            raise CaseError(f"{what} is {found!r}, expected {place.fill(expected)!r}")
        return
    for pattern in expected:
        # A pattern is a regular expression; what is put into it is not.
        filled = pattern.replace("{golden}", re.escape(str(GOLDEN)))
        filled = filled.replace("{tmp}", re.escape(str(place.tmp / "work")))
        if re.search(filled, found, re.MULTILINE) is None:
            raise CaseError(f"{what} lacks {filled!r}: {found!r}")


def pid_of_daemon(place: Place) -> str:
    match = re.search(r"pid (\d+)", place.must("mk ping"))
    if match is None:
        raise CaseError("mk ping names no pid")
    return match.group(1)


def check_error_form(stderr: str) -> None:
    """One line what is wrong; one line how to mend it, if there is one."""
    lines = [line for line in stderr.splitlines() if not line.startswith("mk: warning: ")]
    form = bool(lines) and lines[0].startswith("mk: ") and len(lines) <= 2
    if not form or (len(lines) == 2 and not lines[1].startswith("  hint: ")):
        raise CaseError(f"not an error of one line and a hint: {stderr!r}")


def run_case(case: Case, binaries: Path) -> None:
    """Raises CaseError when the case does not hold."""
    folder = Path(tempfile.mkdtemp(prefix="mk-case-"))
    try:
        place = Place(case, binaries.resolve(), folder)
        try:
            check_case(case, place)
        finally:
            stop_daemon(place)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def stop_daemon(place: Place) -> None:
    """Ends the case's daemon, as its user; it is an error when it does not end."""
    # Not with a case's own environment: it may be the point that mk cannot work with it.
    usual = {name: value for name, value in place.env.items() if name != "MICROKIMI_SOCKET"}
    usual["XDG_RUNTIME_DIR"] = str(place.tmp / "run")
    folder = place.tmp / "run" / "microkimi"
    if folder.is_dir() and not folder.is_symlink():
        folder.chmod(0o700)
    stop = place.run("mk stop", env=usual)
    # A case may leave a place in which no daemon can run; then none runs there.
    nowhere = b"symbolic link" in stop.stderr or b"is not a socket" in stop.stderr
    if stop.returncode != 0 and not nowhere:
        raise CaseError(f"the daemon does not stop: {text_of(stop.stderr)}")


def check_case(case: Case, place: Place) -> None:
    for line in case.setup:
        place.must(line)
    pid = pid_of_daemon(place) if case.keeps else ""
    done = place.run(case.command, case.input())
    stdout, stderr = text_of(done.stdout), text_of(done.stderr)
    if done.returncode != case.exit:
        raise CaseError(
            f"exit code {done.returncode}, expected {case.exit}\nstdout: {stdout}\nstderr: {stderr}"
        )
    check_text("stdout", stdout, case.stdout, place)
    check_text("stderr", stderr, case.stderr, place)
    if case.exit not in (0, 130, 141):
        check_error_form(stderr)
    if case.after:
        place.must(case.after)
    if case.keeps and pid_of_daemon(place) != pid:
        raise CaseError("the daemon is another one than before")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = os.environ.get("MK_BIN", ROOT / "build" / "release" / "bin")
    parser.add_argument("--bin", type=Path, default=Path(default))
    parser.add_argument("-k", default="", help="only cases with this in their name")
    options = parser.parse_args()
    failed = 0
    cases = [case for case in load_cases() if options.k in case.name]
    for case in cases:
        try:
            run_case(case, options.bin)
            print(f"ok      {case.file}: {case.name}")
        except (CaseError, subprocess.TimeoutExpired) as error:
            failed += 1
            print(f"FAILED  {case.file}: {case.name}\n        {error}")
    print(f"{len(cases)} cases, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
