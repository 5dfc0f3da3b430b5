"""The torch model against recorded answers of an unrelated engine on the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nano import checkpoint
from nano.bin2pt import import_model
from nano.model import K3Model
from nano.moe import route
from nano.tests.random_model import GOLDEN

CASES = ["k3a", "k3b", "k3c"]
TOLERANCE = 1e-3  # logits have a deviation of 3; f32 summation order alone gives up to 1e-4


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory) -> tuple[Path, K3Model, dict[str, Any]]:
    folder = GOLDEN / request.param
    out = tmp_path_factory.mktemp(request.param) / "ckpt"
    import_model(folder / "model.bin", out)
    found = checkpoint.open_checkpoint(out)
    model = K3Model(found.config).eval()
    checkpoint.load_into(dict(model.state_dict()), found.model(), request.param)
    return folder, model, json.loads((folder / "golden.json").read_text())


def recorded(folder: Path, name: str, width: int) -> np.ndarray:
    return np.fromfile(folder / name, "<f4").reshape(-1, width)


@pytest.mark.parametrize("prompt", ["short", "long"])
@pytest.mark.parametrize("chunked", [True, False])
def test_logits_and_greedy_ids(case, prompt: str, chunked: bool) -> None:
    """Teacher-forced over prompt and recorded continuation, in one pass."""
    folder, model, golden = case
    entry = golden["prompts"][prompt]
    ids, answer = entry["ids"], entry["exact"]["greedy_ids"]
    expected = recorded(folder, f"{prompt}.logits.f32", model.config.vocab)
    model.options.kda_chunked = chunked
    with torch.no_grad():
        logits = model(torch.tensor([ids + answer]))[0].numpy()
    if len(expected) < len(logits):  # the long prompt records its last position and the answer
        logits = logits[-len(expected) :]
    assert np.abs(logits - expected).max() < TOLERANCE
    assert logits[-len(answer) - 1 : -1].argmax(axis=1).tolist() == answer


@pytest.mark.parametrize("what", ["hidden", "attn", "ffn"])
def test_every_layer(case, what: str) -> None:
    folder, model, golden = case
    config = model.config
    seen = record_layers(model, golden["prompts"]["short"]["ids"], what)
    expected = recorded(folder, f"short.{what}.f32", config.hidden)
    expected = expected.reshape(-1, config.n_layers, config.hidden)
    for layer in range(config.n_layers):
        worst = np.abs(seen[layer] - expected[:, layer]).max()
        assert worst < 5e-4, f"layer {layer}: {worst}"


def record_layers(model: K3Model, ids: list[int], what: str) -> list[np.ndarray]:
    seen: list[np.ndarray] = []

    def keep(_module: Any, _inputs: Any, output: torch.Tensor) -> None:
        seen.append(output[0].numpy())

    def watched(layer: Any) -> torch.nn.Module:
        if what == "hidden":
            return layer
        if what == "attn":
            return layer.self_attn
        return layer.mlp if hasattr(layer, "mlp") else layer.block_sparse_moe

    hooks = [watched(layer).register_forward_hook(keep) for layer in model.layers]
    try:
        with torch.no_grad():
            model(torch.tensor([ids]))
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def test_router_selections(case) -> None:
    _, model, golden = case
    entry = golden["prompts"]["short"]
    picks: list[tuple[np.ndarray, np.ndarray]] = []

    def keep(moe: Any, inputs: Any) -> None:
        logits = inputs[0].reshape(-1, model.config.hidden) @ moe.gate.weight.T
        ids, weights = route(logits, moe.gate.e_score_correction_bias, model.config.top_k)
        picks.append((ids.numpy(), weights.numpy()))

    moes = model.moe_layers()
    hooks = [moe.register_forward_pre_hook(keep) for _, moe in moes]
    try:
        with torch.no_grad():
            model(torch.tensor([entry["ids"] + entry["exact"]["greedy_ids"]]))
    finally:
        for hook in hooks:
            hook.remove()
    assert len(entry["exact"]["router"]) >= len(entry["ids"])
    for position, layers in enumerate(entry["exact"]["router"]):
        for (layer, _), (ids, weights) in zip(moes, picks, strict=True):
            found = dict(zip(ids[position].tolist(), weights[position].tolist(), strict=True))
            expected = dict(zip(layers[layer]["ids"], layers[layer]["w"], strict=True))
            assert found.keys() == expected.keys(), f"position {position}, layer {layer}"
            assert found == pytest.approx(expected, abs=1e-4)
