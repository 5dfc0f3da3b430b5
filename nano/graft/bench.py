"""Times of the two figures in docs/graft.md: `python -m nano.graft.bench scan|transfer`.

`scan` makes two random llama-style checkpoints of about 1 GB (bf16, width 1,024, 24 layers) and
scans them; `transfer` moves one feed-forward layer of width 1,024 of one shallow random model into
another, refit included.  The instrument runs in a process of its own, whose wall time, processor
time and largest resident memory are printed as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from nano.graft import codecs
from nano.graft.write import Item, write_safetensors

SIZES = {"scan": (24, 1024, 4096, 32768), "transfer": (2, 1024, 2048, 512)}
WORDS = "the sun little dog ran to a hill and saw one bird there was great joy in town".split()


def config(layers: int, d: int, inner: int, vocab: int) -> dict[str, Any]:
    return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
            "num_hidden_layers": layers, "hidden_size": d, "intermediate_size": inner,
            "vocab_size": vocab, "num_attention_heads": d // 64, "num_key_value_heads": d // 64,
            "head_dim": 64, "rms_norm_eps": 1e-6, "max_position_embeddings": 2048,
            "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2}


def write_model(folder: Path, layers: int, d: int, inner: int, vocab: int, seed: int) -> int:
    """A random model; returns the bytes of its file."""
    rng = np.random.Generator(np.random.Philox(seed))
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, d)}
    for i in range(layers):
        p = f"model.layers.{i}."
        shapes |= {f"{p}self_attn.{n}_proj.weight": (d, d) for n in "qkvo"}
        shapes |= {f"{p}mlp.gate_proj.weight": (inner, d), f"{p}mlp.up_proj.weight": (inner, d),
                   f"{p}mlp.down_proj.weight": (d, inner)}
        shapes |= {f"{p}{n}.weight": (d,) for n in ("input_layernorm", "post_attention_layernorm")}
    shapes |= {"model.norm.weight": (d,), "lm_head.weight": (vocab, d)}

    def data(shape: tuple[int, ...]) -> np.ndarray:
        if len(shape) == 1:
            values = 1 + 0.1 * rng.standard_normal(shape, np.float32)
        else:
            values = rng.standard_normal(shape, np.float32) * np.float32(shape[1] ** -0.5)
        return codecs.plain_from_f32("BF16", values)

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config(layers, d, inner, vocab)))
    items = [Item(name, "BF16", shape, lambda s=shape: data(s)) for name, shape in shapes.items()]
    write_safetensors(folder / "model.safetensors", items)
    return (folder / "model.safetensors").stat().st_size


def write_texts(path: Path, size: int) -> None:
    rng = np.random.Generator(np.random.Philox(1))
    with path.open("w") as out:
        while size > 0:
            text = " ".join(WORDS[i] for i in rng.integers(0, len(WORDS), 60))
            out.write(json.dumps({"text": text}) + "\n")
            size -= len(text)


def run(args: list[str]) -> dict[str, float]:
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "nano.graft", *args], check=False,
                          env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"})
    if done.returncode not in (0, 3):
        raise SystemExit(f"nano.graft {args[0]} failed with {done.returncode}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"wall_seconds": round(time.monotonic() - begin, 1),
            "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
            "max_rss_mb": round(used.ru_maxrss / 1024)}


def main() -> None:
    p = argparse.ArgumentParser(prog="nano.graft.bench", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("scan", "transfer"))
    p.add_argument("--tokens", type=int, help="default 2048 for scan, 40000 for transfer")
    p.add_argument("--dtype", default="f32", choices=("f32", "bf16"))
    p.add_argument("--stream", default="on", choices=("on", "off"))
    args = p.parse_args()
    tokens = args.tokens or {"scan": 2048, "transfer": 40_000}[args.what]
    with tempfile.TemporaryDirectory(prefix="graft-bench-") as folder:
        root = Path(folder)
        sizes = [write_model(root / n, *SIZES[args.what], seed) for seed, n in enumerate("ab")]
        write_texts(root / "texts.jsonl", 2 * tokens)
        common = [str(root / "a"), str(root / "b"), "--texts", str(root / "texts.jsonl"),
                  "--tokenizer", "bytes", "--tokens", str(tokens), "--out", str(root / "out"),
                  "--dtype", args.dtype, "--stream", args.stream]
        if args.what == "transfer":
            plan = {"sites": [{"from": {"layer": 0, "ffn": "dense"},
                               "to": {"layer": 0, "ffn": "dense"}}]}
            (root / "plan.json").write_text(json.dumps(plan))
            common += ["--plan", str(root / "plan.json"), "--dry-run", "--no-score"]
        found = run([args.what, *common])
    print(json.dumps({"what": args.what, "tokens": tokens, "file_mb": [s >> 20 for s in sizes],
                      **found}))


if __name__ == "__main__":
    main()
