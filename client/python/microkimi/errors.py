"""Exceptions, one class per error code of the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class MicrokimiError(Exception):
    """What the daemon, or the way to it, has to say.

    `message` is one line: what is wrong. `hint` is one line: how to mend it; it may be empty.
    `details` is for programs, for example {"byte_offset": 12}.
    """

    code: str = "internal"

    def __init__(
        self, message: str, hint: str = "", details: Mapping[str, int | str] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details: dict[str, int | str] = dict(details or {})

    def __str__(self) -> str:
        return f"{self.message} (hint: {self.hint})" if self.hint else self.message


class BadRequestError(MicrokimiError):
    """The request is malformed, out of range or contradictory."""

    code = "bad_request"


class UnsupportedVersionError(MicrokimiError):
    """Client and daemon share no protocol version."""

    code = "unsupported_version"


class UnsupportedError(MicrokimiError):
    """This build or this model cannot do that."""

    code = "unsupported"


class ModelNotFoundError(MicrokimiError):
    """There is no such model file, alias or name."""

    code = "model_not_found"


class NotFoundError(MicrokimiError):
    """There is no such file, request or name."""

    code = "not_found"


class AccessDeniedError(MicrokimiError):
    """A file or a socket that may not be used."""

    code = "permission_denied"


class ModelCorruptError(MicrokimiError):
    """The model file is damaged, is no model, or changed while it was read."""

    code = "model_corrupt"


class IncompatibleError(MicrokimiError):
    """Two things that do not belong together, such as a model and a vocabulary."""

    code = "incompatible"


class IncompatiblePackError(MicrokimiError):
    """A saved state of another model, or of another precision."""

    code = "incompatible_pack"


class PackCorruptError(MicrokimiError):
    """A saved state that is torn, or not what was written."""

    code = "pack_corrupt"


class ContextOverflowError(MicrokimiError):
    """More tokens than the model or the memory can take."""

    code = "context_overflow"


class BusyError(MicrokimiError):
    """The queue is full, or the thing is in use."""

    code = "busy"


class CancelledError(MicrokimiError):
    """The request was cancelled, or its client was closed."""

    code = "cancelled"


class DeadlineError(MicrokimiError):
    """The time that was given has passed."""

    code = "timeout"


class OutOfMemoryError(MicrokimiError):
    """Over the daemon's memory budget."""

    code = "out_of_memory"


class IoError(MicrokimiError):
    """The operating system failed a read or a write."""

    code = "io_error"


class NumericError(MicrokimiError):
    """A value that is not finite in the forward pass."""

    code = "numeric"


class ShuttingDownError(MicrokimiError):
    """The daemon is leaving."""

    code = "shutting_down"


class UnreachableError(MicrokimiError):
    """No daemon answers: none runs, it died, it hangs, or it could not be started.

    `nobody` is true when none runs, so that starting one would help; `hangs` when one is there
    that does not answer in time.
    """

    code = "unreachable"
    nobody: bool = False
    hangs: bool = False


class InternalError(MicrokimiError):
    """A bug in the daemon or in this client, or an error code of a later version."""

    code = "internal"


# By the code on the wire.
ERROR_CLASSES: dict[str, type[MicrokimiError]] = {
    cls.code: cls for cls in MicrokimiError.__subclasses__()
}


def error_from_body(body: Mapping[str, Any]) -> MicrokimiError:
    """The exception for the body of an `error` reply."""
    code = str(body.get("code", "internal"))
    made = ERROR_CLASSES.get(code, InternalError)(
        str(body.get("message", "the daemon told no reason")),
        str(body.get("hint", "")),
        body.get("details"),
    )
    made.code = code
    return made


def hung_daemon(what: str = "the daemon does not answer") -> UnreachableError:
    error = UnreachableError(
        what, "it hangs; its log may say why; end it with SIGKILL and start it again"
    )
    error.hangs = True
    return error
