"""A daemon that is measured: started by hand, with the clocks and counters that tell of it."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench_place import ROOT, Place

sys.path.insert(0, str(ROOT / "tests" / "e2e"))
from daemon_harness import Client, Daemon

__all__ = ["Client", "Daemon", "cpu_seconds", "private_bytes", "serving", "wait_until"]

PATIENCE = 600.0


@contextlib.contextmanager
def serving(place: Place, *options: str, **popen: Any) -> Iterator[Daemon]:
    """A daemon of its own in a folder of the place; ended afterwards."""
    home = place.folder / f"daemon-{time.monotonic_ns()}"
    home.mkdir(mode=0o700)
    daemon = Daemon(home)
    daemon.program = place.programs / "microkimid"
    daemon.start(*options, **popen)
    try:
        yield daemon
    finally:
        daemon.clean_up()


def wait_until(condition: Callable[[], Any], what: str, pause: float = 0.01) -> Any:
    end = time.monotonic() + PATIENCE
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise SystemExit(f"waited {PATIENCE:.0f} s in vain for {what}")
        time.sleep(pause)


def cpu_seconds(pid: int) -> float:
    """Processor time of all threads of a process, from its own clock: to the nanosecond."""
    return time.clock_gettime((~pid << 3) | 2)


def private_bytes(pid: int) -> int:
    """Memory that is nobody else's: not the pages of files that other processes map, too."""
    total = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(("Private_Clean:", "Private_Dirty:")):
            total += int(line.split()[1]) * 1024
    return total


def counters(client: Client) -> dict[str, int]:
    return client.call("status")["counters"]


def own_cores() -> int:
    return len(os.sched_getaffinity(0))
