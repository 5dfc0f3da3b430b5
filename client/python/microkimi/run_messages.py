"""What a run tells, on the way and at its end."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from .look_messages import ExpertTally, HiddenStats, Lens
from .session_messages import SessionStep
from .stream_messages import StreamUse


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of the likeliest tokens in the place of another."""

    id: int
    text: str
    logprob: float  # nats


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token. `text` is whole characters: that of an incomplete one comes with the
    token that completes it."""

    index: int  # 0 for the first generated token
    id: int
    text: str
    channel: str  # "answer", "reasoning", "hidden"; "": plain completion
    # With `logprobs`: from the logits as the model gave them, in nats.
    logprob: float | None = None
    top: list[Alternative] | None = None  # likeliest first


@dataclass(frozen=True, slots=True)
class RouterPick:
    layer: int
    experts: list[int]  # best first
    weights: list[float]  # after renormalisation


@dataclass(frozen=True, slots=True)
class IndexPick:
    """The compressed rows that an indexer picked."""

    layer: int
    rows: list[int]  # ascending
    scores: list[float]  # of the rows; none when there was nothing to choose


@dataclass(frozen=True, slots=True)
class CompressedRow:
    """Row `row` of a layer's compressed cache; the tokens behind it end at the position."""

    layer: int
    row: int


@dataclass(frozen=True, slots=True)
class Routes:
    """What routers and indexers picked for the token at `position`."""

    position: int
    layers: list[RouterPick]
    indexed: list[IndexPick] = field(default_factory=list)
    compressed: list[CompressedRow] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Dump:
    """A file of raw little-endian f32, row after row."""

    file: str
    rows: int
    row_floats: int


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    unk: int  # tokens of the prompt that stand for text that the vocabulary cannot spell
    cached: int = 0  # tokens of the prompt that were read before and not read again


@dataclass(frozen=True, slots=True)
class Timing:
    queue_ms: float  # from arrival to the first step, without loading
    load_ms: float  # waiting for the model
    prefill_ms: float  # first step to the first logits
    ttft_ms: float  # from arrival to the first token
    decode_ms: float  # from the first token to the last
    total_ms: float
    tok_per_s: float
    token_p50_ms: float | None = None
    token_p95_ms: float | None = None


@dataclass(frozen=True, slots=True)
class TokenBias:
    id: int
    bias: float  # added to the logit


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What was in force; enough to repeat the run."""

    raw: bool
    thinking: bool
    dialect: str
    max_new: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    precision: str  # the one in use; never "auto"
    chunked_prefill: bool
    stop: list[str]
    timeout_ms: int
    spec: int = 0
    spec_rosa: int = 0
    logit_bias: list[TokenBias] = field(default_factory=list)
    ban: list[int] = field(default_factory=list)  # those of `ban_text` too
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_range: int = 1024
    dry_prompt: bool = True
    dry_breakers: list[str] = field(default_factory=list)
    dry_compat: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_window: int = 0
    penalty_prompt: bool = False
    typical_p: float = 1.0


@dataclass(frozen=True, slots=True)
class Speculation:
    """What became of drafts."""

    passes: int  # forward passes with a draft
    singles: int  # without one
    drafted: int  # tokens
    accepted: int  # of them, and part of the answer
    rejected: int
    bonus: int  # passes that accepted all, and gave one token more
    drafted_at: list[int]  # by position in the draft
    accepted_at: list[int]  # the same
    verify_ms: float  # passes with a draft, which others may have shared
    rollback_ms: float  # forgetting what was not accepted


@dataclass(frozen=True, slots=True)
class Trust:
    """Whether the answer is the whole model's."""

    precision: str
    degraded: bool
    shadow_tokens: int  # tokens that a stand-in served
    failed_experts: int  # experts that could not be read
    fingerprint: str  # of the model file
    model_path: str
    build_id: str  # of the daemon


@dataclass(frozen=True, slots=True)
class SavedPack:
    """A memory pack that was written."""

    path: str
    format: str  # "MKMEM001", "MKMEM002"
    state_id: str  # "" in MKMEM001
    tokens: int  # that its state has read
    bytes: int
    save_ms: float


@dataclass(frozen=True, slots=True)
class Absorbed:
    """A text that was read into a memory pack."""

    saved: SavedPack
    tokens: int  # of the text
    unk: int  # those that stand for text that the vocabulary cannot spell
    seconds: float
    precision: str
    fingerprint: str  # of the model file
    model_path: str
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class RunResult:
    """The end of a run. An answer with `trust.degraded` is not the whole model's."""

    finish_reason: str  # "stop", "length", "cancelled"
    text: str  # the whole answer or completion
    reasoning: str  # text of the think channel
    rest: str  # end of `text` that came with no token
    prompt_ids: list[int]  # without those of `memory`
    ids: list[int]  # generated; without the stop id
    usage: Usage
    timing: Timing
    options: RunOptions
    trust: Trust
    warnings: list[str]
    # Where the beginning of the prompt came from: "cold", it was read; "checkpoint", of the prefix
    # cache, with the bits of reading; "live", of a state that goes on as it was left.
    prefix: str = "cold"
    session: SessionStep | None = None  # of a run in one
    saved: SavedPack | None = None  # with `save`
    speculation: Speculation | None = None  # with `spec` or `spec_rosa`
    stream: StreamUse | None = None  # on a model whose experts stay in the file
    experts: ExpertTally | None = None  # with `experts`
    # Filled in by the client, when asked for.
    routes: list[Routes] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)  # of `ids`
    top_logprobs: list[list[Alternative]] = field(default_factory=list)  # in the place of each
    logits: Dump | None = None
    hidden: Dump | None = None
    lens: list[Lens] = field(default_factory=list)
    hidden_stats: HiddenStats | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values under the names of `mk run --json`."""
        told = dataclasses.asdict(self)
        del told["rest"]
        if self.options.raw:
            del told["reasoning"]
        optional = (
            "session", "routes", "logprobs", "top_logprobs", "logits", "hidden", "saved",
            "speculation", "stream", "experts", "lens", "hidden_stats",
        )  # fmt: skip
        for key in optional:
            if not told[key]:
                del told[key]
        for key in ("token_p50_ms", "token_p95_ms"):
            if told["timing"][key] is None:
                del told["timing"][key]
        for lens in told.get("lens", []):
            for one in (lens, *lens["layers"]):
                for key in [key for key, value in one.items() if value is None]:
                    del one[key]
        return told

    def to_json(self) -> str:
        """One line, as `mk run --json` prints it."""
        return json.dumps(self.to_dict(), ensure_ascii=False)
