"""Replies of a run as tokens, text, files and a result; the same for both clients."""

from __future__ import annotations

import dataclasses

from .dump import DumpFile
from .errors import InternalError, error_from_body
from .look_messages import HiddenStats, Lens
from .messages import Progress
from .requests import Request
from .run_messages import Alternative, Routes, RunResult, Token
from .wire import Reply, read_body


def shown_text(token: Token) -> str:
    """What of a token belongs to the answer: not what the model thinks."""
    return token.text if token.channel in ("", "answer") else ""


class RunReader:
    """Takes replies in their order. close() removes files that were not finished."""

    def __init__(self, request: Request) -> None:
        self.result: RunResult | None = None
        self._progress = request.progress
        self._routes: list[Routes] = []
        self._logprobs: list[float] = []
        self._top_logprobs: list[list[Alternative]] = []
        self._lens: list[Lens] = []
        self._hidden_stats: HiddenStats | None = None
        self._dumps: dict[str, DumpFile] = {}
        try:
            for kind, path in (("logits", request.logits_path), ("hidden", request.hidden_path)):
                if path:
                    self._dumps[kind] = DumpFile(path)
        except BaseException:
            self.close()
            raise

    def take(self, reply: Reply) -> Token | None:
        """A token, if the reply is one. Raises what an `error` reply says."""
        if reply.type == "error":
            raise error_from_body(reply.body)
        if reply.type == "done":
            self._finish(read_body(RunResult, reply.body))
        elif reply.type == "event" and self._progress is not None:
            self._progress(read_body(Progress, reply.body))
        elif reply.type == "chunk":
            return self._take_chunk(reply)
        return None

    def _take_chunk(self, reply: Reply) -> Token | None:
        kind = reply.body.get("kind")
        if kind == "token":
            token = read_body(Token, reply.body)
            if token.logprob is not None:
                self._logprobs.append(token.logprob)
            if token.top is not None:
                self._top_logprobs.append(token.top)
            return token
        if kind == "routes":
            self._routes.append(read_body(Routes, reply.body))
        elif kind == "lens":
            self._lens.append(read_body(Lens, reply.body))
        elif kind == "hidden_stats":
            self._hidden_stats = read_body(HiddenStats, reply.body)
        elif kind in self._dumps:
            self._dumps[kind].append(reply.body)
        else:
            raise InternalError(f"the daemon sent a chunk of an unknown kind: {kind!r}")
        return None

    def _finish(self, result: RunResult) -> None:
        dumps = {kind: dump.commit() for kind, dump in self._dumps.items()}
        self.result = dataclasses.replace(
            result,
            routes=self._routes,
            logprobs=self._logprobs,
            top_logprobs=self._top_logprobs,
            logits=dumps.get("logits"),
            hidden=dumps.get("hidden"),
            lens=self._lens,
            hidden_stats=self._hidden_stats,
        )

    def close(self) -> None:
        for dump in self._dumps.values():
            dump.discard()


class JobReader:
    """Replies of long work: progress, then the body of `done`."""

    def __init__(self, request: Request) -> None:
        self._progress = request.progress

    def take(self, reply: Reply) -> None:
        if reply.type == "error":
            raise error_from_body(reply.body)
        if reply.type == "event" and self._progress is not None:
            self._progress(read_body(Progress, reply.body))
