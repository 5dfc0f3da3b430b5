"""Disks that fail on demand: a library loaded before the C library makes the daemon's calls fail
(tests/faults/fault_shim.cc)."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from daemon_harness import BIN, Client, Daemon, model, running, wait_for

SHIM = BIN / "mk_fault_shim.so"


class Faults:
    """The rules that the daemon's calls obey, when it is started with `environment()`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stamp = time.time_ns()
        self.set()

    def set(self, *rules: str) -> None:
        new = self.path.with_suffix(".new")
        new.write_text("".join(rule + "\n" for rule in rules))
        # The library goes by the time of change, which the kernel's clock gives in steps of
        # milliseconds: two changes within one would look like none.
        self.stamp += 1_000_000
        os.utime(new, ns=(self.stamp, self.stamp))
        os.replace(new, self.path)

    def environment(self) -> dict[str, str]:
        sanitized = "verify_asan_link_order=0:" + os.environ.get("ASAN_OPTIONS", "")
        return {
            "LD_PRELOAD": str(SHIM), "MK_FAULTS": str(self.path), "ASAN_OPTIONS": sanitized,
        }  # fmt: skip


@pytest.fixture
def faults(tmp_path: Path) -> Faults:
    if not SHIM.exists():
        pytest.skip("the fault library is not built")
    return Faults(tmp_path / "rules")


def still_well(daemon: Daemon, client: Client) -> None:
    """Another model runs, and nothing that failed is still held."""
    assert daemon.alive()
    assert client.call("run", model=model("k3b"), ids=[1], raw=True, max_new=2)["ids"]
    client.call("unload")
    assert running(client) == []
    # Models go on a thread of their own, and states of prompts with them.
    wait_for(lambda: client.call("status")["memory"]["used"] == 0)
