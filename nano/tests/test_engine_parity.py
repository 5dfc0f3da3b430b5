"""The C++ engine in f32 against PyTorch in f64 on the same `.bin`, through the daemon.

The twin computes in f64, so that a distance is the engine's rounding alone. Distances are the
largest difference of a row of logits over the span (largest minus smallest logit) of the run.

Needs built programs: MK_BIN names their folder (default build/release/bin).
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nano.decode import Sampler
from nano.dsv4.golden_check import Golden
from nano.export import ExportOptions, export
from nano.loading import load_model, tokenizer_beside
from nano.model import K3Model, initialise
from nano.models import Model
from nano.tests.tiny import tiny_config

ROOT = Path(__file__).parents[2]
BIN = Path(os.environ.get("MK_BIN", ROOT / "build" / "release" / "bin"))
STORY = Path(os.environ.get("NANO_STORY", ROOT / "models" / "story-k3.bin"))
STORY_DSV4 = Path(os.environ.get("NANO_STORY_DSV4", ROOT / "models" / "story-dsv4.bin"))
CERTIFIED = ROOT / "tests" / "data" / "golden" / "dsv4" / "a"

# Random weights amplify rounding: a relative change of every weight by at most 2^-24 alone moves a
# row by 2.8e-6 (median) to 8e-5 (worst). Of 288 rows (12 prompts) the engine's median is 4.7e-6
# and its worst 2.0e-4, PyTorch's in f32 7.6e-6 and 3.8e-4. The median hardly depends on the order
# of summation; the worst row does.
RANDOM_MEDIAN = 1e-5
RANDOM_WORST = 5e-4
# The trained model: the engine's worst of 200 rows is 1.4e-7, PyTorch's in f32 4.4e-7.
TRAINED_WORST = 1e-6

pytestmark = pytest.mark.skipif(
    not (BIN / "mk").is_file() or not (BIN / "microkimid").is_file(),
    reason=f"no built engine in {BIN} (set MK_BIN)",
)


class Engine:
    """`mk run` against a daemon of our own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def mk(self, *args: str) -> str:
        command = [str(BIN / "mk"), args[0], "--socket", str(self.folder / "s"), *args[1:]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False,
                              env={**os.environ, "XDG_RUNTIME_DIR": str(self.folder)})
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(self, model: Path, ids: list[int], count: int, *more: str) -> tuple[Any, np.ndarray]:
        """The reply and the logits [tokens, vocab]."""
        dump = self.folder / "logits.f32"
        reply = json.loads(self.mk(
            "run", "-m", str(model), "--ids", ",".join(map(str, ids)), "-n", str(count), "--json",
            "--precision", "exact", "--dump-logits", str(dump), *more,
        ))
        vocab = load_model(model).config.vocab
        return reply, np.fromfile(dump, dtype="<f4").reshape(-1, vocab)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with tempfile.TemporaryDirectory(prefix="nano-parity-") as folder:  # mode 0700, short path
        one = Engine(Path(folder))
        yield one
        one.mk("stop")


def torch_logits(model: Model, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor([ids]))[0].numpy()


@pytest.fixture(scope="module")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """13 layers, two closed residual blocks and an open one, all sizes distinct."""
    from nano import checkpoint

    folder = tmp_path_factory.mktemp("random")
    config = tiny_config(n_layers=13, attn_res_block=5, mla_layers=[1, 4, 9], dense_layers=[0, 6])
    model = K3Model(config)
    generator = torch.Generator().manual_seed(2)
    initialise(model, generator)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith(("res_proj.weight", "dt_bias", "lm_head.weight")):
                p.normal_(0, 0.3, generator=generator)
        for _, moe in model.moe_layers():
            moe.gate.e_score_correction_bias.normal_(0, 0.2, generator=generator)
    checkpoint.save(folder, 1, config, {"step": 1}, dict(model.state_dict()), {}, None)
    export(folder, folder / "random.bin", ExportOptions(fold_a_log=True))
    return folder / "random.bin"


def distances(engine: Engine, path: Path, prompt: list[int], count: int) -> np.ndarray:
    """Of the logits of every generated token [count]; greedy ids must be equal."""
    reply, logits = engine.run(path, prompt, count)
    model = load_model(path).double()
    ids = reply["ids"]
    want = torch_logits(model, prompt + ids)[len(prompt) - 1 :][: len(logits)]
    assert ids == want[: len(ids)].argmax(axis=1).tolist()
    return np.abs(logits[: len(want)] - want).max(axis=1) / (want.max() - want.min())


