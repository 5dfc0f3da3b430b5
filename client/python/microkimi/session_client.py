"""What clients do with sessions: `client.sessions.fork("story", "other")`."""

from __future__ import annotations

from typing import Protocol, TypeVar, Unpack

from . import session_requests as requests
from .requests import ModelOptions, Precision, Request, StrPath
from .session_messages import (
    Session,
    SessionAnswer,
    SessionDifference,
    SessionInfo,
    SessionList,
    SessionSaved,
    SessionsRemoved,
)

T = TypeVar("T")


class _Ask(Protocol):
    def __call__(self, answer: type[T], request: Request) -> T: ...


class _AsyncAsk(Protocol):
    async def __call__(self, answer: type[T], request: Request) -> T: ...


class Sessions:
    """The sessions of a daemon, for threads. `Client.run(..., session=NAME)` goes on with one."""

    def __init__(self, ask: _Ask) -> None:
        self._ask = ask

    def list(self) -> list[SessionInfo]:
        return self._ask(SessionList, requests.list_request()).sessions

    def new(
        self,
        name: str,
        *,
        precision: Precision = "auto",
        system: str | None = None,
        **options: Unpack[ModelOptions],
    ) -> SessionInfo:
        """One in which nothing was said yet. `system` makes it a conversation."""
        request = requests.new_request(name, precision, system, options)
        return self._ask(SessionAnswer, request).session

    def show(self, name: str) -> Session:
        """A session and what was said in it."""
        return self._ask(Session, requests.show_request(name))

    def fork(self, source: str, name: str, *, turns: int | None = None) -> SessionInfo:
        """A copy. `turns`: only so many of them, from the first."""
        return self._ask(SessionAnswer, requests.fork_request(source, name, turns)).session

    def undo(self, name: str, turns: int | None = 1) -> SessionInfo:
        """Takes back the last turns; None: all of them."""
        return self._ask(SessionAnswer, requests.undo_request(name, turns)).session

    def rename(self, source: str, name: str) -> SessionInfo:
        return self._ask(SessionAnswer, requests.rename_request(source, name)).session

    def remove(self, *names: str) -> int:
        """All of them, or none if one is not there or in use. Returns how many there were."""
        return self._ask(SessionsRemoved, requests.remove_request(names)).removed

    def save(
        self, name: str, pack: StrPath | None = None, *, replace: bool = False
    ) -> SessionSaved:
        """The state after the last turn as a memory pack; None: of the session's name."""
        return self._ask(SessionSaved, requests.save_request(name, pack, replace))

    def restore(self, name: str, pack: StrPath, **options: Unpack[ModelOptions]) -> SessionInfo:
        """A session made of a memory pack."""
        return self._ask(SessionAnswer, requests.restore_request(name, pack, options)).session

    def diff(self, a: str, b: str) -> SessionDifference:
        """Where two sessions part."""
        return self._ask(SessionDifference, requests.diff_request(a, b))


class AsyncSessions:
    """The same for asyncio."""

    def __init__(self, ask: _AsyncAsk) -> None:
        self._ask = ask

    async def list(self) -> list[SessionInfo]:
        return (await self._ask(SessionList, requests.list_request())).sessions

    async def new(
        self,
        name: str,
        *,
        precision: Precision = "auto",
        system: str | None = None,
        **options: Unpack[ModelOptions],
    ) -> SessionInfo:
        """One in which nothing was said yet. `system` makes it a conversation."""
        request = requests.new_request(name, precision, system, options)
        return (await self._ask(SessionAnswer, request)).session

    async def show(self, name: str) -> Session:
        """A session and what was said in it."""
        return await self._ask(Session, requests.show_request(name))

    async def fork(self, source: str, name: str, *, turns: int | None = None) -> SessionInfo:
        """A copy. `turns`: only so many of them, from the first."""
        return (await self._ask(SessionAnswer, requests.fork_request(source, name, turns))).session

    async def undo(self, name: str, turns: int | None = 1) -> SessionInfo:
        """Takes back the last turns; None: all of them."""
        return (await self._ask(SessionAnswer, requests.undo_request(name, turns))).session

    async def rename(self, source: str, name: str) -> SessionInfo:
        return (await self._ask(SessionAnswer, requests.rename_request(source, name))).session

    async def remove(self, *names: str) -> int:
        """All of them, or none if one is not there or in use. Returns how many there were."""
        return (await self._ask(SessionsRemoved, requests.remove_request(names))).removed

    async def save(
        self, name: str, pack: StrPath | None = None, *, replace: bool = False
    ) -> SessionSaved:
        """The state after the last turn as a memory pack; None: of the session's name."""
        return await self._ask(SessionSaved, requests.save_request(name, pack, replace))

    async def restore(
        self, name: str, pack: StrPath, **options: Unpack[ModelOptions]
    ) -> SessionInfo:
        """A session made of a memory pack."""
        request = requests.restore_request(name, pack, options)
        return (await self._ask(SessionAnswer, request)).session

    async def diff(self, a: str, b: str) -> SessionDifference:
        """Where two sessions part."""
        return await self._ask(SessionDifference, requests.diff_request(a, b))
