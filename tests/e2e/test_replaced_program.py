"""An update while the daemon runs: it notices, says so, and makes way for the new program."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest
from daemon_harness import BIN, Client, Daemon, endless, model, wait_for
from service_manager import managed, pid_behind

from conftest import MakeDaemon

RESTART = 75  # what the unit calls RestartForceExitStatus
PATIENT = 60.0


@pytest.fixture
def daemon(make_daemon: MakeDaemon, tmp_path: Path) -> Daemon:
    """Not started; of a program that can be replaced."""
    made = make_daemon()
    made.program = tmp_path / "microkimid"
    shutil.copy(BIN / "microkimid", made.program)
    return made


def update(daemon: Daemon) -> None:
    """As an installation does it."""
    fresh = daemon.program.with_suffix(".new")
    shutil.copy(BIN / "microkimid", fresh)
    os.replace(fresh, daemon.program)


def mk(daemon: Daemon, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / "mk"), *args],
        env=daemon.env(MICROKIMI_DAEMON=str(daemon.program)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def replaced(client: Client) -> bool:
    return client.call("status")["counters"]["program_replaced"] == 1


def test_it_notices_and_says_so(daemon: Daemon) -> None:
    client = daemon.start().client()
    assert not replaced(client)
    assert "mk restart" not in mk(daemon, "status").stdout
    update(daemon)
    wait_for(lambda: replaced(client), PATIENT)
    assert "`mk restart` starts that" in mk(daemon, "status").stdout
    said = f"another program is at {daemon.program} now"
    wait_for(lambda: said in daemon.log(), PATIENT)
    client.call("ping")
    assert daemon.log().count(said) == 1
    assert client.call("ping")["pid"] == daemon.pid  # nobody would start it anew


def test_one_that_nobody_would_start_anew_stays(daemon: Daemon) -> None:
    """However idle it is: no service manager waits for it to leave."""
    daemon.start()
    update(daemon)
    wait_for(lambda: "another program is at" in daemon.log(), PATIENT)
    time.sleep(4)
    assert daemon.client().call("ping")["pid"] == daemon.pid


def test_a_removed_program_is_no_update(daemon: Daemon) -> None:
    client = daemon.start().client()
    daemon.program.unlink()
    started = time.monotonic()
    while time.monotonic() - started < 5:
        assert not replaced(client)
        time.sleep(0.2)


def test_an_idle_one_makes_way_for_the_new_program(daemon: Daemon) -> None:
    with managed(daemon) as manager:
        first = pid_behind(daemon.socket)
        update(daemon)
        wait_for(lambda: manager.ends == [RESTART] and len(manager.starts) == 2, PATIENT)
        second = pid_behind(daemon.socket)
        assert second == manager.starts[1] != first
        assert "its program was replaced and it has nothing to do" in daemon.log()
        with Client(daemon.socket) as client:
            assert not replaced(client)


def test_one_that_works_is_not_interrupted(daemon: Daemon) -> None:
    with managed(daemon) as manager:
        client = daemon.client()
        number = endless(client)
        client.wait_tokens(number, 1)
        update(daemon)
        seen = 0

        def noticed() -> bool:
            nonlocal seen
            seen = len(client.replies[number])
            client.next_reply(number, seen)
            return "its program was replaced" in manager.status()

        wait_for(noticed, PATIENT)
        client.next_reply(number, len(client.replies[number]))
        assert manager.ends == [] and len(manager.starts) == 1
        client.call("cancel", request=number)
        client.close()
        daemon.clients.remove(client)
        wait_for(lambda: manager.ends == [RESTART], PATIENT)


def test_a_model_that_was_loaded_to_stay_keeps_it_there(daemon: Daemon) -> None:
    with managed(daemon) as manager:
        with Client(daemon.socket) as client:
            client.call("load", model=model(), keep_alive_ms=-1)
        update(daemon)
        wait_for(lambda: "its program was replaced" in manager.status(), PATIENT)
        time.sleep(4)
        assert manager.ends == []
        with Client(daemon.socket) as client:
            client.call("unload", model=model())
        wait_for(lambda: manager.ends == [RESTART], PATIENT)


@pytest.mark.parametrize("activated", [True, False])
def test_no_run_is_lost_while_it_is_restarted(daemon: Daemon, activated: bool) -> None:
    """Calls of mk that come while the old one leaves are done by the new one."""
    failed: list[str] = []
    over = threading.Event()
    done = 0

    def calls() -> None:
        nonlocal done
        while not over.is_set():
            end = mk(daemon, "run", "-m", model(), "--ids", "5,6,7", "-n", "3", "--json")
            done += 1
            if end.returncode != 0:
                failed.append(end.stderr)

    def restarts() -> None:
        pids = set()
        for _ in range(3):
            before = done
            end = mk(daemon, "restart")
            assert end.returncode == 0, end
            pids.add(end.stdout.split()[-1])
            wait_for(lambda before=before: done >= before + 3, PATIENT)
        assert len(pids) == 3

    def under_load() -> None:
        threads = [threading.Thread(target=calls) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            restarts()
        finally:
            over.set()
            for thread in threads:
                thread.join()

    if activated:
        with managed(daemon):
            under_load()
    else:
        mk(daemon, "run", "-m", model(), "--ids", "5", "-n", "1")
        try:
            under_load()
        finally:
            mk(daemon, "stop")
        mk(daemon, "stop")
    assert failed == []


def test_no_item_of_a_map_is_lost_while_daemons_are_restarted(
    daemon: Daemon, tmp_path: Path
) -> None:
    """What the old daemon does not end is done by the next one, once and in order."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"{number} and the dog\n" for number in range(400)))
    out = tmp_path / "answers.jsonl"
    command = ["map", "-m", model(), "-n", "60", "--json", str(prompts)]
    whole = mk(daemon, *command)
    assert whole.returncode == 0, whole
    pids = set()
    with out.open("w") as answers:
        mapping = subprocess.Popen(
            [str(BIN / "mk"), *command],
            env=daemon.env(MICROKIMI_DAEMON=str(daemon.program)),
            stdin=subprocess.DEVNULL,
            stdout=answers,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            while mapping.poll() is None and len(pids) < 3:
                before = out.stat().st_size
                wait_for(
                    lambda before=before: out.stat().st_size > before
                    or mapping.poll() is not None,
                    PATIENT,
                )
                end = mk(daemon, "restart")
                assert end.returncode == 0, end
                pids.add(end.stdout.split()[-1])
            err = mapping.communicate(timeout=PATIENT)[1]
        finally:
            mapping.kill()
            mk(daemon, "stop")
    assert mapping.returncode == 0, err
    assert pids
    answered = [json.loads(line) for line in out.read_text().splitlines()]
    expected = [json.loads(line) for line in whole.stdout.splitlines()]
    assert [one["index"] for one in answered] == list(range(400))
    assert [one["text"] for one in answered] == [one["text"] for one in expected]