def test_random_model(engine: Engine, random_model: Path) -> None:
    rows = []
    for seed in range(3, 11):
        prompt = np.random.default_rng(seed).integers(0, 300, 40).tolist()
        rows.append(distances(engine, random_model, prompt, 24))
    all_rows = np.concatenate(rows)
    assert np.median(all_rows) < RANDOM_MEDIAN
    assert all_rows.max() < RANDOM_WORST


@pytest.mark.skipif(not STORY.is_file(), reason="the bundled model is not in this checkout")
class TestBundledModel:
    def test_logits_and_two_hundred_greedy_tokens(self, engine: Engine) -> None:
        prompt = json.loads(engine.mk("run", "-m", str(STORY), "--json", "-n", "1",
                                      "--precision", "exact",
                                      "Once upon a time, there was a"))["prompt_ids"]
        assert distances(engine, STORY, prompt, 200).max() < TRAINED_WORST

    def test_a_seed_gives_the_same_story(self, engine: Engine) -> None:
        flags = ("--temp", "0.7", "--top-p", "0.9", "--seed", "5")
        reply, logits = engine.run(STORY, [2040], 120, *flags)
        sampler, ids = Sampler(0.7, 0.9, seed=5), reply["ids"]
        for i, token in enumerate(ids):
            assert sampler.pick(torch.from_numpy(logits[i].copy()), ids[:i]) == token


def test_certified_dsv4_model(engine: Engine) -> None:
    """Recorded logits after prefills of several lengths: window and groups full, open, wrapped."""
    golden = Golden.load(CERTIFIED)
    tokens, layers = golden.config["tokens"], golden.model.config.n_layers
    for position in (0, 3, 64, 127, 128, 191, 255, 299):
        _, logits = engine.run(CERTIFIED / "model.bin", tokens[: position + 1], 1)
        expected = golden.states[position, layers, "logits"].numpy()
        assert np.abs(logits[0] - expected).max() < golden.config["limit"], position


@pytest.mark.skipif(not STORY_DSV4.is_file(), reason="the bundled model is not in this checkout")
def test_bundled_dsv4_model(engine: Engine) -> None:
    tokenizer = tokenizer_beside(STORY_DSV4, None)
    prompt = [tokenizer.bos, *tokenizer.encode("Once upon a time, there was a")]
    assert distances(engine, STORY_DSV4, prompt, 200).max() < TRAINED_WORST


TEXT = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the "
    "sunshine. One day, she was playing in her garden when she saw a big box full of flowers. "
    "Lily's mom asked her if she could have it, but she did not know how. Lily thought about it "
    'for a moment and then said, "I want to pick it up. Let us find it." They looked for it all '
    "day, and the sun went down behind the old stone wall by the river."
)


@pytest.mark.parametrize("path", [STORY, STORY_DSV4], ids=["k3", "dsv4"])
def test_scores_are_those_of_the_twin(engine: Engine, path: Path) -> None:
    """Token by token, so that a distance is rounding alone."""
    if not path.is_file():
        pytest.skip("the bundled model is not in this checkout")
    told = json.loads(engine.mk("score", "-m", str(path), "--json", "--precision", "exact",
                                "--no-chunked-prefill", TEXT).splitlines()[0])
    tokenizer = tokenizer_beside(path, None)
    assert told["ids"] == tokenizer.encode(TEXT) and told["bytes"] == len(TEXT)
    model = load_model(path).double()
    rows = torch.from_numpy(torch_logits(model, [tokenizer.bos, *told["ids"]])[:-1])
    want = rows.log_softmax(dim=1).gather(1, torch.tensor(told["ids"])[:, None])[:, 0]
    assert np.abs(np.array(told["logprobs"]) - want.numpy()).max() < 1e-3
    perplexity = float(torch.exp(-want.mean()))
    assert told["perplexity"] == pytest.approx(perplexity, rel=1e-5)
    bits = -float(want.sum()) / (np.log(2) * len(TEXT))
    assert told["bits_per_byte"] == pytest.approx(bits, rel=1e-5)
