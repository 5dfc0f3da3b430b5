"""A model for evaluation from a checkpoint directory, a run directory or a `.bin` file."""

from __future__ import annotations

from pathlib import Path

import torch

from nano import checkpoint
from nano.bin2pt import read_state
from nano.bpe import Tokenizer, load_tokenizer
from nano.mkim import MkimFile
from nano.models import Model, build_model


def load_model(path: Path, averaged: bool = True) -> Model:
    """Evaluation-ready model; `averaged` takes the averaged weights of a checkpoint, if any."""
    if path.is_dir():
        source = checkpoint.open_checkpoint(path)
        model = build_model(source.config)
        state = (source.ema() if averaged else None) or source.model()
        checkpoint.load_into(dict(model.state_dict()), state, str(path))
        return model.eval()
    with MkimFile(path) as source:
        model = build_model(source.model_config())
        state = {name: torch.from_numpy(t.copy()) for name, t in read_state(source).items()}
    target = dict(model.state_dict())
    state = {n: t.reshape(target[n].shape) if n in target else t for n, t in state.items()}
    checkpoint.load_into(target, state, str(path))
    return model.eval()


def tokenizer_beside(model: Path, vocab: Path | None, ranks: Path | None = None) -> Tokenizer:
    """The given vocabulary, or `<stem>.vocab.json` next to the model file."""
    path = vocab or model.with_name(f"{model.stem}.vocab.json")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no vocabulary here (give --vocab)")
    return load_tokenizer(path, ranks)
