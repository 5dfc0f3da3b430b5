"""The daemon under a service manager: socket activation, what it reports, the watchdog."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_harness import (
    BIN,
    ROOT,
    Client,
    Daemon,
    ReplyError,
    endless,
    in_phase,
    long_prompt,
    wait_for,
)
from service_manager import ServiceManager, frozen, managed, pid_behind, thread_of

from conftest import MakeDaemon


@pytest.fixture
def daemon(make_daemon: MakeDaemon) -> Daemon:
    """Its directories; a service manager starts it."""
    return make_daemon()


@pytest.fixture
def manager(daemon: Daemon) -> Iterator[ServiceManager]:
    with managed(daemon) as manager:
        yield manager


def test_the_first_connection_starts_it(daemon: Daemon, manager: ServiceManager) -> None:
    assert not manager.running
    assert pid_behind(daemon.socket) == manager.starts[0]
    assert manager.heard("READY=1")
    assert not (daemon.run_dir / "s").is_symlink() and daemon.socket.is_socket()


def test_it_leaves_the_socket_and_comes_back(daemon: Daemon, manager: ServiceManager) -> None:
    inode = daemon.socket.stat().st_ino
    client = daemon.client()
    assert client.call("stop")["socket_activated"] is True
    wait_for(lambda: manager.ends == [0])
    assert daemon.socket.stat().st_ino == inode
    assert pid_behind(daemon.socket) == manager.starts[1]


def test_idle_exit_gives_the_socket_back(daemon: Daemon) -> None:
    with managed(daemon, "--idle-exit", "1s") as manager:
        pid_behind(daemon.socket)
        wait_for(lambda: manager.ends == [0])
        assert manager.heard("STOPPING=1")
        assert pid_behind(daemon.socket) == manager.starts[1]


def test_a_killed_daemon_is_started_anew(daemon: Daemon, manager: ServiceManager) -> None:
    os.kill(pid_behind(daemon.socket), signal.SIGKILL)
    wait_for(lambda: len(manager.starts) == 2)
    assert pid_behind(daemon.socket) == manager.starts[1]


def test_the_status_says_what_it_does(daemon: Daemon, manager: ServiceManager) -> None:
    client = daemon.client()
    client.call("ping")
    wait_for(lambda: manager.status() == "idle; no model loaded")
    number = endless(client)
    client.wait_tokens(number, 1)
    # Nobody acknowledges its tokens: it soon waits for that.
    working = re.compile("1 request: 1 (decode|paused); 1 model, ")
    wait_for(lambda: working.match(manager.status()) is not None)
    client.send("stop", grace_ms=500)
    wait_for(lambda: manager.status().startswith("leaving: a client asked for it; 1 request"))
    with pytest.raises(ReplyError, match="shutting_down"):
        client.finish(number)


def test_leaving_is_reported_with_the_time_that_it_may_take(
    daemon: Daemon, manager: ServiceManager
) -> None:
    client = daemon.client()
    client.call("stop", grace_ms=300_000)
    manager.wait_heard("STOPPING=1")
    message = next(one for one in manager.said if "STOPPING=1" in one)
    extend = next(line for line in message.split("\n") if line.startswith("EXTEND_TIMEOUT_USEC="))
    assert 300e6 < int(extend.partition("=")[2]) < 360e6


def test_a_reload_is_bracketed(daemon: Daemon, manager: ServiceManager) -> None:
    pid = pid_behind(daemon.socket)
    manager.said.clear()
    daemon.config.write_text("max_batch = 2\n")
    before = time.monotonic_ns() // 1000
    os.kill(pid, signal.SIGHUP)
    manager.wait_heard("READY=1")
    lines = "\n".join(manager.said).split("\n")
    at = lines.index("RELOADING=1")
    assert at < lines.index("READY=1")
    name, _, value = lines[at + 1].partition("=")
    assert name == "MONOTONIC_USEC"
    assert before <= int(value) <= time.monotonic_ns() // 1000
    daemon.config.write_text("max_batch = 0\n")
    os.kill(pid, signal.SIGHUP)
    wait_for(lambda: "config.toml:1" in manager.status())
    daemon.config.unlink()
    os.kill(pid, signal.SIGHUP)
    wait_for(lambda: "config" not in manager.status())


def wait_signs(
    manager: ServiceManager, count: int, client: Client | None = None, number: int = 0
) -> None:
    """So many more WATCHDOG=1 than there are; the client keeps its request alive meanwhile."""
    before = manager.said.count("WATCHDOG=1")

    def enough() -> bool:
        if client is not None:
            client.pump(0.05)
            client.ack(number)
        return manager.said.count("WATCHDOG=1") >= before + count

    wait_for(enough)


def test_the_watchdog_hears_of_an_idle_and_of_a_busy_daemon(daemon: Daemon) -> None:
    with managed(daemon, watchdog=2) as manager:
        client = daemon.client()
        client.call("ping")
        wait_signs(manager, 3)
        number = long_prompt(client)
        wait_for(lambda: in_phase(client, "prefill"))
        wait_signs(manager, 4, client, number)
        assert in_phase(client, "prefill")
        client.call("cancel", request=number)
        assert manager.killed == 0


def test_a_long_step_is_no_hang(daemon: Daemon) -> None:
    """What runs alone on the engine's thread gives signs too."""
    with managed(daemon, watchdog=2) as manager:
        client = daemon.client()
        number = client.send("bench")
        wait_for(lambda: in_phase(client, "working"))
        wait_signs(manager, 4, client, number)
        assert in_phase(client, "working")
        client.call("cancel", request=number)
        assert manager.killed == 0


