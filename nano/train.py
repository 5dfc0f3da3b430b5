"""Training: `python -m nano.train`.

Exit codes: 0 finished, 64 usage, 65 bad data, 66 missing input, 70 diverged, 74 disk full,
75 stopped early (run again with --resume), 76 checkpoint of another run.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import json
import os
import sys
import time
from pathlib import Path
from typing import IO, Any

# Threads that spin while they wait would take the core from other processes.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from nano import checkpoint, distributed, watchdog
from nano.arch import CONFIGS, Config, load_config
from nano.config import ConfigError
from nano.documents import DataError
from nano.files import provenance, write_json
from nano.optim import OptimConfig
from nano.schedule import Budget, Schedule
from nano.stream import TokenStream, open_shards, open_stream
from nano.trainer import Diverged, Log, TrainConfig, Trainer


def parse(argv: list[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="nano.train", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", type=Path, required=True, help="prefix of the training stream")
    p.add_argument("--valid", type=Path, help="prefix of the held-out stream (default: beside it)")
    p.add_argument("--out", type=Path, required=True, help="run directory")
    p.add_argument("--arch", choices=tuple(CONFIGS), default="k3", help="without --config")
    p.add_argument("--config", type=Path, help="model config, JSON")
    p.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--seq", type=int, default=256)
    p.add_argument("--accum", type=int, default=1, help="batches per step")
    p.add_argument("--steps", type=int)
    p.add_argument("--tokens", type=int)
    p.add_argument("--minutes", type=float, help="training time; the schedule follows it")
    p.add_argument("--deadline", help="end at this time of day, HH:MM, by the local clock")
    p.add_argument("--optimizer", choices=("adamw", "muon"), default="adamw")
    p.add_argument("--lr", type=float, default=3e-4)
    p.add_argument("--muon-lr", type=float, default=0.02)
    p.add_argument("--warmup", type=int, default=200)
    p.add_argument("--schedule", choices=("cosine", "wsd"), default="cosine")
    p.add_argument("--decay-from", type=float, default=0.6, help="wsd: progress where decay starts")
    p.add_argument("--min-lr-frac", type=float, default=0.1)
    p.add_argument("--beta1", type=float, default=0.9)
    p.add_argument("--beta2", type=float, default=0.95)
    p.add_argument("--wd", type=float, default=0.1)
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--dropout", type=float, default=0.0)
    p.add_argument("--dropout-from", type=float, default=0.0, help="progress where dropout starts")
    p.add_argument("--ema", type=float, default=0.0, help="decay of the weight average")
    p.add_argument("--qat-frac", type=float, default=0.0, help="last share with MXFP4 experts")
    p.add_argument("--sampler", choices=("docs", "windows"), default="docs")
    p.add_argument("--doc-mask", choices=("on", "off"), default="on")
    p.add_argument("--ckpt-layers", action="store_true", help="recompute layers, save memory")
    p.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    p.add_argument("--threads", type=int, help="default: physical cores")
    p.add_argument("--log-every", type=int, default=20)
    p.add_argument("--eval-every", type=int, default=250)
    p.add_argument("--ckpt-every", type=int, default=500)
    p.add_argument("--ckpt-secs", type=float, default=600)
    p.add_argument("--keep", type=int, default=3)
    p.add_argument("--max-hours", type=float)
    p.add_argument("--rss-cap", type=float, help="GB")
    p.add_argument("--trim-every", type=int, default=0)
    p.add_argument("--resume", action="store_true", help="continue the run in --out")
    p.add_argument("--allow-data-change", action="store_true")
    p.add_argument("--init", type=Path, help="checkpoint to take weights from, new optimizer")
    p.add_argument("--bench", type=int, metavar="N", help="time N steps, write no checkpoint")
    p.add_argument("--seed", type=int, default=1234)
    p.add_argument("--json", type=Path, help="write a machine-readable result here")
    return p.parse_args(argv)


def budget_of(args: argparse.Namespace) -> Budget:
    if args.bench:
        return Budget(steps=args.bench + 2)
    deadline = None
    if args.deadline:
        now = time.localtime()
        hour, minute = (int(x) for x in args.deadline.split(":"))
        deadline = time.mktime((*now[:3], hour, minute, 0, *now[6:8], -1))
        if deadline <= time.time():
            deadline += 86400
    return Budget(args.steps, args.tokens, args.minutes, deadline)


def model_config(args: argparse.Namespace, shards: list[TokenStream]) -> Config:
    """Config of the run: file or defaults, then --set, then the stream's vocabulary."""
    base = load_config(args.config) if args.config else CONFIGS[args.arch]()
    data, known = dataclasses.asdict(base), {f.name for f in dataclasses.fields(base)} - {"extra"}
    changes: dict[str, Any] = {}
    for item in args.overrides:
        key, _, value = item.partition("=")
        if key not in known:
            raise ConfigError(f"unknown config key: {key}")
        try:
            changes[key] = json.loads(value)
        except ValueError:
            changes[key] = value
    if "n_layers" in changes and not args.config and args.arch == "k3":
        data |= {"mla_layers": None, "dense_layers": None}  # derived from the number of layers
    data |= changes
    data["vocab"] = shards[0].meta["vocab_size"]
    data["specials"] = shards[0].meta["specials"]
    return type(base).from_json({k: v for k, v in data.items() if k in known} | data["extra"])


