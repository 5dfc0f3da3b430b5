#!/usr/bin/env python3
"""Runs the lm-evaluation harness on the tasks of tests/data/eval through the Python client.

    python tests/e2e/harness_tools.py --bin build/release/bin    # writes harness.json anew

Needs lm_eval (recorded with 0.4.13), msgpack and pyzmq; fetches nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "eval"
RECORDED = DATA / "harness.json"
MODELS = {name: ROOT / "models" / f"{name}.bin" for name in ("story-k3", "story-dsv4")}


def config(name: str) -> dict[str, Any]:
    """A task of the harness on one of our files."""
    common = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(DATA / f"{name}.jsonl")}},
        "test_split": "test",
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "{{answer}}",
    }
    if name == "greedy":
        # Between prompt and target the harness puts nothing by itself.
        metrics = [{"metric": "acc"}, {"metric": "perplexity"}]
        return common | {
            "output_type": "loglikelihood",
            "doc_to_target": " {{answer}}",
            "metric_list": metrics,
        }
    metrics = [{"metric": "acc"}, {"metric": "acc_norm"}]
    return common | {
        "output_type": "multiple_choice",
        "doc_to_choice": "{{choices}}",
        "metric_list": metrics,
    }


def run(client: Any, model: Path, cache: Path) -> dict[str, Any]:
    """What the harness finds: means, and of every probe the likelihoods and the outcome."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(cache), "HF_HOME": str(cache)}
    import lm_eval
    from microkimi.harness import MicrokimiLM

    lm = MicrokimiLM(str(model), precision="exact", client=client)
    found = lm_eval.simple_evaluate(
        lm, tasks=[config("choices"), config("greedy")], log_samples=True, bootstrap_iters=0
    )
    told: dict[str, Any] = {}
    for name, result in found["results"].items():
        samples = sorted(found["samples"][name], key=lambda one: one["doc_id"])
        told[name] = {
            "acc": result["acc,none"],
            "likelihoods": [[float(one[0]) for one in s["filtered_resps"]] for s in samples],
            "right": [float(s["acc"]) for s in samples],
        }
        if name == "choices":
            told[name]["acc_norm"] = result["acc_norm,none"]
            told[name]["right_norm"] = [float(s["acc_norm"]) for s in samples]
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=Path, default=ROOT / "build" / "release" / "bin")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT / "client" / "python"))
    from microkimi import Client

    with tempfile.TemporaryDirectory(prefix="mk_harness_") as home:
        os.environ |= {"XDG_STATE_HOME": home, "XDG_CONFIG_HOME": home, "HOME": home}
        with Client(Path(home) / "s", daemon=args.bin / "microkimid") as client:
            found = {name: run(client, path, Path(home)) for name, path in MODELS.items()}
            os.kill(client.ping().pid, signal.SIGTERM)
    RECORDED.write_text(json.dumps(found, indent=1) + "\n")
    for name, result in found.items():
        print(name, {task: one["acc"] for task, one in result.items()})


if __name__ == "__main__":
    main()
