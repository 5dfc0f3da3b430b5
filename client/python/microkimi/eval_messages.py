"""What models are worth on texts and tasks: requests and results of the ops eval and compare."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from .requests import (
    ModelOptions,
    OnProgress,
    Precision,
    Request,
    StrPath,
    check_known,
    file_argument,
    model_args,
    model_argument,
)


class EvalItems(TypedDict, total=False):
    """What is measured. `tasks` and `texts`: paths, or names of bundled ones; neither: all of
    these."""

    tasks: Iterable[StrPath]
    texts: Iterable[StrPath]
    limit: int  # of each task so many probes, from the first; 0: all
    chunked_prefill: bool
    stream: str  # "on", "off", "auto", "": see StreamOptions
    stream_memory: int
    stream_fallback: bool  # shadows for experts that are not in memory: degraded; not of compare
    progress: OnProgress | None


class EvalOptions(ModelOptions, EvalItems, total=False):
    precision: Precision


class CompareOptions(EvalItems, total=False):
    precision: Precision
    precision_b: Precision  # of b alone
    seed: int
    resamples: int
    interval: Literal["bca", "percentile"]


@dataclass(frozen=True, slots=True)
class EvaluatedModel:
    path: str
    architecture: str
    fingerprint: str
    precision: str
    file_bytes: int
    parameters: int
    vocab: int
    degraded: bool  # what was measured was not the whole model
    shadow_tokens: int
    failed_experts: int


@dataclass(frozen=True, slots=True)
class Proportion:
    """`hits` of `count`, and Wilson's 95 % interval of their share."""

    hits: float
    count: int
    share: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class NamedProportion:
    name: str
    accuracy: Proportion


@dataclass(frozen=True, slots=True)
class TextCard:
    name: str
    sha256: str  # of the file
    documents: int
    bytes: int  # of the text that was scored
    tokens: int  # scored
    unk: int  # tokens that stand for text that the vocabulary cannot spell
    hidden: int  # bytes of that text
    nats: float  # sum of -log p
    perplexity: float  # per token
    perplexity_per_byte: float
    bits_per_byte: float
    top1: Proportion
    top5: Proportion


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    id: str
    category: str
    score: float  # share of its phrasings that were answered right
    picks: list[int]  # per phrasing; -1 where there is nothing to choose
    margin: float | None = None  # of choices: what the right one has over the best other


@dataclass(frozen=True, slots=True)
class TaskCard:
    name: str
    sha256: str
    probes: int
    phrasings: int
    accuracy: Proportion  # by each probe's rule
    chance: float  # accuracy of guessing
    categories: list[NamedProportion]
    by_phrasing: list[NamedProportion]
    outcomes: list[ProbeOutcome]
    acc: Proportion | None = None  # by log-likelihood, where all probes have choices
    acc_norm: Proportion | None = None  # by log-likelihood per character


@dataclass(frozen=True, slots=True)
class Scorecard:
    model: EvaluatedModel
    chunked_prefill: bool
    texts: list[TextCard]
    tasks: list[TaskCard]
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """A measure of both models on the same units, and b - a."""

    a: float
    b: float
    difference: float
    interval: str  # "bca", "percentile", "none"
    units: int
    better: int  # units in which b is better
    worse: int
    ties: int
    sign_p: float
    detectable: float  # the smallest difference that so many units would show
    verdict: str  # of b
    low: float | None = None  # 95 %; None with too few units
    high: float | None = None


@dataclass(frozen=True, slots=True)
class ComparedDocument:
    id: str
    bytes: int
    bits_a: float
    bits_b: float


@dataclass(frozen=True, slots=True)
class ComparedText:
    name: str
    sha256: str
    a: TextCard
    b: TextCard
    bits_per_byte: PairedDifference
    documents: list[ComparedDocument]


@dataclass(frozen=True, slots=True)
class ComparedTask:
    name: str
    sha256: str
    a: TaskCard
    b: TaskCard
    accuracy: PairedDifference


@dataclass(frozen=True, slots=True)
class PositionMean:
    mean: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class LayerOverlap:
    layer: int
    overlap: float  # mean share of a's experts that b picked as well


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How b's next tokens differ from a's, at every scored position of all texts."""

    positions: int
    top1: PositionMean  # share where both have the same likeliest token
    top5: PositionMean  # mean share of a's five likeliest that are among b's
    kl: PositionMean  # nats
    kl_median: float
    kl_p95: float
    kl_p99: float
    kl_max: float
    routers: list[LayerOverlap]


@dataclass(frozen=True, slots=True)
class Comparison:
    a: EvaluatedModel
    b: EvaluatedModel
    chunked_prefill: bool
    seed: int
    resamples: int
    interval: str
    texts: list[ComparedText]
    tasks: list[ComparedTask]
    no_fidelity: str  # why there is none
    verdict: list[str]
    warnings: list[str]
    fidelity: Fidelity | None = None


def _file(given: StrPath) -> str:
    text = os.fspath(given)
    bundled = isinstance(text, str) and not set("/.") & set(text)
    return text if bundled else file_argument(given)


def _items_args(options: EvalItems) -> dict[str, Any]:
    tasks = [_file(one) for one in options.get("tasks", ())]
    texts = [_file(one) for one in options.get("texts", ())]
    if not tasks and not texts:
        tasks, texts = ["facts", "stories"], ["fables"]
    return {
        "tasks": tasks,
        "texts": texts,
        "limit": operator.index(options.get("limit", 0)),
        "chunked_prefill": options.get("chunked_prefill", True),
        "stream": options.get("stream", ""),
        "stream_memory": operator.index(options.get("stream_memory", 0)),
        "stream_fallback": options.get("stream_fallback", False),
    }


def eval_request(options: EvalOptions) -> Request:
    check_known("eval", options, EvalOptions.__annotations__)
    args = model_args(options) | _items_args(options)
    args["precision"] = options.get("precision", "auto")
    return Request("eval", args, progress=options.get("progress"))


def compare_request(a: StrPath, b: StrPath, options: CompareOptions) -> Request:
    check_known("compare", options, CompareOptions.__annotations__)
    precision = options.get("precision", "auto")
    args = _items_args(options) | {
        "a": {"model": model_argument(a)},
        "b": {"model": model_argument(b)},
        "precision": precision,
        "precision_b": options.get("precision_b", precision),
        "seed": operator.index(options.get("seed", 1)),
        "resamples": operator.index(options.get("resamples", 10_000)),
        "interval": options.get("interval", "bca"),
    }
    return Request("compare", args, progress=options.get("progress"))
