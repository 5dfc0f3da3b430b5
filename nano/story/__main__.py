"""The bundled story model in one command: `python -m nano.story`.

Cleans the corpus, trains a vocabulary, trains the model, exports it and measures the exported
file.  Every stage is kept in `--work`; the same command continues after an interruption.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from nano import evaluate, train
from nano.arch import CONFIGS
from nano.bpe import VocabError
from nano.checkpoint import CheckpointError, open_checkpoint
from nano.curve import plot
from nano.documents import DataError
from nano.export import ExportOptions, export
from nano.heldout import measure
from nano.loading import load_model
from nano.ngram import five_gram
from nano.story.recipe import train_flags
from nano.story.report import write_report
from nano.story.streams import EPOCHS, VOCAB_TOKENS, VOCABULARY, build_streams
from nano.stream import open_shards, open_stream

MAX_BYTES = 12_000_000
MAX_EXPORT_LOSS = 0.015  # bits per byte


def parse(argv: list[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="nano.story", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--corpus", type=Path, required=True, help="stories, <|endoftext|> between them")
    p.add_argument("--valid", type=Path, required=True, help="held-out stories, same form")
    p.add_argument("--out", type=Path, default=Path("models"), help="folder of the model's files")
    p.add_argument("--work", type=Path, required=True, help="folder for streams and checkpoints")
    p.add_argument("--arch", choices=tuple(CONFIGS), default="k3")
    p.add_argument("--name", help="stem of the model's files (default: story-ARCH)")
    p.add_argument("--steps", type=int, help="training steps of 4096 tokens")
    p.add_argument("--minutes", type=float, help="training time instead of steps")
    p.add_argument("--deadline", help="end training at HH:MM instead")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--spine", choices=("f32", "bf16"), default="f32")
    p.add_argument("--vocab-tokens", type=int, default=VOCAB_TOKENS)
    p.add_argument("--epochs", type=int, default=EPOCHS, help="augmented copies of the corpus")
    p.add_argument("--max-tokens", type=int, default=256, help="length of the battery's texts")
    p.add_argument("--train-flag", action="append", default=[], metavar="FLAG=VALUE",
                   help="change the recipe, e.g. --train-flag=--batch=4")
    p.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides",
                   help="change the model config")
    args = p.parse_args(argv)
    args.name = args.name or f"story-{args.arch}"
    if sum(x is not None for x in (args.steps, args.minutes, args.deadline)) != 1:
        p.error("give one of --steps, --minutes, --deadline")
    return args


def budget_flags(args: argparse.Namespace) -> list[str]:
    if args.steps is not None:
        return ["--steps", str(args.steps)]
    if args.minutes is not None:
        return ["--minutes", str(args.minutes)]
    return ["--deadline", args.deadline]


def prepare(args: argparse.Namespace, data: Path) -> dict[str, Any]:
    """Streams of the corpus, built once."""
    done = data / "corpus.json"
    if done.is_file():
        return json.loads(done.read_text())
    return build_streams(args.corpus, args.valid, data, args.seed, args.vocab_tokens, args.epochs,
                         args.arch)


def run_training(args: argparse.Namespace, data: Path, run: Path) -> int:
    """0 when the budget is used up; finished runs are not touched."""
    if (run / "latest").exists() and open_checkpoint(run).state["finished"]:
        return 0
    changes = dict(item.split("=", 1) for item in args.train_flag)
    flags = train_flags(
        args.arch, data, run, budget_flags(args), args.threads, args.seed, changes
    )
    for item in args.overrides:
        flags += ["--set", item]
    return train.main(flags)


def finish(args: argparse.Namespace, data: Path, run: Path, corpus: dict[str, Any]) -> int:
    """Export of the better weights, evaluation of the exported file, report."""
    args.out.mkdir(parents=True, exist_ok=True)
    valid, stem = open_stream(data / "valid"), args.out / args.name
    before = {name: measure(load_model(run, averaged=name == "ema"), valid).to_json()
              for name in _kinds(run)}
    best = min(before, key=lambda name: before[name]["bits_per_byte"])
    options = ExportOptions(weights=best, spine=args.spine, fold_a_log=True)
    model = stem.with_suffix(".bin")
    exported = export(run, model, options, data / VOCABULARY[args.arch])
    evaluation = evaluate.evaluate(evaluate.parse([
        str(model), "--valid", str(data / "valid"), "--corpus", str(args.corpus),
        "--train", str(data / "train"),
        "--out", str(args.work / "evaluation"), "--threads", str(args.threads),
        "--max-tokens", str(args.max_tokens),
    ]))
    shutil.copyfile(args.work / "evaluation" / "samples.txt", f"{stem}.samples.txt")
    shutil.copyfile(run / "train.jsonl", f"{stem}.train.jsonl")
    plot(run / "train.jsonl", Path(f"{stem}.curve.png"))
    baseline = five_gram(open_shards(data / "train")[0], valid)
    write_report(Path(f"{stem}.report.md"), run, corpus, evaluation, exported, before[best],
                 baseline)
    problems = list(evaluation["failures"])
    if exported["bytes"] > MAX_BYTES:
        problems.append(f"{model} has {exported['bytes']} bytes, more than {MAX_BYTES}")
    loss = evaluation["held_out"]["bits_per_byte"] - before[best]["bits_per_byte"]
    if loss > MAX_EXPORT_LOSS:
        problems.append(f"export costs {loss:.3f} bits per byte")
    for problem in problems:
        print(f"nano.story: missed: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _kinds(run: Path) -> list[str]:
    return ["model", "ema"] if open_checkpoint(run).ema() is not None else ["model"]


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    data, run = args.work / "data", args.work / "run"
    try:
        corpus = prepare(args, data)
        code = run_training(args, data, run)
        return code if code else finish(args, data, run, corpus)
    except FileNotFoundError as err:
        print(f"nano.story: {err}", file=sys.stderr)
        return 66
    except (DataError, VocabError, CheckpointError) as err:
        print(f"nano.story: {err}", file=sys.stderr)
        return 65


if __name__ == "__main__":
    sys.exit(main())
