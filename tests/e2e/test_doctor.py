"""mk doctor: what is wrong, and how to mend it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from typing import Any

import pytest
from daemon_harness import BIN, PATIENCE, Daemon, wait_for

from conftest import MakeDaemon

CODES = {"ok": 0, "warn": 4, "fail": 1}
Finding = dict[str, Any]


class Doctor:
    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(BIN / "mk"), "doctor", *args],
            env=self.daemon.env(XDG_CACHE_HOME=str(self.daemon.home / "cache")),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    def findings(self) -> dict[str, Finding]:
        """By check; the exit code is that of the worst."""
        done = self.run("--json")
        report = json.loads(done.stdout)
        assert report["schema"] == 1
        checks = report["checks"]
        worst = max((one["health"] for one in checks), key=["ok", "warn", "fail"].index)
        assert report["health"] == worst and done.returncode == CODES[worst], done
        for one in checks:
            assert one["message"] and bool(one["remedy"]) == (one["health"] != "ok"), one
        return {one["check"]: one for one in checks}

    def healthy(self, *checks: str) -> None:
        found = self.findings()
        for check in checks:
            assert found[check]["health"] == "ok", found[check]


@pytest.fixture
def doctor(make_daemon: MakeDaemon) -> Doctor:
    return Doctor(make_daemon())


MINE = ("program", "socket folder", "socket", "daemon", "config")


def test_nothing_runs_and_nothing_is_started(doctor: Doctor) -> None:
    before = sorted(doctor.daemon.home.rglob("*"))
    doctor.healthy(*MINE)
    assert "none runs" in doctor.findings()["daemon"]["message"]
    folders = {check for check in doctor.findings() if check.startswith("folder ")}
    assert folders == {"folder config", "folder state", "folder models", "folder cache"}
    assert {"memory", "open files", "processor", "address space"} <= set(doctor.findings())
    assert sorted(doctor.daemon.home.rglob("*")) == before


def test_a_daemon_that_serves(doctor: Doctor) -> None:
    doctor.daemon.start()
    doctor.healthy(*MINE, "models")
    assert f"pid {doctor.daemon.pid}" in doctor.findings()["daemon"]["message"]
    shown = doctor.run().stdout
    assert "to mend it:" in shown or "all is well" in shown


def test_what_a_daemon_that_died_left(doctor: Doctor) -> None:
    doctor.daemon.start().kill()
    found = doctor.findings()["daemon"]
    assert found["health"] == "warn" and "left its socket" in found["message"]
    assert "to mend it: the next start replaces it" in doctor.run().stdout


def test_a_lock_that_is_held_while_nobody_answers(doctor: Doctor) -> None:
    doctor.daemon.start()
    doctor.daemon.socket.unlink()
    doctor.daemon.signal(signal.SIGSTOP)
    try:
        found = doctor.findings()["daemon"]
        assert found["health"] == "warn", found
        assert f"kill -9 {doctor.daemon.pid}" in found["remedy"]
    finally:
        doctor.daemon.signal(signal.SIGCONT)
    wait_for(doctor.daemon.socket.exists)


def test_a_daemon_that_hangs(doctor: Doctor) -> None:
    doctor.daemon.start()
    doctor.daemon.signal(signal.SIGSTOP)
    try:
        assert doctor.findings()["daemon"]["health"] == "fail"
    finally:
        doctor.daemon.signal(signal.SIGCONT)


def test_folders_and_sockets_that_others_may_use(doctor: Doctor) -> None:
    doctor.daemon.run_dir.chmod(0o777)
    assert doctor.findings()["socket folder"]["health"] == "fail"
    doctor.daemon.run_dir.chmod(0o700)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(doctor.daemon.socket))
        doctor.daemon.socket.chmod(0o666)
        found = doctor.findings()["socket"]
        assert found["health"] == "warn"
        assert found["remedy"] == f"chmod 600 {doctor.daemon.socket}"
    doctor.daemon.socket.unlink()
    doctor.daemon.socket.write_text("a file")
    assert doctor.findings()["socket"]["health"] == "fail"
    state = doctor.daemon.home / "state" / "microkimi"
    state.mkdir(parents=True)
    state.chmod(0o777)
    assert doctor.findings()["folder state"]["remedy"] == f"chmod go-w {state}"
    state.rmdir()
    state.write_text("a file")
    assert doctor.findings()["folder state"]["health"] == "fail"


def test_the_config_file_and_what_it_names(doctor: Doctor) -> None:
    config = doctor.daemon.config
    config.write_text("thread = 1\n")
    found = doctor.findings()["config"]
    assert found["health"] == "warn" and found["remedy"] == "did you mean threads?"
    config.write_text("threads = -1\n")
    assert f"{config}:1:" in doctor.findings()["config"]["message"]
    assert doctor.findings()["config"]["health"] == "fail"
    here = doctor.daemon.home / "here.bin"
    here.write_bytes(b"x")
    config.write_text(f'aliases = {{ a = "/no/such.bin", b = "{here}" }}\n')
    assert doctor.findings()["model aliases.a"]["health"] == "warn"
    assert doctor.findings()["model aliases.b"]["health"] == "ok"


def test_limits_of_the_process(doctor: Doctor) -> None:
    done = subprocess.run(
        ["bash", "-c", f"ulimit -n 100; exec {BIN / 'mk'} doctor --json"],
        env={**doctor.daemon.env(), "PATH": os.environ["PATH"]},
        capture_output=True,
        timeout=PATIENCE,
    )
    found = {one["check"]: one for one in json.loads(done.stdout)["checks"]}
    assert found["open files"]["health"] == "warn" and "100" in found["open files"]["message"]
