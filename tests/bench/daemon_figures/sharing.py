"""Several clients on one model: tokens per second of 1, 4 and 8 of them, in one run."""

from __future__ import annotations

import statistics
import subprocess
import time

from bench_place import Place, say

from daemon_figures.bench_daemon import Client, Daemon, counters, serving, wait_until
from daemon_figures.figure import Figure

PRECISIONS = ("exact", "bf16", "q8")
CLIENTS = (1, 4, 8)
BARS = {4: 2.2, 8: 3.0}
GROUP = "Clients that share a model"
# Far more than a window takes: the streams are ended, they do not end.
TOKENS = 100_000


def _stream(daemon: Daemon, model: str, precision: str, seed: int) -> subprocess.Popen[bytes]:
    ids = ",".join(str(1 + (seed * 37 + i) % 200) for i in range(8))
    command = [str(daemon.program.with_name("mk")), "run", "-m", model, "--ids", ids]
    command += ["-n", str(TOKENS), "--precision", precision, "--stream-json"]
    return subprocess.Popen(command, env=daemon.env(), stdout=subprocess.DEVNULL)


def _rate(
    daemon: Daemon, watcher: Client, model: str, precision: str, clients: int, seconds: float
) -> float:
    """Tokens per second of all streams together, once all of them decode."""
    streams = [_stream(daemon, model, precision, seed) for seed in range(clients)]

    def all_decode() -> bool:
        requests = watcher.call("status")["requests"]
        return sum(one["generated"] >= 2 for one in requests) == clients

    try:
        wait_until(all_decode, f"{clients} streams")
        before, start = counters(watcher)["generated_tokens"], time.perf_counter()
        time.sleep(seconds)
        after, end = counters(watcher)["generated_tokens"], time.perf_counter()
    finally:
        for stream in streams:
            stream.terminate()
        for stream in streams:
            stream.wait()
    wait_until(lambda: not watcher.call("status")["requests"], "the streams to end")
    return (after - before) / (end - start)


def sharing_figures(place: Place, model: str, rounds: int, seconds: float) -> list[Figure]:
    figures = []
    for precision in PRECISIONS:
        say(f"1, 4 and 8 clients in {precision}")
        rates: dict[int, list[float]] = {clients: [] for clients in CLIENTS}
        with serving(place) as daemon:
            watcher = daemon.client()
            watcher.call("load", model=model, precision=precision)
            for _ in range(rounds):  # in turn, so that the machine's moods hit all alike
                for clients in CLIENTS:
                    args = (daemon, watcher, model, precision, clients, seconds)
                    rates[clients].append(_rate(*args))
        alone = statistics.median(rates[1])
        figures.append(Figure(GROUP, f"{precision}: one client", alone, "tok/s"))
        for clients, bar in BARS.items():
            ratios = [many / one for many, one in zip(rates[clients], rates[1], strict=True)]
            detail = f"{statistics.median(rates[clients]):,.1f} tok/s together"
            name = f"{precision}: {clients} clients against one"
            ratio = statistics.median(ratios)
            figures.append(Figure(GROUP, name, ratio, "times", bar, True, detail))
    return figures
