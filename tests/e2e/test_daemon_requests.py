"""Requests over the real socket: order, limits, cancelling, clients that die or misbehave."""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from daemon_harness import (
    BIN,
    PATIENCE,
    Client,
    Daemon,
    ReplyError,
    copy_model,
    endless,
    make_daemons,
    model,
    running,
    wait_for,
)

MakeDaemon = Callable[[], Daemon]


@pytest.fixture
def make_daemon(tmp_path: Path) -> Iterator[MakeDaemon]:
    yield from make_daemons(tmp_path)


@pytest.fixture
def daemon(make_daemon: MakeDaemon) -> Daemon:
    return make_daemon().start()


@pytest.fixture
def client(daemon: Daemon) -> Client:
    return daemon.client()


def error_of(client: Client, op: str, **args: Any) -> ReplyError:
    with pytest.raises(ReplyError) as caught:
        client.call(op, **args)
    return caught.value


def prompt_ids(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1, 240) for _ in range(length)]


def long_prompt(client: Client, tokens: int = 500_000) -> int:
    return client.send("run", model=model(), ids=prompt_ids(9, tokens), raw=True, max_new=1)


def in_phase(client: Client, phase: str) -> bool:
    return any(one["phase"] == phase for one in running(client))


# ---------------------------------------------------------------- what is asked is what is given


def test_hello_tells_who_answers(daemon: Daemon, client: Client) -> None:
    told = client.call("hello", protocol_min=1, protocol_max=1, build_id="x", client="t", pid=7)
    assert told["pid"] == daemon.pid and told["protocol"] == 1
    error = error_of(client, "hello", protocol_min=90, protocol_max=99, build_id="x")
    assert error.code == "unsupported_version" and error.hint


def test_a_run_streams_its_tokens_and_then_sums_up(client: Client) -> None:
    number = client.send("run", model=model(), prompt="hello", raw=True, max_new=12, logprobs=True)
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


def test_two_clients_at_once_get_what_they_get_alone(daemon: Daemon) -> None:
    alone = daemon.client()
    prompts = [prompt_ids(seed, 40 + 37 * seed) for seed in range(8)]
    expected = [
        alone.call("run", model=model(), ids=ids, raw=True, max_new=60)["ids"] for ids in prompts
    ]
    clients = [daemon.client() for _ in range(4)]
    numbers = [
        clients[i % 4].send("run", model=model(), ids=ids, raw=True, max_new=60)
        for i, ids in enumerate(prompts)
    ]
    for i, number in enumerate(numbers):
        assert clients[i % 4].finish(number)["ids"] == expected[i]


def test_a_loaded_model_is_used_again(client: Client) -> None:
    first = client.call("load", model=model())
    assert first["was_loaded"] is False and first["model"]["state"] == "ready"
    assert client.call("load", model=model())["was_loaded"] is True
    client.call("run", model=model(), ids=[1], raw=True, max_new=1)
    assert client.call("status")["counters"]["models_loaded"] == 1


# ---------------------------------------------------------------- models come and go


