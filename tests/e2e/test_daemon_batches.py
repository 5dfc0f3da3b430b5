"""Whatever else runs in a step, a run is what it is alone: ids and every bit of its logits.

The mix has joins while others decode, prompts of many lengths read in pieces between the tokens,
cancels and clients that leave, interactive requests and the background.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from daemon_harness import GOLDEN, Client, Daemon, model, prompt_ids, running, wait_for

DSV4 = GOLDEN.parent / "dsv4" / "a" / "model.bin"
MODELS = {"k3": model(), "deepseek_v4": str(DSV4)}
Result = tuple[list[int], bytes]


def run_args(path: str, precision: str, seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    return {
        "model": path, "raw": True, "precision": precision, "want_logits": True, "window": 4096,
        "prefix_cache": False,  # everything is read again
        # Around the block of 64 tokens, and far from it.
        "ids": prompt_ids(seed, rng.choice([1, 17, 63, 64, 65, 130, 257, 400])),
        "max_new": rng.randrange(20, 50),
        "temperature": rng.choice([0, 0.8]), "seed": seed,
        "priority": rng.choice(["interactive", "background"]),
    }  # fmt: skip


def result(client: Client, number: int) -> Result:
    done = client.finish(number)
    bodies = [one["body"] for one in client.replies[number] if one["type"] == "chunk"]
    return done["ids"], b"".join(one["data"] for one in bodies if one["kind"] == "logits")


def disturb(daemon: Daemon, path: str, precision: str, rng: random.Random) -> None:
    """Somebody comes and goes in the middle: a client that leaves, and a cancelled run."""
    args = {"model": path, "raw": True, "precision": precision, "max_new": 500, "window": 4096}
    with Client(daemon.socket) as gone:
        gone.send("run", ids=prompt_ids(rng.randrange(1000), rng.randrange(1, 300)), **args)
        number = gone.send("run", ids=prompt_ids(rng.randrange(1000), 5), **args)
        gone.wait_tokens(number, rng.randrange(1, 4))
        gone.call("cancel", request=number)


def all_ended(runs: list[tuple[int, Client, int]]) -> bool:
    """Looks at all of them, so that no client is silent for so long that its run is cancelled."""
    ended = True
    for _, client, number in runs:
        client.pump(0.02)
        client.ack(number)
        replies = client.replies[number]
        ended = ended and bool(replies) and replies[-1]["type"] in ("done", "error")
    return ended


@pytest.mark.parametrize("precision", ["exact", "bf16", "q8"])
@pytest.mark.parametrize("architecture", MODELS)
def test_a_run_in_a_mixed_batch_is_the_run_alone(
    daemon: Daemon, architecture: str, precision: str
) -> None:
    path = MODELS[architecture]
    assert Path(path).exists()
    rng = random.Random(architecture + precision)
    alone = daemon.client()
    seeds = range(10)
    expected = {}
    for seed in seeds:
        args = run_args(path, precision, seed)
        expected[seed] = result(alone, alone.send("run", **args))
        assert len(expected[seed][1]) >= 4 * len(expected[seed][0])
    before = alone.call("status")["counters"]

    clients = [daemon.client() for _ in range(3)]
    open_runs: list[tuple[int, Client, int]] = []
    for seed in seeds:
        client = clients[seed % 3]
        number = client.send("run", **run_args(path, precision, seed))
        open_runs.append((seed, client, number))
        if seed % 3 == 1:
            disturb(daemon, path, precision, rng)
    wait_for(lambda: all_ended(open_runs), what="for the runs to end")
    for seed, client, number in open_runs:
        assert result(client, number) == expected[seed], seed
    wait_for(lambda: running(alone) == [])
    after = alone.call("status")["counters"]
    forwards, tokens = (after[name] - before[name] for name in ("forwards", "generated_tokens"))
    # Each token but the first of a run would take a pass of its own, and so would pieces of
    # prompts.
    assert forwards < tokens, "nothing shared a step"