def train_config(args: argparse.Namespace) -> TrainConfig:
    return TrainConfig(
        batch=args.batch, seq=args.seq, accum=args.accum, seed=args.seed, clip=args.clip,
        dropout=args.dropout, dropout_from=args.dropout_from, ema=args.ema,
        qat_frac=args.qat_frac, bf16=args.dtype == "bf16", sampler=args.sampler,
        doc_mask=args.doc_mask == "on", checkpoint_layers=args.ckpt_layers,
        optim=OptimConfig(args.optimizer, args.lr, args.muon_lr, args.beta1, args.beta2,
                          weight_decay=args.wd, bf16=args.dtype == "bf16"),
        schedule=Schedule(args.schedule, args.warmup, args.min_lr_frac, args.decay_from),
    )


def lock_run(run: Path) -> IO[str]:
    """Holds the run directory; the lock goes with the process."""
    handle = (run / "run.lock").open("w")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as err:
        raise checkpoint.CheckpointError(f"{run}: another process trains here") from err
    return handle


def build(args: argparse.Namespace, group: distributed.Group) -> Trainer:
    shards = open_shards(args.data)
    found = checkpoint.open_checkpoint(args.out) if args.resume else None
    config = found.config if found else model_config(args, shards)
    for shard in shards:
        if int(shard.tokens.max()) >= config.vocab:
            raise DataError(f"{shard.prefix}: ids do not fit vocabulary {config.vocab}")
    prefix = args.valid or args.data.parent / "valid"
    has_valid = args.valid or prefix.with_name(prefix.name + ".meta.json").is_file()
    valid = open_stream(prefix, config.vocab) if has_valid else None
    trainer = Trainer(config, train_config(args), shards, valid, budget_of(args), args.out, group)
    if found:
        trainer.restore(found, args.allow_data_change)
    elif args.init:
        trainer.init_weights(checkpoint.open_checkpoint(args.init))
    group.assert_same(trainer.params)
    return trainer


