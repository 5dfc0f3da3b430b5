"""The command line of the instruments.

Exit codes: 0 done, 3 the instrument ran and its gate failed, 64 usage, 65 bad data, 66 missing
input, 74 disk.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # models are local files; nothing is fetched

import torch

from nano.bpe import VocabError
from nano.documents import DataError
from nano.files import write_json
from nano.graft import commands
from nano.graft.errors import GateError, GraftError
from nano.graft.report import plain

DTYPES = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"must lie between 0 and 1, not {value}")
    return value


def _common(p: argparse.ArgumentParser, two: bool, texts: bool = True, tokens: int = 65536) -> None:
    if texts:
        p.add_argument("--texts", type=Path, required=True,
                       help="documents: .txt (parted by lines <|endoftext|>), .jsonl, .json")
    p.add_argument("--out", type=Path, required=True, help="directory of the reports")
    p.add_argument("--tokens", type=_count, default=tokens,
                   help="budget of the first model's tokens (%(default)s)")
    p.add_argument("--seq", type=_count, default=512, help="tokens of a piece (%(default)s)")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--threads", type=_count)
    p.add_argument("--dtype", choices=sorted(DTYPES), default="f32", help="of forward passes")
    p.add_argument("--heldout", type=_share, default=0.2, help="share of documents (%(default)s)")
    p.add_argument("--cache", type=Path, help="directory that keeps activations between runs")
    p.add_argument("--stream", choices=("auto", "on", "off"), default="auto",
                   help="hold one layer's weights at a time; auto: when they would fill half of "
                        "the free memory")
    p.add_argument("--tokenizer", help="vocabulary of (the first) model, or `bytes`")
    if two:
        p.add_argument("--tokenizer-b", help="vocabulary of the second model (default: the same "
                                             "rule as for the first)")


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="nano.graft", description="Compare, weigh, test and move parts of models.",
        epilog="A model is a .bin file, a directory with config.json and *.safetensors, or a "
               "training run; MODEL#layers=2-5 looks at some layers only.")
    sub = p.add_subparsers(dest="command", required=True)
    q = sub.add_parser("inspect", help="what a checkpoint is")
    q.add_argument("model")
    q.add_argument("--json", type=Path, help="write it here, not to the terminal")
    q = sub.add_parser("scan", help="are two models compatible, where do they agree")
    q.add_argument("a")
    q.add_argument("b")
    _common(q, True, tokens=8192)
    q.add_argument("--layers", default="auto", help="auto (8 at most), all, or a list: 0,4,7")
    q.add_argument("--pairs", choices=("diag", "all"), default="diag",
                   help="maps along the alignment, or between all looked-at layers")
    _utility(sub)
    _paired(sub)
    _transfer(sub)
    q = sub.add_parser("drop", help="write a model without some routed experts")
    q.add_argument("model")
    q.add_argument("--keep", type=Path, required=True, help='{"layer": [experts]}')
    q.add_argument("--out", type=Path, required=True, help="model to write")
    q = sub.add_parser("convert", help="between .bin and safetensors (Kimi K3, DeepSeek-V4)")
    q.add_argument("model")
    q.add_argument("--to", choices=("mkim", "hf"), required=True)
    q.add_argument("--out", type=Path, required=True)
    q.add_argument("--keep-dtype", choices=("f32",), help="f32: experts that are not MXFP4 yet "
                                                          "stay F32 in a .bin")
    return p


def _utility(sub: argparse._SubParsersAction) -> None:
    q = sub.add_parser("utility", help="what each routed expert is worth")
    q.add_argument("model")
    _common(q, False)
    q.add_argument("--layers", help="a list: 1,2,5 (default: all with experts)")
    q.add_argument("--ablate", choices=("reroute", "drop"), default="reroute",
                   help="reroute: the next best expert enters; drop: the term is left out")
    q.add_argument("--exact", default="64",
                   help="experts measured exactly when there are more than 256; 0 or `all`")
    q.add_argument("--pairs", action="store_true",
                   help="also ablate the 20 most alike pairs together and for each other")
    q.add_argument("--rank", choices=("mass", "worth"), default="mass",
                   help="order of keep-lists: by routed mass, or by what experts are worth "
                        "(exact if all were measured, else to second order)")
    q.add_argument("--keep", type=_count, action="append", default=[], metavar="N",
                   help="write keep-N.json with the N best experts of every layer (repeatable)")


def _paired(sub: argparse._SubParsersAction) -> None:
    q = sub.add_parser("paired", help="is the difference between two models real")
    q.add_argument("a", nargs="?", help="model A, or with --from its table")
    q.add_argument("b", nargs="?", help="model B, or with --from its table")
    q.add_argument("--from", dest="tables", action="store_true",
                   help="A and B are tables of doc_id, bytes, tokens, nll (CSV, JSON Lines, or "
                        "lines of mk score --json)")
    q.add_argument("--texts", type=Path, help="documents")
    q.add_argument("--probes", nargs="?", const="bundled",
                   help="probes: a file, or the bundled forty facts")
    _common(q, True, texts=False)
    q.add_argument("--margin", type=float, help="half-width of what counts as equal (0.005 bits "
                                                "per byte, 0.02 of the probes)")
    q.add_argument("--keep-unspelled", action="store_true",
                   help="also use documents that a vocabulary cannot spell")
    q.add_argument("--gate", choices=("better", "not-worse"),
                   help="exit 3 unless B is better, or is better or equivalent")


def _transfer(sub: argparse._SubParsersAction) -> None:
    q = sub.add_parser("transfer", help="move feed-forward functions of A into B")
    q.add_argument("a")
    q.add_argument("b")
    _common(q, True, texts=True)
    q.add_argument("--plan", default="auto", help="a plan file, or auto")
    q.add_argument("--write", type=Path, metavar="MODEL", help="the grafted model")
    q.add_argument("--dry-run", action="store_true", help="reports only")
    q.add_argument("--min-r2", type=float, default=0.5,
                   help="held-out R2 below which a site is left as it is (%(default)s)")
    q.add_argument("--no-score", action="store_true",
                   help="do not measure bits per byte of donor, target and graft")
    q.add_argument("--fit-gain", action="store_true",
                   help="Gemma: fit every gain of the norm behind, not one factor")
    q.add_argument("--keep-dtype", choices=("f32",), help="f32: changed matrices are written F32")


def main(argv: list[str] | None = None) -> int:
    p = parser()
    try:
        args = p.parse_args(argv)
    except SystemExit as stop:
        return 64 if stop.code else 0
    if args.command == "transfer" and (args.write is None) == (not args.dry_run):
        print("nano.graft: give --write MODEL or --dry-run", file=sys.stderr)
        return 64
    if args.command == "paired" and not _paired_usage(args):
        return 64
    if getattr(args, "threads", None):
        torch.set_num_threads(args.threads)
    if hasattr(args, "dtype"):
        args.dtype = DTYPES[args.dtype]
    try:
        if args.command == "inspect":
            found = plain(commands.inspect(args.model))
            if args.json:
                write_json(args.json, found)
            else:
                print(commands.inspect_text(found))
        else:
            getattr(commands, args.command)(args)
    except GateError as err:
        return _fail(3, err)
    except FileNotFoundError as err:
        return _fail(66, err)
    except (GraftError, DataError, VocabError) as err:
        return _fail(65, err)
    except OSError as err:
        return _fail(74, err)
    return 0


def _paired_usage(args: argparse.Namespace) -> bool:
    wrong = None
    if args.a is None or args.b is None:
        wrong = "give two models, or with --from two tables"
    elif args.tables and (args.texts or args.probes):
        wrong = "--from needs neither --texts nor --probes"
    elif not args.tables and not (args.texts or args.probes):
        wrong = "give --texts, --probes or --from"
    if wrong:
        print(f"nano.graft: {wrong}", file=sys.stderr)
    return wrong is None


def _fail(code: int, err: Exception) -> int:
    print(f"nano.graft: {err}", file=sys.stderr)
    return code
