"""Starting a daemon when none answers."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator

from .errors import MicrokimiError, UnreachableError
from .paths import (
    SocketPaths,
    check_socket_directory,
    make_private_directory,
    state_directory,
)
from .probe import probe

# A daemon that is slow to boot is not waited for any longer, in seconds.
START_TIMEOUT = 30.0
_LOCK_POLL = 0.005
_PROGRAM = "microkimid"


def _cannot_start(why: str, hint: str = "") -> UnreachableError:
    return UnreachableError(f"the daemon could not be started: {why}", hint)


def find_program(program: str | os.PathLike[str] | None = None) -> str:
    """`program`, else MICROKIMI_DAEMON, else `microkimid` beside `mk`, else the one in PATH."""
    named = os.fspath(program) if program is not None else os.environ.get("MICROKIMI_DAEMON", "")
    if named:
        return os.path.abspath(named) if "/" in named else named
    if mk := shutil.which("mk"):
        beside = os.path.join(os.path.dirname(os.path.realpath(mk)), _PROGRAM)
        if os.access(beside, os.X_OK):
            return beside
    return _PROGRAM


@contextlib.contextmanager
def _start_lock(path: str, deadline: float) -> Iterator[None]:
    """Another starter keeps the lock for as long as its daemon boots."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _cannot_start(f"cannot open {path}: {error.strerror}") from error
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                pass
            if time.monotonic() >= deadline:
                raise _cannot_start(
                    "somebody else has been starting it for too long",
                    "look into the daemon's log in the state folder",
                )
            time.sleep(_LOCK_POLL)
        yield
    finally:
        os.close(lock)


def _read_verdict(fd: int, deadline: float) -> str | None:
    """The line that the daemon says: "ready" or "error: ..."; "" when it said none before its end,
    None when it said none in time."""
    line = b""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    while b"\n" not in line and len(line) < 4096:
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        if not poller.poll(left * 1000):
            continue
        got = os.read(fd, 512)
        if not got:
            break
        line += got
    return line.split(b"\n", 1)[0].decode(errors="replace")


def _spawn(paths: SocketPaths, program: str, deadline: float) -> None:
    try:
        make_private_directory(state_directory())
        # Where the daemon's output goes until it has opened its own log.
        boot_log = f"{state_directory()}/microkimid.boot.log"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        log = os.open(boot_log, flags, 0o600)
    except OSError as error:
        raise _cannot_start(f"cannot write its log: {error}") from error
    except MicrokimiError as error:
        raise _cannot_start(error.message, error.hint) from error
    reading, writing = os.pipe2(os.O_CLOEXEC)
    try:
        try:
            child = subprocess.Popen(
                [program, "--socket", paths.socket, "--ready-fd", str(writing)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[writing],
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise _cannot_start(
                f"cannot run {program}: {error.strerror}",
                "put microkimid into PATH, or name it with MICROKIMI_DAEMON",
            ) from error
        finally:
            os.close(writing)
            os.close(log)
        verdict = _read_verdict(reading, deadline)
    finally:
        os.close(reading)
    # The daemon outlives its starter; when it does not, its end is collected.
    threading.Thread(target=child.wait, name="microkimi-reaper", daemon=True).start()
    _judge(verdict, child, boot_log)


def _judge(verdict: str | None, child: subprocess.Popen[bytes], boot_log: str) -> None:
    if verdict == "ready":
        return
    if verdict is None:
        child.terminate()
        raise _cannot_start("it was not ready in time", f"its log: {boot_log}")
    if not verdict:
        raise _cannot_start("it ended before it was ready", f"its log: {boot_log}")
    # The daemon puts its hint behind a semicolon.
    why, _, hint = verdict.removeprefix("error: ").partition("; ")
    raise _cannot_start(why, hint or f"its log: {boot_log}")


def start_daemon(paths: SocketPaths, program: str | os.PathLike[str] | None = None) -> None:
    """Starts a daemon for this socket and returns when it serves. Of processes that do this at the
    same time exactly one starts it; the others wait for it."""
    deadline = time.monotonic() + START_TIMEOUT
    try:
        make_private_directory(paths.directory)
        check_socket_directory(paths.directory)
    except MicrokimiError as error:
        raise _cannot_start(error.message, error.hint) from error
    with _start_lock(paths.start_lock, deadline):
        try:
            probe(paths.socket)
        except UnreachableError as error:
            if error.nobody:
                _spawn(paths, find_program(program), deadline)
