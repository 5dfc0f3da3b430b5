"""What the daemon answers, as dataclasses. Fields have the names that they have on the wire and in
`mk --json`; times end in _ms, sizes in _bytes."""

from __future__ import annotations

from dataclasses import dataclass, field

from .stream_messages import ExpertStream


@dataclass(frozen=True, slots=True)
class Hello:
    """Who answers."""

    protocol: int
    version: str
    build_id: str
    pid: int


@dataclass(frozen=True, slots=True)
class Ping:
    pid: int
    uptime_ms: int


@dataclass(frozen=True, slots=True)
class Progress:
    """A step of long work."""

    stage: str  # "queue", "load", "prefill", "verify", "build", "bench"
    done: int  # for "queue": requests before this one
    total: int
    unit: str  # "requests", "bytes", "tokens", "percent"


@dataclass(frozen=True, slots=True)
class ModelStatus:
    path: str
    architecture: str
    fingerprint: str
    state: str  # "loading", "ready", "replaced" (the file changed; ends with its users)
    progress: float  # of loading, 0..1
    file_bytes: int  # mapped
    memory_bytes: int  # held beside the mapping
    users: int  # requests that hold it
    keep_alive_ms: int  # -1: for ever
    idle_ms: int  # since its last user left
    precisions: list[str] = field(default_factory=list)  # that it can run in
    preparing: list[str] = field(default_factory=list)  # that are being read, or will be
    chat_dialect: str = ""  # chat template of its vocabulary; "": none
    pinned: bool = False  # stays until it is unloaded
    expires_ms: int | None = None  # when it goes if nobody uses it; None: not by itself
    memory: dict[str, int] = field(default_factory=dict)  # bytes: "weights", "sequences"
    holders: list[str] = field(default_factory=list)  # requests that use it: "CLIENT OP"
    stream: ExpertStream | None = None  # if its experts stay in the file


@dataclass(frozen=True, slots=True)
class RequestStatus:
    client: str
    id: int
    op: str
    model: str
    # "queued", "loading", "prefill", "decode", "paused" (its client does not keep up), "working"
    phase: str
    prompt_done: int
    prompt_total: int
    generated: int
    tokens_per_second: float
    age_ms: int
    state_bytes: int
    priority: str = ""  # of a run: "interactive", "background"


@dataclass(frozen=True, slots=True)
class Latency:
    """How long something took, over the daemon's life."""

    name: str  # "queue_wait", "first_token", "token", "step", "load"
    count: int
    mean_ms: float
    p50_ms: float  # percentiles, to an eighth of their value
    p90_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class JobFault:
    """Why a job failed."""

    code: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class JobStatus:
    """Long work of the daemon; `mk jobs` shows and steers it."""

    id: str
    kind: str  # "verify", "build", "bench"
    what: str
    state: str  # "queued", "running", "done", "failed", "cancelled", "interrupted"
    phase: str
    done: int
    total: int  # 0: not known
    unit: str
    kept: int  # of `done`: what a resumed run begins with
    asked_by: str
    detached: bool
    attached: int  # clients that watch it
    queue: int  # jobs before it
    runs: int
    resumable: bool
    saved: bool  # its record is on disk
    created_ms: int  # since 1970, as are the next two; 0: not yet
    started_ms: int
    ended_ms: int
    age_ms: int
    eta_ms: int | None = None
    error: JobFault | None = None


@dataclass(frozen=True, slots=True)
class Status:
    version: str
    build_id: str
    pid: int
    uptime_ms: int
    socket: str
    log: str  # file; "": standard error
    state_directory: str
    stopping: bool
    threads: int
    max_batch: int
    connections: int
    memory: dict[str, int]  # bytes: "budget", "used", "models", "sequences", ...
    counters: dict[str, int]
    models: list[ModelStatus]
    requests: list[RequestStatus]
    precision: str = ""  # of requests that ask for "auto"
    latency: list[Latency] = field(default_factory=list)
    journal_unit: str = ""  # user unit whose journal holds standard error; "": it is no journal
    jobs: list[JobStatus] = field(default_factory=list)  # queued and running
    jobs_trouble: str = ""  # why records of jobs are not saved; "": they are


@dataclass(frozen=True, slots=True)
class ModelEntry:
    name: str
    path: str
    origin: str  # "alias", "user", "bundled"
    is_default: bool
    loaded: bool
    file_bytes: int
    architecture: str  # "": the file cannot be used
    error: str  # why not
    precisions: list[str] = field(default_factory=list)  # that it is loaded in


@dataclass(frozen=True, slots=True)
class ModelList:
    models: list[ModelEntry]


@dataclass(frozen=True, slots=True)
class Loaded:
    model: ModelStatus
    load_ms: int
    was_loaded: bool  # in this precision
    warnings: list[str]
    precision: str = ""  # the one that was asked for; never "auto"
    spine_cached: bool = False  # its weights came prepared from the daemon's cache of them


@dataclass(frozen=True, slots=True)
class Unloaded:
    unloaded: int


@dataclass(frozen=True, slots=True)
class Cancelled:
    found: bool  # false: the request had ended already


@dataclass(frozen=True, slots=True)
class Tokens:
    """A text as token ids."""

    ids: list[int]
    pieces: list[str]  # text or name of every token; ill-formed UTF-8 replaced
    unk: int  # tokens that stand for text that the vocabulary cannot spell


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class VerifyProblem:
    tensor: str  # "": the file as a whole
    message: str
    count: int


@dataclass(frozen=True, slots=True)
class Verified:
    """`ok` says whether the file is sound; a file that is not is no exception."""

    path: str
    ok: bool
    file_bytes: int
    tensors: int
    values_checked: int
    xxh3_128: str
    content_sha256: str
    digest_recorded: bool
    problems_total: int
    problems: list[VerifyProblem]  # the first of them
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class ShadowFile:
    """A small copy of a model's experts that was made."""

    path: str
    model_path: str
    format: str  # "MKSH0001", "MKSH0002"
    fingerprint: str  # of the model file
    stages: int  # bytes per sixteen weights
    layers: int
    experts: int  # of a layer
    file_bytes: int
    expert_bytes: int  # of the experts in the model file
    relative_error: float  # mean of all matrices, before the gain
    gain: float  # what gives the shadows the energy of the weights
    resumed_layers: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Built:
    path: str
    written: bool  # false: dry run
    tensors: int
    parameters: int
    file_bytes: int
    expert_bytes: int
    spine_bytes: int
    seconds: float
