"""Where client and daemon meet, and where the daemon keeps its state."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from .errors import AccessDeniedError, BadRequestError, IoError, UnreachableError

# sizeof(sockaddr_un::sun_path) on Linux, without the terminating zero.
MAX_SOCKET_PATH_BYTES = 107

_ELSEWHERE = "set XDG_RUNTIME_DIR to a folder of yours, or name another socket"


@dataclass(frozen=True, slots=True)
class SocketPaths:
    """All absolute. The folder has mode 0700."""

    directory: str
    socket: str
    start_lock: str  # held (flock) by whoever starts the daemon


def _absolute_variable(name: str) -> str:
    # The XDG specification has relative values ignored.
    value = os.environ.get(name, "")
    return value if value.startswith("/") else ""


def _default_directory() -> str:
    if runtime := _absolute_variable("XDG_RUNTIME_DIR"):
        return f"{runtime}/microkimi"
    run_user = f"/run/user/{os.geteuid()}"
    try:
        info = os.lstat(run_user)
    except OSError:
        info = None
    if info is not None and stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid():
        return f"{run_user}/microkimi"
    if cache := _absolute_variable("XDG_CACHE_HOME"):
        return f"{cache}/microkimi/run"
    if home := _absolute_variable("HOME"):
        return f"{home}/.cache/microkimi/run"
    raise BadRequestError("no place for the daemon's socket", _ELSEWHERE)


def find_socket(path: str | os.PathLike[str] | None = None) -> SocketPaths:
    """`path`, else MICROKIMI_SOCKET, else the usual place: as `mk` finds it."""
    named = os.fspath(path) if path else os.environ.get("MICROKIMI_SOCKET", "")
    socket = os.path.join(os.getcwd(), named or f"{_default_directory()}/microkimid.sock")
    if "\0" in socket or socket.endswith("/"):
        raise BadRequestError(
            f"not the path of a socket: {socket!r}",
            "give the path of a file, for example /tmp/mk/daemon.sock",
        )
    size = len(os.fsencode(socket))
    if size > MAX_SOCKET_PATH_BYTES:
        raise BadRequestError(
            f"socket path is too long: {size} bytes, {MAX_SOCKET_PATH_BYTES} are allowed: {socket}",
            "give a shorter one, or set MICROKIMI_SOCKET or XDG_RUNTIME_DIR",
        )
    directory = socket[: socket.rfind("/")] or "/"
    return SocketPaths(directory, socket, socket.removesuffix(".sock") + ".start.lock")


def check_socket_directory(directory: str) -> None:
    """Refuses a folder that is a link, somebody else's, or open to others. A missing one passes."""
    try:
        info = os.lstat(directory)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UnreachableError(
            f"socket folder {directory} cannot be looked at: {error.strerror}"
        ) from error
    what = f"socket folder {directory}"
    if stat.S_ISLNK(info.st_mode):
        raise UnreachableError(f"{what} is a symbolic link", "remove it, or name another socket")
    if not stat.S_ISDIR(info.st_mode):
        raise UnreachableError(f"{what} is not a folder", "remove it, or name another socket")
    if info.st_uid != os.geteuid():
        raise UnreachableError(f"{what} belongs to user {info.st_uid}, not to you", _ELSEWHERE)
    if info.st_mode & 0o077:
        mode = f"{stat.S_IMODE(info.st_mode):04o}"
        raise UnreachableError(f"{what} is open to others (mode {mode})", f"chmod 700 {directory}")


def make_private_directory(directory: str) -> None:
    """Makes the folder and its parents with mode 0700 where they are missing."""
    for part in [*reversed(Path(directory).parents), Path(directory)]:
        try:
            part.mkdir(mode=0o700)
        except FileExistsError:
            continue
        except OSError as error:
            cls = AccessDeniedError if isinstance(error, PermissionError) else IoError
            raise cls(f"cannot make the folder {part}: {error.strerror}", _ELSEWHERE) from error


def state_directory() -> str:
    """Logs and everything that is saved."""
    if state := _absolute_variable("XDG_STATE_HOME"):
        return f"{state}/microkimi"
    if home := _absolute_variable("HOME"):
        return f"{home}/.local/state/microkimi"
    raise BadRequestError(
        "no place for the daemon's state", "set XDG_STATE_HOME or HOME to a folder of yours"
    )


def model_argument(model: str | os.PathLike[str] | None) -> str:
    """A model as the daemon takes it: an absolute path when it has a '/', names a file here that
    ends in ".bin" or is a path object; else an alias or a name; "" is the default model."""
    if model is None:
        return ""
    text = os.fspath(model)
    is_file = text.endswith(".bin") and os.path.exists(text)
    if text and (not isinstance(model, str) or "/" in text or is_file):
        return os.path.abspath(text)
    return text


def pack_argument(pack: str | os.PathLike[str] | None) -> str:
    """A memory pack as the daemon takes it: an absolute path when it has a '/', ends in ".mkmem" or
    is a path object; else the name of one that the daemon keeps; "": none."""
    if pack is None:
        return ""
    text = os.fspath(pack)
    is_path = not isinstance(pack, str) or "/" in text or text.endswith(".mkmem")
    return os.path.abspath(text) if text and is_path else text


def file_argument(path: str | os.PathLike[str] | None) -> str:
    return "" if path is None else os.path.abspath(os.fspath(path))
