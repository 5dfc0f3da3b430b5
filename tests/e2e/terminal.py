"""Programs at a terminal of their own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from pathlib import Path

from daemon_harness import PATIENCE

CTRL_C, CTRL_D, CTRL_R, CTRL_Z = "\x03", "\x04", "\x12", "\x1a"
UP, LEFT, RIGHT, BACKSPACE, TAB, ENTER = "\x1b[A", "\x1b[D", "\x1b[C", "\x7f", "\t", "\r"
_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|[()][A-Z0-9]|[=>78])")


class Terminal:
    """A program that thinks it is looked at by somebody."""

    def __init__(self, argv: list[str], env: dict[str, str], columns: int = 100) -> None:
        env = {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "INPUTRC": "/dev/null"} | env
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            with contextlib.suppress(Exception):
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_SETMASK, set())
                os.execve(argv[0], argv, env)
            os._exit(127)
        self.resize(columns)
        self.shown = ""  # everything, without what moves the cursor and colours
        self.at = 0  # what stands before was expected already
        self.raw = b""
        self.code: int | None = None

    def resize(self, columns: int, rows: int = 40) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def line(self, text: str) -> None:
        self.type(text + ENTER)

    def pump(self, seconds: float) -> bool:
        """Takes what is shown within so long; false when there was nothing."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return False
        try:
            got = os.read(self.fd, 65536)
        except OSError:  # the program has left
            return False
        self.raw += got
        self.shown = _ESCAPES.sub("", self.raw.decode(errors="replace"))
        return bool(got)

    def expect(self, text: str, seconds: float = PATIENCE) -> str:
        """Waits until this is shown behind what was expected before; what stood before it."""
        end = time.monotonic() + seconds
        while (found := self.shown.find(text, self.at)) < 0:
            left = end - time.monotonic()
            assert left > 0, f"{text!r} was not shown behind {self.shown[self.at :]!r}"
            self.pump(min(left, 0.2))
            if self.ended() and not self.pump(0) and self.shown.find(text, self.at) < 0:
                raise AssertionError(f"it ended without {text!r}: {self.shown[self.at :]!r}")
        before = self.shown[self.at : found]
        self.at = found + len(text)
        return before

    def settle(self, seconds: float = 0.3) -> str:
        """What is shown until nothing comes any more."""
        while self.pump(seconds):
            pass
        before = self.shown[self.at :]
        self.at = len(self.shown)
        return before

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def state(self) -> str:
        """ "S" for sleeping, "T" for stopped."""
        return Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]

    def echoes(self) -> bool:
        """The terminal is as a shell wants it."""
        mode = termios.tcgetattr(self.fd)[3]
        return bool(mode & termios.ECHO) and bool(mode & termios.ICANON)

    def ended(self) -> bool:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None

    def wait(self, seconds: float = PATIENCE) -> int:
        """The exit code; negative for a signal."""
        end = time.monotonic() + seconds
        while not self.ended():
            assert time.monotonic() < end, f"it does not end: {self.shown[-500:]!r}"
            self.pump(0.05)
        while self.pump(0):
            pass
        assert self.code is not None
        return self.code

    def close(self) -> None:
        if not self.ended():
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)
