"""Looks into a model at work: logit lens, sizes of hidden states, use of experts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LensLayer:
    """What the model would say after a layer."""

    layer: int
    kind: str  # of its attention: "KDA", "MLA", "SWA", "CSA", "HCA"
    ids: list[int]  # likeliest first
    texts: list[str]  # of them; none without a tokenizer
    probabilities: list[float]
    entropy: float  # of the whole row, in nats
    # Of the token that came next, if one did; rank 0 is the likeliest.
    rank: int | None = None
    probability: float | None = None


@dataclass(frozen=True, slots=True)
class Lens:
    """The logit lens after the token at `position`."""

    position: int
    id: int
    text: str
    next_text: str
    layers: list[LensLayer]
    index: int | None = None  # among the generated tokens; None: it is one of the prompt
    next: int | None = None  # the token that came next


@dataclass(frozen=True, slots=True)
class LayerRms:
    layer: int
    kind: str
    rms: float


@dataclass(frozen=True, slots=True)
class HiddenStats:
    """Sizes after the last token of the prompt."""

    position: int
    layers: list[LayerRms]
    output_rms: float  # of what the head reads, before the final norm
    logits_mean: float
    logits_std: float


@dataclass(frozen=True, slots=True)
class ExpertCounts:
    """How often the experts of a layer were picked; those that never were are left out."""

    layer: int
    experts: list[int]
    counts: list[int]


@dataclass(frozen=True, slots=True)
class ExpertTally:
    tokens: int
    layers: int
    experts: int  # per layer
    top_k: int
    counts: list[ExpertCounts]


@dataclass(frozen=True, slots=True)
class ModelExperts:
    model: str  # path
    fingerprint: str
    tally: ExpertTally


@dataclass(frozen=True, slots=True)
class ExpertStats:
    """What the daemon has counted, with its setting count_experts."""

    counting: bool
    models: list[ModelExperts]
