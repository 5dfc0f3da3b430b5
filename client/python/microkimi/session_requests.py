"""Arguments of the ops on sessions."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from .paths import pack_argument
from .requests import ModelOptions, Precision, Request, StrPath, model_args

# States may be large, and disks slow.
SESSION_TIMEOUT = 600.0


def _request(op: str, **args: Any) -> Request:
    given = {name: value for name, value in args.items() if value is not None}
    return Request(op, given, SESSION_TIMEOUT)


def list_request() -> Request:
    return _request("sessions")


def new_request(
    name: str, precision: Precision, system: str | None, options: ModelOptions
) -> Request:
    return _request(
        "session_new", name=name, precision=precision, system=system, **model_args(options)
    )


def show_request(name: str) -> Request:
    return _request("session_show", name=name)


def fork_request(source: str, name: str, turns: int | None) -> Request:
    count = None if turns is None else operator.index(turns)
    return _request("session_fork", **{"from": source}, name=name, turns=count)


def undo_request(name: str, turns: int | None) -> Request:
    count = None if turns is None else operator.index(turns)
    return _request("session_undo", name=name, turns=count)


def rename_request(source: str, name: str) -> Request:
    return _request("session_rename", **{"from": source}, name=name)


def remove_request(names: Iterable[str]) -> Request:
    return _request("session_remove", names=list(names))


def save_request(name: str, pack: StrPath | None, replace: bool) -> Request:
    place = "" if pack is None else pack_argument(pack)
    return _request("session_save", name=name, pack=place, replace=replace)


def restore_request(name: str, pack: StrPath, options: ModelOptions) -> Request:
    return _request("session_restore", name=name, pack=pack_argument(pack), **model_args(options))


def diff_request(a: str, b: str) -> Request:
    return _request("session_diff", a=a, b=b)
