"""Runs over the real socket: what is asked is what is given."""

from __future__ import annotations

import pytest
from daemon_harness import (
    Client,
    Daemon,
    error_of,
    model,
    prompt_ids,
)


def test_hello_tells_who_answers(daemon: Daemon, client: Client) -> None:
    told = client.call("hello", protocol_min=1, protocol_max=1, build_id="x", client="t", pid=7)
    assert told["pid"] == daemon.pid and told["protocol"] == 1
    error = error_of(client, "hello", protocol_min=90, protocol_max=99, build_id="x")
    assert error.code == "unsupported_version" and error.hint


def test_a_run_streams_its_tokens_and_then_sums_up(client: Client) -> None:
    number = client.send("run", model=model(), prompt="hello", raw=True, max_new=12, logprobs=0)
    done = client.finish(number)
    replies = client.replies[number]
    assert replies[0]["type"] == "accepted"
    chunks = [one["body"] for one in replies if one["type"] == "chunk"]
    assert [one["index"] for one in chunks] == list(range(12))
    assert [one["id"] for one in chunks] == done["ids"]
    assert "".join(one["text"] for one in chunks) + done["rest"] == done["text"]
    assert all(one["logprob"] <= 0 for one in chunks)
    assert done["usage"]["completion_tokens"] == 12
    assert done["prompt_ids"] == client.call("tokenize", model=model(), text="hello")["ids"]
    spelled = client.call("detokenize", model=model(), ids=done["ids"])
    assert spelled["text"] == done["text"]


def test_a_run_can_be_repeated_from_what_it_told(client: Client) -> None:
    args = {"model": model(), "ids": [1, 2, 3], "raw": True, "max_new": 30}
    first = client.call("run", temperature=0.9, top_p=0.95, **args)
    again = client.call("run", temperature=0.9, top_p=0.95, seed=first["options"]["seed"], **args)
    assert again["ids"] == first["ids"]
    other = client.call("run", temperature=0.9, top_p=0.95, **args)
    assert other["options"]["seed"] != first["options"]["seed"]


def test_rows_of_logits_explain_the_greedy_choice(client: Client) -> None:
    number = client.send(
        "run", model=model(), ids=prompt_ids(1, 70), raw=True, max_new=5,
        want_logits=True, want_hidden=True, want_routes=True,
    )  # fmt: skip
    done = client.finish(number)
    rows: dict[str, dict[int, bytes]] = {"logits": {}, "hidden": {}}
    routes: list[int] = []
    for reply in client.replies[number]:
        body = reply["body"]
        if reply["type"] != "chunk" or body["kind"] == "token":
            continue
        if body["kind"] == "routes":
            routes.append(body["position"])
            continue
        row = rows[body["kind"]]
        assert body["offset"] == len(row.get(body["position"], b""))
        row[body["position"]] = row.get(body["position"], b"") + body["data"]
    # After the last token of the prompt and after every generated one.
    assert list(rows["logits"]) == list(range(69, 75))
    assert list(rows["hidden"]) == list(range(75)) and routes == list(range(75))
    for position, chosen in zip(range(69, 74), done["ids"], strict=True):
        logits = memoryview(rows["logits"][position]).cast("f")
        assert max(range(len(logits)), key=lambda i: (logits[i], -i)) == chosen


def logits_of(client: Client, number: int) -> bytes:
    """All rows of logits of a run, as bytes."""
    bodies = [one["body"] for one in client.replies[number] if one["type"] == "chunk"]
    return b"".join(one["data"] for one in bodies if one["kind"] == "logits")


@pytest.mark.parametrize("precision", ["exact", "q8"])
def test_two_clients_at_once_get_what_they_get_alone(daemon: Daemon, precision: str) -> None:
    alone = daemon.client()
    prompts = [prompt_ids(seed, 40 + 37 * seed) for seed in range(8)]
    args = {
        "model": model(), "raw": True, "max_new": 60, "want_logits": True, "precision": precision,
    }  # fmt: skip
    expected = []
    for ids in prompts:
        number = alone.send("run", ids=ids, **args)
        done = alone.finish(number)
        expected.append((done["ids"], logits_of(alone, number)))
    clients = [daemon.client() for _ in range(4)]
    numbers = [clients[i % 4].send("run", ids=ids, **args) for i, ids in enumerate(prompts)]
    before = alone.call("status")["counters"]
    for i, number in enumerate(numbers):
        done = clients[i % 4].finish(number)
        logits = logits_of(clients[i % 4], number)
        assert len(logits) == 61 * 256 * 4
        assert (done["ids"], logits) == expected[i]
    after = alone.call("status")["counters"]
    # They did share steps: else this would show nothing.
    assert after["forwards"] - before["forwards"] < 60 * len(prompts)


def test_a_loaded_model_is_used_again(client: Client) -> None:
    first = client.call("load", model=model())
    assert first["was_loaded"] is False and first["model"]["state"] == "ready"
    assert client.call("load", model=model())["was_loaded"] is True
    client.call("run", model=model(), ids=[1], raw=True, max_new=1)
    assert client.call("status")["counters"]["models_loaded"] == 1
