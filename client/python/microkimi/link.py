"""Keeps a live connection: made when it is needed, made anew after the daemon went."""

from __future__ import annotations

import os
import threading
import time

from . import wire
from .autostart import start_daemon
from .channel import Channel
from .errors import (
    BadRequestError,
    IoError,
    ShuttingDownError,
    UnreachableError,
    error_from_body,
    hung_daemon,
)
from .messages import Hello
from .paths import check_socket_directory, find_socket
from .probe import probe
from .version import VERSION

# How long a daemon that is there may take to answer what needs no work, in seconds.
CONTROL_TIMEOUT = 10.0
# A daemon that is just leaving takes its socket with it; then another one is started.
_ATTEMPTS = 3
_LEAVING_PAUSE = 0.2


class Link:
    """Thread-safe."""

    def __init__(
        self,
        socket: str | os.PathLike[str] | None,
        autostart: bool,
        program: str | os.PathLike[str] | None,
    ) -> None:
        self.paths = find_socket(socket)
        self._autostart = autostart
        self._program = program
        self._closed = False
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._channel: Channel | None = None

    def ready(self) -> Channel | None:
        """The channel, if it can be used at once."""
        if self._closed:
            raise BadRequestError("the client is closed", "make a new one")
        if self._pid != os.getpid():
            self._forget()  # threads and ZeroMQ contexts do not survive a fork
        channel = self._channel
        return channel if channel is not None and channel.alive else None

    def channel(self, starts: bool) -> Channel:
        """`starts`: a daemon may be started. Waits for its hello at most."""
        channel = self.ready()
        if channel is not None:
            return channel
        with self._lock:
            channel = self.ready()
            if channel is None:
                if self._channel is not None:
                    self._channel.close()
                try:
                    channel = self._channel = self._open(starts and self._autostart)
                except OSError as error:  # no descriptors left, for one
                    raise IoError(f"cannot connect to the daemon: {error.strerror}") from error
        if self._closed:
            channel.close()
        return channel

    def close(self) -> None:
        self._closed = True
        channel, self._channel = self._channel, None
        if channel is not None and self._pid == os.getpid():
            channel.close()

    def _open(self, autostart: bool) -> Channel:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                check_socket_directory(self.paths.directory)
                probe(self.paths.socket)
            except UnreachableError as error:
                if not error.nobody or not autostart or attempt == _ATTEMPTS:
                    raise
            else:
                try:
                    return self._greet()
                except (UnreachableError, ShuttingDownError) as error:
                    hangs = isinstance(error, UnreachableError) and error.hangs
                    if hangs or not autostart or attempt == _ATTEMPTS:
                        raise
                    time.sleep(_LEAVING_PAUSE)
            start_daemon(self.paths, self._program)
        raise AssertionError  # the last attempt returned or raised

    def _greet(self) -> Channel:
        channel = Channel(self.paths.socket)
        try:
            say_hello(channel)
        except BaseException:
            channel.close()
            raise
        return channel


def say_hello(channel: Channel) -> Hello:
    came = threading.Event()
    args = {
        "protocol_min": wire.PROTOCOL_MIN,
        "protocol_max": wire.PROTOCOL_MAX,
        "build_id": f"python-{VERSION}",
        "client": "python",
        "pid": os.getpid(),
    }
    call = channel.submit("hello", args, came.set, streams=False)
    if not came.wait(CONTROL_TIMEOUT):
        raise hung_daemon()
    reply = call.take()
    if reply is None:
        raise hung_daemon()
    if reply.type == "error":
        raise error_from_body(reply.body)
    return wire.read_body(Hello, reply.body)
