"""From raw text to a `.bin` in about a minute: `python -m nano.smoke --out DIR`.

Writes a small text, prepares it, trains a tiny model, kills the training process in the middle,
resumes it, and exports.  The last line of output is JSON with the model file and a prompt.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from nano.checkpoint import CheckpointError, open_checkpoint
from nano.curve import read_log
from nano.files import write_json

CONFIG: dict[str, Any] = {
    "n_layers": 4, "hidden": 64, "n_experts": 8, "top_k": 2, "n_shared": 1, "kda_heads": 2,
    "kda_dim": 32, "kda_fa_rank": 16, "mla_heads": 2, "mla_q_lora": 32, "mla_kv_lora": 32,
    "mla_nope": 32, "mla_rope": 32, "mla_v": 32, "routed_hidden": 32, "moe_inter": 32,
    "shared_inter": 32, "dense_inter": 96, "attn_res_block": 2, "mla_layers": [3],
    "dense_layers": [0], "vocab": 328,
}
STORIES = 300
VOCAB_TOKENS = 320
STEPS = 150
PROMPT = "Once upon a time, there was a little"


def write_stories(path: Path, count: int, seed: int = 0) -> None:
    """Stories from a fixed pattern; short enough to be learnt in a minute."""
    rng = np.random.default_rng(seed)
    animals = "dog cat bird bear mouse fox".split()
    places = "park forest garden pond house hill".split()
    things = "ball box hat cake boat kite".split()
    names = "Lily Tom Mia Sam Anna Ben".split()
    stories: dict[str, None] = {}
    while len(stories) < count:
        animal, place, thing, name = (w[int(rng.integers(6))] for w in
                                      (animals, places, things, names))
        end = places[int(rng.integers(6))]
        stories[
            f"Once upon a time, there was a little {animal} named {name}. {name} went to the "
            f'{place}. "Look, a {thing}!" said {name}. The {animal} took the {thing} to the '
            f"{end}. It was a good day for {name}. The end."
        ] = None
    path.write_text("\n<|endoftext|>\n".join(stories) + "\n", encoding="utf-8")


def run_module(name: str, *args: str) -> None:
    """Runs `python -m nano.<name>`; raises with its output when it fails."""
    done = subprocess.run([sys.executable, "-m", f"nano.{name}", *args], env=environment(),
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"nano.{name} ended with {done.returncode}:\n{done.stderr[-2000:]}")


def environment() -> dict[str, str]:
    root = str(Path(__file__).parents[1])
    path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH")) if p)
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def kill_in_the_middle(flags: list[str], run: Path) -> int:
    """Starts training, kills it without warning after a checkpoint; the step it had saved."""
    process = subprocess.Popen([sys.executable, "-m", "nano.train", *flags], env=environment(),
                               stderr=subprocess.DEVNULL)
    try:
        limit = time.monotonic() + 300
        while time.monotonic() < limit and process.poll() is None:
            if (run / "latest").exists():
                break
            time.sleep(0.02)
        if process.poll() is not None or not (run / "latest").exists():
            raise RuntimeError("training ended before it could be killed")
        process.send_signal(signal.SIGKILL)
        process.wait()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return int(open_checkpoint(run).state["step"])


def smoke(out: Path, steps: int = STEPS) -> dict[str, Any]:
    """Runs every stage in `out`; returns what the next stage (the engine) needs."""
    out.mkdir(parents=True, exist_ok=True)
    if (out / "run").exists():
        raise CheckpointError(f"{out / 'run'} exists already: give an empty --out")
    started = time.monotonic()
    write_stories(out / "raw.txt", STORIES)
    run_module("prepare", "--data", str(out / "raw.txt"), "--out", str(out / "data"),
               "--train-bpe", str(VOCAB_TOKENS), "--valid-frac", "0.05", "--name", "smoke")
    meta = json.loads((out / "data" / "train.meta.json").read_text())
    write_json(out / "config.json", {**CONFIG, "vocab": meta["vocab_size"]})
    flags = [
        "--data", str(out / "data" / "train"), "--out", str(out / "run"),
        "--config", str(out / "config.json"), "--steps", str(steps), "--batch", "4",
        "--seq", "128", "--optimizer", "muon", "--lr", "5e-3", "--warmup", "10",
        "--schedule", "wsd", "--min-lr-frac", "0.05", "--qat-frac", "0.2", "--threads", "1",
        "--ckpt-every", str(max(1, steps // 4)), "--eval-every", str(steps), "--log-every", "10",
    ]
    killed_at = kill_in_the_middle(flags, out / "run")
    run_module("train", *flags, "--resume")
    run_module("export", "--ckpt", str(out / "run"), "--out", str(out / "smoke.bin"),
               "--vocab", str(out / "data" / "smoke.vocab.json"))
    losses = [r["loss"] for r in read_log(out / "run" / "train.jsonl") if "loss" in r]
    if losses[-1] > losses[0] - 1.0:
        raise RuntimeError(f"the model did not learn: loss {losses[0]:.2f} to {losses[-1]:.2f}")
    return {
        "model": str(out / "smoke.bin"), "prompt": PROMPT, "killed_after_step": killed_at,
        "steps": steps, "first_loss": losses[0], "last_loss": losses[-1],
        "seconds": time.monotonic() - started,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="nano.smoke", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="empty or new directory")
    parser.add_argument("--steps", type=int, default=STEPS)
    args = parser.parse_args(argv)
    try:
        result = smoke(args.out, args.steps)
    except (RuntimeError, CheckpointError) as err:
        print(f"nano.smoke: {err}", file=sys.stderr)
        return 70
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
