"""Messages as bytes: one msgpack map in one frame.

    request  {v, id, op, args}         id: chosen by the client, unique among its open requests
    reply    {v, id, type, seq, body}  type: accepted, event, chunk, done, error; seq: 0, 1, 2, ...

A request is answered by `accepted` (run, load, verify, build, bench), any number of `event` and
`chunk`, then exactly one `done` or `error`. Fields of a reply that are not known are left alone, so
that a newer daemon may add some.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from dataclasses import dataclass
from typing import Any, TypeVar

import msgpack  # type: ignore[import-untyped, unused-ignore]

from .errors import BadRequestError, InternalError

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1

MAX_MESSAGE_BYTES = 64 << 20
_MAX_MAP_ENTRIES = 4096
_MAX_ARRAY_ITEMS = 1 << 20
_MAX_TEXT_BYTES = 16 << 20
_MAX_BINARY_BYTES = 8 << 20

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reply:
    id: int
    type: str
    seq: int
    body: dict[str, Any]

    @property
    def ends(self) -> bool:
        return self.type in ("done", "error")


def _not_understood(why: str) -> InternalError:
    return InternalError(
        f"the daemon's answer is not understood: {why}",
        "`mk restart` replaces a daemon of another version",
    )


def encode_request(number: int, op: str, args: dict[str, Any]) -> bytes:
    """Raises BadRequestError for what no message can carry."""
    try:
        message = msgpack.packb({"v": PROTOCOL_MAX, "id": number, "op": op, "args": args})
    except UnicodeEncodeError as error:
        raise BadRequestError(
            f"{op}: text that is not Unicode: {error.reason}", "remove lone surrogates"
        ) from error
    except (TypeError, ValueError, OverflowError) as error:
        raise BadRequestError(f"{op}: an argument cannot be sent: {error}") from error
    if len(message) > MAX_MESSAGE_BYTES:
        raise BadRequestError("the request is larger than a message may be", "shorten the prompt")
    return bytes(message)


def decode_reply(message: bytes) -> Reply:
    """Raises InternalError for what is no reply."""
    try:
        told = msgpack.unpackb(
            message,
            max_str_len=_MAX_TEXT_BYTES,
            max_bin_len=_MAX_BINARY_BYTES,
            max_array_len=_MAX_ARRAY_ITEMS,
            max_map_len=_MAX_MAP_ENTRIES,
            max_ext_len=0,
        )
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise _not_understood(str(error) or type(error).__name__) from error
    if not isinstance(told, dict):
        raise _not_understood("it is no map")
    body: Any = told.get("body")
    reply = Reply(told.get("id", -1), told.get("type", ""), told.get("seq", -1), body)
    numbers = type(reply.id) is int and type(reply.seq) is int
    if not numbers or reply.id < 0 or reply.seq < 0 or not isinstance(reply.type, str):
        raise _not_understood("`id`, `seq` or `type` is missing")
    if not isinstance(reply.body, dict):
        raise _not_understood("`body` is missing")
    return reply


@functools.cache
def _fields(cls: type[Any]) -> tuple[tuple[str, Any, bool], ...]:
    """Name, type and presence of a dataclass's fields."""
    hints = typing.get_type_hints(cls)
    missing = dataclasses.MISSING
    return tuple(
        (one.name, hints[one.name], one.default is missing and one.default_factory is missing)
        for one in dataclasses.fields(cls)
    )


def _scalar(kind: Any, value: Any) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return type(value) is int
    return isinstance(value, kind)


def _value(kind: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(kind)
    if origin is list and isinstance(value, list):
        (item,) = typing.get_args(kind)
        return [_value(item, one, where) for one in value]
    if origin is dict and isinstance(value, dict):
        item = typing.get_args(kind)[1]
        return {key: _value(item, one, where) for key, one in value.items()}
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        (inner,) = (one for one in typing.get_args(kind) if one is not type(None))
        return _value(inner, value, where)
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        return read_body(typing.cast(type[Any], kind), value)
    if origin is None and not dataclasses.is_dataclass(kind) and _scalar(kind, value):
        return float(value) if kind is float else value
    raise _not_understood(f"`{where}` is no {getattr(kind, '__name__', kind)}")


def read_body(cls: type[T], body: dict[str, Any]) -> T:
    """A dataclass from a reply's body, every field checked."""
    found: dict[str, Any] = {}
    for name, kind, required in _fields(typing.cast(Any, cls)):
        if name in body:
            found[name] = _value(kind, body[name], f"{cls.__name__}.{name}")
        elif required:
            raise _not_understood(f"`{cls.__name__}.{name}` is missing")
    return cls(**found)
