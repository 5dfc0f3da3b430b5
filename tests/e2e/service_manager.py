"""Stands in for systemd where none runs: a socket unit and its Type=notify service.

Passes the listening socket and the environment as systemd does, reads what the daemon reports,
starts it when somebody connects, starts it anew when it failed or missed its watchdog.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from daemon_harness import PATIENCE, Client, Daemon, wait_for

# Runs in the process that becomes the daemon: its pid is what LISTEN_PID must name.
_BECOME = """
import os, sys
names, *command = sys.argv[1:]
me = str(os.getpid())
os.environ.update(LISTEN_PID=me, LISTEN_FDS=str(len(names.split(":"))), SYSTEMD_EXEC_PID=me)
os.environ.update(LISTEN_FDNAMES=names)
if "WATCHDOG_USEC" in os.environ:
    os.environ["WATCHDOG_PID"] = me
os.execv(command[0], command)
"""


class ServiceManager:
    def __init__(self, daemon: Daemon, *args: str, watchdog: float = 0.0) -> None:
        self.daemon = daemon
        self.args = args
        self.watchdog = watchdog
        self.said: list[str] = []  # every message, in order
        self.starts: list[int] = []  # pids
        self.ends: list[int] = []  # exit codes
        self.killed = 0  # for a missed watchdog
        self._process: subprocess.Popen[bytes] | None = None
        self._last_sign: float | None = None  # of the watchdog, since READY
        self._leave, self._left = os.pipe()
        # As systemd does: whatever is at the path gives way.
        with contextlib.suppress(FileNotFoundError):
            daemon.socket.unlink()
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        self.listening.bind(str(daemon.socket))
        os.umask(before)
        self.listening.listen(512)
        self.notify_path = daemon.home / "notify"
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(str(self.notify_path))
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        os.write(self._left, b"x")
        self._thread.join()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        for one in (self.listening, self.notify):
            one.close()
        os.close(self._leave)
        os.close(self._left)

    @property
    def running(self) -> bool:
        return self._process is not None

    def heard(self, word: str) -> bool:
        return any(word in message.split("\n") for message in self.said)

    def wait_heard(self, word: str, seconds: float = PATIENCE) -> None:
        wait_for(lambda: self.heard(word), seconds, f"for {word} among {self.said}")

    def status(self) -> str:
        """The last STATUS=."""
        lines = [line for message in self.said for line in message.split("\n")]
        told = [line.removeprefix("STATUS=") for line in lines if line.startswith("STATUS=")]
        return told[-1] if told else ""

    def _start(self) -> None:
        env = self.daemon.env(NOTIFY_SOCKET=str(self.notify_path))
        if self.watchdog:
            env["WATCHDOG_USEC"] = str(int(self.watchdog * 1e6))
        self._last_sign = None

        def pass_socket() -> None:
            os.dup2(self.listening.fileno(), 3)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        command = self.daemon.command(*self.args)
        with open(self.daemon.home / "stderr", "ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BECOME, "microkimid", *command],
                env=env,
                stderr=stderr,
                preexec_fn=pass_socket,
                pass_fds=[3],
            )
        self.starts.append(self._process.pid)

    def _run(self) -> None:
        while True:
            waited = [self._leave, self.notify.fileno()]
            if self._process is None:
                waited.append(self.listening.fileno())
            ready, _, _ = select.select(waited, [], [], 0.02)
            if self._leave in ready:
                return
            if self.notify.fileno() in ready:
                self._hear(self.notify.recv(65536).decode())
                continue
            if self._process is None:
                if ready:
                    self._start()
                continue
            self._watch(self._process)

    def _hear(self, message: str) -> None:
        self.said.append(message)
        if {"READY=1", "WATCHDOG=1"} & set(message.split("\n")):
            self._last_sign = time.monotonic()

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        code = process.poll()
        if code is not None:
            self.ends.append(code)
            self._process = None
            if code != 0:
                self._start()  # Restart=on-failure
            return
        late = self._last_sign is not None and time.monotonic() - self._last_sign > self.watchdog
        if self.watchdog and late:
            self.killed += 1
            self._last_sign = None
            process.send_signal(signal.SIGABRT)


@contextlib.contextmanager
def managed(daemon: Daemon, *args: str, watchdog: float = 0.0) -> Iterator[ServiceManager]:
    manager = ServiceManager(daemon, *args, watchdog=watchdog)
    try:
        yield manager
    finally:
        manager.close()


def pid_behind(path: Path) -> int:
    """Who answers on a socket."""
    with Client(path) as client:
        return int(client.call("ping")["pid"])


_PTRACE_DETACH, _PTRACE_SEIZE, _PTRACE_INTERRUPT = 17, 0x4206, 0x4207
_WAIT_ALL = 0x40000000  # __WALL: threads too


def thread_of(pid: int, name: str) -> int:
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip() == name:
            return int(task.name)
    raise AssertionError(f"no thread {name} in {pid}")


@contextlib.contextmanager
def frozen(thread: int) -> Iterator[None]:
    """One thread of a process that this one started stands still, as if it hung."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long] * 4
    libc.ptrace.restype = ctypes.c_long

    def trace(request: int) -> None:
        if libc.ptrace(request, thread, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "ptrace")

    trace(_PTRACE_SEIZE)
    trace(_PTRACE_INTERRUPT)
    os.waitpid(thread, _WAIT_ALL)
    try:
        yield
    finally:
        try:
            trace(_PTRACE_DETACH)
        except OSError:  # it was killed meanwhile; its process ends when its tracer has seen it
            with contextlib.suppress(ChildProcessError):
                os.waitpid(thread, _WAIT_ALL)
