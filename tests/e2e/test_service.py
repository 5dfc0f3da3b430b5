"""mk service: the units that it writes, and what it asks of systemd."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from daemon_harness import BIN, Daemon
from fake_systemctl import FakeSystemctl

from conftest import MakeDaemon

SOCKET, SERVICE = "microkimid.socket", "microkimid.service"
INSTALL = ["daemon-reload", f"enable {SOCKET}", f"start {SOCKET}"]


class Place:
    """A user's folders with a systemctl that only pretends."""

    def __init__(self, daemon: Daemon, systemctl: FakeSystemctl) -> None:
        self.daemon = daemon
        self.systemctl = systemctl
        self.units = daemon.config.parents[1] / "systemd" / "user"
        self.bin = BIN

    def mk(self, *args: str, code: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(self.bin / "mk"), "service", *args],
            env=self.daemon.env(**{"PATH": self.systemctl.path(), **env}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, done
        return done

    def status(self, code: int = 0, **env: str) -> dict:
        return json.loads(self.mk("status", "--json", code=code, **env).stdout)

    def text(self, unit: str) -> str:
        return (self.units / unit).read_text()

    def files(self) -> set[str]:
        return {
            str(path.relative_to(self.units))
            for path in self.units.rglob("*")
            if path.is_symlink() or not path.is_dir()
        }


@pytest.fixture
def place(make_daemon: MakeDaemon, tmp_path: Path) -> Place:
    return Place(make_daemon(), FakeSystemctl(tmp_path / "fake"))


def values(text: str, key: str) -> list[str]:
    return [line.partition("=")[2] for line in text.splitlines() if line.startswith(key + "=")]


def test_install_writes_enables_and_starts(place: Place) -> None:
    said = place.mk("install").stdout
    assert place.systemctl.calls() == INSTALL
    assert place.systemctl.active(SOCKET)
    assert f"wrote {place.units / SOCKET}" in said and "enabled and started" in said
    assert values(place.text(SERVICE), "ExecStart") == [f'"{BIN.resolve() / "microkimid"}"']
    assert values(place.text(SOCKET), "ListenStream") == [str(place.daemon.socket)]
    environment = values(place.text(SERVICE), "Environment")
    assert f'"XDG_STATE_HOME={place.daemon.home / "state"}"' in environment
    assert "@" not in place.text(SERVICE).replace("@system-service", "")


def test_install_again_changes_nothing(place: Place) -> None:
    place.mk("install")
    before = {unit: (place.units / unit).stat() for unit in (SOCKET, SERVICE)}
    place.systemctl.calls()
    said = place.mk("install").stdout
    assert said.count("unchanged") == 2
    assert place.systemctl.calls() == INSTALL
    for unit, stat in before.items():
        after = (place.units / unit).stat()
        assert (after.st_ino, after.st_mtime_ns) == (stat.st_ino, stat.st_mtime_ns)


def test_the_usual_socket_is_below_the_runtime_folder(place: Place) -> None:
    usual = place.daemon.home / "runtime" / "microkimi" / "microkimid.sock"
    place.mk("install", "--socket", str(usual))
    assert values(place.text(SOCKET), "ListenStream") == ["%t/microkimi/microkimid.sock"]
    assert place.status(MICROKIMI_SOCKET=str(usual))["socket"]["listens"] == str(usual)


def test_a_socket_that_moves_is_stopped_first(place: Place) -> None:
    place.mk("install")
    place.systemctl.calls()
    place.mk("install", "--socket", str(place.daemon.run_dir / "other"))
    stop = f"stop {SERVICE} {SOCKET}"
    assert place.systemctl.calls() == [*INSTALL[:2], stop, INSTALL[2]]


def test_no_start_only_enables(place: Place) -> None:
    place.mk("install", "--no-start")
    assert place.systemctl.calls() == INSTALL[:2]
    assert not place.systemctl.active(SOCKET)
    problems = place.status(code=4)["problems"]
    assert len(problems) == 1 and "does not listen" in problems[0]


@pytest.mark.parametrize("missing", ["manager", "systemctl"])
def test_without_a_manager_the_next_login_finds_it(place: Place, missing: str) -> None:
    env = {}
    if missing == "manager":
        place.systemctl.manager("offline")
    else:
        env["PATH"] = str(place.daemon.run_dir)  # nothing is there
    done = place.mk("install", code=4, **env)
    assert place.systemctl.calls() == []
    assert "no user manager runs" in done.stderr
    assert f"systemctl --user start {SOCKET}" in done.stderr
    link = place.units / "sockets.target.wants" / SOCKET
    assert link.is_symlink() and link.resolve() == (place.units / SOCKET).resolve()
    place.systemctl.manager("offline")
    status = place.status(code=4)
    assert status["installed"] and status["socket"]["enabled"] and not status["manager"]
    assert "Failed to connect to bus" in status["problems"][0]
    assert place.mk("uninstall").stdout.count("removed") == 2
    assert place.files() == set()


def test_uninstall_stops_and_removes_what_install_made(place: Place) -> None:
    place.mk("install")
    (place.units / "other.service").write_text("[Service]\nExecStart=/bin/true\n")
    drop_in = place.units / f"{SERVICE}.d" / "override.conf"
    drop_in.parent.mkdir()
    drop_in.write_text("[Service]\nNice=5\n")
    place.systemctl.calls()
    place.mk("uninstall")
    assert place.systemctl.calls() == [
        f"disable --now {SOCKET}",
        f"stop {SERVICE}",
        "daemon-reload",
        f"reset-failed {SOCKET} {SERVICE}",
    ]
    assert place.files() == {"other.service", f"{SERVICE}.d/override.conf"}
    assert not place.systemctl.active(SOCKET)
    assert place.mk("uninstall").stdout == "no service is installed\n"
    assert place.systemctl.calls() == []
    assert place.status(code=7)["installed"] is False


def test_a_unit_that_cannot_be_stopped_is_not_removed(place: Place) -> None:
    place.mk("install")
    place.systemctl.fail("disable", "Failed to disable: something")
    done = place.mk("uninstall", code=1)
    assert "Failed to disable: something" in done.stderr
    assert {SOCKET, SERVICE} <= place.files()


@pytest.mark.parametrize("unit", [SOCKET, SERVICE])
@pytest.mark.parametrize("how", ["edited", "foreign", "masked"])
def test_what_others_wrote_is_kept(place: Place, unit: str, how: str) -> None:
    if how == "edited":
        place.mk("install")
        text = place.text(unit) + "# mine\n"
    else:
        text = "[Unit]\nDescription=mine\n"
    place.units.mkdir(parents=True, exist_ok=True)
    path = place.units / unit
    if how == "masked":
        path.symlink_to("/dev/null")
    else:
        path.write_text(text)
    before = place.files()
    place.systemctl.calls()
    refused = place.mk("install", code=6).stderr
    assert str(path) in refused and "--force" in refused
    assert ("changed since mk wrote it" in refused) == (how == "edited")
    place.mk("uninstall", code=6)
    assert place.systemctl.calls() == [] and place.files() == before
    said = place.mk("install", "--force").stdout
    aside = place.units / f"{unit}.old"
    assert f"as {aside}" in said
    assert os.readlink(aside) == "/dev/null" if how == "masked" else aside.read_text() == text
    assert not path.is_symlink() and place.status()["problems"] == []


def test_force_never_overwrites_what_it_kept_before(place: Place) -> None:
    place.mk("install")
    for turn in range(3):
        (place.units / SERVICE).write_text(f"[Unit]\nDescription=number {turn}\n")
        place.mk("install", "--force")
    kept = [f"{SERVICE}.old", f"{SERVICE}.old2", f"{SERVICE}.old3"]
    assert [f"number {i}" in place.text(name) for i, name in enumerate(kept)] == [True] * 3


def test_units_of_an_older_mk_are_replaced(place: Place, tmp_path: Path) -> None:
    """Written by mk and not edited: no force is needed."""
    place.bin = tmp_path / "old bin"
    place.bin.mkdir()
    for name in ("mk", "microkimid"):
        shutil.copy(BIN / name, place.bin)
    place.mk("install")
    assert place.status()["service"]["program"] == str(place.bin / "microkimid")
    place.bin = BIN
    status = place.status(code=4)
    assert status["as_install_writes"] is False
    assert status["service"]["program_is_beside_mk"] is False
    assert any("another program" in one for one in status["problems"])
    shutil.rmtree(tmp_path / "old bin")
    assert any("cannot be run" in one for one in place.status(code=4)["problems"])
    place.systemctl.calls()
    assert "wrote" in place.mk("install").stdout
    assert place.systemctl.calls() == INSTALL  # the socket is as it was: nothing is stopped
    assert place.status()["as_install_writes"] is True


def test_status_tells_how_it_stands(place: Place) -> None:
    assert place.status(code=7)["installed"] is False
    assert "mk service install" in place.mk("status", code=7).stdout
    place.mk("install")
    status = place.status()
    assert status["problems"] == [] and status["manager"] is True
    assert status["socket"]["enabled"] and status["socket"]["active_state"] == "active"
    assert status["service"]["program_is_beside_mk"] and status["last_failure"] is None
    place.systemctl.properties(
        SERVICE, Result="success", MainPID="77", StatusText="idle; no model", NRestarts="3"
    )
    text = place.mk("status").stdout
    assert "runs, pid 77: idle; no model; started anew 3 times" in text
    assert "enabled, listening, " + str(place.daemon.socket) in text
    place.systemctl.properties(
        SERVICE, Result="exit-code", ExecMainStatus="3", ExecMainExitTimestamp="Mon 2026-11-30"
    )
    status = place.status(code=4)
    assert status["last_failure"] == "exit-code, status 3, Mon 2026-11-30"
    assert "it failed: exit-code" in place.mk("status", code=4).stdout


def test_a_failed_start_is_told_with_systemds_words(place: Place) -> None:
    place.systemctl.fail("start", "Job for microkimid.socket failed.")
    done = place.mk("install", code=1)
    assert "Job for microkimid.socket failed." in done.stderr
    assert "mk service status" in done.stderr
    assert {SOCKET, SERVICE} <= place.files()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["status", "--force"], "--force means nothing"),
        (["status", "--no-start"], "--no-start means nothing"),
        (["install", "--json"], "--json means nothing"),
        (["uninstall", "--no-start"], "--no-start means nothing"),
        (["enable"], "enable"),
        ([], "ACTION"),
    ],
)
def test_what_makes_no_sense_is_refused(place: Place, args: list[str], words: str) -> None:
    assert words in place.mk(*args, code=2).stderr
    assert not place.units.exists()