def test_a_hung_engine_is_not_vouched_for(daemon: Daemon) -> None:
    with managed(daemon, watchdog=3) as manager:
        client = daemon.client()
        pid = client.call("ping")["pid"]
        wait_signs(manager, 1)
        with frozen(thread_of(pid, "scheduler")):
            wait_for(lambda: "the engine has not answered for" in manager.status())
            client.call("ping")  # the I/O thread serves all the same
            wait_for(lambda: manager.killed == 1)
        wait_for(lambda: len(manager.starts) == 2)
        assert manager.ends == [-signal.SIGABRT]
        assert pid_behind(daemon.socket) == manager.starts[1]
        wait_signs(manager, 1)
    assert "the engine does not answer" in daemon.log()


def test_an_engine_that_comes_back_is_vouched_for_again(daemon: Daemon) -> None:
    with managed(daemon, watchdog=8) as manager:
        pid = pid_behind(daemon.socket)
        wait_signs(manager, 1)
        with frozen(thread_of(pid, "scheduler")):
            wait_for(lambda: "the engine has not answered for" in manager.status())
        wait_signs(manager, 1)
        wait_for(lambda: "the engine" not in manager.status())
        assert manager.killed == 0
    assert "the engine answers again" in daemon.log()


def test_a_hung_thread_does_not_keep_it_from_leaving(daemon: Daemon) -> None:
    daemon.start()
    pid = daemon.client().call("ping")["pid"]
    with frozen(thread_of(pid, "scheduler")):
        daemon.signal(signal.SIGTERM)
        wait_for(lambda: not Path(f"/proc/{pid}/fd/0").exists())
    assert daemon.wait() == 0
    assert not daemon.socket.exists()


def test_a_path_that_vanishes_is_made_anew(daemon: Daemon, manager: ServiceManager) -> None:
    pid = pid_behind(daemon.socket)
    daemon.run_dir.rename(daemon.run_dir.with_name("gone"))
    wait_for(daemon.socket.exists, what="for the socket")
    assert pid_behind(daemon.socket) == pid
    second = subprocess.run(
        daemon.command("--foreground"), env=daemon.env(), capture_output=True, timeout=60
    )
    assert second.returncode == 0 and f"(pid {pid})" in second.stdout.decode()
    assert "systemctl --user restart microkimid.socket" in daemon.log()
    with Client(daemon.socket) as client:  # nobody would start it again
        assert client.call("stop")["socket_activated"] is False
    wait_for(lambda: manager.ends == [0])
    assert not daemon.socket.exists()


