"""mk config: the settings that count, and changing one of them."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path

import pytest
from daemon_harness import BIN, PATIENCE, Daemon, wait_for

from conftest import MakeDaemon


class Place:
    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.file: Path = daemon.config

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(BIN / "mk"), "config", *args],
            env=self.daemon.env(),
            cwd=self.daemon.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    def ok(self, *args: str) -> str:
        done = self.run(*args)
        assert done.returncode == 0, done
        return done.stdout

    def fails(self, code: int, *args: str) -> str:
        done = self.run(*args)
        assert done.returncode == code, done
        return done.stderr

    def settings(self) -> dict[str, dict[str, object]]:
        return {one["key"]: one for one in json.loads(self.ok("--json"))["settings"]}


@pytest.fixture
def place(make_daemon: MakeDaemon) -> Place:
    return Place(make_daemon())


def test_settings_are_shown_with_their_sources(place: Place) -> None:
    place.file.write_text('# mine\nmax_batch = 4\nkeep_alive = "2h"\n[aliases]\na = "/x.bin"\n')
    shown = place.settings()
    assert len(shown) > 12
    assert shown["max_batch"]["value"] == 4
    assert shown["max_batch"]["source"] == "file" and shown["max_batch"]["line"] == 2
    assert shown["threads"]["source"] == "default" and "line" not in shown["threads"]
    assert shown["keep_alive"]["value"] == "2h"
    assert shown["aliases"]["value"] == {"a": "/x.bin"}
    text = place.ok()
    assert str(place.file) in text and "none runs" in text
    assert any(
        line.split()[:4] == ["max_batch", "4", "file,", "line"] for line in text.splitlines()
    )
    assert "aliases.a" in text
    assert not place.daemon.socket.exists()


def test_get_prints_the_bare_value(place: Place) -> None:
    place.file.write_text('max_batch = 4\naliases = { a = "/x.bin" }\n')
    assert place.ok("path") == f"{place.file}\n"
    assert place.ok("get", "max_batch") == "4\n"
    assert place.ok("get", "max_batch", "--json") == "4\n"
    assert place.ok("get", "keep_alive") == "10m\n"
    assert place.ok("get", "spine_cache", "--json") == "true\n"
    assert place.ok("get", "aliases.a") == "/x.bin\n"
    assert place.ok("get", "aliases") == "a = /x.bin\n"
    assert "mk config set aliases.b PATH" in place.fails(7, "get", "aliases.b")
    assert "did you mean max_batch?" in place.fails(2, "get", "max_bach")


def test_set_and_unset_leave_the_rest_alone(place: Place) -> None:
    before = "# mine\nthreads = 2  # two\n\n# models\n[aliases]\na = '/x.bin'\n"
    place.file.write_text(before)
    assert "no daemon runs" in place.ok("set", "threads", "3")
    assert place.file.read_text() == before.replace("= 2", "= 3")
    place.ok("set", "idle_exit", "-1")
    assert 'idle_exit = "-1"' in place.file.read_text()
    place.ok("set", "aliases.b", "models/b.bin")
    assert place.ok("get", "aliases.b") == f"{place.daemon.home}/models/b.bin\n"
    place.ok("unset", "aliases.b")
    place.ok("unset", "idle_exit")
    place.ok("set", "threads", "2")
    assert place.file.read_text() == before
    assert "not set" in place.ok("unset", "memory")
    assert place.file.read_text() == before


def test_the_first_set_makes_the_file(place: Place) -> None:
    place.file.parent.rmdir()
    place.ok("set", "precision", "exact")
    assert place.file.read_text() == 'precision = "exact"\n'
    assert stat.S_IMODE(place.file.stat().st_mode) == 0o600
    other = place.daemon.home / "other.toml"
    place.ok("set", "threads", "1", "--file", "other.toml")
    assert other.read_text() == "threads = 1\n"


def test_a_link_stays_one(place: Place) -> None:
    real = place.daemon.home / "dotfiles.toml"
    real.write_text("# mine\n")
    place.file.symlink_to(real)
    place.ok("set", "threads", "1")
    assert place.file.is_symlink() and real.read_text() == "# mine\nthreads = 1\n"


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (("set", "max_batch", "0"), "from 1 to 64"),
        (("set", "memory", "lots"), "a size"),
        (("set", "memory", "5"), "of 64KiB or more"),
        (("set", "precision", "q4"), "exact, bf16, q8"),
        (("set", "aliases", "x"), "aliases.NAME"),
        (("set", "thread", "1"), "did you mean threads?"),
        (("set", "threads"), "VALUE"),
        (("set",), "`mk config` lists them"),
        (("get", "threads", "1"), "--help"),
        (("check", "threads"), "--help"),
        (("frob",), "--help"),
        (("get", "threads", "--reload"), "mk config reload"),
    ],
)
def test_mistakes_change_nothing(place: Place, args: tuple[str, ...], hint: str) -> None:
    place.file.write_text("threads = 2\n")
    assert hint in place.fails(2, *args)
    assert place.file.read_text() == "threads = 2\n"


def test_check_finds_what_the_daemon_would(place: Place) -> None:
    assert "fine" in place.ok("check")
    place.file.write_text("threads = 2\nthread = 2\n")
    warned = place.fails(4, "check")
    assert f"{place.file}:2:" in warned and "did you mean threads?" in warned
    place.file.write_text('# x\nthreads = "many"\n')
    assert f"{place.file}:2:" in place.fails(1, "check")
    found = json.loads(place.run("check", "--json").stdout)
    assert not found["ok"] and found["problems"][0]["fatal"]
    assert f"{place.file}:2:" in place.fails(1)
    assert f"{place.file}:2:" in place.fails(1, "get", "memory")
    place.file.write_text("threads = = 2\n")
    assert "line 1" in place.fails(2, "set", "threads", "2")
    assert place.file.read_text() == "threads = = 2\n"


def test_a_daemon_that_runs_obeys_a_reload(place: Place) -> None:
    place.file.write_text("max_batch = 8\n")
    place.daemon.start("--precision", "exact")
    assert place.settings()["precision"]["running"] == "exact"
    assert "the daemon that runs: exact" in place.ok()
    assert "mk config reload" in place.ok("set", "max_batch", "3")
    client = place.daemon.client()
    place.ok("reload")
    wait_for(lambda: client.call("status")["max_batch"] == 3)
    assert "told" in place.ok("set", "max_batch", "5", "--reload")
    wait_for(lambda: client.call("status")["max_batch"] == 5)
    assert "mk restart" in place.ok("set", "threads", "1")


def test_a_restart_that_would_fail_leaves_the_daemon_alone(place: Place) -> None:
    client = place.daemon.start().client()
    before = client.call("status")["pid"]
    place.file.write_text("threads = many\n")
    done = subprocess.run(
        [str(BIN / "mk"), "restart"],
        env=place.daemon.env(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 2 and "would not start again" in done.stderr, done
    assert str(place.file) in done.stderr
    assert client.call("status")["pid"] == before


def test_reload_without_a_daemon(place: Place) -> None:
    assert "no daemon runs" in place.fails(3, "reload")
    assert not place.daemon.socket.exists()


def test_calls_at_once_do_not_undo_each_other(place: Place) -> None:
    started = [
        subprocess.Popen(
            [str(BIN / "mk"), "config", "set", f"aliases.a{number}", "/x.bin"],
            env=place.daemon.env(),
            stdout=subprocess.DEVNULL,
        )
        for number in range(8)
    ]
    assert [one.wait(PATIENCE) for one in started] == [0] * 8
    assert len(place.ok("get", "aliases").splitlines()) == 8
    assert os.listdir(place.file.parent) == ["config.toml"]
