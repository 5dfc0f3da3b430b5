"""mk logs: the daemon's log, whether the daemon lives or not."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_harness import BIN, PATIENCE, SOON, Daemon, copy_model, model, wait_for

from conftest import MakeDaemon


class Place:
    """Where a daemon logs to a file, as one does that mk has started."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.folder = daemon.home / "state" / "microkimi"
        self.started: list[subprocess.Popen[str]] = []

    def mk(self, *args: str, code: int = 0, **env: str) -> str:
        done = self.run(*args, **env)
        assert done.returncode == code, done
        return done.stdout

    def run(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(BIN / "mk"), *args],
            env=self.daemon.env(**env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    def follow(self, *args: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [str(BIN / "mk"), "logs", "-f", *args],
            env=self.daemon.env(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def pid(self) -> int:
        return json.loads(self.mk("ping", "--json"))["pid"]

    @property
    def file(self) -> Path:
        (file,) = (one for one in self.folder.glob("microkimid-*.log") if one.name.count(".") == 1)
        return file


@pytest.fixture
def place(make_daemon: MakeDaemon) -> Iterator[Place]:
    made = Place(make_daemon())
    yield made
    for process in made.started:
        process.kill()
        process.communicate()
    made.run("stop")


def line(minute: int, level: str, message: str) -> str:
    return f"2026-11-30T13:{minute:02}:11.123+00:00 4711 {level} {message}\n"


def write_log(place: Place) -> Path:
    """A log of a daemon that is dead, in three files."""
    place.mk("load", model())
    place.mk("stop")
    file = place.file
    file.with_suffix(".2.log").write_text(line(1, "info", "one") + line(2, "warning", "two"))
    file.with_suffix(".1.log").write_text(line(3, "debug", "three") + line(4, "error", "four"))
    file.write_text(line(5, "info", "five") + "  goes on\n" + line(6, "info", "six"))
    return file


def test_what_the_daemon_did_is_there_while_it_lives_and_after(place: Place) -> None:
    place.mk("load", model())
    pid = place.pid()
    for _ in range(2):
        text = place.mk("logs")
        assert f" {pid} info microkimid " in text and f"loaded {model()}" in text
        place.mk("stop")
    assert place.mk("logs").endswith(f" {pid} info left\n")
    # It was read, not started.
    assert place.run("ping").returncode == 3


def test_a_daemon_that_was_killed_leaves_its_log(place: Place) -> None:
    place.mk("load", model())
    os.kill(place.pid(), signal.SIGKILL)
    assert f"loaded {model()}" in place.mk("logs")


def test_a_daemon_that_hangs_does_not_hide_its_log(place: Place) -> None:
    place.mk("load", model())
    pid = place.pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        start = time.monotonic()
        assert f"loaded {model()}" in place.mk("logs")
        assert time.monotonic() - start < SOON
    finally:
        os.kill(pid, signal.SIGCONT)


def test_without_a_log_it_says_where_one_would_be(place: Place) -> None:
    done = place.run("logs")
    assert done.returncode == 7 and done.stdout == ""
    what, hint = done.stderr.splitlines()
    assert what.startswith(f"mk: there is no log at {place.folder}/microkimid-")
    assert "journalctl --user -u microkimid.service -n 50" in hint


def test_all_files_of_a_log_are_one(place: Place) -> None:
    write_log(place)
    text = place.mk("logs")
    words = ["one", "two", "three", "four", "five", "goes on", "six"]
    assert [one.rsplit(" ", 1)[-1] for one in text.splitlines()] == [
        one.rsplit(" ", 1)[-1] for one in words
    ]
    assert text.splitlines()[1] == "2026-11-30T13:02:11.123+00:00 4711 warn two"


def test_lines_levels_and_times_choose(place: Place) -> None:
    write_log(place)
    assert place.mk("logs", "-n", "2").splitlines() == [
        "2026-11-30T13:05:11.123+00:00 4711 info   goes on",
        "2026-11-30T13:06:11.123+00:00 4711 info six",
    ]
    assert place.mk("logs", "-n", "0") == ""
    assert len(place.mk("logs", "-n", "all").splitlines()) == 7
    levels = {"trace": 7, "debug": 7, "info": 6, "warn": 2, "error": 1}
    for level, count in levels.items():
        assert len(place.mk("logs", "--level", level).splitlines()) == count, level
    assert len(place.mk("logs", "--level", "warn", "-n", "1").splitlines()) == 1
    since = place.mk("logs", "--since", "2026-11-30T13:04:11.123Z")
    assert [one.split()[-1] for one in since.splitlines()] == ["four", "five", "on", "six"]
    assert place.mk("logs", "--since", "2026-11-30T14:00Z") == ""


def test_since_alone_shows_more_than_the_usual_number(place: Place) -> None:
    file = write_log(place)
    file.write_text("".join(line(7, "info", str(at)) for at in range(200)))
    assert len(place.mk("logs").splitlines()) == 50
    assert len(place.mk("logs", "--since", "2026-11-30T13:07Z").splitlines()) == 200


def test_json_has_an_object_per_line(place: Place) -> None:
    write_log(place)
    lines = [json.loads(one) for one in place.mk("logs", "--json").splitlines()]
    assert len(lines) == 7
    assert lines[1] == {
        "time": "2026-11-30T13:02:11.123+00:00", "pid": 4711, "level": "warn", "message": "two",
    }  # fmt: skip
    assert lines[5]["message"] == "  goes on" and lines[5]["pid"] == 4711


def test_following_goes_through_rotations(place: Place) -> None:
    file = write_log(place)
    process = place.follow("-n", "1")
    assert process.stdout is not None
    assert process.stdout.readline().endswith(" six\n")

    def rotate() -> None:
        file.with_suffix(".1.log").replace(file.with_suffix(".2.log"))
        file.replace(file.with_suffix(".1.log"))

    for at in range(4):
        with file.open("a") as log:
            log.write(line(10, "info", f"before {at}"))
        rotate()
        file.write_text(line(10, "info", f"after {at}"))
        assert process.stdout.readline().endswith(f" before {at}\n")
        assert process.stdout.readline().endswith(f" after {at}\n")


def test_following_sees_a_daemon_come_and_go(place: Place) -> None:
    process = place.follow("--level", "info")
    assert process.stdout is not None
    time.sleep(0.3)
    assert place.run("ping").returncode == 3  # it waits, and starts none
    place.mk("load", model())
    assert " info microkimid " in process.stdout.readline()
    wait_for(lambda: "loaded" in process.stdout.readline())
    place.mk("stop")
    wait_for(lambda: process.stdout.readline().endswith(" info left\n"))
    place.mk("load", model())
    assert " info microkimid " in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) in (130, -signal.SIGINT)


def test_a_reader_that_left_ends_it(place: Place) -> None:
    write_log(place)
    process = place.follow()
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.wait(PATIENCE)  # without anything more to print
    assert process.returncode in (141, -signal.SIGPIPE)
    assert process.stderr is not None and process.stderr.read() == ""


def test_an_event_is_a_line_whatever_files_are_called(place: Place, tmp_path: Path) -> None:
    path = copy_model(tmp_path / "new\nline\x1b[31m")
    place.mk("load", path)
    text = place.mk("logs")
    assert "new\\nline\\x1b[31m/model.bin" in text and "\x1b" not in text
    assert "new\\nline\\x1b[31m/model.bin" in place.file.read_text()
    # And what somebody wrote into the file does nothing to a terminal.
    with place.file.open("a") as log:
        log.write(line(7, "info", "\x1b]0;owned\x07"))
    assert place.mk("logs", "-n", "1").endswith(" \\x1b]0;owned\\x07\n")


def test_a_daemon_in_the_foreground_logs_to_its_standard_error(daemon: Daemon) -> None:
    done = Place(daemon).run("logs")
    assert done.returncode == 7 and "standard error" in done.stderr and "hint: " in done.stderr


def test_the_journal_is_named_with_its_command(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    # Standard error as systemd gives it: a socket, whose device and inode the environment tells.
    ours, theirs = socket.socketpair()
    info = os.fstat(theirs.fileno())
    env = daemon.env(JOURNAL_STREAM=f"{info.st_dev}:{info.st_ino}")
    daemon.process = subprocess.Popen(
        daemon.command("--foreground"), env=env, stdout=theirs, stderr=theirs
    )
    theirs.close()
    place = Place(daemon)
    wait_for(lambda: place.run("ping").returncode == 0)
    done = place.run("logs", "-f", "-n", "20", "--level", "warn", "--since", "10m")
    assert done.returncode == 7 and "logs to the journal" in done.stderr
    status = json.loads(place.mk("status", "--json"))
    unit = status["journal_unit"]  # the one that the tests run in, if there is one
    assert unit and status["log"] == ""
    assert f"journalctl --user -u {unit} -n 20 -f --since -10m -p warning" in done.stderr
    ours.close()


@pytest.mark.parametrize(
    "args",
    [
        ["-n", "-1"], ["-n", "many"], ["-n", "99999999"], ["--level", "loud"],
        ["--since", "yesterday"], ["--since", ""], ["extra"],
    ],
)  # fmt: skip
def test_wrong_values_are_refused(place: Place, args: list[str]) -> None:
    done = place.run("logs", *args)
    assert done.returncode == 2 and done.stdout == ""
    what, hint = done.stderr.splitlines()
    assert what.startswith("mk: ") and hint.startswith("  hint: ")
