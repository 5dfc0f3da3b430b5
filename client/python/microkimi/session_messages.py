"""Sessions: texts and conversations that the daemon keeps by name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SessionInfo:
    name: str
    kind: str  # "text", "chat"; "": nothing was said yet
    model: str  # path
    fingerprint: str  # of the model; "": not used yet
    precision: str  # "": not settled
    turns: int
    tokens: int  # after the last turn
    states: int  # turns whose state is kept
    disk_bytes: int  # of the states
    created_ms: int  # since 1970
    used_ms: int  # since 1970: when it was changed last
    forked_from: str  # "": it is no fork
    in_use: bool  # a run holds it
    waiting: int  # runs that wait for it


@dataclass(frozen=True, slots=True)
class SessionTurn:
    content: str
    reasoning: str
    finish_reason: str
    generated: int  # tokens
    tokens: int  # of the session after it
    state_id: str  # "": its state is not kept
    ended_ms: int  # since 1970
    user: str | None = None  # None: what was there was gone on with


@dataclass(frozen=True, slots=True)
class SessionStep:
    """What a run did to its session."""

    name: str
    turns: int  # now
    tokens: int  # now
    created: bool  # there was none of the name
    kept: bool  # False: the session is as before, for nothing was said
    known: int  # tokens that a state of the session had read
    reload_ms: float  # time to get that state from the disk; 0: it was in memory
    state_id: str  # of the state after the turn


@dataclass(frozen=True, slots=True)
class SessionList:
    sessions: list[SessionInfo]
    troubles: list[str]  # folders that cannot be used, and why


@dataclass(frozen=True, slots=True)
class SessionAnswer:
    """The answer of ops that make or change one."""

    session: SessionInfo


@dataclass(frozen=True, slots=True)
class Session:
    """A session and what was said in it."""

    session: SessionInfo
    dialect: str  # of conversations; "": the vocabulary's
    thinking: bool  # of conversations
    turns: list[SessionTurn]
    system: str | None = None


@dataclass(frozen=True, slots=True)
class SessionsRemoved:
    removed: int


@dataclass(frozen=True, slots=True)
class SessionSaved:
    path: str
    state_id: str
    tokens: int
    file_bytes: int


@dataclass(frozen=True, slots=True)
class StateDistance:
    """One kind of arrays of two states, over all layers."""

    array: str  # "kda_matrix", "latent_rows", "logits", ...
    layers: int
    elements: int
    different: int
    relative: float  # largest ||a - b|| / ||a|| of an array


@dataclass(frozen=True, slots=True)
class SessionDifference:
    """Where two sessions part, and how far their states are apart."""

    turns_a: int
    turns_b: int
    common_turns: int
    tokens_a: int
    tokens_b: int
    common_tokens: int
    rest_a: str  # what was said from there on; cut if it is long
    rest_b: str
    same_model: bool
    states_missing: str  # why the states were not compared; "": they were
    identical: bool
    arrays: list[StateDistance]
    unmatched: int  # arrays of other sizes
