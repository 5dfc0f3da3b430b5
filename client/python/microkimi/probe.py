"""Is anybody there? ZeroMQ's connect never fails, so the socket is asked first."""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct

from .errors import UnreachableError

# How long a connection may wait to be accepted, in seconds.
CONNECT_TIMEOUT = 5.0


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def _failure(number: int, path: str) -> UnreachableError:
    start = "start one with `microkimid`, or let the client start it (autostart=True)"
    # The system says the same of a socket without a listener and of a file.
    if number == errno.ECONNREFUSED and not _is_socket(path):
        number = errno.ENOTSOCK
    if number in (errno.ENOENT, errno.ECONNREFUSED):
        what = "there is no socket" if number == errno.ENOENT else "nobody listens"
        error = UnreachableError(f"no daemon runs: {what} at {path}", start)
        error.nobody = True
        return error
    if number in (errno.EACCES, errno.EPERM):
        return UnreachableError(
            f"no permission to connect to {path}",
            f"the socket and its folder must be yours: ls -ld {path}",
        )
    if number in (errno.EAGAIN, errno.EINPROGRESS, errno.ETIMEDOUT):
        return UnreachableError(
            f"the daemon at {path} accepts no connection",
            "it is overloaded or hangs; try again, or end it with SIGKILL",
        )
    if number == errno.ENOTSOCK:
        return UnreachableError(
            f"{path} is not a socket", "remove the file, or name another socket"
        )
    if number == errno.ENOTDIR:
        return UnreachableError(f"part of the path is not a folder: {path}", "name another socket")
    return UnreachableError(f"cannot connect to {path}: {os.strerror(number)}")


def probe(path: str, timeout: float = CONNECT_TIMEOUT) -> None:
    """Returns when a daemon of ours, or root's, listens at the path; raises UnreachableError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(timeout)
        try:
            peer.connect(path)
        except TimeoutError as error:
            raise _failure(errno.ETIMEDOUT, path) from error
        except OSError as error:
            raise _failure(error.errno or errno.EIO, path) from error
        format_ = "3i"  # struct ucred: pid, uid, gid
        told = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(format_))
        uid = struct.unpack(format_, told)[1]
    # The daemon reads prompts and names of files; one of another user gets none.
    if uid not in (os.geteuid(), 0):
        raise UnreachableError(
            f"the daemon at {path} belongs to user {uid}, not to you",
            "name a socket of your own",
        )
