"""What a prompt's beginning left behind is used again, and changes no bit of an answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_harness import Client, wait_for
from prefix_tools import PRECISIONS, Mk, prompt

from conftest import MakeDaemon


@pytest.fixture(params=["k3", "dsv4"])
def mk(request: pytest.FixtureRequest, make_daemon: MakeDaemon, tmp_path: Path) -> Iterator[Mk]:
    made = Mk(make_daemon(), tmp_path, request.param)
    yield made
    made("stop")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_known_beginnings_give_the_same_bits(mk: Mk, precision: str) -> None:
    talk = prompt(300)
    steps = [talk[:70], talk[:150], talk, talk, talk[:200] + prompt(90, 5), talk[:33]]
    steps += [talk[:200] + prompt(130, 9), talk[:200] + prompt(64, 3), talk[:151], talk[:128]]
    cached = []
    for ids in steps:
        warm, warm_logits = mk.run(ids, precision=precision)
        cold, cold_logits = mk.run(ids, "--no-prefix-cache", precision=precision)
        assert warm["ids"] == cold["ids"]
        assert warm_logits == cold_logits
        assert cold["usage"]["cached"] == 0
        assert warm["usage"]["prompt_tokens"] == len(ids)
        cached.append(warm["usage"]["cached"])
    assert cached[0] == 0
    assert cached[3] == 300  # nothing is read again
    # Where prompts part, a state is left for those that part there, too.
    assert cached[6] >= 192
    assert cached[7] >= 192


def test_a_chat_reads_only_what_is_new(mk: Mk) -> None:
    first = prompt(260)
    mk.run(first)
    longer, _ = mk.run(first + prompt(40, 7))
    assert longer["usage"]["cached"] >= 256


def test_precisions_and_ways_of_reading_are_kept_apart(mk: Mk) -> None:
    ids = prompt(100)
    mk.run(ids)
    for options in [{"precision": "q8"}, {"precision": "bf16"}]:
        told, _ = mk.run(ids, **options)
        assert told["usage"]["cached"] == 0
    told, _ = mk.run(ids, "--no-chunked-prefill")
    assert told["usage"]["cached"] == 0
    told, _ = mk.run(ids)
    assert told["usage"]["cached"] == 100


def test_runs_that_show_every_token_read_every_token(mk: Mk) -> None:
    ids = prompt(80)
    mk.run(ids)
    told, _ = mk.run(ids, "--routes")
    assert told["usage"]["cached"] == 0
    assert sum(len(route["layers"]) > 0 for route in told["routes"]) >= len(ids)


def test_states_are_in_the_ledger_and_go_with_their_model(mk: Mk) -> None:
    mk.run(prompt(200))
    mk.run(prompt(200))
    status = mk.status()
    assert status["memory"]["prefixes"] > 0
    assert status["counters"]["cached_tokens"] == 200
    assert ", prefixes " in mk("status")
    mk("unload", mk.model)
    # Models go on a thread of their own, and states of prompts with them.
    wait_for(lambda: mk.status()["memory"]["prefixes"] == 0)


def test_nothing_is_kept_when_it_is_off(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    daemon = make_daemon()
    config = Path(daemon.env()["XDG_CONFIG_HOME"]) / "microkimi" / "config.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text("prefix_cache = false\n")
    mk = Mk(daemon, tmp_path, "k3")
    mk.run(prompt(100))
    told, _ = mk.run(prompt(100))
    assert told["usage"]["cached"] == 0
    assert mk.status()["memory"]["prefixes"] == 0
    mk("stop")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_two_clients_with_one_long_prompt_read_it_once(mk: Mk, precision: str) -> None:
    mk("load", mk.model, "--precision", precision)
    first, second = mk.place.client(), mk.place.client()
    args = {"model": mk.model, "raw": True, "max_new": 4, "want_logits": True}
    args |= {"precision": precision, "seed": 1}
    talk = prompt(3000)
    before = first.call("status")["counters"]
    numbers = [(one, one.send("run", ids=talk, **args)) for one in (first, second)]
    done = [one.finish(number) for one, number in numbers]
    after = first.call("status")["counters"]
    assert after["prefill_tokens"] - before["prefill_tokens"] == 3000
    assert after["prefix_waits"] - before["prefix_waits"] == 1
    assert sorted(one["usage"]["cached"] for one in done) == [0, 3000]
    assert done[0]["ids"] == done[1]["ids"]

    def logits(client: Client, number: int) -> bytes:
        bodies = [one["body"] for one in client.replies[number] if one["type"] == "chunk"]
        return b"".join(one["data"] for one in bodies if one["kind"] == "logits")

    assert logits(*numbers[0]) == logits(*numbers[1])


def test_whoever_leaves_hands_a_prompt_over(mk: Mk) -> None:
    mk("load", mk.model, "--precision", "exact")
    clients = [mk.place.client() for _ in range(3)]
    args = {"model": mk.model, "raw": True, "max_new": 4, "precision": "exact"}
    talk = prompt(6000)
    runs = [(one, one.send("run", ids=talk, **args)) for one in clients]
    wait_for(lambda: clients[0].call("status")["counters"]["prefix_waits"] == 2)
    clients[0].call("cancel", request=runs[0][1])
    assert clients[0].finish(runs[0][1])["finish_reason"] == "cancelled"
    done = [one.finish(number) for one, number in runs[1:]]
    assert done[0]["ids"] == done[1]["ids"]
    counters = clients[0].call("status")["counters"]
    assert counters["prefill_tokens"] < 2 * 6000