def test_bad_models_are_errors_with_a_remedy(client: Client, tmp_path: Path) -> None:
    run = {"ids": [1], "raw": True, "max_new": 1}
    error = error_of(client, "run", model="/nonexistent/x.bin", **run)
    assert error.code == "model_not_found" and "/nonexistent/x.bin" in error.message and error.hint
    assert error_of(client, "run", model="nosuch", **run).code == "model_not_found"
    assert error_of(client, "run", **run).code == "model_not_found"  # no bundled one here
    truncated = copy_model(tmp_path / "m")
    os.truncate(truncated, os.path.getsize(truncated) // 2)
    error = error_of(client, "run", model=truncated, **run)
    assert error.code == "model_corrupt" and truncated in error.message
    foreign = tmp_path / "foreign.bin"
    foreign.write_bytes(os.urandom(5000))
    assert error_of(client, "load", model=str(foreign)).code in ("model_corrupt", "unsupported")
    assert error_of(client, "load", model=str(tmp_path)).code == "bad_request"
    assert client.call("run", model=model(), **run)["ids"]


def test_a_replaced_file_is_a_new_model(client: Client, tmp_path: Path) -> None:
    path = Path(copy_model(tmp_path / "m", "k3a"))
    args = {"model": str(path), "ids": [1, 2], "raw": True, "max_new": 3}
    first = client.call("run", **args)
    other = Path(copy_model(tmp_path / "n", "k3b"))
    for name in ("model.bin", "base.tiktoken", "vocab.json"):
        os.replace(other.parent / name, path.parent / name)
    second = client.call("run", **args)
    assert first["trust"]["fingerprint"] != second["trust"]["fingerprint"]


def test_a_model_truncated_while_loaded_does_not_hurt_the_daemon(
    daemon: Daemon, client: Client, tmp_path: Path
) -> None:
    path = copy_model(tmp_path / "m")
    number = endless(client, model=path)
    client.wait_tokens(number, 20)
    os.truncate(path, 1000)
    before = len(client.tokens(number))
    client.wait_tokens(number, before + 200)  # the weights are in memory
    client.call("cancel", request=number)
    client.finish(number)
    assert error_of(client, "run", model=path, ids=[1], raw=True).code == "model_corrupt"
    assert daemon.alive()


def test_models_in_use_stay_and_idle_ones_go(client: Client) -> None:
    number = endless(client)
    client.wait_tokens(number, 1)
    assert error_of(client, "unload", model=model()).code == "busy"
    assert client.call("unload")["unloaded"] == 0
    client.call("cancel", request=number)
    client.finish(number)
    assert client.call("unload", model=model())["unloaded"] == 1
    assert error_of(client, "unload", model=model()).code == "model_not_found"
    status = client.call("status")
    assert status["models"] == [] and status["memory"]["used"] == 0


def test_keep_alive_unloads(client: Client) -> None:
    client.call("load", model=model(), keep_alive_ms=0)
    wait_for(lambda: client.call("status")["models"] == [])
    client.call("load", model=model(), keep_alive_ms=-1)
    time.sleep(1.5)
    assert len(client.call("status")["models"]) == 1


def test_the_memory_budget_refuses_before_it_is_spent(make_daemon: MakeDaemon) -> None:
    small = make_daemon().start("--memory", "100K").client()
    error = error_of(small, "load", model=model())
    assert error.code == "out_of_memory" and "--memory" in error.message + error.hint
    medium = make_daemon().start("--memory", "20M").client()
    args = {"model": model(), "ids": [1], "raw": True}
    assert medium.call("run", max_new=5, **args)["ids"]
    assert error_of(medium, "run", max_new=900_000, **args).code == "out_of_memory"
    assert medium.call("run", max_new=5, **args)["ids"]


def test_idle_models_make_room_for_the_next(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    daemon = make_daemon().start()
    needed = daemon.client().call("load", model=model("k3b"))["model"]["memory_bytes"]
    tight = make_daemon().start("--memory", str(needed + 200_000)).client()
    tight.call("load", model=model("k3a"), keep_alive_ms=-1)
    tight.call("load", model=model("k3b"))
    loaded = [one["path"] for one in tight.call("status")["models"]]
    assert loaded == [model("k3b")]


# ---------------------------------------------------------------- control while work goes on


def test_status_answers_while_a_long_prompt_is_read(client: Client, daemon: Daemon) -> None:
    number = long_prompt(client)
    watcher = daemon.client()
    wait_for(lambda: in_phase(watcher, "prefill"))
    took = []
    for _ in range(100):
        start = time.perf_counter()
        told = watcher.call("status")
        took.append((time.perf_counter() - start) * 1000)
    assert told["requests"], "the prompt was read too fast for this test"
    # Generous: tests run on machines that do other things too. A blocked loop takes seconds.
    assert statistics.median(took) < 100, took
    client.call("cancel", request=number)


def test_cancel_stops_a_stream_within_a_token(client: Client) -> None:
    number = endless(client)
    client.wait_tokens(number, 10)
    assert client.call("cancel", request=number)["found"] is True
    done = client.finish(number)
    assert done["finish_reason"] == "cancelled"
    assert done["ids"] == client.tokens(number)  # nothing after the cancel is lost or added
    assert client.call("cancel", request=number)["found"] is False
    assert running(client) == []


def test_cancel_stops_inside_a_prompt(client: Client) -> None:
    number = long_prompt(client)
    wait_for(lambda: in_phase(client, "prefill"))
    start = time.monotonic()
    client.call("cancel", request=number)
    assert client.finish(number)["usage"]["completion_tokens"] == 0
    assert time.monotonic() - start < 5
    assert client.call("status")["memory"]["sequences"] == 0


def test_a_request_of_another_connection_cannot_be_cancelled(daemon: Daemon) -> None:
    mine, theirs = daemon.client(), daemon.client()
    number = endless(mine)
    mine.wait_tokens(number, 1)
    assert theirs.call("cancel", request=number)["found"] is False
    before = len(mine.tokens(number))
    mine.wait_tokens(number, before + 10)


def test_a_deadline_ends_a_run(client: Client) -> None:
    start = time.monotonic()
    with pytest.raises(ReplyError) as caught:
        client.finish(endless(client, timeout_ms=700))
    assert caught.value.code == "timeout"
    assert time.monotonic() - start < 10
    assert running(client) == []


def test_a_long_prompt_does_not_hold_up_a_stream(daemon: Daemon) -> None:
    stream, reader = daemon.client(), daemon.client()
    number = endless(stream)
    stream.wait_tokens(number, 10)
    long = long_prompt(reader, 100_000)
    wait_for(lambda: in_phase(reader, "prefill"))
    before = len(stream.tokens(number))
    stream.wait_tokens(number, before + 300)
    assert in_phase(reader, "prefill"), "the prompt ended too early for this test"
    reader.call("cancel", request=long)


def test_too_many_requests_are_told_busy_with_the_queue(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    daemon.config.write_text("max_queue = 4\nmax_batch = 1\n")
    client = daemon.start().client()
    others = [daemon.client() for _ in range(3)]
    # Eight places in all, and no client may hold more than four of them.
    for one in (client, others[0]):
        for _ in range(4):
            endless(one)
    wait_for(lambda: len(running(client)) == 8)
    error = error_of(others[1], "run", model=model(), ids=[1], raw=True)
    assert error.code == "busy" and error.details["running"] + error.details["queue"] == 8
    assert error.hint
    assert client.call("ping")  # control ops never queue


def test_no_client_takes_all_places(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    daemon.config.write_text("max_queue = 4\nmax_batch = 1\n")
    greedy, modest = daemon.start().client(), daemon.client()
    for _ in range(4):
        endless(greedy)
    wait_for(lambda: len(running(greedy)) == 4)
    assert error_of(greedy, "run", model=model(), ids=[1], raw=True).code == "busy"
    assert modest.call("run", model=model(), ids=[1], raw=True, max_new=3)["ids"]


def test_those_who_wait_learn_their_position(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    daemon.config.write_text("max_queue = 40\nmax_batch = 1\n")
    client = daemon.start().client()
    numbers = [
        client.send("run", model=model(), ids=[1], raw=True, max_new=2000) for _ in range(12)
    ]
    for number in numbers:
        client.finish(number)
    events = [
        reply["body"]["done"]
        for reply in client.replies[numbers[-1]]
        if reply["type"] == "event" and reply["body"]["stage"] == "queue"
    ]
    assert events and events == sorted(events, reverse=True)


# ---------------------------------------------------------------- clients that die or fall silent


CLIENT = """
import sys
sys.path.insert(0, sys.argv[2])
from daemon_harness import Client, endless
client = Client(sys.argv[1])
number = endless(client)
client.wait_tokens(number, 10)
print("streaming", flush=True)
while True:
    client.wait_tokens(number, len(client.tokens(number)) + 1)
"""


def other_process(daemon: Daemon) -> subprocess.Popen[bytes]:
    here = str(Path(__file__).parent)
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(daemon.socket), here], stdout=subprocess.PIPE
    )
    assert process.stdout and process.stdout.readline() == b"streaming\n"
    return process


def test_a_killed_client_frees_its_request_within_five_seconds(
    daemon: Daemon, client: Client
) -> None:
    process = other_process(daemon)
    assert len(running(client)) == 1
    process.kill()
    process.wait()
    start = time.monotonic()
    wait_for(lambda: running(client) == [], what="for the request to go")
    assert time.monotonic() - start < 5
    status = client.call("status")
    assert status["memory"]["sequences"] == 0 and status["counters"]["clients_lost"] == 1


def test_a_client_killed_while_its_prompt_is_read_frees_it(daemon: Daemon, client: Client) -> None:
    gone = Client(daemon.socket)
    long_prompt(gone, 900_000)
    wait_for(lambda: in_phase(client, "prefill"))
    gone.close()
    start = time.monotonic()
    wait_for(lambda: running(client) == [], what="for the request to go")
    assert time.monotonic() - start < 7


def test_a_stopped_client_is_cancelled_and_disturbs_nobody(daemon: Daemon, client: Client) -> None:
    process = other_process(daemon)
    try:
        process.send_signal(signal.SIGSTOP)
        start = time.monotonic()
        assert client.call("run", model=model(), ids=[3], raw=True, max_new=50)["ids"]
        wait_for(lambda: running(client) == [], what="for the silent client's request to go")
        assert 3 < time.monotonic() - start < 15
    finally:
        process.kill()
        process.wait()


def test_a_client_that_does_not_acknowledge_is_paused_at_its_window(client: Client) -> None:
    number = endless(client, window=50)
    end = time.monotonic() + 3
    while time.monotonic() < end:  # alive, but nothing is acknowledged
        client.send("ping")
        client.pump(0.1)
    assert 40 <= len(client.tokens(number)) <= 50
    client.ack(number)
    client.wait_tokens(number, 60)


def test_control_c_stops_mk(daemon: Daemon, client: Client) -> None:
    mk = BIN / "mk"
    if not mk.exists():
        pytest.skip("mk is not built")
    process = subprocess.Popen(
        [str(mk), "run", "--model", model(), "--raw", "--max-new", "900000", "hello"],
        env=daemon.env(),
        stdout=subprocess.PIPE,
    )
    assert process.stdout and process.stdout.read(20)
    # Somebody has to read on, or mk waits for its pipe.
    drain = subprocess.Popen(["cat"], stdin=process.stdout, stdout=subprocess.DEVNULL)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    drain.wait(PATIENCE)
    wait_for(lambda: running(client) == [])


# ---------------------------------------------------------------- messages that nobody should send


def hostile_messages() -> list[bytes]:
    def request(**fields: Any) -> bytes:
        return msgpack.packb({"v": 1, "id": 1, "op": "ping", "args": {}, **fields})

    whole = request()
    nested = b"\x91" * 100_000 + b"\xc0"
    return [
        b"",
        b"\xc1",
        os.urandom(200),
        *[whole[:cut] for cut in range(1, len(whole))],
        whole + whole,
        b"\xdd\xff\xff\xff\xff",  # five bytes that ask for four billion values
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xffx",
        b"\x84\xa1v\x01\xa2id\x01\xa2op\xa4ping\xa4args" + nested,
        nested,
        b"\x91" * 2_000_000,
        msgpack.packb([1, 2, 3]),
        msgpack.packb("ping"),
        request(op="nosuch"),
        request(op=5),
        request(id=-1),
        request(id="one"),
        request(v=99),
        request(args=[1]),
        request(args={"surprise": 1}),
        request(extra=True),
        request(op="run", args={"ids": "abc"}),
        request(op="run", args={"ids": [1], "max_new": -1}),
        request(op="run", args={"ids": [1], "temperature": float("nan")}),
        request(op="run", args={"ids": [2**40]}),
        request(op="run", args={"prompt": b"\xff\xfe"}),
        b"\x84\xa1v\x01\xa2id\x01\xa2op\xa8tokenize\xa4args\x81\xa4text\xa3\xff\xfe\xfd",
        request(op="cancel", args={}),
        request(op="ack", args={"request": 1}),
        request(op="build", args={"out": "relative/path"}),
    ]


def test_bad_messages_cost_their_sender_one_error_each(daemon: Daemon, client: Client) -> None:
    good = daemon.client()
    number = endless(good)
    good.wait_tokens(number, 10)
    before = daemon.resident_kib()
    messages = hostile_messages()
    for message in messages:
        client.send_raw(message)
    rejected = 0
    end = time.monotonic() + PATIENCE
    while rejected < len(messages) and time.monotonic() < end:
        client.replies.clear()
        client.pump(0.2)
        for replies in client.replies.values():
            for reply in replies:
                assert reply["type"] == "error", reply
                assert reply["body"]["code"] in ("bad_request", "unsupported_version"), reply
                assert reply["body"]["message"]
                rejected += 1
        good.pump(0)
        good.ack(number)
    assert rejected == len(messages)
    assert daemon.alive() and daemon.resident_kib() - before < 32 * 1024
    seen = len(good.tokens(number))
    good.wait_tokens(number, seen + 10)  # and nobody else noticed


def test_an_oversized_message_ends_its_senders_connection_only(
    daemon: Daemon, client: Client
) -> None:
    sender = daemon.client()
    assert sender.call("ping")
    sender.send_raw(bytes((64 << 20) + 1))
    wait_for(lambda: client.call("status")["counters"]["connections_closed"] >= 1)
    assert client.call("ping")["pid"] == daemon.pid


def test_several_frames_are_refused(client: Client) -> None:
    client.dealer.send_multipart([b"a", b"b", b"c"])
    client.replies[0] = []
    assert client.next_reply(0, 0)["body"]["code"] == "bad_request"


def test_ids_of_open_requests_are_unique(client: Client) -> None:
    number = endless(client)
    client.wait_tokens(number, 1)
    client.send_raw(msgpack.packb({"v": 1, "id": number, "op": "models", "args": {}}))
    wait_for(
        lambda: client.pump(0.1)
        or any(
            one["type"] == "error" and "in use" in one["body"]["message"]
            for one in client.replies[number]
        )
    )


def test_two_hundred_clients_come_and_vanish(daemon: Daemon, client: Client) -> None:
    client.call("load", model=model())
    for _ in range(10):
        crowd = [Client(daemon.socket) for _ in range(20)]
        for one in crowd:
            one.send("run", model=model(), ids=[1, 2], raw=True, max_new=200)
        time.sleep(0.02)
        for one in crowd:
            one.close()
    wait_for(lambda: running(client) == [], what="for their requests to go")
    wait_for(lambda: client.call("status")["connections"] == 1)
    assert client.call("status")["memory"]["sequences"] == 0
    assert daemon.open_fds() < 40


# ---------------------------------------------------------------- the end


def test_stop_lets_short_runs_end(daemon: Daemon, client: Client) -> None:
    number = client.send("run", model=model(), ids=[1], raw=True, max_new=3000, window=4096)
    client.wait_tokens(number, 1)
    daemon.client().call("stop")
    assert client.finish(number)["finish_reason"] == "length"
    assert daemon.wait() == 0


def test_after_the_grace_time_runs_end_with_shutting_down(daemon: Daemon, client: Client) -> None:
    number = endless(client)
    client.wait_tokens(number, 10)
    daemon.client().call("stop", grace_ms=300)
    assert error_of(daemon.client(), "models").code == "shutting_down"
    with pytest.raises(ReplyError) as caught:
        client.finish(number)
    assert caught.value.code == "shutting_down" and caught.value.hint
    assert daemon.wait() == 0
    assert not daemon.socket.exists()


def test_sigterm_in_the_middle_of_everything(daemon: Daemon) -> None:
    clients = [daemon.client() for _ in range(4)]
    numbers = [endless(one, window=256) for one in clients]
    for one, number in zip(clients, numbers, strict=True):
        one.wait_tokens(number, 5)
    long_prompt(daemon.client(), 100_000)
    daemon.signal(signal.SIGTERM)
    wait_for(lambda: "leaving" in daemon.log())
    daemon.signal(signal.SIGTERM)  # at once
    for one, number in zip(clients, numbers, strict=True):
        with pytest.raises(ReplyError) as caught:
            one.finish(number)
        assert caught.value.code == "shutting_down"
    assert daemon.wait() == 0


def test_a_killed_daemon_is_replaced_by_the_next(daemon: Daemon, client: Client) -> None:
    number = endless(client)
    client.wait_tokens(number, 10)
    daemon.kill()
    daemon.start()
    assert daemon.client().call("ping")["pid"] == daemon.pid


# ---------------------------------------------------------------- jobs


def test_verify_finds_what_is_wrong(client: Client, tmp_path: Path) -> None:
    assert client.call("verify", model=model())["ok"] is True
    damaged = Path(copy_model(tmp_path / "m"))
    data = bytearray(damaged.read_bytes())
    data[-5000:-4000] = b"\xff" * 1000  # NaN in any format
    damaged.write_bytes(data)
    report = client.call("verify", model=str(damaged))
    assert report["ok"] is False and report["problems_total"] > 0
    assert report["problems"][0]["message"]


def test_a_built_model_runs(client: Client, tmp_path: Path) -> None:
    out = str(tmp_path / "built.bin")
    built = client.call("build", arch="k3", preset="tiny", out=out, seed=3)
    assert built["written"] is True and os.path.getsize(out) == built["file_bytes"]
    assert client.call("verify", model=out)["ok"] is True
    done = client.call("run", model=out, ids=[1, 2, 3], raw=True, max_new=4)
    assert len(done["ids"]) == 4
    assert error_of(client, "build", preset="tiny", out=out).code == "bad_request"  # it exists
    error = error_of(client, "build", preset="nosuch", out=out + "2")
    assert error.code == "bad_request" and "nosuch" in error.message


def test_a_job_can_be_cancelled_and_leaves_nothing(client: Client, tmp_path: Path) -> None:
    out = tmp_path / "built.bin"
    number = client.send("build", arch="k3", preset="nano", out=str(out), seed=3)
    client.next_reply(number, 1)  # accepted, and the first progress
    client.call("cancel", request=number)
    with pytest.raises(ReplyError) as caught:
        client.finish(number)
    assert caught.value.code == "cancelled"
    wait_for(lambda: list(tmp_path.glob("built.bin*")) == [], what="for the half file to go")


def test_jobs_leave_streams_and_status_alone(daemon: Daemon, tmp_path: Path) -> None:
    worker, client = daemon.client(), daemon.client()
    job = worker.send("build", arch="k3", preset="nano", out=str(tmp_path / "x.bin"))
    assert client.call("run", model=model(), ids=[1], raw=True, max_new=20)["ids"]
    assert any(one["op"] == "build" for one in running(client)) or worker.finish(job)
