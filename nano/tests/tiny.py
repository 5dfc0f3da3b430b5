"""A tiny model config and a small synthetic corpus that tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nano.config import K3Config

ANIMALS = ("dog", "cat", "bird", "bear", "mouse", "fox")
PLACES = ("park", "forest", "garden", "pond", "house", "hill")
THINGS = ("ball", "box", "hat", "cake", "boat", "kite")
NAMES = ("Lily", "Tom", "Mia", "Sam", "Anna", "Ben")

# All sizes distinct where the format allows it, so that a mix-up of two sizes cannot pass.
TINY: dict[str, Any] = {
    "n_layers": 5, "hidden": 64, "vocab": 320, "n_experts": 6, "top_k": 2, "n_shared": 1,
    "kda_heads": 3, "kda_dim": 16, "kda_fa_rank": 8, "mla_heads": 2, "mla_q_lora": 24,
    "mla_kv_lora": 20, "mla_nope": 32, "mla_rope": 16, "mla_v": 32, "routed_hidden": 32,
    "moe_inter": 32, "shared_inter": 40, "dense_inter": 72, "attn_res_block": 2,
    "mla_layers": [1, 4], "dense_layers": [0],
}


def tiny_config(**changes: Any) -> K3Config:
    return K3Config.from_json({**TINY, **changes})


def story(rng: np.random.Generator) -> str:
    def pick(words: tuple[str, ...]) -> str:
        return words[int(rng.integers(len(words)))]

    name, animal, place, thing = pick(NAMES), pick(ANIMALS), pick(PLACES), pick(THINGS)
    return (
        f"Once upon a time, there was a little {animal} named {name}. {name} went to the {place}. "
        f'"Look, a {thing}!" said {name}. The {animal} took the {thing} to the {pick(PLACES)}. '
        f"It was a good day for {name}. The end."
    )


def write_corpus(path: Path, count: int, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    stories, seen = [], set()
    while len(stories) < count:
        text = story(rng)
        if text not in seen:
            seen.add(text)
            stories.append(text)
    path.write_text("\n<|endoftext|>\n".join(stories) + "\n", encoding="utf-8")
    return path
