"""What becomes of experts that stay in the file of a model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prefetch:
    """What became of the experts that one kind of prediction had read ahead."""

    issued: int  # reads that were begun for it
    useful: int  # in memory when they were needed
    late: int  # on their way when they were needed
    wasted: int  # gone before anybody needed them
    skipped: int  # predictions not followed, as they did not pay
    active: bool  # followed now


@dataclass(frozen=True, slots=True)
class ExpertStream:
    """Of a model whose experts are streamed, since it was loaded."""

    budget: int  # bytes
    cached_bytes: int
    cached_experts: int
    all_bytes: int  # that all experts would take
    demands: int  # experts that layers asked for: hits + misses + joined + shadowed
    hits: int
    misses: int
    joined: int  # on their way already
    evictions: int
    reads: int  # requests to the disk
    read_bytes: int
    failed_reads: int
    read_ms: float  # of a read, on average
    stall_ms: float  # that layers waited for experts, altogether
    passes: int  # over the layers
    shadowed: int  # of the demands: served by shadows
    shadow_bytes: int  # memory of shadows, beside the budget; 0: there are none
    policy: str  # "lru", "lfu", "arc", "aged"
    io: str  # "io_uring", "threads"; with ", direct" past the page cache
    prefetch: dict[str, Prefetch]  # by kind of prediction


@dataclass(frozen=True, slots=True)
class StreamUse:
    """Of a run on a streamed model, with what others did on it meanwhile."""

    demands: int
    hits: int
    reads: int
    read_bytes: int
    stall_ms: float
