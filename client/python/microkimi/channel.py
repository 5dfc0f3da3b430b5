"""One connection to the daemon, and the thread that serves it.

The thread owns the ZeroMQ socket. It sends what others submit, hands replies to the calls that wait
for them, acknowledges what was shown, and notices a daemon that died (the connection closes at
once) or hangs (no answer to pings). So a consumer that is busy between two tokens still gives a
sign of life, and no consumer waits for ever.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from . import wire
from .call import Call
from .errors import (
    CancelledError,
    InternalError,
    MicrokimiError,
    UnreachableError,
    error_from_body,
    hung_daemon,
)

# Seconds. A daemon that hears nothing for 5 s takes its client for dead.
ACK_INTERVAL = 1.0
# After so long without a word the daemon is asked for one.
ASK_AFTER = 2.0
# A daemon never leaves its socket unread for so long; one that does hangs.
DAEMON_SILENCE = 20.0
# For the last cancels, when a client is closed.
_LINGER_MS = 200
_RECONNECT_MS = 3_600_000
_CLOSE_TIMEOUT = 5.0
# Files that a connection opens, and some more.
_DESCRIPTORS = 20
# Replies taken before sending and acknowledging have their turn again.
_RECEIVE_AT_ONCE = 512

_ENDINGS = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)


class _Bell:
    """Wakes the thread. The descriptor lives as long as anybody may ring."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def ring(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self.fd, 1)

    def silence(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def __del__(self) -> None:
        os.close(self.fd)


def _require_descriptors() -> None:
    """Raises OSError when the process is about to run out of them: ZeroMQ would abort it."""
    taken: list[int] = []
    try:
        for _ in range(_DESCRIPTORS):
            taken.append(os.eventfd(0, os.EFD_CLOEXEC))
    finally:
        for one in taken:
            os.close(one)


class Channel:
    """submit(), cancel() and close() may be called from any thread; none of them waits for the
    daemon, and the first two take no lock, so that finalizers may call them."""

    def __init__(self, socket_path: str) -> None:
        _require_descriptors()
        self.pid = os.getpid()
        self._path = socket_path
        self._bell = _Bell()
        self._numbers = itertools.count(1)
        self._submitted: deque[tuple[Call, bytes]] = deque()
        self._cancelled: deque[Call] = deque()
        self._closing = False
        self._error: MicrokimiError | None = None
        # Of the thread alone:
        self._calls: dict[int, Call] = {}
        self._heard = 0.0
        self._next_ping = 0.0
        self._thread = threading.Thread(target=self._serve, name="microkimi", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._error is None and not self._closing

    def submit(
        self, op: str, args: dict[str, Any], wake: Callable[[], None], *, streams: bool
    ) -> Call:
        """Sends a request. `wake` is called, from the thread, whenever something came for it.
        `streams`: it is answered in many pieces and kept alive by acknowledgements."""
        number = next(self._numbers)
        call = Call(number, op, streams, wake, self._bell.ring)
        message = wire.encode_request(number, op, args)
        self._submitted.append((call, message))
        self._bell.ring()
        # The thread may have ended between; it looks into the queue for a last time when it does.
        if self._error is not None:
            call.fail(self._error)
        return call

    def cancel(self, call: Call, *, abandon: bool) -> None:
        """Asks the daemon to end a request. With `abandon` nobody waits for its end."""
        call.abandoned = call.abandoned or abandon
        self._cancelled.append(call)
        self._bell.ring()

    def close(self) -> None:
        """Cancels what is open and ends the connection."""
        self._closing = True
        self._bell.ring()
        if threading.current_thread() is not self._thread and self.pid == os.getpid():
            self._thread.join(_CLOSE_TIMEOUT)

    # ------------------------------------------------------------ the thread

    def _serve(self) -> None:
        try:
            with contextlib.ExitStack() as opened:
                context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
                opened.callback(context.term)
                dealer = context.socket(zmq.DEALER)
                opened.callback(dealer.close)
                monitor = dealer.get_monitor_socket(_ENDINGS)
                # Ends first: a socket tells its monitor of its end, and waits for it to listen.
                opened.callback(monitor.close, 0)
                opened.callback(dealer.disable_monitor)
                # Nothing lingers for a daemon that is gone; only the last cancels of close() do.
                dealer.setsockopt(zmq.LINGER, 0)
                try:
                    self._talk(dealer, monitor)
                except MicrokimiError as error:
                    self._fail(error)
        except Exception as error:
            self._fail(InternalError(f"the connection failed: {type(error).__name__}: {error}"))

    def _talk(self, dealer: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
        dealer.setsockopt(zmq.SNDHWM, 0)
        dealer.setsockopt(zmq.MAXMSGSIZE, wire.MAX_MESSAGE_BYTES)
        # A connection that ended has lost its requests: the next one is made on purpose, long
        # before ZeroMQ would. (Told never to, it may wait for ever in term().)
        dealer.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        dealer.connect(f"ipc://{self._path}")
        poller = zmq.Poller()
        for one in (dealer, monitor, self._bell.fd):
            poller.register(one, zmq.POLLIN)
        while not self._closing:
            self._send(dealer)
            due = self._keep_alive(dealer)
            timeout = None if due is None else max(0, int((due - time.monotonic()) * 1000) + 1)
            ready = dict(poller.poll(timeout))
            self._bell.silence()
            self._receive(dealer)
            if monitor in ready:
                recv_monitor_message(monitor)
                # What came before the end is still worth having.
                while self._receive(dealer):
                    pass
                raise UnreachableError(
                    "the daemon closed the connection",
                    "`mk status` says whether it still runs; its log says why",
                )
        dealer.setsockopt(zmq.LINGER, _LINGER_MS)
        self._send(dealer)
        for call in self._calls.values():
            self._send_control(dealer, "cancel", request=call.number)
        raise CancelledError("the client was closed")

    def _send(self, dealer: zmq.Socket[bytes]) -> None:
        while self._submitted:
            call, message = self._submitted.popleft()
            now = time.monotonic()
            if not self._calls:
                self._heard = now
            self._calls[call.number] = call
            call.next_ack = now + ACK_INTERVAL
            self._transmit(dealer, message)
        while self._cancelled:
            call = self._cancelled.popleft()
            if call.number in self._calls and not call.cancelled:
                call.cancelled = True
                self._send_control(dealer, "cancel", request=call.number)

    def _send_control(self, dealer: zmq.Socket[bytes], op: str, **args: int) -> None:
        self._transmit(dealer, wire.encode_request(next(self._numbers), op, args))

    def _transmit(self, dealer: zmq.Socket[bytes], message: bytes) -> None:
        # There is no high-water mark: it fails only when the connection has ended, which the
        # monitor is about to tell.
        with contextlib.suppress(zmq.Again):
            dealer.send(message, zmq.NOBLOCK)

    def _receive(self, dealer: zmq.Socket[bytes]) -> int:
        """Takes what is there; returns how many messages that were."""
        woken: dict[int, Call] = {}
        count = 0
        for _ in range(_RECEIVE_AT_ONCE):
            try:
                message = dealer.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            count += 1
            self._heard = time.monotonic()
            reply = wire.decode_reply(message)
            # A message without an id that could be read is refused under id 0. All of ours have
            # one, so this answers whatever is open.
            if reply.id == 0 and reply.type == "error":
                raise error_from_body(reply.body)
            call = self._calls.get(reply.id)
            if call is None:
                continue  # of a ping or a cancel
            if reply.ends:
                del self._calls[reply.id]
            call.put(reply)
            woken[call.number] = call
        self._cancelled.extend(call for call in woken.values() if not call.wake())
        return count

    def _keep_alive(self, dealer: zmq.Socket[bytes]) -> float | None:
        """Acknowledges and pings; returns when it must be called again."""
        if not self._calls:
            return None
        now = time.monotonic()
        if now - self._heard > DAEMON_SILENCE:
            raise hung_daemon("the daemon does not answer any more")
        if now - self._heard > ASK_AFTER and now >= self._next_ping:
            self._next_ping = now + ACK_INTERVAL
            self._send_control(dealer, "ping")
        due = now + ACK_INTERVAL
        for call in self._calls.values():
            if not call.streams:
                continue
            if now >= call.next_ack or call.wants_ack:
                seq = call.acknowledge()
                call.next_ack = now + ACK_INTERVAL
                self._send_control(dealer, "ack", request=call.number, seq=seq)
            due = min(due, call.next_ack)
        return due

    def _fail(self, error: MicrokimiError) -> None:
        self._error = error.with_traceback(None)  # its frames hold the channel
        while self._submitted:
            self._submitted.popleft()[0].fail(error)
        for call in self._calls.values():
            call.fail(error)
        self._calls.clear()