def test_a_daemon_that_was_there_before_gives_way(daemon: Daemon) -> None:
    """A socket unit takes the path from whoever has it; its daemon needs the lock."""
    daemon.start()
    with managed(daemon) as manager:
        assert pid_behind(daemon.socket) == manager.starts[0]
        assert daemon.wait() == 0
        assert manager.starts == [manager.starts[0]]  # it waited, it did not fail


def test_a_start_by_hand_finds_the_one_behind_the_unit(
    daemon: Daemon, manager: ServiceManager
) -> None:
    """Nobody runs yet, the unit listens: to ask is to start it."""
    done = subprocess.run(
        daemon.command("--foreground"), env=daemon.env(), capture_output=True, timeout=60
    )
    assert done.returncode == 0, done
    wait_for(lambda: len(manager.starts) == 1)
    assert f"(pid {manager.starts[0]}) runs already" in done.stdout.decode()


def test_the_variables_of_another_service_are_not_its_own(daemon: Daemon, tmp_path: Path) -> None:
    """Whoever starts it from within a service must not have that one's state reported on."""
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(path))
        notify.setblocking(False)
        env = daemon.env(
            NOTIFY_SOCKET=str(path),
            SYSTEMD_EXEC_PID="1",
            WATCHDOG_USEC="100000",
            LISTEN_PID="1",
            LISTEN_FDS="1",
        )
        done = subprocess.run(daemon.command(), env=env, capture_output=True, timeout=60)
        assert done.returncode == 0, done  # it went into the background: nobody supervises it
        with Client(daemon.socket) as client:
            assert Path(client.call("status")["log"]).exists()
            client.call("stop")
        wait_for(lambda: not daemon.socket.exists())
        with pytest.raises(BlockingIOError):
            notify.recv(4096)


PASS = """
import os, socket, sys
path, names, *command = sys.argv[1:]
others = [socket.socket(socket.AF_UNIX) for _ in names.split(":")]
for number, one in enumerate(others):
    one.bind(path + str(number) if names.split(":")[number] != "microkimid" else path)
    one.listen()
    os.dup2(one.fileno(), 50 + number)
for number in range(len(others)):
    os.dup2(50 + number, 3 + number)
    os.set_inheritable(3 + number, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(others)), LISTEN_FDNAMES=names)
os.execv(command[0], command)
"""


def test_of_several_sockets_the_one_with_its_name_is_taken(daemon: Daemon) -> None:
    def start(names: str) -> None:
        daemon.process = subprocess.Popen(
            [sys.executable, "-c", PASS, str(daemon.socket), names, *daemon.command()],
            env=daemon.env(),
            stderr=subprocess.PIPE,
        )

    start("metrics:microkimid:other")
    wait_for(daemon.socket.exists)
    with Client(daemon.socket) as client:
        assert client.call("ping")["pid"] == daemon.pid
        assert str(daemon.socket) == client.call("status")["socket"]
        client.call("stop")
    assert daemon.wait() == 0
    for number in (0, 2):
        Path(f"{daemon.socket}{number}").unlink()
    start("one:two")
    assert daemon.process is not None and daemon.process.stderr is not None
    assert daemon.wait() == 3
    assert b"2 sockets, of which 0 have the name microkimid: one, two" in (
        daemon.process.stderr.read()
    )


def test_the_units_are_well_formed(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze here")
    units = tmp_path / "units"
    units.mkdir()
    shutil.copy(ROOT / "systemd" / "microkimid.socket", units)
    service = (ROOT / "systemd" / "microkimid.service.in").read_text()
    service = service.replace("@MK_DAEMON_COMMAND@", str(BIN / "microkimid"))
    service = service.replace("@MK_DAEMON_ENVIRONMENT@\n", "")
    assert "@" not in service.replace("@system-service", "")
    (units / "microkimid.service").write_text(service)
    (tmp_path / "runtime").mkdir(mode=0o700)
    done = subprocess.run(
        [analyze, "--user", "verify", str(units / "microkimid.service")],
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path / "runtime")},
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0 and b"microkimid" not in done.stderr, done.stderr