class Loop:
    """Runs a trainer to the end of its budget, with logging, evaluation and saving."""

    def __init__(self, trainer: Trainer, args: argparse.Namespace) -> None:
        self.trainer, self.args, self.group = trainer, args, trainer.group
        self.dog = watchdog.Watchdog(args.out, args.max_hours, args.rss_cap)
        self.log = Log(args.out / "train.jsonl", self.group.is_main)
        self.interval: list[dict[str, float]] = []
        self.saved_at = time.monotonic()
        self.evaluated_at = -1  # step of the last evaluation
        self.checkpoint_bytes = 12 * sum(p.numel() for p in trainer.params)

    def run(self) -> int:
        self.dog.install()
        t = self.trainer
        while t.next_progress() < 1.0:
            reason = self.dog.reason()
            if self.group.any(reason is not None):
                t.save(self.args.keep)
                self.log.write({"step": t.step, "event": "stopped", "reason": reason or "peer"})
                return watchdog.EXIT_RESUME
            self.interval.append(t.train_step())
            watchdog.notify_systemd("READY=1\nWATCHDOG=1\n"
                                    f"STATUS=step {t.step}, {100 * t.progress:.1f} %")
            if t.step % self.args.log_every == 0:
                self._log()
            if t.valid and t.step % self.args.eval_every == 0:
                self._evaluate()
            if self._save_is_due() and not self._save():
                return watchdog.EXIT_DISK
            if self.args.trim_every and t.step % self.args.trim_every == 0:
                watchdog.trim_memory()
        self._log()
        t.progress = 1.0
        if t.valid and self.evaluated_at != t.step:
            self._evaluate()
        t.save(self.args.keep)
        self.log.write({"step": t.step, "event": "finished"})
        return watchdog.EXIT_DONE

    def _save_is_due(self) -> bool:
        late = time.monotonic() - self.saved_at > self.args.ckpt_secs
        return self.trainer.step % self.args.ckpt_every == 0 or self.group.any(late)

    def _save(self) -> bool:
        if self.group.any(self.dog.disk_is_low(self.checkpoint_bytes)):
            checkpoint.prune(self.args.out, 1)
            if self.dog.disk_is_low(self.checkpoint_bytes):
                return False
        self.trainer.save(self.args.keep)
        self.saved_at = time.monotonic()
        return True

    def _log(self) -> None:
        if not self.interval:
            return
        t, rows = self.trainer, self.interval
        seconds = sum(r["seconds"] for r in rows)
        self.log.write({
            "step": t.step, "tokens": t.tokens, "epoch": t.sampler.epoch, "progress": t.progress,
            "loss": sum(r["loss"] for r in rows) / len(rows), "lr_scale": rows[-1]["scale"],
            "norm": rows[-1]["norm"], "tok_s": sum(r["tokens"] for r in rows) / seconds,
            "rss_mb": watchdog.resident_bytes() / 1e6, "seconds": t.seconds,
            "skipped": len(t.skipped),
        })
        self.interval = []

    def _evaluate(self) -> None:
        t = self.trainer
        found = t.evaluate()
        self.evaluated_at = t.step
        self.log.write({"step": t.step, "event": "eval", **found, "router": t.router_report()})
        score = min(v for k, v in found.items() if k.endswith("_bpb"))
        if t.best is None or score < t.best:
            t.best = score
            path = t.save(self.args.keep)
            if path is not None:
                checkpoint.mark_best(self.args.out, path)


def bench(trainer: Trainer, steps: int) -> dict[str, Any]:
    """Times steps after two for warming up."""
    for _ in range(2):
        trainer.train_step()
    rows = [trainer.train_step() for _ in range(steps)]
    rates = sorted(r["tokens"] / r["seconds"] for r in rows)
    return {
        "steps": steps, "tok_s_median": rates[len(rates) // 2],
        "tok_s_p10": rates[len(rates) // 10], "tok_s_p90": rates[(9 * len(rates)) // 10],
        "rss_mb": watchdog.resident_bytes() / 1e6, "loss": rows[-1]["loss"],
        "parameters": sum(p.numel() for p in trainer.params),
    }


def run(args: argparse.Namespace) -> int:
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    group = distributed.start()
    args.out.mkdir(parents=True, exist_ok=True)
    lock = lock_run(args.out) if group.is_main else None
    try:
        if not args.resume and not args.bench and (args.out / "latest").exists():
            raise checkpoint.CheckpointError(f"{args.out}: holds a run already (use --resume)")
        trainer = build(args, group)
        if args.bench:
            result = bench(trainer, args.bench)
            print(json.dumps(result, indent=1))
            if args.json:
                write_json(args.json, result)
            return watchdog.EXIT_DONE
        loop = Loop(trainer, args)
        loop.log.truncate_after(trainer.step)
        if group.is_main:
            write_json(args.out / "run.json", {
                "model": trainer.model.config.to_json(),
                "train": dataclasses.asdict(trainer.config),
                "provenance": provenance(args.seed, []),
            })
        code = loop.run()
        if args.json and group.is_main:
            write_json(args.json, {"exit": code, **trainer.state()})
        return code
    finally:
        if lock:
            lock.close()
        distributed.stop(group)


def main(argv: list[str] | None = None) -> int:
    try:
        return run(parse(argv))
    except (DataError, ConfigError) as err:
        code, message = watchdog.EXIT_DATA, str(err)
    except FileNotFoundError as err:
        code, message = watchdog.EXIT_MISSING, str(err)
    except Diverged as err:
        code, message = watchdog.EXIT_DIVERGED, str(err)
    except checkpoint.CheckpointError as err:
        code, message = watchdog.EXIT_CONFIG, str(err)
    except ValueError as err:
        code, message = watchdog.EXIT_USAGE, str(err)
    except OSError as err:
        code, message = watchdog.EXIT_DISK, str(err)
    print(f"nano.train: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
