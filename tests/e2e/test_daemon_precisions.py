"""One model in several precisions: each run is what it is alone, whatever the others use."""

from __future__ import annotations

import contextlib
import signal
from typing import Any

import pytest
from daemon_harness import (
    Client,
    Message,
    ReplyError,
    endless,
    error_of,
    model,
    prompt_ids,
    wait_for,
)

from conftest import MakeDaemon

PRECISIONS = ("exact", "bf16", "q8")


def run_args(precision: str, seed: int = 3) -> dict[str, Any]:
    return {
        "model": model(), "ids": prompt_ids(seed, 150), "raw": True, "max_new": 300,
        "precision": precision, "want_logits": True, "window": 4096,
    }  # fmt: skip


def result(client: Client, number: int) -> tuple[list[int], bytes]:
    """Ids and all rows of logits."""
    done = client.finish(number)
    bodies = [one["body"] for one in client.replies[number] if one["type"] == "chunk"]
    return done["ids"], b"".join(one["data"] for one in bodies if one["kind"] == "logits")


def only_model(client: Client) -> Message:
    (one,) = client.call("status")["models"]
    return one


def test_three_precisions_at_once_give_what_each_gives_alone(make_daemon: MakeDaemon) -> None:
    expected = {}
    for precision in PRECISIONS:
        alone = make_daemon().start().client()
        expected[precision] = result(alone, alone.send("run", **run_args(precision)))
        assert only_model(alone)["precisions"] == [precision]
    assert len({logits for _, logits in expected.values()}) == 3, "this test would show nothing"

    daemon = make_daemon().start()
    watcher = daemon.client()
    clients = {precision: daemon.client() for precision in PRECISIONS}
    # All wait for the first load, and then run side by side.
    numbers = {one: client.send("run", **run_args(one)) for one, client in clients.items()}
    for precision, client in clients.items():
        assert result(client, numbers[precision]) == expected[precision], precision
        done = client.replies[numbers[precision]][-1]["body"]
        assert done["trust"]["precision"] == done["options"]["precision"] == precision
    status = watcher.call("status")
    assert status["models"][0]["precisions"] == list(PRECISIONS)
    assert status["counters"]["models_loaded"] == 1
    assert status["counters"]["precisions_prepared"] == 2


def test_a_prepared_precision_is_used_again(client: Client) -> None:
    args = {"model": model(), "ids": [1, 2], "raw": True, "max_new": 3}
    client.call("run", precision="exact", **args)
    before = only_model(client)["memory_bytes"]
    first = client.call("run", precision="bf16", **args)
    held = only_model(client)
    assert held["precisions"] == ["exact", "bf16"] and held["memory_bytes"] > before
    again = client.call("run", precision="bf16", **args)
    assert again["ids"] == first["ids"]
    loaded = client.call("load", model=model(), precision="bf16")
    assert loaded["was_loaded"] is True and loaded["precision"] == "bf16"
    status = client.call("status")
    assert status["counters"]["models_loaded"] == 1
    assert status["counters"]["precisions_prepared"] == 1
    assert status["memory"]["models"] == held["memory_bytes"]
    listed = client.call("models")["models"]
    assert all(one["precisions"] == [] for one in listed if not one["loaded"])


def test_what_a_run_leaves_open_is_the_daemons_setting(make_daemon: MakeDaemon) -> None:
    args = {"model": model(), "ids": [1], "raw": True, "max_new": 1}
    daemon = make_daemon()
    daemon.config.write_text('precision = "bf16"\n')
    client = daemon.start().client()
    assert client.call("run", **args)["trust"]["precision"] == "bf16"
    assert client.call("run", precision="auto", **args)["trust"]["precision"] == "bf16"
    daemon.config.write_text('precision = "exact"\n')
    daemon.signal(signal.SIGHUP)
    wait_for(lambda: client.call("status")["precision"] == "exact")
    assert client.call("load", model=model())["precision"] == "exact"
    # The command line overrides the file.
    other = make_daemon()
    other.config.write_text('precision = "bf16"\n')
    client = other.start("--precision", "exact").client()
    assert client.call("run", **args)["trust"]["precision"] == "exact"
    assert make_daemon().start().client().call("run", **args)["trust"]["precision"] == "q8"


@pytest.mark.parametrize("op", ["run", "load"])
def test_an_unknown_precision_names_those_there_are(client: Client, op: str) -> None:
    more = {"ids": [1], "raw": True} if op == "run" else {}
    error = error_of(client, op, model=model(), precision="f64", **more)
    assert error.code == "bad_request" and "precision" in error.message
    assert all(one in error.message + error.hint for one in PRECISIONS)


def test_a_precision_beyond_the_budget_leaves_the_model_as_it_was(
    make_daemon: MakeDaemon,
) -> None:
    stream = {"precision": "exact", "max_new": 100_000}
    roomy = make_daemon().start().client()
    number = endless(roomy, **stream)
    roomy.wait_tokens(number, 1)
    used = roomy.call("status")["memory"]["used"]
    exact = only_model(roomy)["memory_bytes"]
    more = roomy.call("load", model=model(), precision="bf16")["model"]["memory_bytes"] - exact
    assert more > 0

    daemon = make_daemon().start("--memory", str(used + more // 2))
    client, other = daemon.client(), daemon.client()
    number = endless(client, **stream)
    client.wait_tokens(number, 1)
    run = {"model": model(), "ids": [1], "raw": True, "max_new": 3, "precision": "bf16"}
    error = error_of(other, "run", **run)
    assert error.code == "out_of_memory" and "config set memory" in error.hint
    client.wait_tokens(number, len(client.tokens(number)) + 50)
    status = other.call("status")
    assert status["models"][0]["precisions"] == ["exact"] and status["memory"]["used"] == used
    client.call("cancel", request=number)
    client.finish(number)
    assert len(other.call("run", **run)["ids"]) == 3  # its memory made room
    assert only_model(other)["precisions"] == ["exact", "bf16"]


def test_an_idle_model_makes_room_for_itself_in_another_precision(
    make_daemon: MakeDaemon,
) -> None:
    roomy = make_daemon().start().client()
    held = [
        roomy.call("load", model=model(), precision=one)["model"]["memory_bytes"]
        for one in ("exact", "bf16")
    ]
    tight = make_daemon().start("--memory", str(sum(held) // 2)).client()
    tight.call("load", model=model(), precision="exact")
    told = tight.call("load", model=model(), precision="bf16", keep_alive_ms=-1)
    assert told["was_loaded"] is False and told["model"]["precisions"] == ["bf16"]
    assert told["model"]["keep_alive_ms"] == -1
    assert tight.call("status")["memory"]["used"] == told["model"]["memory_bytes"] < held[0]


def test_a_cancelled_preparation_can_be_had_again(client: Client) -> None:
    client.call("load", model=model(), precision="exact")
    for _ in range(10):
        number = client.send("load", model=model(), precision="bf16")
        client.send("cancel", request=number)  # right behind it
        with contextlib.suppress(ReplyError):  # or it was quicker than the cancel
            client.finish(number)
        wait_for(lambda: only_model(client)["users"] == 0)
    assert client.call("load", model=model(), precision="bf16")["precision"] == "bf16"
    one = only_model(client)
    assert one["precisions"] == ["exact", "bf16"] and one["preparing"] == []
    assert client.call("status")["memory"]["models"] == one["memory_bytes"]
