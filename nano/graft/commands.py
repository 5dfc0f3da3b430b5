"""What the verbs of the command line do: open models and texts, run, write reports."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from nano.graft import convert as conversion
from nano.graft import drop as dropping
from nano.graft import paired as pairing
from nano.graft import probes as probing
from nano.graft import transfer as grafting
from nano.graft.checkpoint import Checkpoint, open_checkpoint
from nano.graft.errors import GateError, GraftError
from nano.graft.report import draw_matrix, number, plain, write_report
from nano.graft.runner import open_runner
from nano.graft.scan import ScanOptions, scan_lines
from nano.graft.scan import scan as run_scan
from nano.graft.texts import Codec, Corpus, open_codec, read_corpus
from nano.graft.utility_report import utility_report
from nano.graft.write import Writer

BYTES_PER_PARAMETER = 4


def free_memory() -> int:
    """Bytes that the machine can still give."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 1 << 62


def wants_stream(args: argparse.Namespace, models: Sequence[Checkpoint]) -> bool:
    if args.stream != "auto":
        return args.stream == "on"
    largest = max(m.parameters() for m in models) * BYTES_PER_PARAMETER
    return largest > free_memory() / 2


def recorded(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments that decide the result, without paths of this machine."""
    skipped = {"out", "write", "cache", "threads", "command", "json"}
    out = {}
    for key, value in vars(args).items():
        if key in skipped:
            continue
        if key in ("a", "b", "model") and value is not None:
            value = Path(str(value)).name
        out[key] = str(value) if key == "dtype" else value
    return plain(out)


def open_models(stack: ExitStack, *names: str) -> list[Checkpoint]:
    return [stack.enter_context(open_checkpoint(n)) for n in names]


def open_texts(args: argparse.Namespace, models: Sequence[Checkpoint]) -> Corpus:
    given = [args.tokenizer, getattr(args, "tokenizer_b", None) or args.tokenizer]
    codecs = [open_codec(m, g) for m, g in zip(models, given, strict=False)]
    return read_corpus(args.texts, codecs, args.tokens, args.seq, args.heldout, args.seed)


# -- inspect -------------------------------------------------------------------------------------


def inspect(model: str) -> dict[str, Any]:
    with open_checkpoint(model) as m:
        return {**m.info(), "config": m.cfg.to_json(), "tensors": len(m.source.names()),
                "outside": m.outside, "warnings": m.warnings}


def inspect_text(found: dict[str, Any]) -> str:
    c = found["config"]
    lines = [f"{found['path']}: {found['arch']}, {found['params']:,} parameters, "
             f"{found['tensors']} tensors", f"digest {found['digest']}"]
    for key, value in c.items():
        if isinstance(value, list) and value and len(set(map(str, value))) == 1:
            value = f"{value[0]} (all layers)"
        lines.append(f"  {key:<14} {value}")
    return "\n".join([*lines, *(f"warning: {w}" for w in found["warnings"])])


# -- scan ----------------------------------------------------------------------------------------


def scan(args: argparse.Namespace) -> None:
    begin = time.monotonic()
    with ExitStack() as stack:
        a, b = open_models(stack, args.a, args.b)
        layers: str | list[int] = args.layers
        if args.layers not in ("auto", "all"):
            layers = layer_list(args.layers, min(a.cfg.n_layers, b.cfg.n_layers))
        corpus = open_texts(args, (a, b))
        o = ScanOptions(layers, args.pairs, args.seed, wants_stream(args, (a, b)), args.cache,
                        args.dtype)
        r = run_scan(a, b, corpus, o)
        write_report(args.out, "scan", recorded(args), [a.info(), b.info()], corpus.info(), r,
                     a.warnings + b.warnings, scan_lines(r), time.monotonic() - begin)
        draw_matrix(args.out / "alignment.png", r["cka"], "CKA of layers",
                    f"layers of {b.path.name}", f"layers of {a.path.name}",
                    [(r["layers_a"].index(i), r["layers_b"].index(j)) for i, j in r["alignment"]])
    print(f"{r['verdict']}: {args.out / 'report.md'}")


def layer_list(text: str, layers: int) -> list[int]:
    try:
        out = sorted({int(part) for part in text.split(",")})
    except ValueError as err:
        raise GraftError(f"--layers {text}: must be numbers with commas") from err
    if not out or out[0] < 0 or out[-1] >= layers:
        raise GraftError(f"--layers {text}: must lie in 0..{layers - 1}")
    return out


# -- utility -------------------------------------------------------------------------------------


def utility(args: argparse.Namespace) -> None:
    begin = time.monotonic()
    with ExitStack() as stack:
        (model,) = open_models(stack, args.model)
        if args.layers:
            model.chosen = layer_list(args.layers, model.cfg.n_layers)
        corpus = open_texts(args, (model,))
        exact = None if args.exact == "all" else _exact_count(args.exact)
        r, lines = utility_report(model, corpus, args.ablate, exact, args.pairs, args.keep,
                                  args.seed, args.dtype, args.out, args.rank)
        write_report(args.out, "utility", recorded(args), [model.info()], corpus.info(), r,
                     model.warnings, lines, time.monotonic() - begin)
    print(f"{args.out / 'report.md'}")


def _exact_count(text: str) -> int:
    if not text.isdigit():
        raise GraftError(f"--exact {text}: must be a number or all")
    return int(text)


# -- paired --------------------------------------------------------------------------------------


def paired(args: argparse.Namespace) -> None:
    begin = time.monotonic()
    r: dict[str, Any] = {}
    models: list[dict[str, Any]] = []
    warnings: list[str] = []
    info: dict[str, Any] = {}
    if args.tables:
        a, b = (pairing.read_scores(Path(n)) for n in (args.a, args.b))
        r = _documents(args, a, b, False, warnings)
    else:
        with ExitStack() as stack:
            opened = open_models(stack, args.a, args.b)
            models = [m.info() for m in opened]
            r, info = _measured(args, opened, warnings)
    lines = ["# paired", ""]
    if "bits_per_byte" in r:
        lines += pairing.document_lines(r)
        warnings += r["bits_per_byte"]["warnings"]
    if "probes" in r:
        lines += ["", f"Probes: {r['probes']['points']['headline']}"]
        warnings += r["probes"]["points"]["warnings"]
    write_report(args.out, "paired", recorded(args), models, info, r, warnings, lines,
                 time.monotonic() - begin)
    verdicts = [r[k]["verdict"] if k == "bits_per_byte" else r[k]["points"]["verdict"]
                for k in ("bits_per_byte", "probes") if k in r]
    for line in lines:
        if " = " in line and "MDE" in line:
            print(line)
    good = {"better": {"better"}, "not-worse": {"better", "equivalent"}}.get(args.gate or "")
    if good is not None and not set(verdicts) <= good:
        raise GateError(f"gate {args.gate}: the verdict is {', '.join(verdicts)}")


def _documents(args: argparse.Namespace, a: list[pairing.DocScore], b: list[pairing.DocScore],
               same: bool, warnings: list[str]) -> dict[str, Any]:
    a, b, left = pairing.match(a, b, args.keep_unspelled)
    if left:
        kept = "kept" if args.keep_unspelled else "left out"
        warnings.append(f"{len(left)} documents that a model cannot spell are {kept}, such as "
                        f"{left[0]}")
    if not a:
        raise GraftError("no document is left to compare")
    margin = pairing.MARGIN_BITS if args.margin is None else args.margin
    out = pairing.compare_documents(a, b, margin, args.seed, same)
    out["unspelled"] = left
    out["documents"] = [{"doc_id": x.doc, "bytes": x.bytes, "tokens_a": x.tokens,
                         "tokens_b": y.tokens, "nll_a": x.nll, "nll_b": y.nll}
                        for x, y in zip(a, b, strict=True)]
    return out


def _measured(args: argparse.Namespace, models: Sequence[Checkpoint], warnings: list[str]
              ) -> tuple[dict[str, Any], dict[str, Any]]:
    out, info = {}, {}
    given = [args.tokenizer, args.tokenizer_b or args.tokenizer]
    codecs: list[Codec] = [open_codec(m, g) for m, g in zip(models, given, strict=True)]
    corpus = None
    if args.texts:
        corpus = read_corpus(args.texts, codecs, args.tokens, args.seq, args.heldout, args.seed)
        info = corpus.info()
    asked = []
    if args.probes:
        path = probing.BUNDLED if args.probes == "bundled" else Path(args.probes)
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file")
        asked = probing.read_probes(path)
    scores, answers = [], []
    for m, codec in zip(models, codecs, strict=True):
        runner = open_runner(m, wants_stream(args, models), args.dtype)
        if corpus is not None:
            scores.append(pairing.score_documents(runner, codec, corpus.texts, args.seq))
        if asked:
            answers.append(probing.answer(runner, codec, asked))
        del runner
    if scores:
        same = codecs[0].name == codecs[1].name
        out = _documents(args, scores[0], scores[1], same, warnings)
    if answers:
        margin = pairing.MARGIN_POINTS if args.margin is None else args.margin
        out["probes"] = probing.compare_probes(answers[0], answers[1], args.seed, margin)
        out["probes"]["answers"] = {"a": answers[0], "b": answers[1]}
    return out, info


# -- transfer, drop, convert ---------------------------------------------------------------------


def transfer(args: argparse.Namespace) -> None:
    begin = time.monotonic()
    with ExitStack() as stack:
        a, b = open_models(stack, args.a, args.b)
        writer = None if args.dry_run else Writer(b, args.write, args.keep_dtype == "f32")
        corpus = open_texts(args, (a, b))
        o = grafting.Options(args.min_r2, args.fit_gain, args.seed, args.seq,
                             wants_stream(args, (a, b)), args.dry_run, args.keep_dtype == "f32",
                             score=not args.no_score, cache=args.cache, dtype=args.dtype)
        plan = (grafting.auto_plan(a, b, corpus, o) if args.plan == "auto"
                else grafting.read_plan(Path(args.plan), a, b))
        r = grafting.transfer(a, b, corpus, plan, o)
        lines = grafting.transfer_lines(r)
        report = write_report(args.out, "transfer", recorded(args), [a.info(), b.info()],
                              corpus.info(), r, [*a.warnings, *b.warnings, *o.warnings], lines,
                              time.monotonic() - begin)
        if writer is not None and r["grafted"]:
            writer.commit(report)
    left = [s for s in r["sites"] if not s["grafted"]]
    print(f"{r['grafted']} of {len(r['sites'])} sites: {args.out / 'report.md'}")
    if left:
        where = ", ".join(f"{s['to']['layer']} {s['to']['ffn']} ({number(s['after']['r2'])})"
                          for s in left[:5])
        raise GateError(f"held-out R2 below {args.min_r2}, left untouched: {where}"
                        + ("" if r["grafted"] else "; nothing was written"))


def drop(args: argparse.Namespace) -> None:
    with open_checkpoint(args.model) as model:
        keep = dropping.read_keep(args.keep, model)
        dropping.drop_experts(model, keep, args.out)
    count = len(next(iter(keep.values())))
    print(f"{args.out}: {count} of {model.cfg.n_experts} experts in each of {len(keep)} layers")


def convert(args: argparse.Namespace) -> None:
    with open_checkpoint(args.model) as model:
        conversion.convert(model, args.to, args.out, args.keep_dtype == "f32")
    print(args.out)
