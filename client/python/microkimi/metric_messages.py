"""What the daemon measures, as dataclasses. `mk metrics` prints the same."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class MetricBucket:
    """Values in (above, up_to]; empty buckets are left out."""

    above: float
    count: int  # in this bucket alone
    up_to: float | None = None  # None: without a bound


@dataclass(frozen=True, slots=True)
class MetricSample:
    labels: dict[str, str]
    value: float  # of a counter or gauge; the sum of a histogram's values
    count: int = 0  # of a histogram's values
    buckets: list[MetricBucket] = field(default_factory=list)  # ascending


@dataclass(frozen=True, slots=True)
class MetricFamily:
    name: str
    type: str  # "counter", "gauge", "histogram"
    unit: str  # "seconds", "bytes", ""
    help: str
    samples: list[MetricSample]


@dataclass(frozen=True, slots=True)
class MetricsAnswer:
    text: str  # the Prometheus text format
    families: list[MetricFamily]
