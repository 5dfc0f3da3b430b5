"""The client for asyncio."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import Literal, TypeVar, Unpack

from . import requests
from .bench_messages import Bench
from .channel import Channel
from .deadline import CANCEL_WAIT, TOKENIZER_TIMEOUT, Deadline, Overdue, too_late
from .errors import MicrokimiError, hung_daemon
from .eval_messages import (
    CompareOptions,
    Comparison,
    EvalOptions,
    Scorecard,
    compare_request,
    eval_request,
)
from .link import CONTROL_TIMEOUT, Link
from .look_messages import ExpertStats
from .messages import (
    Built,
    Loaded,
    ModelEntry,
    ModelList,
    Ping,
    ShadowFile,
    Status,
    Text,
    Tokens,
    Unloaded,
    Verified,
)
from .metric_messages import MetricFamily, MetricsAnswer
from .paths import model_argument
from .prefix_messages import Forgotten, PrefixCache
from .requests import (
    AbsorbOptions,
    BuildOptions,
    ChatOptions,
    LoadSettings,
    ModelOptions,
    OnProgress,
    Precision,
    Request,
    RunSettings,
    ShadowOptions,
    StrPath,
)
from .run_messages import Absorbed, RunResult, Token
from .run_reader import JobReader, RunReader, shown_text
from .scores import Score, ScoreDone, ScoreItem, ScoreOptions, ScoreReader, score_request
from .session_client import AsyncSessions
from .wire import Reply, read_body

T = TypeVar("T")


class _Exchange:
    """One request and the replies to it, in the running event loop."""

    def __init__(self, channel: Channel, request: Request) -> None:
        loop = asyncio.get_running_loop()
        came = asyncio.Event()
        self._channel = channel
        self._came = came
        self._deadline = Deadline(request.timeout)
        self.ended = False

        def wake() -> None:
            loop.call_soon_threadsafe(came.set)

        self._call = channel.submit(request.op, request.args, wake, streams=request.streams)

    async def next_reply(self) -> Reply:
        """Waits. Raises UnreachableError when the daemon went, Overdue after the deadline."""
        while True:
            self._came.clear()
            try:
                reply = self._call.take()
            except MicrokimiError:
                self.ended = True
                raise
            if reply is not None:
                self.ended = reply.ends
                return reply
            timeout = asyncio.timeout(self._deadline.left())
            try:
                async with timeout:
                    await self._came.wait()
            except TimeoutError:
                raise Overdue from None

    def cancel(self) -> None:
        self._deadline.shorten(CANCEL_WAIT)
        self._channel.cancel(self._call, abandon=False)

    def close(self) -> None:
        """Nobody waits for the end any more. Never blocks."""
        if not self.ended:
            self.ended = True
            self._channel.cancel(self._call, abandon=True)


class AsyncRunStream(AsyncIterator[str]):
    """The text of an answer as it comes. The request is sent when it is first waited for. Leaving
    it early (close(), the end of `async with`, an exception, the task's cancellation, or dropping
    it) cancels the request. One task at a time."""

    def __init__(self, client: AsyncClient, request: Request) -> None:
        self._client = client
        self._request = request
        self._reader: RunReader | None = None
        self._exchange: _Exchange | None = None
        self._left = False
        self._rest_given = False

    async def _start(self) -> tuple[RunReader, _Exchange] | None:
        if self._left:
            return None
        if self._exchange is None or self._reader is None:
            channel = await self._client._channel(self._request.starts)
            self._reader = RunReader(self._request)
            self._exchange = _Exchange(channel, self._request)
        return self._reader, self._exchange

    async def _next_token(self) -> Token | None:
        """The next token; None at the end."""
        try:
            started = await self._start()
            if started is None:
                return None
            reader, exchange = started
            while not exchange.ended:
                token = reader.take(await exchange.next_reply())
                if token is not None:
                    return token
        except Overdue:
            self.close()
            raise too_late() from None
        except BaseException:
            self.close()
            raise
        return None

    async def __anext__(self) -> str:
        while (token := await self._next_token()) is not None:
            if text := shown_text(token):
                return text
        result = self._reader.result if self._reader is not None else None
        if result is not None and result.rest and not self._rest_given:
            self._rest_given = True
            return result.rest
        raise StopAsyncIteration

    async def tokens(self) -> AsyncIterator[Token]:
        """Every token with its id, channel and log probability, instead of the text."""
        while (token := await self._next_token()) is not None:
            yield token

    async def result(self) -> RunResult:
        """The whole answer with ids, statistics and trust; waits for the end."""
        while await self._next_token() is not None:
            pass
        if self._reader is None or self._reader.result is None:
            raise RuntimeError("the run was left before its end, so it has no result")
        return self._reader.result

    def cancel(self) -> None:
        """Asks the daemon to end the run; what it made until then still comes, and a result with
        finish_reason "cancelled"."""
        if self._exchange is not None and not self._exchange.ended:
            self._exchange.cancel()

    def close(self) -> None:
        """Leaves the run. Never blocks; may be called again."""
        self._left = True
        if self._exchange is not None:
            self._exchange.close()
        if self._reader is not None:
            self._reader.close()

    async def aclose(self) -> None:
        self.close()

    async def __aenter__(self) -> AsyncRunStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class AsyncClient:
    """As Client, for asyncio: several tasks may have requests open at once, over one connection.
    The connection is served by a thread of its own, so that a busy event loop is not taken for a
    dead client."""

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        *,
        autostart: bool = True,
        daemon: str | os.PathLike[str] | None = None,
    ) -> None:
        self._link = Link(socket, autostart, daemon)
        self._finalizer = weakref.finalize(self, self._link.close)

    async def _channel(self, starts: bool) -> Channel:
        channel = self._link.ready()
        if channel is None:
            channel = await asyncio.to_thread(self._link.channel, starts)
        return channel

    async def close(self) -> None:
        """Ends the connection; open requests are cancelled."""
        await asyncio.to_thread(self._finalizer)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # ------------------------------------------------------------ looking

    async def ping(self) -> Ping:
        return await self._ask(Ping, Request("ping", {}, CONTROL_TIMEOUT))

    async def status(self) -> Status:
        """What the daemon does and holds."""
        return await self._ask(Status, Request("status", {}, CONTROL_TIMEOUT))

    async def metrics(self) -> list[MetricFamily]:
        """What the daemon has counted and measured."""
        request = Request("metrics", {"form": "families"}, CONTROL_TIMEOUT)
        return (await self._ask(MetricsAnswer, request)).families

    async def metrics_text(self) -> str:
        """The same in the Prometheus text format."""
        request = Request("metrics", {"form": "text"}, CONTROL_TIMEOUT)
        return (await self._ask(MetricsAnswer, request)).text

    async def models(self) -> list[ModelEntry]:
        """The models that can be found by name."""
        return (await self._ask(ModelList, Request("models", {}, CONTROL_TIMEOUT))).models

    # ------------------------------------------------------------ models

    async def load(
        self,
        model: StrPath | None = None,
        *,
        keep: float | None = None,
        precision: Precision = "auto",
        progress: OnProgress | None = None,
        vocab: StrPath | None = None,
        tokenizer_file: StrPath | None = None,
        stream: Literal["", "auto", "on", "off"] = "",
        stream_memory: int = 0,
    ) -> Loaded:
        """Loads a model. `keep`: seconds to keep it after its last use; math.inf: until unloaded;
        None: the daemon's setting."""
        options = LoadSettings(
            model=model,
            vocab=vocab,
            tokenizer_file=tokenizer_file,
            stream=stream,
            stream_memory=stream_memory,
        )
        return await self._ask(Loaded, requests.load_request(keep, precision, progress, options))

    async def unload(self, model: StrPath | None = None) -> int:
        """Gives back a model's memory; None: that of every model that nobody uses. Returns how many
        were unloaded."""
        args = {"model": model_argument(model)}
        return (await self._ask(Unloaded, Request("unload", args, CONTROL_TIMEOUT))).unloaded

    async def expert_stats(self, model: StrPath | None = None, reset: bool = False) -> ExpertStats:
        """How often experts were picked, while the daemon counts (count_experts); `reset`: begin
        to count anew."""
        args = {"model": model_argument(model), "reset": reset}
        return await self._ask(ExpertStats, Request("expert_stats", args, CONTROL_TIMEOUT))

    # ------------------------------------------------------------ prompts that were read

    async def prefix_cache(self, model: StrPath | None = None) -> PrefixCache:
        """The states of prompts that are kept, of one model or of all."""
        args = {"model": model_argument(model)}
        return await self._ask(PrefixCache, Request("pck_info", args, CONTROL_TIMEOUT))

    async def clean_prefix_cache(self, model: StrPath | None = None) -> Forgotten:
        """Forgets them, in memory and on disk."""
        args = {"model": model_argument(model)}
        return await self._ask(Forgotten, Request("pck_clean", args))

    # ------------------------------------------------------------ text

    async def tokenize(
        self, text: str, *, plain: bool = False, **options: Unpack[ChatOptions]
    ) -> Tokens:
        """Ids of a text; with `chat`, of a chat prompt with it as the user's message. `plain`:
        without the id that begins a text."""
        request = requests.tokenize_request(text, plain, options)
        request.timeout = TOKENIZER_TIMEOUT
        return await self._ask(Tokens, request)

    async def detokenize(self, ids: Iterable[int], **options: Unpack[ModelOptions]) -> str:
        request = requests.detokenize_request(ids, options)
        request.timeout = TOKENIZER_TIMEOUT
        return (await self._ask(Text, request)).text

    async def score(
        self, texts: Iterable[str | ScoreItem], **options: Unpack[ScoreOptions]
    ) -> list[Score]:
        """How likely each of the texts is, token by token."""
        request = score_request([texts] if isinstance(texts, str) else texts, options)
        reader = ScoreReader(request)
        return reader.scores(await self._ask(ScoreDone, request, reader))

    # ------------------------------------------------------------ runs

    def stream(self, prompt: str | None = None, **options: Unpack[RunSettings]) -> AsyncRunStream:
        """Reads a prompt and generates; `async for` over it gives the text. Options: RunSettings.
        Callbacks and files are served in the event loop."""
        return AsyncRunStream(self, requests.run_request(prompt, options))

    async def run(self, prompt: str | None = None, **options: Unpack[RunSettings]) -> RunResult:
        """As stream(), but waits for the whole answer."""
        async with self.stream(prompt, **options) as stream:
            return await stream.result()

    # ------------------------------------------------------------ sessions

    @property
    def sessions(self) -> AsyncSessions:
        """Texts and conversations that the daemon keeps by name."""
        return AsyncSessions(self._ask)

    # ------------------------------------------------------------ jobs

    async def verify(
        self, model: StrPath | None = None, *, progress: OnProgress | None = None
    ) -> Verified:
        """Reads every byte of a model file and checks it."""
        args = {"model": model_argument(model)}
        return await self._ask(Verified, Request("verify", args, progress=progress))

    async def build(
        self,
        out: StrPath,
        *,
        progress: OnProgress | None = None,
        **options: Unpack[BuildOptions],
    ) -> Built:
        """Makes a model file of random weights."""
        return await self._ask(Built, requests.build_request(out, progress, options))

    async def absorb(
        self,
        text: StrPath,
        save: StrPath,
        *,
        progress: OnProgress | None = None,
        **options: Unpack[AbsorbOptions],
    ) -> Absorbed:
        """Reads a text file of any length into a memory pack, beside other work."""
        return await self._ask(Absorbed, requests.absorb_request(text, save, progress, options))

    async def shadow(
        self,
        model: StrPath | None = None,
        *,
        progress: OnProgress | None = None,
        **options: Unpack[ShadowOptions],
    ) -> ShadowFile:
        """Makes a small copy of a model's experts, to stand in for them."""
        return await self._ask(ShadowFile, requests.shadow_request(model, progress, options))

    async def evaluate(self, **options: Unpack[EvalOptions]) -> Scorecard:
        """Measures a model on texts and tasks, as `mk eval` does, beside other work."""
        return await self._ask(Scorecard, eval_request(options))

    async def compare(
        self, a: StrPath, b: StrPath, **options: Unpack[CompareOptions]
    ) -> Comparison:
        """Measures two models on the same texts and tasks, as `mk compare` does."""
        return await self._ask(Comparison, compare_request(a, b, options))

    async def bench(
        self,
        model: StrPath | None = None,
        *,
        precision: Precision = "auto",
        quick: bool = False,
        threads: int = 0,
        progress: OnProgress | None = None,
    ) -> Bench:
        """Measures the speed of a model. `threads`: 0 is the daemon's setting."""
        options = ModelOptions(model=model)
        request = requests.bench_request(precision, quick, threads, progress, options)
        return await self._ask(Bench, request)

    async def _ask(self, answer: type[T], request: Request, reader: JobReader | None = None) -> T:
        take = (reader or JobReader(request)).take
        exchange = _Exchange(await self._channel(request.starts), request)
        try:
            while not exchange.ended:
                reply = await exchange.next_reply()
                take(reply)
        except Overdue:
            raise hung_daemon() from None
        finally:
            exchange.close()
        return read_body(answer, reply.body)
