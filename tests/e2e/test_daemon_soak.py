"""Hours of everything at once: memory, descriptors and threads stay what they were.

Rounds of mixed load, each followed by a quiet moment in which nothing is loaded and nothing runs;
what the daemon holds then is measured. MK_SOAK_SECONDS sets the time, half an hour by default.
"""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from daemon_harness import (
    BIN,
    Client,
    Daemon,
    ReplyError,
    copy_model,
    model,
    prompt_ids,
    running,
    wait_for,
)

from conftest import MakeDaemon

SECONDS = float(os.environ.get("MK_SOAK_SECONDS", "1800"))
ROUNDS = 20
PRECISIONS = ["exact", "bf16", "q8"]
MODELS = [model("k3a"), model("k3b"), model("k3c")]
# What may be different between one quiet moment and another: pages that the allocator keeps.
SLACK_KIB = 8 * 1024


class Load:
    """Threads that each do one thing over and over until they are told to stop."""

    def __init__(self, daemon: Daemon, broken: str) -> None:
        self.daemon = daemon
        self.broken = broken
        self.stop = threading.Event()
        self.failures: list[BaseException] = []
        self.done = 0
        self.known: dict[tuple[str, str, int], list[int]] = {}
        self.lock = threading.Lock()

    def round(self, seconds: float, seed: int) -> None:
        self.stop.clear()
        jobs: list[Callable[[Client, random.Random], None]] = [
            self.run, self.run, self.run, self.cancel, self.vanish, self.load, self.misuse, self.map
        ]  # fmt: skip
        threads = [
            threading.Thread(target=self.repeat, args=(job, seed * 100 + i))
            for i, job in enumerate(jobs)
        ]
        for thread in threads:
            thread.start()
        self.stop.wait(seconds)
        self.stop.set()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive(), "a request does not end"
        if self.failures:
            raise self.failures[0]

    def repeat(self, job: Callable[[Client, random.Random], None], seed: int) -> None:
        rng = random.Random(seed)
        try:
            with Client(self.daemon.socket) as client:
                while not self.stop.is_set():
                    job(client, rng)
                    client.replies.clear()
                    self.done += 1
        except BaseException as error:
            self.failures.append(error)
            self.stop.set()

    def run(self, client: Client, rng: random.Random) -> None:
        """Answers are the same each time, whatever goes on."""
        path, precision, seed = rng.choice(MODELS), rng.choice(PRECISIONS), rng.randrange(40)
        args = {
            "model": path, "precision": precision, "raw": True, "max_new": 30, "window": 4096,
            "ids": prompt_ids(seed, 1 + seed * 7), "priority": rng.choice(["interactive"] * 3
                                                                          + ["background"]),
        }  # fmt: skip
        ids = client.call("run", **args)["ids"]
        with self.lock:
            assert self.known.setdefault((path, precision, seed), ids) == ids

    def cancel(self, client: Client, rng: random.Random) -> None:
        args = {"raw": True, "max_new": 100_000, "window": 4096}
        ids = prompt_ids(rng.randrange(99), rng.choice([5, 3000]))
        number = client.send("run", model=rng.choice(MODELS), ids=ids, **args)
        client.next_reply(number, rng.randrange(3))
        client.call("cancel", request=number)
        with contextlib.suppress(ReplyError):
            client.finish(number)

    def vanish(self, client: Client, rng: random.Random) -> None:
        with Client(self.daemon.socket) as gone:
            ids = prompt_ids(rng.randrange(99), rng.choice([5, 3000]))
            gone.send("run", model=rng.choice(MODELS), ids=ids, raw=True, max_new=100_000)
            gone.pump(rng.random() * 0.2)

    def load(self, client: Client, rng: random.Random) -> None:
        path = rng.choice(MODELS)
        try:
            pin = rng.random() < 0.3
            client.call("load", model=path, precision=rng.choice(PRECISIONS), pin=pin)
        except ReplyError as error:  # the states of long runs may fill the budget
            assert error.code == "out_of_memory", error
        with contextlib.suppress(ReplyError):  # others may use it
            client.call("unload", model=path)

    def misuse(self, client: Client, rng: random.Random) -> None:
        with pytest.raises(ReplyError):
            client.call("run", model=self.broken, ids=[1], raw=True)
        with pytest.raises(ReplyError):
            client.call("run", model=MODELS[0], ids=[10**6], raw=True)
        client.send_raw(os.urandom(rng.randrange(1, 2000)))
        client.call("ping")

    def map(self, client: Client, rng: random.Random) -> None:
        lines = "".join(f"left the river {rng.randrange(100)}\n" for _ in range(20))
        command = [str(BIN / "mk"), "map", "-m", rng.choice(MODELS), "-n", "10"]
        done = subprocess.run(
            command, input=lines.encode(), env=self.daemon.env(), capture_output=True, timeout=120
        )
        assert done.returncode == 0 and done.stdout.count(b"\n") == 20, done


def threads_of(daemon: Daemon) -> int:
    return len(os.listdir(f"/proc/{daemon.pid}/task"))


def quiet(daemon: Daemon, client: Client) -> tuple[int, int, int]:
    """KiB, descriptors and threads when nothing is left."""
    wait_for(lambda: running(client) == [], 60, "for what is left to end")
    wait_for(lambda: client.call("status")["connections"] == 1, 60, "for connections to go")
    wait_for(lambda: client.call("unload") and client.call("status")["models"] == [], 60)
    # Models are freed by a thread of their own.
    wait_for(lambda: client.call("status")["memory"]["used"] == 0, 60)
    time.sleep(1)
    return daemon.resident_kib(), daemon.open_fds(), threads_of(daemon)


@pytest.mark.slow
def test_a_long_time_of_mixed_load(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    daemon = make_daemon()
    daemon.config.write_text('memory = "256MiB"\nmax_queue = 200\n')
    client = daemon.start().client()
    broken = copy_model(tmp_path / "broken")
    os.truncate(broken, os.path.getsize(broken) // 2)
    load = Load(daemon, broken)
    samples = []
    for turn in range(ROUNDS):
        load.round(SECONDS / ROUNDS, turn)
        samples.append(quiet(daemon, client))
    kib, fds, threads = zip(*samples, strict=True)
    print(f"{load.done} pieces of work; KiB {kib}; descriptors {fds}; threads {threads}")
    warm = ROUNDS // 3
    assert max(fds[warm:]) - min(fds[warm:]) <= 2, fds
    assert max(threads[warm:]) - min(threads[warm:]) <= 1, threads
    middle, last = statistics.median(kib[warm : 2 * warm]), statistics.median(kib[2 * warm :])
    assert last - middle < SLACK_KIB, kib
    assert load.done > ROUNDS * 5
    counters = client.call("status")["counters"]
    assert counters["models_unloaded"] == counters["models_loaded"]
