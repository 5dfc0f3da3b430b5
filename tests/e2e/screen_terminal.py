"""A program on a pseudo terminal, and what is to be seen there: a strict little terminal that knows
the sequences that mk uses and fails on any other."""

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
from collections.abc import Callable

# Cursor to a place, erase, colours, and private modes.
_SEQUENCE = re.compile(r"\x1b\[(\??)([0-9;]*)([A-Za-z])")


class Emulator:
    """A screen of characters. Wide characters count as one; nothing here depends on columns."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.alternate = False
        self.cursor_shown = True
        self.wraps = True
        self.colours: set[str] = set()
        self.lines: list[str] = [""] * rows
        self.row = 0
        self.column = 0
        self.main = ""  # what went to the ordinary screen
        self._held = ""

    def feed(self, text: str) -> None:
        text = self._held + text
        self._held = ""
        at = 0
        while at < len(text):
            char = text[at]
            if char == "\x1b":
                match = _SEQUENCE.match(text, at)
                if match is None:
                    assert re.match(r"\x1b(\[\??[0-9;]*)?$", text[at:]), repr(text[at : at + 20])
                    self._held = text[at:]
                    return
                self._sequence(*match.groups())
                at = match.end()
                continue
            if not self.alternate:
                self.main += char
            else:
                assert char >= " " and char != "\x7f", f"control character {char!r} on the screen"
                self._put(char)
            at += 1

    def _put(self, char: str) -> None:
        line = self.lines[self.row].ljust(self.column)
        self.lines[self.row] = line[: self.column] + char + line[self.column + 1 :]
        self.column += 1

    def _sequence(self, private: str, numbers: str, final: str) -> None:
        if private:
            assert final in "hl", (numbers, final)
            on = final == "h"
            if numbers == "1049":
                self.alternate = on
            elif numbers == "25":
                self.cursor_shown = on
            elif numbers == "7":
                self.wraps = on
            else:
                raise AssertionError(f"unknown mode {numbers}")
        elif final == "H":
            row, column = (int(one) for one in (numbers or "1;1").split(";"))
            self.row, self.column = min(row, self.rows) - 1, column - 1
        elif final == "J":
            if numbers != "2":
                self.lines[self.row] = self.lines[self.row][: self.column]
            first = 0 if numbers == "2" else self.row + 1
            for row in range(first, self.rows):
                self.lines[row] = ""
        elif final == "K":
            self.lines[self.row] = self.lines[self.row][: self.column]
        elif final == "m":
            self.colours.add(numbers)
        else:
            raise AssertionError(f"unknown sequence {numbers}{final}")

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


class Terminal:
    """A process whose standard streams are a terminal of its own."""

    def __init__(
        self, command: list[str], env: dict[str, str], columns: int = 110, rows: int = 40
    ) -> None:
        self.emulator = Emulator(rows)
        self.status: int | None = None
        # The terminal's settings are looked at from here, also when the process is gone.
        self.master, self.slave = pty.openpty()
        self.resize(columns, rows, tell=False)
        self.before = termios.tcgetattr(self.slave)
        self.pid = os.fork()
        if self.pid == 0:
            os.login_tty(self.slave)
            os.execve(command[0], command, env)

    def resize(self, columns: int, rows: int, tell: bool = True) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if tell:  # the kernel tells the process; the emulator is a new one
            self.emulator.rows = rows
            self.emulator.lines = [""] * rows

    def settings_are_as_before(self) -> bool:
        return termios.tcgetattr(self.slave) == self.before

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def pump(self, seconds: float) -> None:
        """Shows what comes within so long."""
        ready, _, _ = select.select([self.master], [], [], seconds)
        if ready:
            with contextlib.suppress(OSError):  # EIO: nobody has the terminal open
                data = os.read(self.master, 65536)
                self.emulator.feed(self._decode(data))

    _rest = b""

    def _decode(self, data: bytes) -> str:
        """A character may be cut between two reads."""
        data = self._rest + data
        for cut in range(4):
            with contextlib.suppress(UnicodeDecodeError):
                end = len(data) - cut
                text = data[:end].decode()
                self._rest = data[end:]
                return text
        raise AssertionError(f"no UTF-8: {data!r}")

    def wait_for(self, condition: Callable[[Emulator], object], seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while not condition(self.emulator):
            assert time.monotonic() < end, f"waited in vain; the screen:\n{self.emulator.text}"
            self.pump(0.05)

    def see(self, part: str, seconds: float = 20) -> None:
        self.wait_for(lambda screen: part in screen.text, seconds)

    def poll(self, flags: int = os.WNOHANG) -> int | None:
        """The wait status, once the process has ended (or stopped, with WUNTRACED)."""
        pid, status = os.waitpid(self.pid, flags)
        return status if pid else None

    def wait_stopped(self, seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while (status := self.poll(os.WNOHANG | os.WUNTRACED)) is None:
            assert time.monotonic() < end, "it did not stop"
            self.pump(0.05)
        assert os.WIFSTOPPED(status), status
        self.pump(0.2)

    def wait(self, seconds: float = 20) -> int:
        """The exit code; 128 + signal for one that a signal ended."""
        end = time.monotonic() + seconds
        while self.status is None:
            assert time.monotonic() < end, f"it did not end; the screen:\n{self.emulator.text}"
            self.pump(0.05)
            self.status = self.poll()
        for _ in range(5):
            self.pump(0.05)
        code = os.waitstatus_to_exitcode(self.status)
        return code if code >= 0 else 128 - code

    def close(self) -> None:
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
        os.close(self.slave)
        with contextlib.suppress(OSError):
            os.close(self.master)
