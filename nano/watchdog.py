"""Reasons to stop early, and the word to systemd that the run is alive."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

EXIT_DONE, EXIT_USAGE, EXIT_DATA, EXIT_MISSING = 0, 64, 65, 66
EXIT_DIVERGED, EXIT_DISK, EXIT_RESUME, EXIT_CONFIG = 70, 74, 75, 76


def resident_bytes() -> int:
    """Memory of this process; the peak where the current value is not available."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def trim_memory() -> None:
    """Returns free heap pages to the system where the C library can."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Watchdog:
    """Collects stop requests; the training loop asks once per step."""

    def __init__(
        self, run: Path, max_hours: float | None = None, rss_cap_gb: float | None = None,
        rss: Callable[[], int] = resident_bytes,
    ) -> None:
        self.run, self.max_hours, self.rss_cap_gb, self._rss = run, max_hours, rss_cap_gb, rss
        self._started = time.monotonic()
        self._signal: str | None = None

    def install(self) -> None:
        """First SIGTERM or SIGINT asks for a stop after the step, the second ends at once."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._signal is not None:
            os._exit(EXIT_RESUME)
        self._signal = signal.Signals(number).name

    def reason(self) -> str | None:
        """Why to save and stop now, or None."""
        if self._signal is not None:
            return self._signal
        hours = (time.monotonic() - self._started) / 3600
        if self.max_hours is not None and hours > self.max_hours:
            return "max-hours"
        if self.rss_cap_gb is not None and self._rss() > self.rss_cap_gb * 1e9:
            return "rss-cap"
        return None

    def disk_is_low(self, checkpoint_bytes: int) -> bool:
        """Whether fewer than three more checkpoints fit."""
        return shutil.disk_usage(self.run).free < 3 * checkpoint_bytes


def notify_systemd(message: str) -> bool:
    """Sends e.g. `READY=1` or `WATCHDOG=1` to the service manager; False when there is none."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.connect(address)
            channel.sendall(message.encode())
    except OSError:
        return False
    return True
