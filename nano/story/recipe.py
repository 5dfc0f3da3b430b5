"""How the bundled model is trained: the flags of `nano.train`, in one place.

The K3 architecture is the default of `nano.config.K3Config`: 8 layers (KDA, with MLA at 3 and 7),
width 160, 48 experts of which 4 work per token, vocabulary 2048, 6.44 M parameters.
The DeepSeek-V4 architecture is the default of `nano.dsv4.config.Dsv4Config`: 4 layers (window,
two with an indexer, one dense), width 128, 40 experts of which 4 work per token, vocabulary 2048.
"""

from __future__ import annotations

from pathlib import Path

RECIPE = {
    "--batch": "8",  # rows of 512 tokens, filled with whole stories
    "--seq": "512",
    "--optimizer": "muon",
    "--lr": "3e-3",
    "--muon-lr": "0.02",
    "--warmup": "100",
    "--schedule": "wsd",  # constant, then linear to 2 % from 60 % of the budget
    "--decay-from": "0.6",
    "--min-lr-frac": "0.02",
    "--ema": "0.998",
    "--dropout": "0.1",
    "--dropout-from": "0.25",
    "--qat-frac": "0.1",  # experts in MXFP4 for the last tenth
    "--dtype": "bf16",
    "--log-every": "20",
    "--eval-every": "200",
    "--ckpt-every": "1000000",  # by time only
    "--ckpt-secs": "240",
}
# For a smaller budget: half the batch, less dropout.
RECIPE_DSV4 = {
    "--batch": "4", "--warmup": "50", "--dropout": "0.05", "--dropout-from": "0.5",
}


def train_flags(
    arch: str, data: Path, run: Path, budget: list[str], threads: int, seed: int,
    changes: dict[str, str] | None = None,
) -> list[str]:
    """Arguments of `nano.train`; continues a run that has begun."""
    recipe = RECIPE | (RECIPE_DSV4 if arch == "dsv4" else {}) | (changes or {})
    recipe |= {"--threads": str(threads), "--seed": str(seed)}
    flags = ["--arch", arch, "--data", str(data / "train"), "--out", str(run), *budget]
    flags += [part for item in recipe.items() for part in item]
    return [*flags, "--resume"] if (run / "latest").exists() else flags
