"""A daemon that does nothing, one that crowds run over, and one that starts."""

from __future__ import annotations

import resource
import socket
import time
from pathlib import Path

from bench_place import Place, say

from daemon_figures.bench_daemon import (
    Client,
    Daemon,
    counters,
    cpu_seconds,
    private_bytes,
    serving,
    wait_until,
)
from daemon_figures.figure import Figure, percentile

GROUP = "Being there"
CROWD, LIMIT = 2000, 256


def idle_figures(place: Place, seconds: float) -> list[Figure]:
    say(f"an idle daemon over {seconds:.0f} s")
    with serving(place) as daemon:
        with Client(daemon.socket) as client:
            client.call("status")
        time.sleep(1)
        before, start = cpu_seconds(daemon.pid), time.perf_counter()
        time.sleep(seconds)
        used = cpu_seconds(daemon.pid) - before
        share = 100 * used / (time.perf_counter() - start)
        memory = private_bytes(daemon.pid) / 1e6
    detail = f"{1e6 * used / seconds:,.0f} us per second"
    return [
        # 0.0 % to the digit that is shown.
        Figure(GROUP, "idle, processor", share, "%", 0.05, detail=detail),
        Figure(GROUP, "idle, private memory without a model", memory, "MB", 20),
    ]


def _vanish(path: Path, index: int) -> None:
    """One of the crowd: most only connect, some say half a greeting, some ask and do not wait."""
    if index % 20 == 0:
        with Client(path) as client:
            client.send("status")
        return
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(str(path))
        if index % 3 == 0:
            one.send(b"\xff\x00\x00\x00")


def _healthy(daemon: Daemon, watcher: Client) -> bool:
    if not daemon.alive():
        return False
    with Client(daemon.socket) as fresh:
        if fresh.call("ping")["pid"] != daemon.pid:
            return False
    status = watcher.call("status")
    return status["connections"] <= 2 and not status["requests"] and daemon.open_fds() < 64


def crowd_figures(place: Place) -> list[Figure]:
    say(f"{CROWD:,} clients that connect and vanish under RLIMIT_NOFILE={LIMIT}")

    def low_limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))

    with serving(place, preexec_fn=low_limit) as daemon:
        watcher = daemon.client()
        watcher.call("ping")
        before = daemon.resident_kib()
        start = time.perf_counter()
        for index in range(CROWD):
            _vanish(daemon.socket, index)
        elapsed = time.perf_counter() - start
        wait_until(lambda: _healthy(daemon, watcher), "a healthy daemon after the crowd")
        grown = (daemon.resident_kib() - before) / 1024
        refused = counters(watcher).get("connections_refused", 0)
        healthy = 1.0 if _healthy(daemon, watcher) else 0.0
    detail = f"{CROWD / elapsed:,.0f} per second, {refused} refused, memory grew {grown:.1f} MiB"
    name = f"healthy after {CROWD:,} clients, {LIMIT} descriptors"
    return [Figure(GROUP, name, healthy, "", 1, True, detail)]


def start_figures(place: Place, rounds: int) -> list[Figure]:
    say("start to READY")
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        with serving(place):
            times.append(1e3 * (time.perf_counter() - start))
    detail = f"{rounds} starts, p99 {percentile(times, 0.99):.1f} ms"
    return [Figure(GROUP, "start to READY, p50", percentile(times, 0.5), "ms", 150, detail=detail)]
