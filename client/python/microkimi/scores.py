"""How likely given texts are: requests, replies and results of the op score."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from .call import WINDOW
from .errors import InternalError
from .requests import (
    ModelOptions,
    OnProgress,
    Precision,
    Priority,
    Request,
    StreamOptions,
    check_known,
    ids_argument,
    model_args,
    stream_args,
    timeout_ms,
)
from .run_messages import Timing, Trust
from .run_reader import JobReader
from .wire import Reply, read_body


class ScoreItem(TypedDict, total=False):
    """Either `text`, perhaps after a `context`, or `ids`, perhaps after `context_ids`. What stands
    before is read and not scored."""

    text: str
    context: str
    ids: Sequence[int]
    context_ids: Sequence[int]


class ScoreOptions(ModelOptions, StreamOptions, total=False):
    """Options of a score, with the meaning and the defaults that `mk score` gives them."""

    context: str  # before every text that has none of its own
    plain: bool  # texts without the id that begins one
    tokens: bool  # False: sums only, Score.ids and its like stay empty
    precision: Precision
    priority: Priority
    chunked_prefill: bool
    stream_fallback: bool  # shadows for experts that are not in memory: degraded
    timeout: float | None  # seconds for all texts; DeadlineError after that
    progress: OnProgress | None


@dataclass(frozen=True, slots=True)
class Score:
    """The log-likelihood of a text."""

    logprob: float  # sum over the scored tokens, nats
    tokens: int  # scored
    context_tokens: int  # read before them
    bytes: int  # of the text that the scored tokens spell
    top1: int  # scored tokens of rank 1
    unk: int  # tokens that stand for text that the vocabulary cannot spell
    top5: int = 0  # of rank 5 or better
    perplexity: float | None = None  # exp(-logprob / tokens); None without tokens
    bits_per_byte: float | None = None
    # Of every scored token.
    ids: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)  # text or name
    logprobs: list[float] = field(default_factory=list)  # nats
    ranks: list[int] = field(default_factory=list)  # 1: no token was likelier


@dataclass(frozen=True, slots=True)
class ScoreChunk:
    item: int
    index: int
    ids: list[int]
    pieces: list[str]
    logprobs: list[float]
    ranks: list[int]


@dataclass(frozen=True, slots=True)
class ScoreDone:
    texts: list[Score]
    chunked_prefill: bool
    timing: Timing
    trust: Trust
    warnings: list[str]


def _item_args(given: str | ScoreItem, context: str) -> dict[str, Any]:
    item: dict[str, Any] = {"text": given} if isinstance(given, str) else dict(given)
    for key in ("ids", "context_ids"):
        if key in item:
            item[key] = ids_argument("score", item[key])
    if context and "text" in item:
        item.setdefault("context", context)
    return item


def score_request(texts: Iterable[str | ScoreItem], options: ScoreOptions) -> Request:
    check_known("score", options, ScoreOptions.__annotations__)
    context = options.get("context", "")
    args = (
        model_args(options)
        | stream_args(options)
        | {
            "stream_fallback": options.get("stream_fallback", False),
            "texts": [_item_args(one, context) for one in texts],
            "plain": options.get("plain", False),
            "tokens": options.get("tokens", True),
            "precision": options.get("precision", "auto"),
            "priority": options.get("priority", "interactive"),
            "chunked_prefill": options.get("chunked_prefill", True),
            "window": WINDOW,
        }
    )
    timeout = options.get("timeout")
    if timeout is not None:
        args["timeout_ms"] = timeout_ms(timeout)
    return Request("score", args, timeout, options.get("progress"))


class ScoreReader(JobReader):
    """Replies of a score: the tokens on the way, and the sums at the end."""

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._chunks: list[ScoreChunk] = []

    def take(self, reply: Reply) -> None:
        super().take(reply)
        if reply.type == "chunk":
            self._chunks.append(read_body(ScoreChunk, reply.body))

    def scores(self, done: ScoreDone) -> list[Score]:
        """The scores of the texts, with their tokens."""
        for chunk in self._chunks:
            if chunk.item >= len(done.texts):
                raise InternalError("the daemon scored a text that it was not given")
            score = done.texts[chunk.item]
            score.ids.extend(chunk.ids)
            score.pieces.extend(chunk.pieces)
            score.logprobs.extend(chunk.logprobs)
            score.ranks.extend(chunk.ranks)
        return done.texts
