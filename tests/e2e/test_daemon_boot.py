"""Start, end and everything about the socket: the daemon's life as its surroundings see it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from daemon_harness import BIN, ROOT, Client, Daemon, model, wait_for

from conftest import MakeDaemon


@pytest.fixture
def daemon(make_daemon: MakeDaemon) -> Daemon:
    """One that the test starts itself."""
    return make_daemon()


def fails_to_start(daemon: Daemon, *args: str) -> str:
    """The one line that a failed start prints."""
    done = subprocess.run(
        daemon.command("--foreground", *args), env=daemon.env(), capture_output=True, timeout=60
    )
    assert done.returncode == 3, done
    lines = done.stderr.decode().splitlines()
    assert len(lines) == 1 and lines[0].startswith("microkimid: "), lines
    return lines[0]


def test_the_socket_is_private_whatever_the_umask(daemon: Daemon) -> None:
    daemon.run_dir.rmdir()  # the daemon makes it
    before = os.umask(0)
    try:
        daemon.start()
    finally:
        os.umask(before)
    assert stat.S_IMODE(daemon.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(daemon.run_dir.stat().st_mode) == 0o700
    assert daemon.client().call("ping")["pid"] == daemon.pid


def test_a_second_start_says_who_runs_and_succeeds(daemon: Daemon) -> None:
    daemon.start()
    done = subprocess.run(
        daemon.command("--foreground"), env=daemon.env(), capture_output=True, timeout=60
    )
    assert done.returncode == 0
    said = done.stdout.decode()
    assert f"(pid {daemon.pid})" in said and "0.1.0" in said and str(daemon.socket) in said
    assert daemon.client().call("ping")["pid"] == daemon.pid  # still the first


def test_a_daemon_that_hangs_is_told_from_one_that_runs(daemon: Daemon) -> None:
    """It holds the lock and its socket accepts, but nobody answers."""
    daemon.start()
    daemon.signal(signal.SIGSTOP)
    try:
        line = fails_to_start(daemon)
    finally:
        daemon.signal(signal.SIGCONT)
    assert f"(pid {daemon.pid})" in line and "does not answer" in line
    assert daemon.client().call("ping")["pid"] == daemon.pid


def test_of_many_that_race_one_serves(daemon: Daemon) -> None:
    read_end, write_end = os.pipe()
    racers = [
        subprocess.Popen(
            daemon.command("--foreground", "--ready-fd", str(write_end)),
            env=daemon.env(),
            pass_fds=[write_end],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(6)
    ]
    os.close(write_end)
    try:
        wait_for(lambda: sum(one.poll() is None for one in racers) == 1, what="for one to be left")
        winner = next(one for one in racers if one.poll() is None)
        assert all(one.returncode == 0 for one in racers if one is not winner)
        daemon.process = winner
        assert daemon.client().call("ping")["pid"] == winner.pid
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0
        with os.fdopen(read_end) as pipe:  # all of them report that there is a daemon
            assert pipe.read() == "ready\n" * len(racers)
    finally:
        for one in racers:
            if one.poll() is None:
                one.kill()
                one.wait()


def test_a_stale_socket_is_replaced(daemon: Daemon) -> None:
    daemon.start()
    daemon.kill()
    assert daemon.socket.exists()
    daemon.start()
    assert daemon.client().call("ping")["pid"] == daemon.pid


def test_a_file_in_the_sockets_place_is_left_alone(daemon: Daemon) -> None:
    daemon.socket.write_text("precious")
    assert "is not a socket" in fails_to_start(daemon)
    assert daemon.socket.read_text() == "precious"


def test_a_live_socket_is_never_stolen(daemon: Daemon) -> None:
    """Somebody listens who does not keep our lock."""
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(daemon.socket))
        other.listen()
        inode = daemon.socket.stat().st_ino
        assert "another program listens" in fails_to_start(daemon)
        assert daemon.socket.stat().st_ino == inode


def test_bad_socket_folders_are_refused_with_the_reason(daemon: Daemon, tmp_path: Path) -> None:
    daemon.run_dir.chmod(0o755)
    assert f"chmod 700 {daemon.run_dir}" in fails_to_start(daemon)
    daemon.run_dir.chmod(0o700)
    link = tmp_path / "link"
    link.symlink_to(daemon.run_dir)
    daemon.socket = link / "s"
    assert "symbolic link" in fails_to_start(daemon)
    if os.geteuid() == 0:
        daemon.socket = daemon.run_dir / "s"
        os.chown(daemon.run_dir, 65534, 65534)
        assert "65534" in fails_to_start(daemon)


def test_a_path_that_is_too_long_names_the_limit(daemon: Daemon) -> None:
    daemon.socket = daemon.run_dir / ("x" * 120)
    assert "107" in fails_to_start(daemon)


def test_bad_command_lines_exit_with_2() -> None:
    for args in (["--bogus"], ["--threads", "0"], ["--memory", "lots"], ["--idle-exit", "soon"]):
        done = subprocess.run([str(BIN / "microkimid"), *args], capture_output=True, timeout=60)
        assert done.returncode == 2, (args, done)
        assert done.stderr


def test_a_bad_config_is_an_error_with_its_line(daemon: Daemon) -> None:
    daemon.config.write_text('threads = 1\nkeep_alive = "ten minutes"\n')
    line = fails_to_start(daemon)
    assert "config.toml:2" in line and "keep_alive" in line
    assert not daemon.socket.exists()


def test_sigterm_leaves_nothing_behind(daemon: Daemon) -> None:
    daemon.start()
    assert (daemon.run_dir / "s").exists()
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    left = sorted(path.name for path in daemon.run_dir.iterdir())
    assert all(name.endswith(".lock") for name in left), left


def test_sighup_rereads_the_config(daemon: Daemon) -> None:
    daemon.start()
    client = daemon.client()

    def aliases() -> list[dict[str, Any]]:
        listed = client.call("models")["models"]
        return [one for one in listed if one["origin"] == "alias"]

    assert aliases() == []
    daemon.config.write_text(f'colour = "red"\n[aliases]\nmine = "{model()}"\n')
    daemon.signal(signal.SIGHUP)
    listed = wait_for(aliases, what="for the alias")
    assert [one["name"] for one in listed] == ["mine"]
    assert listed[0]["architecture"] == "k3"
    assert 'unknown key "colour"' in daemon.log()
    # A file that cannot be read changes nothing.
    daemon.config.write_text("aliases = = 3\n")
    daemon.signal(signal.SIGHUP)
    wait_for(lambda: "the config stays as it was" in daemon.log())
    assert len(aliases()) == 1


def test_a_vanished_socket_is_made_anew_and_connections_live_on(daemon: Daemon) -> None:
    daemon.start()
    old = daemon.client()
    old.call("ping")
    daemon.socket.unlink()
    wait_for(daemon.socket.exists, what="for the socket")
    new = Client(daemon.socket)
    with new:
        assert new.call("ping")["pid"] == daemon.pid
    assert old.call("ping")["pid"] == daemon.pid
    assert old.call("status")["counters"]["socket_recreated"] == 1


def test_a_vanished_folder_is_made_anew_and_still_locked(daemon: Daemon) -> None:
    daemon.start()
    # The folder goes in one step: the daemon may make the new one at once.
    daemon.run_dir.rename(daemon.run_dir.with_name("gone"))
    wait_for(daemon.socket.exists, what="for the socket")
    done = subprocess.run(
        daemon.command("--foreground"), env=daemon.env(), capture_output=True, timeout=60
    )
    assert done.returncode == 0 and f"(pid {daemon.pid})" in done.stdout.decode()


def test_idle_exit(daemon: Daemon) -> None:
    daemon.start("--idle-exit", "1s")
    client = Client(daemon.socket)
    with client:
        client.call("ping")
        time.sleep(2.5)
        assert daemon.alive()  # a client is connected
    assert daemon.wait() == 0
    assert not daemon.socket.exists()


def test_it_goes_into_the_background_by_itself(daemon: Daemon) -> None:
    done = subprocess.run(daemon.command(), env=daemon.env(), capture_output=True, timeout=60)
    assert done.returncode == 0, done
    client = daemon.client()
    pid = client.call("ping")["pid"]
    assert f"(pid {pid})" in done.stdout.decode()
    status = client.call("status")
    assert Path(status["log"]).exists()
    client.call("stop")
    wait_for(lambda: not Path(f"/proc/{pid}").exists() or "Z" in state_of(pid))


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


ACTIVATOR = """
import os, socket, sys
path, *command = sys.argv[1:]
listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
listening.bind(path)
listening.listen(64)
os.dup2(listening.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(command[0], command)
"""


def test_socket_activation_serves_and_leaves_the_socket(daemon: Daemon) -> None:
    daemon.process = subprocess.Popen(
        [sys.executable, "-c", ACTIVATOR, str(daemon.socket), *daemon.command("--foreground")],
        env=daemon.env(),
        stderr=subprocess.DEVNULL,
    )
    wait_for(daemon.socket.exists)
    client = daemon.client()
    assert client.call("ping")["pid"] == daemon.pid
    assert client.call("stop")["socket_activated"] is True
    assert daemon.wait() == 0
    assert daemon.socket.exists()  # systemd's, not ours


def test_systemd_is_told(daemon: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(path))
        notify.settimeout(30)
        said: list[str] = []

        def until(word: str) -> None:
            while not any(word in one for one in said):
                said.append(notify.recv(4096).decode())

        daemon.start(env=daemon.env(NOTIFY_SOCKET=str(path), WATCHDOG_USEC="3000000"))
        until("READY=1")
        until("WATCHDOG=1")
        until("STATUS=0 models, 0 requests")
        daemon.signal(signal.SIGTERM)
        until("STOPPING=1")
        assert daemon.wait() == 0


def test_the_units_are_well_formed(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze here")
    units = tmp_path / "units"
    units.mkdir()
    shutil.copy(ROOT / "systemd" / "microkimid.socket", units)
    service = (ROOT / "systemd" / "microkimid.service.in").read_text()
    service = service.replace("@CMAKE_INSTALL_FULL_BINDIR@", str(BIN))
    (units / "microkimid.service").write_text(service)
    (tmp_path / "runtime").mkdir(mode=0o700)
    done = subprocess.run(
        [analyze, "--user", "verify", str(units / "microkimid.service")],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "runtime")},
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0 and b"microkimid" not in done.stderr, done.stderr
