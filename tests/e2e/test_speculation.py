"""Speculative runs: everything that a client sees, and all that is kept, is that of a plain run."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from daemon_harness import BIN, ROOT, Client, Daemon, Message, error_of, model, prompt_ids
from microkimi import Client as PythonClient
from test_daemon_batches import all_ended, wait_for

MODELS = {
    "k3": str(ROOT / "models" / "story-k3.bin"),
    "deepseek_v4": str(ROOT / "models" / "story-dsv4.bin"),
}
STORY = (
    "Once upon a time, there was a little fox named Tim. Tim loved to run in the big forest. "
    "One day, he found a red ball under a tree. He was very happy and ran home to his mom. "
)
PROPOSERS = [{"spec": 7}, {"spec_rosa": 12}, {"spec": 24, "spec_rosa": 24}, {"spec": 1}]


def run_args(path: str, **more: Any) -> dict[str, Any]:
    # A text that was said twice is often said again.
    args = {"model": path, "raw": True, "precision": "exact", "window": 4096, "max_new": 60,
            "prompt": STORY * 2, "prefix_cache": False, "seed": 3}  # fmt: skip
    if "ids" in more:
        del args["prompt"]
    return args | more


def shown(client: Client, number: int) -> tuple[list[Message], Message]:
    """All chunks, and the end without what may differ: times, and what is told of drafts."""
    done = dict(client.finish(number))
    bodies = [one["body"] for one in client.replies[number] if one["type"] == "chunk"]
    done.pop("timing")
    done.pop("speculation", None)
    done["options"] = {k: v for k, v in done["options"].items() if not k.startswith("spec")}
    return bodies, done


def report(client: Client, number: int) -> Message:
    return client.replies[number][-1]["body"]["speculation"]


@pytest.mark.parametrize("precision", ["exact", "bf16", "q8"])
@pytest.mark.parametrize("architecture", MODELS)
def test_all_that_is_shown_is_that_of_a_plain_run(
    daemon: Daemon, architecture: str, precision: str
) -> None:
    client = daemon.client()
    everything = {"want_logits": True, "want_hidden": True, "want_routes": True, "logprobs": 3}
    drafted = 0
    for temperature, proposer in itertools.product([0, 0.3], PROPOSERS):
        args = run_args(
            MODELS[architecture], precision=precision, temperature=temperature, **everything
        )
        plain = shown(client, client.send("run", **args))
        number = client.send("run", **args, **proposer)
        assert shown(client, number) == plain, (temperature, proposer)
        told = report(client, number)
        assert told["accepted"] + told["rejected"] == told["drafted"]
        assert sum(told["accepted_at"]) == told["accepted"]
        assert sum(told["drafted_at"]) == told["drafted"]
        assert len(told["drafted_at"]) == max(proposer.values())
        # A pick for every token, and perhaps for a stop token; the first came with the prompt.
        picks = told["passes"] + told["singles"] + told["accepted"] + 1
        assert picks - len(plain[1]["ids"]) in (0, 1)
        drafted += told["drafted"]
    assert drafted > 0, "nothing was ever drafted"


@pytest.mark.parametrize("architecture", MODELS)
@pytest.mark.parametrize("lens", ["last", "answer", "all"])
def test_looks_and_penalties_are_those_of_a_plain_run(
    daemon: Daemon, architecture: str, lens: str
) -> None:
    client = daemon.client()
    everything = {"lens": lens, "lens_top": 3, "want_hidden_stats": True, "want_experts": True,
                  "repetition_penalty": 1.1, "dry_multiplier": 0.3, "presence_penalty": 0.1,
                  "temperature": 0.3, "max_new": 40}  # fmt: skip
    args = run_args(MODELS[architecture], **everything)
    plain, plain_done = shown(client, client.send("run", **args))
    number = client.send("run", **args, spec=24, spec_rosa=24)
    bodies, done = shown(client, number)
    assert done == plain_done and done["experts"]["tokens"] > 0
    assert report(client, number)["drafted"] > 0
    # A pass shows its tokens first, and then what was behind them.
    for kind in ("token", "lens", "hidden_stats"):
        mine = [one for one in bodies if one["kind"] == kind]
        assert mine == [one for one in plain if one["kind"] == kind] and mine, kind


def test_looks_without_a_prompt_are_those_of_a_plain_run(daemon: Daemon) -> None:
    client = daemon.client()
    path = MODELS["k3"]
    client.call("run", session="a", model=path, raw=True, prompt=STORY * 2, max_new=1)
    client.call("session_fork", **{"from": "a"}, name="b")
    looks = {"raw": True, "lens": "last", "want_hidden_stats": True, "max_new": 30}
    plain, _ = shown(client, client.send("run", session="a", **looks))
    mine, _ = shown(client, client.send("run", session="b", **looks, spec=24, spec_rosa=24))
    for kind in ("token", "lens", "hidden_stats"):
        told = [one for one in plain if one["kind"] == kind]
        assert told == [one for one in mine if one["kind"] == kind] and told, kind



@pytest.mark.parametrize("architecture", MODELS)
def test_eight_clients_at_once_get_what_they_get_alone(daemon: Daemon, architecture: str) -> None:
    alone = daemon.client()
    rng = random.Random(architecture)
    cases = []
    for seed in range(16):
        text = STORY[: rng.choice([1, 40, 90, len(STORY)])]
        args = run_args(
            MODELS[architecture], prompt=text * rng.choice([1, 2]), seed=seed, want_logits=True,
            max_new=rng.randrange(1, 70), temperature=rng.choice([0, 0, 0.4]),
            precision=rng.choice(["exact", "q8"]),
        )  # fmt: skip
        plain = shown(alone, alone.send("run", **args))
        cases.append((args | rng.choice([*PROPOSERS, {}]), plain))
    clients = [daemon.client() for _ in range(8)]
    runs = [(case, clients[case % 8], clients[case % 8].send("run", **cases[case][0]))
            for case in range(len(cases))]  # fmt: skip
    wait_for(lambda: all_ended(runs), what="for the runs to end")
    for case, client, number in runs:
        assert shown(client, number) == cases[case][1], cases[case][0]


@pytest.mark.parametrize("architecture", MODELS)
def test_stop_texts_and_limits_are_met_exactly(daemon: Daemon, architecture: str) -> None:
    client = daemon.client()
    args = run_args(MODELS[architecture])
    _, whole = shown(client, client.send("run", **args))
    text = whole["text"]
    for at in range(2, len(text) - 2, max(1, len(text) // 12)):
        stops = args | {"stop": [text[at : at + 2]]}
        plain = shown(client, client.send("run", **stops))
        assert shown(client, client.send("run", **stops, spec=24, spec_rosa=8)) == plain
    for limit in (0, 1, 2, 3, 17, 59):
        limited = args | {"max_new": limit}
        plain = shown(client, client.send("run", **limited))
        assert shown(client, client.send("run", **limited, spec=24)) == plain


@pytest.mark.parametrize("architecture", MODELS)
def test_packs_are_those_of_plain_runs(daemon: Daemon, architecture: str, tmp_path: Path) -> None:
    client = daemon.client()

    def saved(name: str, **more: Any) -> tuple[Message, bytes]:
        pack = tmp_path / f"{name}.mkmem"
        done = client.call("run", **run_args(MODELS[architecture], save=str(pack), **more))
        return done, pack.read_bytes()

    for max_new in (1, 30, 60):
        plain, _ = saved("plain", max_new=max_new)
        for at, proposer in enumerate(PROPOSERS):
            fast, _ = saved(f"fast{at}", max_new=max_new, **proposer)
            assert fast["ids"] == plain["ids"]
            assert fast["saved"]["state_id"] == plain["saved"]["state_id"]
            assert fast["saved"]["bytes"] == plain["saved"]["bytes"]
    # And what goes on from one.
    more = {"memory": str(tmp_path / "plain.mkmem"), "ids": prompt_ids(8, 9)}
    plain, _ = saved("second", **more)
    fast, _ = saved("second-fast", **more, spec=16)
    assert fast["ids"] == plain["ids"]
    assert fast["saved"]["state_id"] == plain["saved"]["state_id"]


@pytest.mark.parametrize("architecture", MODELS)
def test_sessions_and_the_prefix_cache_are_those_of_plain_runs(
    daemon: Daemon, architecture: str
) -> None:
    client = daemon.client()
    states = []
    for name, proposer in (("plain", {}), ("fast", {"spec": 16, "spec_rosa": 16})):
        answers = []
        for turn in range(3):
            args = run_args(MODELS[architecture], session=name, ids=prompt_ids(turn, 12) * 2)
            answers.append(client.call("run", **args, **proposer)["ids"])
        turns = client.call("session_show", name=name)["turns"]
        states.append((answers, [one["state_id"] for one in turns]))
    assert states[0] == states[1]
    cached = run_args(MODELS[architecture], ids=prompt_ids(5, 150) * 2) | {"prefix_cache": True}
    first = client.call("run", **cached)
    again = client.call("run", **cached, spec=16)
    assert again["usage"]["cached"] > 0
    assert again["ids"] == first["ids"]


def test_a_cancelled_run_leaves_what_was_said(daemon: Daemon, tmp_path: Path) -> None:
    client = daemon.client()
    pack = tmp_path / "cut.mkmem"
    args = run_args(model(), ids=prompt_ids(1, 20), max_new=100_000, save=str(pack))
    number = client.send("run", **args, spec=8)
    client.wait_tokens(number, 30)
    client.call("cancel", request=number)
    cut = client.finish(number)
    assert cut["finish_reason"] == "cancelled" and len(cut["ids"]) >= 30
    whole = client.call("run", **args | {"max_new": len(cut["ids"])})
    assert whole["ids"] == cut["ids"]
    assert whole["saved"]["state_id"] == cut["saved"]["state_id"]


def test_drafts_are_counted_and_told(daemon: Daemon) -> None:
    client = daemon.client()
    before = client.call("status")["counters"]
    number = client.send("run", **run_args(MODELS["k3"], max_new=300), spec=16, spec_rosa=3)
    done = client.finish(number)
    told = report(client, number)
    after = client.call("status")["counters"]
    gained = {key: after[key] - before.get(key, 0) for key in after}
    assert gained["draft_passes"] == told["passes"] > 0
    assert gained["drafted_tokens"] == told["drafted"]
    assert gained["accepted_tokens"] == told["accepted"]
    assert gained["generated_tokens"] == len(done["ids"])
    assert gained["forwards"] < len(done["ids"]) + 5
    assert (done["options"]["spec"], done["options"]["spec_rosa"]) == (16, 3)
    plain = client.call("run", **run_args(MODELS["k3"]))
    assert "speculation" not in plain and plain["options"]["spec"] == 0
    assert "spec_rosa" in error_of(client, "run", **run_args(MODELS["k3"], spec_rosa=65)).message


def test_a_small_window_holds_drafts_back(daemon: Daemon) -> None:
    client = daemon.client()
    args = run_args(MODELS["k3"], max_new=200)
    plain = client.call("run", **args)
    number = client.send("run", **args | {"window": 3}, spec=24)
    seen = 0
    while not any(one["type"] == "done" for one in client.replies[number]):
        client.pump(1.0)
        replies = client.replies[number]
        chunks = sum(one["type"] == "chunk" for one in replies[seen:])
        assert chunks <= 3, "more than the window allows"
        seen = len(replies)
        client.ack(number)
    assert client.tokens(number) == plain["ids"]


def test_mk_and_python_ask_for_drafts(daemon: Daemon) -> None:
    command = [str(BIN / "mk"), "run", "-m", model(), "--ids", "5,6,7,8,5,6,7,8", "-n", "80"]

    def mk(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *words], env=daemon.env(), capture_output=True, text=True, timeout=60,
            check=True,
        )  # fmt: skip

    plain = json.loads(mk("--json").stdout)
    fast = json.loads(mk("--json", "--spec", "8", "--spec-rosa", "4").stdout)
    assert fast["ids"] == plain["ids"]
    assert "speculation" not in plain and fast["speculation"]["drafted"] >= 0
    assert (fast["options"]["spec"], fast["options"]["spec_rosa"]) == (8, 4)
    assert "tokens accepted" in mk("--stats", "--spec", "8").stderr
    assert "accepted" not in mk("--stats").stderr
    with PythonClient(daemon.socket, autostart=False) as python:
        options: dict[str, Any] = {"ids": [5, 6, 7, 8] * 2, "model": model(), "max_new": 80}
        result = python.run(**options, spec=8, spec_rosa=4)
        assert result.ids == plain["ids"] and result.speculation is not None
        assert result.options.spec_rosa == 4
        assert "speculation" in result.to_dict()
        assert "speculation" not in python.run(**options).to_dict()
