"""Start, end and everything about the socket: the daemon's life as its surroundings see it."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import stat
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from daemon_harness import BIN, SOON, Client, Daemon, model, wait_for

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
    for args in (
        ["--bogus"],
        ["--threads", "-1"],
        ["--memory", "lots"],
        ["--idle-exit", "soon"],
        ["--idle-exit", "0"],
    ):
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
    assert "changed aliases" in daemon.log()
    daemon.config.write_text("threads = 7\nmax_batch = 3\n" + daemon.config.read_text())
    daemon.signal(signal.SIGHUP)
    wait_for(lambda: client.call("status")["max_batch"] == 3)
    assert client.call("status")["threads"] != 7
    assert "the new threads counts from the next start on" in daemon.log()
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


def test_a_folder_that_cannot_be_made_anew_is_said_once(daemon: Daemon) -> None:
    daemon.start()
    client = daemon.client()
    client.call("ping")
    daemon.run_dir.rename(daemon.run_dir.with_name("gone"))
    daemon.run_dir.write_text("in the way")
    wait_for(lambda: "nobody can connect any more" in daemon.log())
    client.call("ping")
    daemon.run_dir.unlink()
    wait_for(daemon.socket.exists, what="for the socket")
    assert daemon.log().count("nobody can connect any more") == 1


def test_a_daemon_whose_path_is_taken_leaves(daemon: Daemon) -> None:
    """It is out of reach; holding on to lock and memory helps nobody."""
    daemon.start()
    daemon.socket.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(daemon.socket))
        other.listen()
        assert daemon.wait() == 0
    assert "another program listens" in daemon.log()
    assert daemon.socket.exists()  # the other's


def test_a_looker_at_the_lock_does_not_keep_a_daemon_from_starting(daemon: Daemon) -> None:
    lock = daemon.run_dir / "s.lock"
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        threading.Timer(0.02, lambda: fcntl.flock(file, fcntl.LOCK_UN)).start()
        begin = time.monotonic()
        daemon.start()
    assert time.monotonic() - begin < SOON
    assert daemon.client().call("ping")["pid"] == daemon.pid


def idles_out(daemon: Daemon) -> None:
    client = Client(daemon.socket)
    with client:
        client.call("ping")
        time.sleep(2.5)
        assert daemon.alive()  # a client is connected
    assert daemon.wait() == 0
    assert not daemon.socket.exists()


def test_idle_exit(daemon: Daemon) -> None:
    daemon.start("--idle-exit", "1s")
    idles_out(daemon)


def test_idle_exit_comes_and_goes_with_the_config(daemon: Daemon) -> None:
    daemon.config.write_text('idle_exit = "1s"\n')
    daemon.start("--idle-exit", "-1")  # the command line has the last word
    daemon.signal(signal.SIGHUP)
    time.sleep(2.5)
    assert daemon.alive()
    daemon.signal(signal.SIGTERM)
    daemon.wait()
    daemon.config.write_text('idle_exit = "1h"\n')
    daemon.start()
    daemon.config.write_text('idle_exit = "1s"\n')
    daemon.signal(signal.SIGHUP)
    idles_out(daemon)


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
