"""The report that lies beside the bundled model: recipe, course, measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nano.curve import read_log
from nano.evaluate import report_text


def summarise_run(log: Path) -> dict[str, Any]:
    """First and last state of a run, and the held-out course."""
    records = read_log(log)
    train = [r for r in records if "loss" in r]
    evals = [r for r in records if r.get("event") == "eval"]
    last = train[-1]
    return {
        "steps": last["step"], "tokens": last["tokens"], "epochs": last["epoch"] + 1,
        "minutes": last["seconds"] / 60, "skipped": last["skipped"],
        "first_loss": train[0]["loss"], "last_loss": last["loss"],
        "tok_s": sorted(r["tok_s"] for r in train)[len(train) // 2],
        "evals": [{k: e[k] for k in ("step", "valid", "valid_ema") if k in e} for e in evals],
    }


def write_report(
    path: Path, run: Path, corpus: dict[str, Any], evaluation: dict[str, Any],
    exported: dict[str, Any], before: dict[str, Any], baseline: dict[str, float] | None,
) -> None:
    """`before`: held-out numbers of the same weights before they were rounded for export."""
    settings = json.loads((run / "run.json").read_text())
    course = summarise_run(run / "train.jsonl")
    model, held = settings["model"], evaluation["held_out"]
    stem = path.name.removesuffix(".report.md")
    lines = [
        f"# {stem}", "",
        f"A {_kind(model)} model trained from scratch on short English stories.", "",
        "## Files", "",
        f"* `{stem}.bin`: {exported['bytes']} bytes, SHA-256 `{exported['sha256']}`",
        f"* {_vocabulary_files(exported)}: its own byte-level BPE vocabulary",
        f"* `{stem}.samples.txt`: every output of the battery, unedited",
        f"* `{stem}.train.jsonl`, `{stem}.curve.png`: the log and its curve", "",
        "## Data", "",
        f"{corpus['stories_read']} stories read, {corpus['stories_kept']} used after cleaning "
        f"(stories whose boundary was lost are parted; dropped: {corpus['dropped']}), "
        f"{corpus['tokens_per_epoch']} tokens per epoch. Each epoch after the first exchanges "
        f"names in half of the stories ({corpus['names']} known names). TinyStories (Ronen Eldan "
        "and Yuanzhi Li, licence CDLA-Sharing-1.0); the text itself is not part of this "
        "repository.", "",
        "## Recipe", "",
        "| | |", "|---|---|",
        *_architecture(model),
        *(f"| {key} | {value} |" for key, value in _flat(settings["train"]).items()),
        f"| steps, tokens | {course['steps']}, {course['tokens']} "
        f"(about {course['tokens'] / corpus['tokens_per_epoch']:.1f} epochs) |",
        f"| training time | {course['minutes']:.0f} minutes on one shared core, median "
        f"{course['tok_s']:.0f} tokens/s |", "",
        "## Course", "", "| step | held-out nats/token | averaged weights |", "|---|---|---|",
        *(f"| {e['step']} | {e.get('valid', 0):.3f} | {e.get('valid_ema', 0):.3f} |"
          for e in course["evals"]), "",
        f"![loss curve]({stem}.curve.png)", "",
        f"Rounding for export (MXFP4 experts, relative error "
        f"{100 * exported['expert_relative_error']:.1f} %) changes the held-out loss from "
        f"{before['bits_per_byte']:.4f} to {held['bits_per_byte']:.4f} bits per byte.", "",
    ]
    if baseline:
        lines += [f"An interpolated Kneser-Ney 5-gram over the same tokens reaches "
                  f"{baseline['bits_per_byte']:.3f} bits per byte.", ""]
    text = report_text(evaluation).replace(f"# Evaluation of {evaluation['model']}",
                                           "## Evaluation of the exported file")
    text = text.replace("\n## Router", "\n### Router").replace("\n## Battery", "\n### Battery")
    path.write_text("\n".join(lines) + "\n" + text, encoding="utf-8")


def _kind(model: dict[str, Any]) -> str:
    return "DeepSeek-V4" if "ds" in model else "Kimi K3"


def _vocabulary_files(exported: dict[str, Any]) -> str:
    names = (Path(f).name for f in exported["files"] if not f.endswith(".bin"))
    return ", ".join(f"`{name}`" for name in names)


def _architecture(model: dict[str, Any]) -> list[str]:
    """Rows of the recipe's table."""
    if "ds" in model:
        ds = model["ds"]
        return [
            f"| layers | {ds['n_layers']}, tokens per compressed row {ds['compress_ratios']}, "
            f"window {ds['sliding_window']}, {ds['index_topk']} rows picked |",
            f"| width, vocabulary | {ds['hidden']} in {ds['hc_mult']} streams, {ds['vocab']} |",
            f"| heads | {ds['n_heads']} of {ds['head_dim']}, one shared key and value |",
            f"| experts | {ds['n_routed_experts']}, {ds['num_experts_per_tok']} per token, "
            f"{ds['hidden']} x {ds['moe_intermediate_size']}; {ds['num_hash_layers']} layer(s) "
            "routed by token id |",
        ]
    return [
        f"| layers | {model['n_layers']} (MLA at {model['mla_layers']}, dense at "
        f"{model['dense_layers']}) |",
        f"| width, vocabulary | {model['hidden']}, {model['vocab']} |",
        f"| experts | {model['n_experts']}, {model['top_k']} per token, "
        f"{model['routed_hidden']} x {model['moe_inter']} |",
    ]


def _flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            out |= _flat(value, f"{prefix}{key}.")
        else:
            out[prefix + key] = value
    return out
