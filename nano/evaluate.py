"""Held-out loss, router report and sample battery: `python -m nano.evaluate MODEL`.

MODEL is a `.bin`, a checkpoint or a run directory.  Writes report.json, report.md and samples.txt.
`python -m nano.evaluate curve LOG OUT.png` draws the loss curve of a run.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nano import checkpoint
from nano.battery import MAX_REPEATS, PROMPTS, Verdict, judge, repeated_ngrams, words_of
from nano.bpe import Tokenizer, VocabError
from nano.config import ConfigError
from nano.curve import plot
from nano.decode import Sampler, generate
from nano.documents import DataError, read_documents
from nano.dsv4.tokenizer import Tokenizer as Dsv4Tokenizer
from nano.files import sha256_of, write_atomic, write_json
from nano.heldout import measure
from nano.loading import load_model, tokenizer_beside
from nano.mkim import MkimError
from nano.models import Model
from nano.overlap import NGRAM, TrainingIndex
from nano.stream import open_shards, open_stream

PASS_SHARE = 0.95
MAX_TOP_SHARE = 0.15  # of the calls of a layer that may go to one expert


@dataclass
class Story:
    prompt: str
    text: str
    ids: list[int]
    ended: bool
    verdict: Verdict


def run_battery(
    model: Model, tokenizer: Tokenizer | Dsv4Tokenizer, sampler: Sampler, limit: int,
    known: set[str] | None,
) -> list[Story]:
    """All prompts with the sampler's settings; prompt i uses seed + i."""
    prompts = [[tokenizer.bos, *tokenizer.encode(p)] for p in PROMPTS]
    samplers = [
        Sampler(sampler.temperature, sampler.top_p, sampler.seed + i, sampler.anti_repeat)
        for i in range(len(prompts))
    ]
    outs, ended = generate(model, prompts, samplers, limit, {tokenizer.eos})
    stories = []
    for prompt, ids, done in zip(PROMPTS, outs, ended, strict=True):
        text = tokenizer.decode(ids)
        stories.append(Story(prompt, text, ids, done, judge(prompt, text, known)))
    return stories


def summarise(
    stories: list[Story], sampler: Sampler, limit: int, index: TrainingIndex | None = None
) -> dict[str, Any]:
    copies = {} if index is None else {
        "copied_12grams": sum(index.copied_share(s.ids) for s in stories) / len(stories),
        "longest_copy": max(index.longest_copy(s.ids) for s in stories),
    }
    words = sum(s.verdict.words for s in stories)
    unknown = sum(len(s.verdict.unknown) for s in stories)
    return {
        "temperature": sampler.temperature, "top_p": sampler.top_p, "seed": sampler.seed,
        "anti_repeat": sampler.anti_repeat, "max_tokens": limit, "prompts": len(stories),
        "passed": sum(s.verdict.ok for s in stories),
        "share_passed": sum(s.verdict.ok for s in stories) / len(stories),
        "loops": sum(s.verdict.repeats > MAX_REPEATS for s in stories),
        "ended": sum(s.ended for s in stories), "words": words,
        "known_word_rate": 1 - unknown / max(1, words),
        "repeated_4grams": sum(repeated_ngrams(s.ids) for s in stories) / len(stories),
        "problems": dict(Counter(p.split(":")[0] for s in stories for p in s.verdict.problems)),
        **copies,
    }


def samples_text(groups: list[tuple[dict[str, Any], list[Story]]]) -> str:
    """Raw outputs for reading: prompt and continuation unedited, then the verdict."""
    lines: list[str] = []
    for summary, stories in groups:
        lines.append(f"##### temperature {summary['temperature']} top-p {summary['top_p']} "
                     f"anti-repeat {summary['anti_repeat']} seed {summary['seed']}+prompt\n")
        for number, s in enumerate(stories):
            verdict = "ok" if s.verdict.ok else "; ".join(s.verdict.problems)
            end = "eos" if s.ended else "token limit"
            lines.append(f"--- {number} [{verdict}] ({end})\n{s.prompt}[|]{s.text}\n")
    return "\n".join(lines)


def router_lines(router: dict[str, Any]) -> list[str]:
    lines = ["| layer | max/mean | min/mean | entropy | top expert | dead |",
             "|---|---|---|---|---|---|"]
    for layer, r in router.items():
        lines.append(f"| {layer} | {r['max_over_mean']:.2f} | {r['min_over_mean']:.2f} | "
                     f"{r['entropy']:.4f} | {100 * r['top_share']:.1f} % | {r['dead']} |")
    return lines


