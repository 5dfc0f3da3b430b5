"""The README's pipeline, word for word: service, map, top, cancel, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from daemon_harness import BIN, ROOT, Daemon, wait_for
from fake_systemctl import FakeSystemctl
from service_manager import managed

from conftest import MakeDaemon

PATIENT = 60.0
STORY = str(ROOT / "models" / "story-k3.bin")
PROMPTS = 100


class User:
    """Somebody at a shell."""

    def __init__(self, place: Daemon, systemctl: FakeSystemctl) -> None:
        self.place = place
        self.env = place.env(PATH=systemctl.path())

    def start(self, *args: str, **popen: object) -> subprocess.Popen[bytes]:
        command = [str(BIN / "mk"), *args]
        return subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, **popen)

    def mk(self, *args: str, code: int = 0) -> str:
        process = self.start(*args, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = process.communicate(timeout=PATIENT)
        assert process.returncode == code, (args, out, err)
        return out.decode()

    def requests(self) -> list[dict]:
        return json.loads(self.mk("status", "--json"))["requests"]


def value_of(unit: Path, key: str) -> str:
    lines = [line for line in unit.read_text().splitlines() if line.startswith(key + "=")]
    assert len(lines) == 1
    return lines[0].partition("=")[2]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    names = ["Lily", "Tom", "Ben", "Mia", "Sam"]
    path.write_text("".join(f"One day {names[i % 5]} found {i} stones.\n" for i in range(PROMPTS)))
    return path


def test_the_pipeline_of_the_readme(make_daemon: MakeDaemon, tmp_path: Path, prompts: Path) -> None:
    place = make_daemon()
    systemctl = FakeSystemctl(tmp_path / "fake")
    user = User(place, systemctl)
    user.mk("service", "install")
    units = place.config.parents[1] / "systemd" / "user"
    # What systemd does with the units.
    assert value_of(units / "microkimid.socket", "ListenStream") == str(place.socket)
    place.program = Path(value_of(units / "microkimid.service", "ExecStart").strip('"'))
    with managed(place) as manager:
        answers = tmp_path / "answers.jsonl"
        with answers.open("wb") as out:
            pipeline = user.start("map", "-m", STORY, "-n", "200", "--json", prompts, stdout=out)
        wait_for(lambda: manager.heard("READY=1"), PATIENT, "for the service to start")
        wait_for(lambda: any(one["generated"] > 0 for one in user.requests()), PATIENT)
        watched = user.mk("top", "--once")
        assert "story-k3" in watched and "decode" in watched, watched
        pipeline.send_signal(signal.SIGINT)
        assert pipeline.wait(PATIENT) == 130
        wait_for(lambda: user.requests() == [], PATIENT)
        told = [json.loads(line) for line in answers.read_text().splitlines()]
        assert len(told) < PROMPTS and [one["index"] for one in told] == list(range(len(told)))
        # And once to its end, on the same daemon.
        whole = user.mk("map", "-m", STORY, "-n", "2", "--json", str(prompts)).splitlines()
        ends = [json.loads(line) for line in whole]
        assert [one["status"] for one in ends] == ["done"] * PROMPTS
        assert user.requests() == [] and len(manager.starts) == 1
        user.mk("stop")
        wait_for(lambda: manager.ends == [0], PATIENT)
        left = sorted(os.listdir(place.run_dir))
    user.mk("service", "uninstall")
    assert [path for path in units.rglob("*") if not path.is_dir()] == []
    # The socket is systemd's, the lock is empty; nothing else is there.
    assert {name.partition(".")[2] or name for name in left} <= {"s", "lock", "start"}, left


def test_the_readme_shows_these_commands() -> None:
    readme = (ROOT / "README.md").read_text()
    for command in ("mk service install", "mk map -n 200 --json prompts.txt", "mk top"):
        assert f"\n{command}" in readme
