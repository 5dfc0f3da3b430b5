"""A request on its way: the channel's thread feeds it, one consumer drains it."""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from collections.abc import Callable

from .errors import MicrokimiError
from .wire import Reply

# Replies that may be unacknowledged; the daemon pauses then.
WINDOW = 256
# Bytes shown that are acknowledged before the interval is over.
_ACK_BYTES = 1 << 20


def _payload_bytes(reply: Reply) -> int:
    data = reply.body.get("data")
    return len(data) if isinstance(data, bytes) else 0


class Call:
    def __init__(
        self,
        number: int,
        op: str,
        streams: bool,
        wake: Callable[[], None],
        ring: Callable[[], None],
    ) -> None:
        self.number = number
        self.op = op
        self.streams = streams
        self.abandoned = False  # nobody drains it any more
        self._wake = wake
        self._ring = ring
        self._replies: deque[Reply] = deque()
        self._failure: MicrokimiError | None = None
        # Written by the consumer, or by the thread once nobody drains it.
        self._shown = 0
        self._shown_bytes = 0
        # Of the thread alone:
        self.cancelled = False
        self.next_ack = 0.0
        self._acked = 0
        self._acked_bytes = 0

    # ------------------------------------------------------------ the consumer

    def take(self) -> Reply | None:
        """The next reply, if one is there. Raises when the connection has ended."""
        try:
            reply = self._replies.popleft()
        except IndexError:
            if self._failure is None:
                return None
            # What was put before the failure comes first.
            if self._replies:
                return self.take()
            # Every consumer gets its own, with a traceback of its own.
            raise copy.copy(self._failure) from None
        self._show(reply)
        if self.streams and self.wants_ack:
            self._ring()
        return reply

    # ------------------------------------------------------------ the thread

    def put(self, reply: Reply) -> None:
        if self.abandoned:
            self._show(reply)
        else:
            self._replies.append(reply)

    def fail(self, error: MicrokimiError) -> None:
        self._failure = error
        self.wake()

    def wake(self) -> bool:
        """False: the consumer's event loop was closed, so that nobody waits any more."""
        try:
            self._wake()
        except RuntimeError:
            self.abandoned = True
            return False
        return True

    @property
    def wants_ack(self) -> bool:
        many = self._shown - self._acked >= WINDOW // 4
        return many or self._shown_bytes - self._acked_bytes >= _ACK_BYTES

    def acknowledge(self) -> int:
        """What is to be acknowledged now."""
        if self.abandoned:
            with contextlib.suppress(IndexError):
                while True:
                    self._show(self._replies.popleft())
        self._acked, self._acked_bytes = self._shown, self._shown_bytes
        return self._acked

    def _show(self, reply: Reply) -> None:
        self._shown = max(self._shown, reply.seq)
        self._shown_bytes += _payload_bytes(reply)
