"""How long an answer is waited for. Times are seconds on the monotonic clock."""

from __future__ import annotations

import time

from .errors import DeadlineError

# A model may have to be loaded before its tokenizer answers.
TOKENIZER_TIMEOUT = 600.0
# The daemon's own deadline comes first.
TIMEOUT_SLACK = 3.0
# How long the end of a cancelled request is waited for.
CANCEL_WAIT = 10.0


class Overdue(Exception):
    """The deadline passed. Never leaves this package."""


class Deadline:
    """So many seconds from now, and a little more; None: never."""

    def __init__(self, seconds: float | None) -> None:
        self._at = None if seconds is None else time.monotonic() + seconds + TIMEOUT_SLACK

    def left(self) -> float | None:
        """Seconds, at least 0; None: for ever."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    def shorten(self, seconds: float) -> None:
        """To so many seconds from now, if that is earlier."""
        at = time.monotonic() + seconds
        self._at = at if self._at is None else min(self._at, at)


def too_late() -> DeadlineError:
    return DeadlineError("no answer within the time that was given", "give a longer timeout")
