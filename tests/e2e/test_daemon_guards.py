"""What would hurt a daemon if nothing stood guard: descriptors, other users, other programs."""

from __future__ import annotations

import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from daemon_harness import Client, Daemon, model, running, wait_for

from conftest import MakeDaemon


@pytest.fixture
def daemon(make_daemon: MakeDaemon) -> Daemon:
    """One that the test starts itself."""
    return make_daemon()


@contextmanager
def crowd(path: Path, size: int) -> Iterator[None]:
    """So many connections that never say a word."""
    open_ones: list[socket.socket] = []
    try:
        for _ in range(size):
            one = socket.socket(socket.AF_UNIX)
            one.setblocking(False)
            try:
                one.connect(str(path))
            except BlockingIOError:
                time.sleep(0.001)  # the backlog is full
            open_ones.append(one)
        yield
    finally:
        for one in open_ones:
            one.close()


def test_two_thousand_connections_under_a_low_limit(daemon: Daemon) -> None:
    """libzmq aborts the process when its accept() runs out of descriptors."""

    def low_limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("this test itself needs 2,100 descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    daemon.start(preexec_fn=low_limit)
    client = daemon.client()
    client.call("ping")
    with crowd(daemon.socket, 2000):
        time.sleep(0.5)
        assert daemon.alive()
        assert daemon.open_fds() < 256 - 32
        # There is room for models and files even now, and for those who were there before.
        assert client.call("run", model=model(), ids=[1], raw=True, max_new=1)["ids"]
    assert daemon.client().call("ping")["pid"] == daemon.pid
    assert client.call("status")["counters"]["connections_refused"] > 0
    wait_for(lambda: client.call("status")["connections"] <= 2, what="for the crowd to be gone")
    assert daemon.open_fds() < 64
    assert running(client) == []


def test_no_descriptor_left_at_all_is_survived(daemon: Daemon) -> None:
    """The limit falls under a running daemon, below what it has open."""
    client = daemon.start().client()
    client.call("ping")
    before = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (8, before[1]))
    with crowd(daemon.socket, 50):
        time.sleep(0.3)
        assert client.call("status")["counters"]["connections_refused"] > 0
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, before)
    assert daemon.client().call("ping")["pid"] == daemon.pid


def test_the_limit_of_open_files_is_raised(daemon: Daemon) -> None:
    def low_limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 3000))

    daemon.start(preexec_fn=low_limit)
    assert resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE) == (3000, 3000)


def test_another_users_connection_is_refused(daemon: Daemon, tmp_path: Path) -> None:
    """The second wall: what if folder and socket were open to all?"""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    daemon.start()
    probe = (
        "import os, socket, sys\n"
        "os.setgid(65534); os.setuid(int(sys.argv[2]))\n"
        "s = socket.socket(socket.AF_UNIX); s.settimeout(10); s.connect(sys.argv[1])\n"
        "try:\n"
        "    sys.exit(0 if s.recv(64) else 9)\n"  # the greeting of the protocol, or the end
        "except ConnectionResetError:\n"
        "    sys.exit(9)\n"
    )
    places = [daemon.run_dir, daemon.home, *daemon.home.parents]
    modes = {place: stat.S_IMODE(place.stat().st_mode) for place in places}
    try:
        for place in places:
            place.chmod(modes[place] | 0o111)
        daemon.socket.chmod(0o777)
        for uid, code in ((65534, 9), (0, 0)):
            done = subprocess.run(
                [sys.executable, "-c", probe, str(daemon.socket), str(uid)], cwd="/", timeout=60
            )
            assert done.returncode == code, (uid, done)
    finally:
        for place, mode in modes.items():
            place.chmod(mode)
    assert daemon.client().call("ping")


def test_what_it_writes_is_private_whatever_the_umask(daemon: Daemon) -> None:
    before = os.umask(0)
    try:
        done = subprocess.run(daemon.command(), env=daemon.env(), capture_output=True, timeout=60)
    finally:
        os.umask(before)
    assert done.returncode == 0, done
    client = daemon.client()
    log = Path(client.call("status")["log"])
    client.call("stop")
    written = [log, log.parent, *(daemon.run_dir.iterdir())]
    assert len(written) >= 3
    assert [one for one in written if stat.S_IMODE(one.stat().st_mode) & 0o077] == []


def test_a_starter_that_left_is_no_reason_to_die(daemon: Daemon) -> None:
    """The ready pipe has no reader any more."""
    read_end, write_end = os.pipe()
    daemon.process = subprocess.Popen(
        daemon.command("--foreground", "--ready-fd", str(write_end)),
        env=daemon.env(),
        pass_fds=[write_end],
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: os.close(read_end),
    )
    os.close(read_end)
    os.close(write_end)
    wait_for(daemon.socket.exists)
    assert daemon.client().call("ping")["pid"] == daemon.pid


@contextmanager
def held(daemon: Daemon) -> Iterator[None]:
    """The daemon stands still meanwhile, and has all it missed before it when it goes on."""
    daemon.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        daemon.signal(signal.SIGCONT)


def test_a_daemon_whose_place_was_taken_leaves_it(daemon: Daemon, make_daemon: MakeDaemon) -> None:
    daemon.start()
    heir = make_daemon()
    heir.socket = daemon.socket
    with held(daemon):
        daemon.run_dir.rename(daemon.run_dir.with_name("gone"))
        heir.start()
        inode = heir.socket.stat().st_ino
    assert daemon.wait() == 0
    assert "is another daemon's now" in daemon.log()
    assert heir.socket.stat().st_ino == inode
    assert heir.client().call("ping")["pid"] == heir.pid


def test_a_daemon_leaves_a_socket_that_another_program_put_there(daemon: Daemon) -> None:
    daemon.start()
    client = daemon.client()
    client.call("ping")
    with socket.socket(socket.AF_UNIX) as other:
        with held(daemon):
            daemon.socket.unlink()
            other.bind(str(daemon.socket))
            other.listen()
        inode = daemon.socket.stat().st_ino
        # Nobody can reach the daemon any more: it ends, and the socket stays the other's.
        assert daemon.wait() == 0
        assert "another program listens on" in daemon.log()
        assert daemon.socket.stat().st_ino == inode


def test_two_daemons_on_two_sockets_do_not_meet(make_daemon: MakeDaemon) -> None:
    one, other = make_daemon().start(), make_daemon().start()
    with Client(one.socket) as a, Client(other.socket) as b:
        assert a.call("ping")["pid"] == one.pid and b.call("ping")["pid"] == other.pid
