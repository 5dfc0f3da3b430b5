"""Python client of microkimid, a local engine for mixture-of-experts language models.

from microkimi import Client

with Client() as client:
    for text in client.stream("Once upon a time", temperature=0.7, top_p=0.9):
        print(text, end="", flush=True)
"""

from .async_client import AsyncClient, AsyncRunStream
from .bench_messages import Bench, BenchCeilings, BenchPoint, BenchRoof
from .client import Client, RunStream
from .errors import (
    AccessDeniedError,
    BadRequestError,
    BusyError,
    CancelledError,
    ContextOverflowError,
    DeadlineError,
    IncompatibleError,
    IncompatiblePackError,
    InternalError,
    IoError,
    MicrokimiError,
    ModelCorruptError,
    ModelNotFoundError,
    NotFoundError,
    NumericError,
    OutOfMemoryError,
    PackCorruptError,
    ShuttingDownError,
    UnreachableError,
    UnsupportedError,
    UnsupportedVersionError,
)
from .eval_messages import (
    ComparedDocument,
    ComparedTask,
    ComparedText,
    Comparison,
    EvaluatedModel,
    Fidelity,
    LayerOverlap,
    NamedProportion,
    PairedDifference,
    PositionMean,
    ProbeOutcome,
    Proportion,
    Scorecard,
    TaskCard,
    TextCard,
)
from .look_messages import (
    ExpertCounts,
    ExpertStats,
    ExpertTally,
    HiddenStats,
    LayerRms,
    Lens,
    LensLayer,
    ModelExperts,
)
from .messages import (
    Built,
    JobFault,
    JobStatus,
    Latency,
    Loaded,
    ModelEntry,
    ModelStatus,
    Ping,
    Progress,
    RequestStatus,
    ShadowFile,
    Status,
    Tokens,
    Verified,
    VerifyProblem,
)
from .metric_messages import MetricBucket, MetricFamily, MetricSample
from .prefix_messages import Forgotten, PrefixCache, PrefixModel, PrefixState
from .requests import Message
from .run_messages import (
    Absorbed,
    Alternative,
    CompressedRow,
    Dump,
    IndexPick,
    RouterPick,
    Routes,
    RunOptions,
    RunResult,
    SavedPack,
    Speculation,
    Timing,
    Token,
    TokenBias,
    Trust,
    Usage,
)
from .scores import Score, ScoreItem, ScoreOptions
from .session_client import AsyncSessions, Sessions
from .session_messages import (
    Session,
    SessionDifference,
    SessionInfo,
    SessionSaved,
    SessionStep,
    SessionTurn,
    StateDistance,
)
from .stream_messages import ExpertStream, Prefetch, StreamUse
from .version import VERSION as __version__

__all__ = [
    "Absorbed", "AccessDeniedError", "Alternative", "AsyncClient", "AsyncRunStream",
    "AsyncSessions", "BadRequestError", "Bench", "BenchCeilings", "BenchPoint", "BenchRoof",
    "Built", "BusyError", "CancelledError", "Client", "ComparedDocument", "ComparedTask",
    "ComparedText", "Comparison", "CompressedRow", "ContextOverflowError", "DeadlineError", "Dump",
    "EvaluatedModel", "ExpertCounts", "ExpertStats", "ExpertStream", "ExpertTally", "Fidelity",
    "Forgotten", "HiddenStats", "IncompatibleError", "IncompatiblePackError", "IndexPick",
    "InternalError", "IoError", "JobFault", "JobStatus", "Latency", "LayerOverlap", "LayerRms",
    "Lens", "LensLayer", "Loaded", "Message", "MetricBucket", "MetricFamily", "MetricSample",
    "MicrokimiError", "ModelCorruptError", "ModelEntry", "ModelExperts", "ModelNotFoundError",
    "ModelStatus", "NamedProportion", "NotFoundError", "NumericError", "OutOfMemoryError",
    "PackCorruptError", "PairedDifference", "Ping", "PositionMean", "Prefetch", "PrefixCache",
    "PrefixModel", "PrefixState", "ProbeOutcome", "Progress", "Proportion", "RequestStatus",
    "RouterPick", "Routes", "RunOptions", "RunResult", "RunStream", "SavedPack", "Score",
    "ScoreItem", "ScoreOptions", "Scorecard", "Session", "SessionDifference", "SessionInfo",
    "SessionSaved", "SessionStep", "SessionTurn", "Sessions", "ShadowFile", "ShuttingDownError",
    "Speculation", "StateDistance", "Status", "StreamUse", "TaskCard", "TextCard", "Timing",
    "Token", "TokenBias", "Tokens", "Trust", "UnreachableError", "UnsupportedError",
    "UnsupportedVersionError", "Usage", "Verified", "VerifyProblem", "__version__",
]  # fmt: skip
