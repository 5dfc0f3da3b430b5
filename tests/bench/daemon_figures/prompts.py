"""What a prompt costs that was read before: from memory, and from disk."""

from __future__ import annotations

import statistics
from typing import Any

from bench_place import Place, say

from daemon_figures.bench_daemon import Client, Daemon, serving, wait_until
from daemon_figures.figure import Figure

PRECISIONS = ("exact", "bf16", "q8")
# Of the built models every byte is a token.
TEXT = "The quick brown fox jumps over the lazy dog, and the dog does not mind. "
TOKENS = 2_000
STEPS = 3
GROUP = "A chat prompt that was read before"


def _prompt(number: int) -> str:
    text = f"This is talk number {number}. " + TEXT * (TOKENS // len(TEXT) + 1)
    return text[: TOKENS - 20]


def _run(client: Client, model: str, precision: str, prompt: str, **more: Any) -> dict[str, Any]:
    args = {"precision": precision, "max_new": 32, "seed": 1, "stats": True}
    return client.call("run", model=model, prompt=prompt, **{**args, **more})


def _written(client: Client) -> None:
    wait_until(lambda: client.call("pck_info")["totals"]["disk_waiting"] == 0, "states on disk")


def _state_bytes(daemon: Daemon) -> int:
    files = (daemon.home / "state" / "microkimi" / "prefix").glob("*/*.mkmem")
    return max((path.stat().st_size for path in files), default=0)


def _from_disk(client: Client, model: str, precision: str, prompt: str) -> float:
    """First token of a run whose states went from memory with their model."""
    client.call("unload")
    client.call("load", model=model, precision=precision)
    done = _run(client, model, precision, prompt)
    if done["usage"]["cached"] != done["usage"]["prompt_tokens"]:
        raise SystemExit(f"the prompt did not come from disk: {done['usage']}")
    return float(done["timing"]["ttft_ms"])


def _figures_of(place: Place, model: str, precision: str, rounds: int) -> list[Figure]:
    with serving(place) as daemon:
        client = daemon.client()
        client.call("load", model=model, precision=precision)
        _run(client, model, precision, "Warm up.", prefix_cache=False)
        cold = [_run(client, model, precision, _prompt(n)) for n in range(min(rounds, 3))]
        prompt = _prompt(0)
        warm = [_run(client, model, precision, prompt) for _ in range(rounds)]
        _written(client)
        disk = [_from_disk(client, model, precision, prompt) for _ in range(rounds)]
        size = _state_bytes(daemon)
    step = statistics.median(one["timing"]["token_p50_ms"] for one in warm)
    first = statistics.median(one["timing"]["ttft_ms"] for one in warm)
    tokens = cold[0]["usage"]["prompt_tokens"]
    read = statistics.median(one["timing"]["ttft_ms"] for one in cold)
    return [
        Figure(GROUP, f"{precision}: first token, nothing known", read, "ms", None, False,
               f"{tokens:,} tokens; a decode step takes {step:.2f} ms"),
        Figure(GROUP, f"{precision}: from memory", first, "ms"),
        Figure(GROUP, f"{precision}: from memory, in decode steps", first / step, "steps", STEPS),
        Figure(GROUP, f"{precision}: from disk", statistics.median(disk), "ms", None, False,
               f"a file of {size / 1e6:,.1f} MB"),
    ]  # fmt: skip


def prompt_figures(place: Place, model: str, rounds: int) -> list[Figure]:
    figures = []
    for precision in PRECISIONS:
        say(f"prompts that were read before, in {precision}")
        figures += _figures_of(place, model, precision, rounds)
    return figures
