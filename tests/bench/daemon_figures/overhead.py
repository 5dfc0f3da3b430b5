"""What the daemon adds to a token: `mk run` through a daemon against the engine alone.

Both generate the same greedy tokens with as many threads. A long and a short run are taken of each,
in turn; their difference leaves out start, loading and prompt.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from bench_place import Place, say

from daemon_figures.bench_daemon import Daemon, cpu_seconds, serving
from daemon_figures.figure import Figure

GROUP = "What a streamed token costs beside the engine"
IDS = "5,6,7,8"
SHORT, LONG = 100, 600


class Engine:
    """bench_generate, which generates when it is told to."""

    def __init__(self, programs: Path, model: str, precision: str, threads: int) -> None:
        command = [str(programs / "bench_generate"), model, precision, str(threads)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, tokens: int) -> tuple[float, float]:
        """Microseconds of wall and processor time."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{IDS} {tokens}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("bench_generate ended")
        told = json.loads(line)
        if told["tokens"] != tokens:
            raise SystemExit(f"the engine stopped after {told['tokens']} of {tokens} tokens")
        return told["wall_us"], told["cpu_us"]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def _through_daemon(daemon: Daemon, model: str, precision: str, tokens: int) -> tuple[float, float]:
    """The same of `mk run`: the wall time that its caller sees, the time of both processes."""
    command = [str(daemon.program.with_name("mk")), "run", "-m", model, "--ids", IDS]
    command += ["-n", str(tokens), "--precision", precision, "--json"]
    before, start = cpu_seconds(daemon.pid), time.perf_counter()
    mk = subprocess.Popen(command, env=daemon.env(), stdout=subprocess.PIPE)
    assert mk.stdout is not None
    with mk.stdout as answer:
        text = answer.read()
    _, status, used = os.wait4(mk.pid, 0)
    elapsed = time.perf_counter() - start
    mk.returncode = os.waitstatus_to_exitcode(status)
    if mk.returncode != 0:
        raise SystemExit(f"mk run ended with code {mk.returncode}")
    done = json.loads(text)["usage"]["completion_tokens"]
    if done != tokens:
        raise SystemExit(f"the run stopped after {done} of {tokens} tokens")
    daemon_cpu = cpu_seconds(daemon.pid) - before
    return 1e6 * elapsed, 1e6 * (daemon_cpu + used.ru_utime + used.ru_stime)


def _per_token(run: Callable[[int], tuple[float, float]]) -> tuple[float, float]:
    long, short = run(LONG), run(SHORT)
    more = LONG - SHORT
    return (long[0] - short[0]) / more, (long[1] - short[1]) / more


def overhead_figures(
    place: Place, model: str, precision: str, threads: int, rounds: int
) -> list[Figure]:
    say(f"overhead per token, {threads} threads")
    walls, cpus, engine_walls = [], [], []
    engine = Engine(place.programs, model, precision, threads)
    try:
        with serving(place, "--threads", str(threads)) as daemon:
            daemon.client().call("load", model=model, precision=precision)
            for turn in range(rounds + 1):
                alone = _per_token(engine.run)
                served = _per_token(
                    lambda tokens: _through_daemon(daemon, model, precision, tokens)
                )
                if turn == 0:
                    continue  # warms up
                engine_walls.append(alone[0])
                walls.append(served[0] - alone[0])
                cpus.append(served[1] - alone[1])
    finally:
        engine.close()
    alone_us = statistics.median(engine_walls)
    detail = f"{rounds} pairs; the engine alone takes {alone_us:,.0f} us"
    name = f"{threads} thread{'s' if threads > 1 else ''}"
    return [
        Figure(GROUP, f"wall, {name}", statistics.median(walls), "us", 150, detail=detail),
        Figure(GROUP, f"processor, daemon and mk, {name}", statistics.median(cpus), "us", 60),
    ]