def report_text(report: dict[str, Any]) -> str:
    lines = [f"# Evaluation of {report['model']}", ""]
    if "held_out" in report:
        h = report["held_out"]
        lines += [
            "| held-out | value |", "|---|---|",
            f"| bits per byte | {h['bits_per_byte']:.4f} |",
            f"| perplexity per byte | {h['perplexity_per_byte']:.4f} |",
            f"| nats per token | {h['nats_per_token']:.4f} |",
            f"| perplexity per token | {h['perplexity_per_token']:.3f} |",
            f"| tokens, bytes | {h['targets']}, {h['bytes']} |", "",
            "Nats per token by position in the document: "
            + ", ".join(f"{k}: {v:.3f}" for k, v in h["nats_by_position"].items()), "",
            "## Router (held-out text)", "", *router_lines(h["router"]), "",
        ]
    if "battery" in report:
        lines += ["## Battery", "", "| sampling | passed | loops | reached end | known words | "
                  "repeated 4-grams | problems |", "|---|---|---|---|---|---|---|"]
        for b in report["battery"]:
            how = "greedy" if b["temperature"] == 0 else f"T {b['temperature']}, p {b['top_p']}"
            how += f", anti-repeat {b['anti_repeat']}" if b["anti_repeat"] else ""
            problems = ", ".join(f"{k} {v}" for k, v in b["problems"].items()) or "none"
            lines.append(
                f"| {how} | {b['passed']}/{b['prompts']} | {b['loops']} | {b['ended']} | "
                f"{100 * b['known_word_rate']:.2f} % | {100 * b['repeated_4grams']:.1f} % | "
                f"{problems} |"
            )
        copies = [b for b in report["battery"] if "longest_copy" in b]
        if copies:
            last = copies[-1]
            lines += ["", f"Sampled text that stands in the training text word for word: "
                      f"{100 * last['copied_12grams']:.1f} % of its {NGRAM}-token windows; the "
                      f"longest copy has {last['longest_copy']} tokens."]
    return "\n".join(lines) + "\n"


def failures(report: dict[str, Any]) -> list[str]:
    """Which acceptance bars the report misses; the battery counts with its last setting."""
    out = []
    for layer, r in report.get("held_out", {}).get("router", {}).items():
        if r.get("dead", 0) or r.get("calls", 0) == 0:
            out.append(f"layer {layer}: {r.get('dead', 'all')} dead experts")
        if r.get("top_share", 0) >= MAX_TOP_SHARE:
            out.append(f"layer {layer}: one expert takes {100 * r['top_share']:.1f} % of the calls")
    if report.get("battery"):
        last = report["battery"][-1]
        if last["share_passed"] < PASS_SHARE:
            out.append(f"battery: {last['passed']} of {last['prompts']} prompts passed")
    return out


def parse(argv: list[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="nano.evaluate", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", type=Path)
    p.add_argument("--raw", action="store_true", help="checkpoint: weights, not their average")
    p.add_argument("--valid", type=Path, help="prefix of the held-out token stream")
    p.add_argument("--corpus", type=Path, help="training text; its words count as known")
    p.add_argument("--train", type=Path, help="prefix of the training stream: look for copies")
    p.add_argument("--vocab", type=Path, help="vocabulary JSON (default: beside the model)")
    p.add_argument("--tokenizer", type=Path, help="full rank file, for remapped vocabularies")
    p.add_argument("--temperature", type=float, default=0.7)
    p.add_argument("--top-p", type=float, default=0.9)
    p.add_argument("--anti-repeat", type=float, default=0.0)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--max-tokens", type=int, default=256)
    p.add_argument("--no-battery", action="store_true")
    p.add_argument("--threads", type=int)
    p.add_argument("--out", type=Path, default=Path(), help="directory of the three files")
    p.add_argument("--strict", action="store_true", help="exit 1 when an acceptance bar is missed")
    return p.parse_args(argv)


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    model = load_model(args.model, averaged=not args.raw)
    report: dict[str, Any] = {"model": args.model.name}
    if args.model.is_file():
        report["sha256"] = sha256_of(args.model)
    if args.valid:
        report["held_out"] = measure(model, open_stream(args.valid, model.config.vocab)).to_json()
    args.out.mkdir(parents=True, exist_ok=True)
    if not args.no_battery:
        tokenizer = tokenizer_beside(args.model, args.vocab, args.tokenizer)
        known = None
        if args.corpus:
            known = {w for d in read_documents(args.corpus) for w in words_of(d)}
        index = TrainingIndex(open_shards(args.train)[0]) if args.train else None
        groups = []
        for sampler in (Sampler(), Sampler(args.temperature, args.top_p, args.seed,
                                           args.anti_repeat)):
            stories = run_battery(model, tokenizer, sampler, args.max_tokens, known)
            groups.append((summarise(stories, sampler, args.max_tokens, index), stories))
        report["battery"] = [summary for summary, _ in groups]
        write_atomic(args.out / "samples.txt", samples_text(groups).encode())
    report["failures"] = failures(report)
    write_json(args.out / "report.json", report)
    write_atomic(args.out / "report.md", report_text(report).encode())
    return report


def main(argv: list[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    try:
        if argv[:1] == ["curve"]:
            if len(argv) != 3:
                print("usage: nano.evaluate curve LOG OUT.png", file=sys.stderr)
                return 64
            plot(Path(argv[1]), Path(argv[2]))
            return 0
        args = parse(argv)
        if args.threads:
            torch.set_num_threads(args.threads)
        report = evaluate(args)
    except FileNotFoundError as err:
        print(f"nano.evaluate: {err}", file=sys.stderr)
        return 66
    except (DataError, VocabError, ConfigError, MkimError, checkpoint.CheckpointError) as err:
        print(f"nano.evaluate: {err}", file=sys.stderr)
        return 65
    print(report_text(report))
    for failure in report["failures"]:
        print(f"missed: {failure}", file=sys.stderr)
    return 1 if args.strict and report["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
