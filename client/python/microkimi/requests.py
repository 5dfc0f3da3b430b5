"""Arguments of every op, from what Python callers give. Ranges are the daemon's to check."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from .call import WINDOW
from .errors import BadRequestError
from .messages import Progress
from .paths import file_argument, model_argument, pack_argument

Precision = Literal["auto", "exact", "bf16", "q8"]
Priority = Literal["interactive", "background"]  # background: what the others leave
Dialect = Literal["", "k3", "nano-sft", "dsv4"]
StrPath = str | os.PathLike[str]
OnProgress = Callable[[Progress], None]

# Ops that are answered in many pieces and kept alive by acknowledgements.
STREAMING = frozenset(
    {"run", "score", "load", "verify", "build", "bench", "absorb", "shadow", "eval", "compare"}
)
# Ops that may start a daemon; the others only look, or have nothing to do without one.
STARTING = STREAMING | {
    "tokenize", "detokenize",
    "sessions", "session_new", "session_show", "session_fork", "session_undo", "session_rename",
    "session_remove", "session_save", "session_restore", "session_diff",
}  # fmt: skip


class ModelOptions(TypedDict, total=False):
    """Which model, and with which vocabulary."""

    model: StrPath | None  # path, alias or name; None: the default model
    vocab: StrPath | None  # vocabulary JSON; None: the one beside the model
    tokenizer_file: StrPath | None  # tiktoken ranks; None: the ones beside the model


class StreamOptions(TypedDict, total=False):
    """How a model is loaded if it is not loaded yet."""

    stream: Literal["", "auto", "on", "off"]  # "on": its experts stay in the file
    stream_memory: int  # bytes for them; 0: what is free; implies "on"


class LoadSettings(ModelOptions, StreamOptions, total=False):
    """Options of a load."""


class ChatOptions(ModelOptions, total=False):
    """`chat` is implied by the three others."""

    chat: bool  # answer as a chat turn; false: plain completion
    system: str | None
    thinking: bool  # let the model think before it answers (default)
    dialect: Dialect  # "": the vocabulary's


class Message(TypedDict, total=False):
    """What was said in a conversation; `role` and `content` are required."""

    role: Literal["system", "user", "assistant"]
    content: str
    reasoning: str  # assistant only: RunResult.reasoning
    ids: Sequence[int]  # assistant only: RunResult.ids, read again if they spell the content


class RunSettings(ChatOptions, StreamOptions, total=False):
    """Options of a run, with the meaning and the defaults that `mk run` gives them."""

    ids: Sequence[int] | None  # instead of a prompt; taken as they are
    # Instead of a prompt: a conversation, whose next turn is generated. A chat turn; with
    # `chat=False` the messages are read as one text that is continued.
    messages: Sequence[Message] | None
    # Memory packs, by path or by name. The run goes on from the first, and its prompt comes on top;
    # plain text may have none and go on as it was. The second is made of what the run leaves.
    memory: StrPath | None
    save: StrPath | None
    save_format: Literal[1, 2]  # 1: of the reference engine
    max_new: int  # tokens to generate at most (256); 0: only read the prompt
    temperature: float  # 0: always the likeliest token (default)
    top_p: float
    top_k: int  # 0: all
    min_p: float
    # Longest drafts to verify in one pass, 0..64, guessed from n-grams of the text and by a suffix
    # automaton over it; 0: none (default). The answer is the same.
    spec: int
    spec_rosa: int
    spec_shadow: int  # the same by the model with shadows of experts that are not in memory
    stream_fallback: bool  # take shadows instead of waiting for experts: degraded
    typical_p: float
    logit_bias: Mapping[int, float]  # added to the logits of tokens
    ban: Sequence[int]  # tokens that must not come
    ban_text: str | Iterable[str]  # the same by their texts; each must be exactly one token
    dry_multiplier: float  # penalty on what would go on a repeat; 0: off
    dry_base: float
    dry_allowed_length: int
    dry_range: int
    dry_prompt: bool
    dry_breakers: Iterable[str]
    dry_compat: float  # of the reference engine
    repetition_penalty: float  # on tokens that came before; 1: off
    frequency_penalty: float
    presence_penalty: float
    penalty_window: int  # 0: the whole answer
    penalty_prompt: bool
    seed: int | None  # None: the daemon chooses and tells
    precision: Precision
    priority: Priority
    chunked_prefill: bool
    prefix_cache: bool  # False: read the whole prompt, keep nothing of it; the same answer
    stop: str | Iterable[str]  # texts that end the answer, not part of it
    timeout: float | None  # seconds for the whole run; DeadlineError after that
    session: str  # name of the session that it goes on with, or begins; "": none
    session_undo: int  # last turns of the session whose place this one takes
    # Log probability of every token; a number: and of so many of the likeliest in its place.
    logprobs: bool | int
    routes: bool  # RunResult.routes: the experts that every layer picked
    # RunResult.lens: after the last token of the prompt, those of the answer too, or all.
    lens: Literal["", "last", "answer", "all"]
    lens_top: int  # tokens per layer (5)
    lens_layers: Sequence[int]  # none: all
    hidden_stats: bool  # RunResult.hidden_stats
    experts: bool  # RunResult.experts: how often every expert was picked
    logits_path: StrPath | None  # f32 LE, a row after the prompt and after every token
    hidden_path: StrPath | None  # f32 LE, [position][layer][hidden]
    progress: OnProgress | None  # called for queue, load and prefill


@dataclass(slots=True)
class Request:
    """An op with its arguments, and what the client does with its replies."""

    op: str
    args: dict[str, Any]
    timeout: float | None = None  # seconds; None: as long as the daemon is alive
    progress: OnProgress | None = None
    logits_path: str = ""
    hidden_path: str = ""
    streams: bool = field(init=False)
    starts: bool = field(init=False)

    def __post_init__(self) -> None:
        self.streams = self.op in STREAMING
        self.starts = self.op in STARTING


def check_known(op: str, given: Iterable[str], known: Iterable[str]) -> None:
    if unknown := sorted(set(given) - set(known)):
        raise TypeError(f"{op}() got an unexpected keyword argument {unknown[0]!r}")


def ids_argument(op: str, ids: Iterable[int], name: str = "ids") -> list[int]:
    try:
        return [operator.index(one) for one in ids]
    except TypeError as error:
        raise BadRequestError(f"{op}: `{name}` must be whole numbers: {error}") from error


def model_args(options: ModelOptions) -> dict[str, Any]:
    return {
        "model": model_argument(options.get("model")),
        "vocab": file_argument(options.get("vocab")),
        "rank_file": file_argument(options.get("tokenizer_file")),
    }


def stream_args(options: StreamOptions) -> dict[str, Any]:
    return {
        "stream": options.get("stream", ""),
        "stream_memory": operator.index(options.get("stream_memory", 0)),
    }


def _chat_args(options: ChatOptions) -> dict[str, Any]:
    """`system`, `thinking` and `dialect`, and whether they make it a chat turn."""
    system, dialect = options.get("system"), options.get("dialect", "")
    thinking = options.get("thinking", True)
    args: dict[str, Any] = {"thinking": thinking, "dialect": dialect}
    if system is not None:
        args["system"] = system
    args["chat"] = options.get("chat", False) or system is not None or not thinking or dialect != ""
    return args


def timeout_ms(seconds: float) -> int:
    if not seconds > 0 or not math.isfinite(seconds):
        raise BadRequestError(
            f"`timeout` is {seconds}", "give seconds above 0, or None for no limit"
        )
    return math.ceil(seconds * 1000)


# As they are on the wire.
_PROCESSING = (
    "typical_p", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_range", "dry_prompt",
    "dry_compat", "repetition_penalty", "frequency_penalty", "presence_penalty", "penalty_window",
    "penalty_prompt",
)  # fmt: skip


def _texts(texts: str | Iterable[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts)


def _processing_args(options: RunSettings) -> dict[str, Any]:
    """What was given of biases, bans and penalties; the daemon has the defaults."""
    given: dict[str, Any] = dict(options)
    args = {key: given[key] for key in _PROCESSING if key in given}
    if biases := options.get("logit_bias"):
        args["logit_bias"] = [
            {"id": operator.index(one), "bias": float(bias)} for one, bias in biases.items()
        ]
    if (ban := options.get("ban")) is not None:
        args["ban"] = ids_argument("run", ban)
    if (ban_text := options.get("ban_text")) is not None:
        args["ban_text"] = _texts(ban_text)
    if (breakers := options.get("dry_breakers")) is not None:
        args["dry_breakers"] = _texts(breakers)
    if (logprobs := options.get("logprobs", False)) is not False:
        args["logprobs"] = 0 if logprobs is True else operator.index(logprobs)
    return args


def run_request(prompt: str | None, options: RunSettings) -> Request:
    check_known("run", options, RunSettings.__annotations__)
    args = model_args(options) | _chat_args(options) | stream_args(options)
    ids, seed, stop = options.get("ids"), options.get("seed"), options.get("stop", ())
    timeout = options.get("timeout")
    logits_path = file_argument(options.get("logits_path"))
    hidden_path = file_argument(options.get("hidden_path"))
    args["raw"] = not args.pop("chat")
    if prompt is not None:
        args["prompt"] = prompt
    if ids is not None:
        args["ids"] = ids_argument("run", ids)
    if (messages := options.get("messages")) is not None:
        args["messages"] = [
            {**one, "ids": ids_argument("run", one["ids"])} if "ids" in one else dict(one)
            for one in messages
        ]
        args["raw"] = not options.get("chat", True)
    if seed is not None:
        args["seed"] = operator.index(seed)
    if timeout is not None:
        args["timeout_ms"] = timeout_ms(timeout)
    args |= {
        "max_new": operator.index(options.get("max_new", 256)),
        "temperature": float(options.get("temperature", 0.0)),
        "top_p": float(options.get("top_p", 1.0)),
        "top_k": operator.index(options.get("top_k", 0)),
        "min_p": float(options.get("min_p", 0.0)),
        "precision": options.get("precision", "auto"),
        "priority": options.get("priority", "interactive"),
        "chunked_prefill": options.get("chunked_prefill", True),
        "stop": _texts(stop),
        "want_routes": options.get("routes", False),
        "lens": options.get("lens", ""),
        "lens_top": operator.index(options.get("lens_top", 5)),
        "lens_layers": ids_argument("run", options.get("lens_layers", ()), "lens_layers"),
        "want_hidden_stats": options.get("hidden_stats", False),
        "want_experts": options.get("experts", False),
        "want_logits": bool(logits_path),
        "want_hidden": bool(hidden_path),
        "stats": True,
        "window": WINDOW,
    }
    args |= _processing_args(options)
    for key in ("memory", "save"):
        if pack := pack_argument(options.get(key)):
            args[key] = pack
    if (save_format := options.get("save_format", 2)) != 2:
        args["save_format"] = operator.index(save_format)
    for key in ("spec", "spec_rosa", "spec_shadow"):
        if longest := operator.index(options.get(key, 0)):
            args[key] = longest
    if options.get("stream_fallback", False):
        args["stream_fallback"] = True
    if not options.get("prefix_cache", True):
        args["prefix_cache"] = False
    if session := options.get("session", ""):
        args |= {"session": session, "session_undo": operator.index(options.get("session_undo", 0))}
    return Request("run", args, timeout, options.get("progress"), logits_path, hidden_path)


def load_request(
    keep: float | None, precision: Precision, progress: OnProgress | None, options: LoadSettings
) -> Request:
    check_known("load", options, LoadSettings.__annotations__)
    args = model_args(options) | stream_args(options) | {"precision": precision}
    if keep is not None:
        if not keep >= 0:
            raise BadRequestError(f"load: `keep` is {keep}", "give seconds, or math.inf for ever")
        args |= {"pin": True} if keep == math.inf else {"keep_alive_ms": round(keep * 1000)}
    return Request("load", args, progress=progress)


def tokenize_request(text: str, plain: bool, options: ChatOptions) -> Request:
    check_known("tokenize", options, ChatOptions.__annotations__)
    args = model_args(options) | _chat_args(options) | {"text": text, "plain": plain}
    return Request("tokenize", args)


def detokenize_request(ids: Iterable[int], options: ModelOptions) -> Request:
    check_known("detokenize", options, ModelOptions.__annotations__)
    return Request("detokenize", model_args(options) | {"ids": ids_argument("detokenize", ids)})


def bench_request(
    precision: Precision,
    quick: bool,
    threads: int,
    progress: OnProgress | None,
    options: ModelOptions,
) -> Request:
    check_known("bench", options, ModelOptions.__annotations__)
    args = model_args(options) | {"precision": precision, "quick": quick, "threads": threads}
    return Request("bench", args, progress=progress)


class AbsorbOptions(ModelOptions, total=False):
    """Options of an absorb, as `mk absorb` takes them."""

    memory: StrPath | None  # the text comes on top of this pack
    save_format: Literal[1, 2]  # 1: of the reference engine
    precision: Precision
    chunked_prefill: bool


def absorb_request(
    text: StrPath, save: StrPath, progress: OnProgress | None, options: AbsorbOptions
) -> Request:
    check_known("absorb", options, AbsorbOptions.__annotations__)
    args = model_args(options) | {
        "text": file_argument(text),
        "save": pack_argument(save),
        "memory": pack_argument(options.get("memory")),
        "save_format": operator.index(options.get("save_format", 2)),
        "precision": options.get("precision", "auto"),
        "chunked_prefill": options.get("chunked_prefill", True),
    }
    return Request("absorb", args, progress=progress)


class ShadowOptions(TypedDict, total=False):
    """Options of making shadows, as `mk shadow` takes them."""

    out: StrPath | None  # beside the model
    version: Literal[1, 2]  # 1: of the reference engine
    stages: Literal[1, 2]  # bytes per sixteen weights; 1 in version 1
    threads: int


def shadow_request(
    model: StrPath | None, progress: OnProgress | None, options: ShadowOptions
) -> Request:
    check_known("shadow", options, ShadowOptions.__annotations__)
    version = operator.index(options.get("version", 2))
    out = options.get("out")
    args = {
        "model": model_argument(model),
        "out": "" if out is None else file_argument(out),
        "version": version,
        "stages": operator.index(options.get("stages", version)),
        "threads": operator.index(options.get("threads", 0)),
    }
    return Request("shadow", args, progress=progress)


class BuildOptions(TypedDict, total=False):
    """Options of a build, as `mk build` takes them."""

    arch: str
    preset: str  # "tiny", "nano" (default), "micro"
    seed: int
    set: Iterable[str]  # "key=value": another dimension or gain than the preset's
    expert_align: Literal["auto", "64", "4096"]
    threads: int  # 0: the daemon's setting
    dry_run: bool  # tell the sizes, write nothing
    force: bool  # replace a file that exists


def build_request(out: StrPath, progress: OnProgress | None, options: BuildOptions) -> Request:
    check_known("build", options, BuildOptions.__annotations__)
    args: dict[str, Any] = dict(options)
    args["out"] = file_argument(out)
    if "set" in options:
        args["set"] = list(options["set"])
    return Request("build", args, progress=progress)
