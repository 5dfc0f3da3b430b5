"""A systemctl of a few lines for PATH: keeps a log of its calls and what they lead to."""

from __future__ import annotations

import os
from pathlib import Path

_SCRIPT = """#!/bin/sh
# Files in $FAKE: calls, manager (the state that is told), fail-VERB, active-UNIT, props-UNIT.
FAKE='@FAKE@'
echo "$*" >> "$FAKE/calls"
[ "$1" = --user ] && [ "$2" = --no-pager ] || exit 90
shift 2
verb=$1
shift
if [ -e "$FAKE/fail-$verb" ]; then cat "$FAKE/fail-$verb" >&2; exit 1; fi
units="$XDG_CONFIG_HOME/systemd/user"
link="$units/sockets.target.wants/microkimid.socket"
case $verb in
  is-system-running)
    cat "$FAKE/manager"
    grep -qx offline "$FAKE/manager" && { echo "Failed to connect to bus" >&2; exit 1; }
    exit 0 ;;
  daemon-reload | reset-failed) ;;
  enable)
    [ -e "$units/$1" ] || { echo "Unit file $1 does not exist." >&2; exit 1; }
    mkdir -p "${link%/*}" && ln -sf "$units/$1" "$link" ;;
  disable)
    rm -f "$link" "$FAKE/active-$2" ;;
  start)
    for unit; do : > "$FAKE/active-$unit"; done ;;
  stop)
    for unit; do rm -f "$FAKE/active-$unit"; done ;;
  show)
    unit=$1
    [ -e "$units/$unit" ] && echo LoadState=loaded || echo LoadState=not-found
    [ -e "$units/$unit" ] && echo "FragmentPath=$units/$unit"
    [ -L "$link" ] && echo UnitFileState=enabled || echo UnitFileState=disabled
    [ -e "$FAKE/active-$unit" ] && echo ActiveState=active || echo ActiveState=inactive
    [ -e "$FAKE/active-$unit" ] && echo SubState=listening || echo SubState=dead
    if [ -e "$FAKE/props-$unit" ]; then cat "$FAKE/props-$unit"; else echo Result=success; fi ;;
  *) exit 91 ;;
esac
"""


class FakeSystemctl:
    def __init__(self, folder: Path, state: str = "running") -> None:
        self.folder = folder
        folder.mkdir()
        self.program = folder / "systemctl"
        self.program.write_text(_SCRIPT.replace("@FAKE@", str(folder)))
        self.program.chmod(0o755)
        self.manager(state)

    def path(self) -> str:
        """PATH with it in front."""
        return f"{self.folder}:{os.environ['PATH']}"

    def manager(self, state: str) -> None:
        (self.folder / "manager").write_text(state + "\n")

    def calls(self) -> list[str]:
        """What it was asked to do, looks left out; forgets it."""
        log = self.folder / "calls"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        asked = [line.removeprefix("--user --no-pager ") for line in lines]
        return [one for one in asked if not one.startswith(("show ", "is-system-running"))]

    def fail(self, verb: str, words: str) -> None:
        (self.folder / f"fail-{verb}").write_text(words + "\n")

    def properties(self, unit: str, **values: str) -> None:
        lines = [f"{name}={value}\n" for name, value in values.items()]
        (self.folder / f"props-{unit}").write_text("".join(lines))

    def active(self, unit: str) -> bool:
        return (self.folder / f"active-{unit}").exists()
