"""mk and its daemon when one of them, or the model, is taken away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_harness import BIN, PATIENCE, SOON, Daemon, copy_model, model, wait_for

from conftest import MakeDaemon

ENDLESS = ["run", "--ids", "1,2,3", "-n", "1000000"]


class Mk:
    """mk in a place of its own, with the daemons that it starts."""

    def __init__(self, place: Daemon) -> None:
        self.place = place
        self.started: list[subprocess.Popen[bytes]] = []

    def __call__(self, *args: str, code: int = 0) -> str:
        done = self.wait(self.start(*args))
        assert done.returncode == code, done
        return done.stdout.decode()

    def start(self, *args: str, stdout: int | None = None) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [str(BIN / "mk"), *args],
            env=self.place.env(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if stdout is None else stdout,
            stderr=subprocess.PIPE,
        )
        self.started.append(process)
        return process

    def wait(self, process: subprocess.Popen[bytes]) -> subprocess.CompletedProcess[bytes]:
        out, err = process.communicate(timeout=PATIENCE)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def status(self) -> dict:
        return json.loads(self("status", "--json"))

    def streaming(self, *args: str) -> subprocess.Popen[bytes]:
        """A run whose text goes nowhere, when its first tokens are there."""
        process = self.start(*ENDLESS, *args, stdout=subprocess.DEVNULL)
        wait_for(lambda: any(one["generated"] > 10 for one in self.status()["requests"]))
        return process


@pytest.fixture
def mk(make_daemon: MakeDaemon) -> Iterator[Mk]:
    made = Mk(make_daemon())
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.communicate()
    made("stop")


def daemons(mk: Mk) -> list[int]:
    """All processes that serve this test's socket."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if words[0].endswith(b"microkimid") and str(mk.place.socket).encode() in words:
            found.append(int(path.parent.name))
    return found


def check_error(done: subprocess.CompletedProcess[bytes], what: str) -> None:
    """One line that says what is wrong, one that says how to mend it."""
    lines = done.stderr.decode().splitlines()
    assert len(lines) == 2 and lines[0].startswith("mk: ") and what in lines[0], done
    assert lines[1].startswith("  hint: "), done


def test_twenty_at_once_start_one_daemon(mk: Mk) -> None:
    processes = [mk.start("load", model()) for _ in range(20)]
    for process in processes:
        done = mk.wait(process)
        assert done.returncode == 0, done
    (daemon,) = daemons(mk)
    assert mk.status()["pid"] == daemon
    # And when nobody may start one, nobody does.
    mk("stop")
    for process in [mk.start("ping") for _ in range(20)]:
        assert mk.wait(process).returncode == 3
    assert daemons(mk) == []


def test_a_daemon_killed_in_a_stream_is_an_error_and_the_next_run_works(mk: Mk) -> None:
    mk("load", model())
    process = mk.streaming("-m", model())
    killed = mk.status()["pid"]
    os.kill(killed, signal.SIGKILL)
    start = time.monotonic()
    done = mk.wait(process)
    assert done.returncode == 3 and time.monotonic() - start < SOON
    check_error(done, "the daemon closed the connection")
    assert len(json.loads(mk("run", "-m", model(), "--ids", "1", "-n", "3", "--json"))["ids"]) == 3
    assert mk.status()["pid"] != killed


@pytest.mark.slow
def test_a_daemon_that_hangs_in_a_stream_is_not_waited_for_for_ever(mk: Mk) -> None:
    mk("load", model())
    process = mk.streaming("-m", model())
    pid = mk.status()["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        done = mk.wait(process)  # after twenty seconds
        assert done.returncode == 3
        check_error(done, "does not answer any more")
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_killed_client_is_soon_gone_from_status(mk: Mk) -> None:
    mk("load", model())
    process = mk.streaming("-m", model())
    process.kill()
    wait_for(lambda: mk.status()["requests"] == [], SOON, "for the request to go")
    status = mk.status()
    assert status["memory"]["sequences"] == 0 and status["models"][0]["users"] == 0


def test_stop_ends_a_run_with_a_reason(mk: Mk) -> None:
    mk("load", model())
    process = mk.streaming("-m", model())
    mk("stop")
    done = mk.wait(process)
    assert done.returncode == 3
    check_error(done, "shutting down")
    assert daemons(mk) == []


def test_control_c_ends_the_decode_at_once(mk: Mk) -> None:
    mk("load", model())
    process = mk.start(*ENDLESS, "-m", model(), "--json")
    wait_for(lambda: any(one["generated"] > 10 for one in mk.status()["requests"]))
    process.send_signal(signal.SIGINT)
    done = mk.wait(process)
    assert done.returncode == 130
    made = mk.status()["counters"]["generated_tokens"]
    told = json.loads(done.stdout)
    assert told["finish_reason"] == "cancelled"
    # The daemon made no token after those that it told of.
    assert told["usage"]["completion_tokens"] == len(told["ids"]) == made


def test_a_model_that_is_replaced_or_cut_off_lets_a_run_go_on(mk: Mk, tmp_path: Path) -> None:
    path = Path(copy_model(tmp_path / "m", "k3a"))
    other = Path(copy_model(tmp_path / "n", "k3b"))
    mk("load", str(path))
    process = mk.streaming("-m", str(path))
    for name in ("model.bin", "base.tiktoken", "vocab.json"):
        os.replace(other.parent / name, path.parent / name)
    run = ["run", "-m", str(path), "--ids", "1,2", "-n", "2", "--json"]
    new = json.loads(mk(*run))["trust"]["fingerprint"]
    models = mk.status()["models"]
    assert {one["state"] for one in models} == {"ready", "replaced"}
    assert next(one["fingerprint"] for one in models if one["state"] == "ready") == new
    os.truncate(path, 1000)
    failed = mk.wait(mk.start(*run[:-1]))
    assert failed.returncode == 1
    check_error(failed, str(path))
    # The cut-off file is a third one, and nobody used the second.
    assert [one["state"] for one in mk.status()["models"]] == ["replaced"]
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert mk.wait(process).returncode == 130
    assert mk.status()["models"] == []


@pytest.mark.parametrize("precision", ["exact", "q8"])
def test_two_at_once_say_what_each_says_alone(mk: Mk, precision: str) -> None:
    prompts = ["the small boat left the river", "a kettle", "seven lamps on a wall"]

    def command(prompt: str) -> list[str]:
        return ["run", "-m", model(), "--precision", precision, "-n", "200", prompt]

    alone = [mk(*command(prompt)) for prompt in prompts]
    assert len(set(alone)) == len(prompts)
    together = [mk.start(*command(prompt)) for prompt in prompts for _ in range(2)]
    said = [mk.wait(process).stdout.decode() for process in together]
    assert said == [text for text in alone for _ in range(2)]
