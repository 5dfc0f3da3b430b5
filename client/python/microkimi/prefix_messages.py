"""The cache of prompts' beginnings, as dataclasses. `mk pck` shows the same."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrefixState:
    """The state of the beginning of a prompt."""

    tokens: int
    precision: str
    chunked_prefill: bool
    logits: bool  # a prompt that is this and no more needs no forward pass
    memory_bytes: int  # 0: it is on disk only
    own_bytes: int  # of them, those that no other state shares
    disk_bytes: int  # 0: it is in memory only
    value: float  # one and its uses, which fade; the least goes first


@dataclass(frozen=True, slots=True)
class PrefixModel:
    model: str  # path; "": not known
    fingerprint: str  # of a model that is not loaded its first 16 digits
    loaded: bool
    memory_states: int
    disk_files: int
    disk_bytes: int
    refused_files: int  # of the files: kept to be looked at, not used
    states: list[PrefixState]  # of files those whose tokens are known; longest first


@dataclass(frozen=True, slots=True)
class PrefixCache:
    models: list[PrefixModel]
    folder: str
    trouble: str  # why nothing is written to disk now; "": nothing is wrong
    totals: dict[str, int]  # of all models; those that end in _limit are bytes


@dataclass(frozen=True, slots=True)
class Forgotten:
    states: int  # in memory
    bytes: int
    files: int  # on disk
    file_bytes: int