def test_no_daemon_beside_mk_is_an_error(place: Place, tmp_path: Path) -> None:
    place.bin = tmp_path / "alone"
    place.bin.mkdir()
    shutil.copy(BIN / "mk", place.bin)
    assert "no microkimid beside this mk" in place.mk("install", code=7).stderr
    assert not place.units.exists()


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        ("two\nlines", "control characters"),
        ('quo"te', "a quote or a backslash"),
        ("it's", "a quote or a backslash"),
        ("back\\slash", "a quote or a backslash"),
    ],
)
def test_a_path_that_no_unit_can_name_is_refused(
    place: Place, tmp_path: Path, folder: str, words: str
) -> None:
    place.bin = tmp_path / folder
    place.bin.mkdir()
    for name in ("mk", "microkimid"):
        shutil.copy(BIN / name, place.bin)
    assert words in place.mk("install", code=2).stderr
    assert not place.units.exists()


def test_a_socket_that_no_unit_can_name_is_refused(place: Place) -> None:
    for end in (" ", "\\", "\n"):
        place.mk("install", "--socket", f"{place.daemon.run_dir}/s{end}", code=2)
    assert not place.units.exists()


# Of a program's path systemd takes neither quotes nor backslashes; of other paths it does.
NOT_OF_PROGRAMS = ['quo"te', "it's", "back\\slash"]
ODD = [*NOT_OF_PROGRAMS, "plain", "a space", "per%cent%t", "dol$lar", "ütf", "semi;#colon"]


@pytest.mark.parametrize("folder", ODD)
def test_systemd_reads_the_units_as_they_were_meant(
    place: Place, tmp_path: Path, folder: str
) -> None:
    """Whatever the folders are called."""
    place.bin = tmp_path / ("plain" if folder in NOT_OF_PROGRAMS else folder)
    place.bin.mkdir()
    for name in ("mk", "microkimid"):
        shutil.copy(BIN / name, place.bin)
    env = {
        "XDG_STATE_HOME": str(tmp_path / "state of" / folder),
        "MICROKIMI_SOCKET": str(place.daemon.run_dir / folder),
    }
    place.mk("install", **env)
    status = place.status(**env)
    assert status["service"]["program"] == str(place.bin / "microkimid")
    assert status["socket"]["listens"] == str(place.daemon.run_dir / folder)
    assert status["problems"] == []
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze here")
    (place.daemon.home / "runtime").mkdir(mode=0o700, exist_ok=True)
    done = subprocess.run(
        [analyze, "--user", "verify", str(place.units / SERVICE), str(place.units / SOCKET)],
        env=place.daemon.env(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and "microkimid" not in done.stderr, done.stderr
