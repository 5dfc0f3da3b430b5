"""What a benchmark tells."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BenchCeilings:
    """What the machine can do at most with so many threads, measured before the model."""

    threads: int
    read_gb_per_s: float  # streaming reads of a set larger than the caches
    cache_read_gb_per_s: float  # reads of 24 MiB again and again
    fma_gflop_per_s: float  # f32 multiply-adds on registers, two operations each
    int8_gop_per_s: float  # dot products of bytes on registers, two operations per product


@dataclass(frozen=True, slots=True)
class BenchRoof:
    """What a token costs in this precision, and the limits that follow."""

    spine_bytes: int  # dense weights that every decoded token reads
    expert_bytes: int  # routed experts that one token chooses
    state_bytes: int  # recurrent state of a sequence
    context_bytes: int  # cache that a decoded token reads, per token of its context
    multiply_adds: int  # per token, without the two that follow
    head_multiply_adds: int  # per row of logits
    context_multiply_adds: int  # per token of its context
    spine_gb_per_s: float
    expert_gb_per_s: float
    peak_gop_per_s: float
    decode_tokens_per_s: float  # 1 / (sum over these weights of bytes / bandwidth)


@dataclass(frozen=True, slots=True)
class BenchPoint:
    kind: str  # "decode", "batch", "prefill", "first_token"
    tokens: int  # of context (decode, batch) or of the prompt
    batch: int  # sequences
    samples: int
    step_ms: float  # median of a step: a token of every sequence, or a prompt
    step_ms_p10: float
    step_ms_p90: float
    ms_per_token: float
    tokens_per_s: float  # of all sequences together
    gb_per_s: float
    gop_per_s: float
    limit_tokens_per_s: float
    limit_by: str  # "reads", "arithmetic"
    share: float  # tokens_per_s / limit_tokens_per_s


@dataclass(frozen=True, slots=True)
class Bench:
    model_path: str
    architecture: str
    fingerprint: str
    vocab: int
    parameters: int
    precision: str  # never "auto"
    memory_bytes: int  # held by the model
    processor: str  # "": the system does not tell
    processors: int  # that the system shows
    threads: int  # used
    target: str  # instruction set of the kernels: "AVX3_DL", "AVX2", ...
    date: str  # UTC
    build_id: str  # of the daemon
    quick: bool
    seconds: float
    ceilings: list[BenchCeilings]
    roof: BenchRoof
    points: list[BenchPoint]
