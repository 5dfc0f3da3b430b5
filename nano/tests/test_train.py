"""The training loop: resume, stops, budgets, refusals, and equal results on several paths."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nano import checkpoint, prepare, train
from nano.config import ConfigError, K3Config
from nano.tests.tiny import TINY, write_corpus

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    corpus = write_corpus(folder / "c.txt", 120)
    code = prepare.main(["--data", str(corpus), "--out", str(folder), "--train-bpe", "312",
                         "--valid-frac", "0.1"])
    assert code == 0
    (folder / "config.json").write_text(json.dumps({**TINY, "n_layers": 3, "mla_layers": [1]}))
    return folder


def flags(data: Path, out: Path, *more: str) -> list[str]:
    return ["--data", str(data / "train"), "--out", str(out), "--config",
            str(data / "config.json"), "--batch", "2", "--seq", "64", "--warmup", "3",
            "--log-every", "5", "--eval-every", "10", "--ckpt-every", "1000", "--threads", "1",
            "--seed", "7", "--dropout", "0.1", "--ema", "0.9", "--qat-frac", "0.3",
            "--optimizer", "muon", *more]


def weights(out: Path, name: str = "model") -> dict[str, torch.Tensor]:
    return load_file(out / "latest" / f"{name}.safetensors")


def losses(out: Path) -> list[tuple[int, float]]:
    lines = (out / "train.jsonl").read_text().splitlines()
    return [(r["step"], r["loss"]) for r in map(json.loads, lines) if "loss" in r]


def test_resume_repeats_the_uninterrupted_run_bit_by_bit(data: Path, tmp_path: Path) -> None:
    straight, parts = tmp_path / "a", tmp_path / "b"
    assert train.main(flags(data, straight, "--steps", "24")) == 0
    stopped = stop_after(data, parts, 9)
    assert stopped == 75
    assert checkpoint.open_checkpoint(parts).state["step"] == 9
    assert train.main(flags(data, parts, "--steps", "24", "--resume")) == 0
    for name in ("model", "ema", "optim"):
        a, b = weights(straight, name), weights(parts, name)
        assert set(a) == set(b)
        assert all(torch.equal(a[k], b[k]) for k in a), name
    # The interval that the stop cut in two is averaged over fewer steps; the others are equal.
    assert losses(straight)[2:] == losses(parts)[2:]
    assert losses(straight)[0] == losses(parts)[0]


def stop_after(data: Path, out: Path, steps: int) -> int:
    """Runs until a stop request in the middle, as a signal would make it."""
    args = train.parse(flags(data, out, "--steps", "24"))
    out.mkdir(parents=True)
    trainer = train.build(args, train.distributed.Group())
    loop = train.Loop(trainer, args)
    loop.dog.reason = lambda: "test" if trainer.step >= steps else None  # type: ignore[method-assign]
    return loop.run()


def test_training_learns_and_finishes_with_a_report(data: Path, tmp_path: Path) -> None:
    out, report = tmp_path / "run", tmp_path / "r.json"
    code = train.main(flags(data, out, "--steps", "60", "--lr", "5e-3", "--json", str(report)))
    assert code == 0
    seen = losses(out)
    assert seen[-1][1] < seen[0][1] - 1.0
    records = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
    evals = [r for r in records if r.get("event") == "eval"]
    assert evals[-1]["valid"] < evals[0]["valid"] and "valid_ema" in evals[-1]
    assert set(evals[-1]["router"]) == {"1", "2"}
    assert json.loads(report.read_text())["finished"] is True


def test_the_best_checkpoint_is_kept(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert train.main(flags(data, out, "--steps", "10", "--eval-every", "2", "--keep", "1")) == 0
    best = checkpoint.open_checkpoint(out / "best").state
    records = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
    scores = {r["step"]: min(r["valid_bpb"], r["valid_ema_bpb"]) for r in records
              if r.get("event") == "eval"}
    assert best["step"] == min(scores, key=lambda step: scores[step])


def test_sigterm_saves_and_asks_to_be_resumed(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "nano.train", *flags(data, out, "--minutes", "10")]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.DEVNULL)
    try:
        limit = time.monotonic() + 120
        while not (out / "train.jsonl").exists() and time.monotonic() < limit:
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 75
    finally:
        process.kill()
        process.wait()
    state = checkpoint.open_checkpoint(out).state
    assert state["step"] >= 5 and not state["finished"]
    assert "SIGTERM" in (out / "train.jsonl").read_text()


def test_memory_cap_is_a_stop_and_not_a_success(data: Path, tmp_path: Path) -> None:
    code = train.main(flags(data, tmp_path / "run", "--steps", "5", "--rss-cap", "0.001"))
    assert code == 75


def test_accumulation_equals_one_large_batch(data: Path, tmp_path: Path) -> None:
    common = ["--steps", "4", "--dropout", "0", "--qat-frac", "0", "--optimizer", "adamw"]
    assert train.main(flags(data, tmp_path / "a", *common, "--batch", "4")) == 0
    assert train.main(flags(data, tmp_path / "b", *common, "--batch", "2", "--accum", "2")) == 0
    a, b = weights(tmp_path / "a"), weights(tmp_path / "b")
    for name in a:  # Adam turns rounding of near-zero gradients into visible single values
        assert float((a[name] - b[name]).norm()) <= 1e-3 * float(a[name].norm()) + 1e-6, name


def test_half_precision_follows_full_precision(data: Path, tmp_path: Path) -> None:
    for dtype in ("f32", "bf16"):
        steps = flags(data, tmp_path / dtype, "--steps", "20", "--dtype", dtype)
        assert train.main(steps) == 0
    full, half = losses(tmp_path / "f32"), losses(tmp_path / "bf16")
    for (_, a), (_, b) in zip(full, half, strict=True):
        assert abs(a - b) < 0.05 * a


def test_bench_reports_and_leaves_no_checkpoint(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main(flags(data, tmp_path / "run", "--bench", "2")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tok_s_median"] > 0 and not (tmp_path / "run" / "latest").exists()


def test_refusals_have_their_exit_codes(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert train.main(flags(data, out, "--steps", "2")) == 0
    assert train.main(flags(data, out, "--steps", "2")) == 76  # would overwrite a run
    assert train.main(flags(data, tmp_path / "none", "--steps", "2", "--resume")) == 76
    assert train.main(flags(data, tmp_path / "x", "--set", "hidden=33", "--steps", "2")) == 65
    assert train.main(flags(data, tmp_path / "x", "--set", "hiden=64", "--steps", "2")) == 65
    assert train.main(flags(data, tmp_path / "x")) == 64  # no budget
    missing = flags(data, tmp_path / "x", "--steps", "2")
    missing[1] = str(tmp_path / "nowhere")
    assert train.main(missing) == 66


def test_resume_on_other_data_is_refused(data: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "run", tmp_path / "other"
    assert train.main(flags(data, out, "--steps", "2")) == 0
    corpus = write_corpus(tmp_path / "d.txt", 60, seed=5)
    prepare.main(["--data", str(corpus), "--out", str(other), "--bpe",
                  str(data / "own.vocab.json"), "--valid-frac", "0"])
    again = flags(data, out, "--steps", "4", "--resume")
    again[1] = str(other / "train")
    assert train.main(again) == 76
    assert train.main([*again, "--allow-data-change"]) == 0


def test_checkpoints_are_whole_or_absent_and_pruned(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert train.main(flags(data, out, "--steps", "6", "--ckpt-every", "1", "--keep", "2")) == 0
    names = sorted(p.name for p in out.glob("ckpt-*"))
    assert names == ["ckpt-00000005", "ckpt-00000006"]
    (out / "ckpt-00000006" / "state.json").unlink()
    with pytest.raises(checkpoint.CheckpointError, match="no complete checkpoint"):
        checkpoint.open_checkpoint(out)
    (out / "ckpt-00000005" / "model.safetensors").write_bytes(b"junk")
    with pytest.raises(checkpoint.CheckpointError):
        checkpoint.open_checkpoint(out / "ckpt-00000005").model()


@pytest.mark.parametrize(
    "key,value",
    [("top_k", 7), ("hidden", 48), ("mla_layers", [1, 1]), ("dense_layers", [9]), ("vocab", 0),
     ("rms_eps", 0.0), ("gate_lower_bound", 1.0), ("kda_a_log", "row"), ("n_layers", 2.5),
     ("hidden", "64"), ("hidden", float("inf")), ("specials", {"bos": 320})],
)
def test_bad_config_values_are_named(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key):
        K3Config.from_json({**TINY, key: value})


def test_config_survives_json() -> None:
    config = K3Config.from_json({**TINY, "pruning": {"method": "none"}})
    assert K3Config.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert config.extra == {"pruning": {"method": "none"}}
