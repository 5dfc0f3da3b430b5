"""The client for threads."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterable, Iterator
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
from .session_client import Sessions
from .wire import Reply, read_body

T = TypeVar("T")


class _Exchange:
    """One request and the replies to it."""

    def __init__(self, channel: Channel, request: Request) -> None:
        self._channel = channel
        self._came = threading.Event()
        self._deadline = Deadline(request.timeout)
        self.ended = False
        self._call = channel.submit(
            request.op, request.args, self._came.set, streams=request.streams
        )

    def next_reply(self) -> Reply:
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
            if not self._came.wait(self._deadline.left()):
                raise Overdue

    def cancel(self) -> None:
        self._deadline.shorten(CANCEL_WAIT)
        self._channel.cancel(self._call, abandon=False)

    def close(self) -> None:
        """Nobody waits for the end any more. Never blocks."""
        if not self.ended:
            self.ended = True
            self._channel.cancel(self._call, abandon=True)


class RunStream(Iterator[str]):
    """The text of an answer as it comes. Leaving it early (close(), the end of `with`, an exception
    such as KeyboardInterrupt, or dropping it) cancels the request. One thread at a time."""

    def __init__(self, client: Client, request: Request) -> None:
        self._client = client  # a client that is dropped closes its connection
        self._exchange: _Exchange | None = None
        self._rest_given = False
        channel = client._link.channel(request.starts)
        self._reader = RunReader(request)
        try:
            self._exchange = _Exchange(channel, request)
        except BaseException:
            self.close()
            raise

    def _next_token(self) -> Token | None:
        """The next token; None at the end."""
        exchange = self._exchange
        while exchange is not None and not exchange.ended:
            try:
                token = self._reader.take(exchange.next_reply())
            except Overdue:
                self.close()
                raise too_late() from None
            except BaseException:
                self.close()
                raise
            if token is not None:
                return token
        return None

    def __next__(self) -> str:
        while (token := self._next_token()) is not None:
            if text := shown_text(token):
                return text
        result = self._reader.result
        if result is not None and result.rest and not self._rest_given:
            self._rest_given = True
            return result.rest
        raise StopIteration

    def tokens(self) -> Iterator[Token]:
        """Every token with its id, channel and log probability, instead of the text."""
        while (token := self._next_token()) is not None:
            yield token

    def result(self) -> RunResult:
        """The whole answer with ids, statistics and trust; waits for the end."""
        for _ in self.tokens():
            pass
        if self._reader.result is None:
            raise RuntimeError("the run was left before its end, so it has no result")
        return self._reader.result

    def cancel(self) -> None:
        """Asks the daemon to end the run; what it made until then still comes, and a result with
        finish_reason "cancelled"."""
        if self._exchange is not None and not self._exchange.ended:
            self._exchange.cancel()

    def close(self) -> None:
        """Leaves the run. Never blocks; may be called again."""
        if self._exchange is not None:
            self._exchange.close()
        self._reader.close()

    def __enter__(self) -> RunStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_reader"):
            self.close()


class Client:
    """Speaks to microkimid. Thread-safe: several threads may have requests open at once, over one
    connection. The connection is made by the first request, and anew after the daemon went.

    `socket`: as MICROKIMI_SOCKET, which is the default, then the usual place.
    `autostart`: a request for work starts a daemon when none runs; looking verbs never do.
    `daemon`: program to start; default MICROKIMI_DAEMON, `microkimid` beside `mk`, then in PATH.

    Every method raises subclasses of MicrokimiError.
    """

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        *,
        autostart: bool = True,
        daemon: str | os.PathLike[str] | None = None,
    ) -> None:
        self._link = Link(socket, autostart, daemon)
        self._finalizer = weakref.finalize(self, self._link.close)

    def close(self) -> None:
        """Ends the connection; open requests are cancelled."""
        self._finalizer()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # ------------------------------------------------------------ looking

    def ping(self) -> Ping:
        return self._ask(Ping, Request("ping", {}, CONTROL_TIMEOUT))

    def status(self) -> Status:
        """What the daemon does and holds."""
        return self._ask(Status, Request("status", {}, CONTROL_TIMEOUT))

    def metrics(self) -> list[MetricFamily]:
        """What the daemon has counted and measured."""
        request = Request("metrics", {"form": "families"}, CONTROL_TIMEOUT)
        return self._ask(MetricsAnswer, request).families

    def metrics_text(self) -> str:
        """The same in the Prometheus text format."""
        request = Request("metrics", {"form": "text"}, CONTROL_TIMEOUT)
        return self._ask(MetricsAnswer, request).text

    def models(self) -> list[ModelEntry]:
        """The models that can be found by name."""
        return self._ask(ModelList, Request("models", {}, CONTROL_TIMEOUT)).models

    # ------------------------------------------------------------ models

    def load(
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
        return self._ask(Loaded, requests.load_request(keep, precision, progress, options))

    def unload(self, model: StrPath | None = None) -> int:
        """Gives back a model's memory; None: that of every model that nobody uses. Returns how many
        were unloaded."""
        args = {"model": model_argument(model)}
        return self._ask(Unloaded, Request("unload", args, CONTROL_TIMEOUT)).unloaded

    def expert_stats(self, model: StrPath | None = None, reset: bool = False) -> ExpertStats:
        """How often experts were picked, while the daemon counts (count_experts); `reset`: begin
        to count anew."""
        args = {"model": model_argument(model), "reset": reset}
        return self._ask(ExpertStats, Request("expert_stats", args, CONTROL_TIMEOUT))

    # ------------------------------------------------------------ prompts that were read

    def prefix_cache(self, model: StrPath | None = None) -> PrefixCache:
        """The states of prompts that are kept, of one model or of all."""
        args = {"model": model_argument(model)}
        return self._ask(PrefixCache, Request("pck_info", args, CONTROL_TIMEOUT))

    def clean_prefix_cache(self, model: StrPath | None = None) -> Forgotten:
        """Forgets them, in memory and on disk."""
        args = {"model": model_argument(model)}
        return self._ask(Forgotten, Request("pck_clean", args))

    # ------------------------------------------------------------ text

    def tokenize(self, text: str, *, plain: bool = False, **options: Unpack[ChatOptions]) -> Tokens:
        """Ids of a text; with `chat`, of a chat prompt with it as the user's message. `plain`:
        without the id that begins a text."""
        request = requests.tokenize_request(text, plain, options)
        request.timeout = TOKENIZER_TIMEOUT
        return self._ask(Tokens, request)

    def detokenize(self, ids: Iterable[int], **options: Unpack[ModelOptions]) -> str:
        request = requests.detokenize_request(ids, options)
        request.timeout = TOKENIZER_TIMEOUT
        return self._ask(Text, request).text

    def score(
        self, texts: Iterable[str | ScoreItem], **options: Unpack[ScoreOptions]
    ) -> list[Score]:
        """How likely each of the texts is, token by token."""
        request = score_request([texts] if isinstance(texts, str) else texts, options)
        reader = ScoreReader(request)
        return reader.scores(self._ask(ScoreDone, request, reader))

    # ------------------------------------------------------------ runs

    def stream(self, prompt: str | None = None, **options: Unpack[RunSettings]) -> RunStream:
        """Reads a prompt and generates; iterate over it for the text. Options: RunSettings."""
        return RunStream(self, requests.run_request(prompt, options))

    def run(self, prompt: str | None = None, **options: Unpack[RunSettings]) -> RunResult:
        """As stream(), but waits for the whole answer."""
        with self.stream(prompt, **options) as stream:
            return stream.result()

    # ------------------------------------------------------------ sessions

    @property
    def sessions(self) -> Sessions:
        """Texts and conversations that the daemon keeps by name."""
        return Sessions(self._ask)

    # ------------------------------------------------------------ jobs

    def verify(
        self, model: StrPath | None = None, *, progress: OnProgress | None = None
    ) -> Verified:
        """Reads every byte of a model file and checks it."""
        args = {"model": model_argument(model)}
        return self._ask(Verified, Request("verify", args, progress=progress))

    def build(
        self,
        out: StrPath,
        *,
        progress: OnProgress | None = None,
        **options: Unpack[BuildOptions],
    ) -> Built:
        """Makes a model file of random weights."""
        return self._ask(Built, requests.build_request(out, progress, options))

    def absorb(
        self,
        text: StrPath,
        save: StrPath,
        *,
        progress: OnProgress | None = None,
        **options: Unpack[AbsorbOptions],
    ) -> Absorbed:
        """Reads a text file of any length into a memory pack, beside other work."""
        return self._ask(Absorbed, requests.absorb_request(text, save, progress, options))

    def shadow(
        self,
        model: StrPath | None = None,
        *,
        progress: OnProgress | None = None,
        **options: Unpack[ShadowOptions],
    ) -> ShadowFile:
        """Makes a small copy of a model's experts, to stand in for them."""
        return self._ask(ShadowFile, requests.shadow_request(model, progress, options))

    def evaluate(self, **options: Unpack[EvalOptions]) -> Scorecard:
        """Measures a model on texts and tasks, as `mk eval` does, beside other work."""
        return self._ask(Scorecard, eval_request(options))

    def compare(self, a: StrPath, b: StrPath, **options: Unpack[CompareOptions]) -> Comparison:
        """Measures two models on the same texts and tasks, as `mk compare` does."""
        return self._ask(Comparison, compare_request(a, b, options))

    def bench(
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
        return self._ask(Bench, request)

    def _ask(self, answer: type[T], request: Request, reader: JobReader | None = None) -> T:
        take = (reader or JobReader(request)).take
        with contextlib.closing(_Exchange(self._link.channel(request.starts), request)) as exchange:
            while not exchange.ended:
                try:
                    reply = exchange.next_reply()
                except Overdue:
                    raise hung_daemon() from None
                take(reply)
        return read_body(answer, reply.body)
