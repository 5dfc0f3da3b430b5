"""More than a daemon can do at once: full queues, floods, clients that do not read."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import msgpack
import zmq
from daemon_harness import (
    SOON,
    Client,
    Daemon,
    ReplyError,
    endless,
    model,
    prompt_ids,
    running,
    wait_for,
)

# Takes the daemon's thread for texts a while.
LONG_TEXT = "the small boat left the river. " * 100_000


def busy_texts(client: Client, count: int) -> None:
    """Gives the thread for texts something to do."""
    for _ in range(count):
        client.send("tokenize", model=model(), text=LONG_TEXT)
    wait_for(lambda: len(running(client)) > 0)


def codes(client: Client, numbers: list[int]) -> list[str]:
    """How each of some requests ended; fails when one does not end."""
    ends = []
    for number in numbers:
        try:
            client.finish(number)
            ends.append("done")
        except ReplyError as error:
            ends.append(error.code)
    return ends


def test_jobs_beyond_the_queue_are_told_busy(client: Client, tmp_path: Path) -> None:
    numbers = [
        client.send("build", preset="nano", out=str(tmp_path / f"{i}.bin")) for i in range(72)
    ]
    wait_for(
        lambda: client.pump(0.1) or any(r[-1]["type"] == "error" for r in ends(client, numbers))
    )
    for number in numbers:
        client.call("cancel", request=number)
    ended = codes(client, numbers)
    # One is worked on, sixty-four wait.
    assert set(ended) == {"busy", "cancelled"} and 6 <= ended.count("busy") <= 8, ended
    busy = [r[-1]["body"] for r in ends(client, numbers) if r[-1]["body"].get("code") == "busy"]
    assert all("jobs wait already" in one["message"] and one["hint"] for one in busy)


def ends(client: Client, numbers: list[int]) -> list[list[dict]]:
    return [client.replies[number] for number in numbers if client.replies[number]]


def test_texts_beyond_the_queue_are_told_busy(client: Client) -> None:
    client.call("load", model=model())
    busy_texts(client, 3)
    numbers = [client.send("tokenize", model=model(), text="boat") for _ in range(400)]
    # Prompts and lists of models need that thread too.
    late = [client.send("run", model=model(), prompt="boat", max_new=1), client.send("models")]
    assert codes(client, late) == ["busy", "busy"]
    ended = codes(client, numbers)
    assert set(ended) == {"busy", "done"}, set(ended)


def test_deadline_cancel_and_loss_before_a_run_begins(daemon: Daemon) -> None:
    watcher, client, gone = daemon.client(), daemon.client(), Client(daemon.socket)
    client.call("load", model=model())
    busy_texts(daemon.client(), 36)
    late, cancelled = endless(client, timeout_ms=300), endless(client)
    endless(gone)
    wait_for(lambda: len([one for one in running(watcher) if one["op"] == "run"]) == 3)
    gone.close()
    client.call("cancel", request=cancelled)
    start = time.monotonic()
    assert codes(client, [cancelled, late]) == ["cancelled", "timeout"]
    assert time.monotonic() - start < SOON
    wait_for(lambda: not [one for one in running(watcher) if one["op"] == "run"], 7)
    assert [one for one in running(watcher) if one["op"] == "tokenize"], "too quick for this test"


def test_a_flood_of_requests_does_not_starve_a_stream(daemon: Daemon) -> None:
    client = daemon.client()
    number = endless(client)
    client.wait_tokens(number, 10)
    # A million ids are read before it turns out that the last is none.
    ids = [1] * ((1 << 20) - 1) + ["x"]
    heavy = msgpack.packb({"v": 1, "id": 1, "op": "run", "args": {"ids": ids, "model": model()}})
    with Client(daemon.socket) as flood:
        for _ in range(40):
            flood.send_raw(heavy)
        wait_for(lambda: rejected(client) > 0)
        before, seen = rejected(client), len(client.tokens(number))
        client.ack(number)  # its window may be full
        # Those of before came before the last answer.
        wait_for(lambda: client.pump(0.1) or len(client.tokens(number)) > seen)
        assert before < 20, "the flood was over too soon for this test"
        assert rejected(client) < before + 15
        for at in range(40):  # and each has its answer
            wait_for(lambda at=at: flood.pump(0.1) or len(flood.replies.get(1, [])) > at)


def rejected(client: Client) -> int:
    return client.call("status")["counters"]["messages_rejected"]


def does_not_read(daemon: Daemon) -> tuple[Client, list[int]]:
    """A client that has runs going and takes no message any more; libzmq's pipes fill."""
    client = Client(daemon.socket)
    client.dealer.close()
    client.dealer = client.context.socket(zmq.DEALER)
    client.dealer.linger = 0
    # With 1, libzmq 4.3.4 may stop the connection for good.
    client.dealer.rcvhwm = 64
    client.dealer.connect(f"ipc://{daemon.socket}")
    daemon.clients.append(client)
    # What is shown of a prompt comes in large pieces, also from a slow build.
    ids = prompt_ids(3, 100_000)
    numbers = [endless(client, ids=ids, want_hidden=True, want_routes=True) for _ in range(6)]
    return client, numbers


def deferred(watcher: Client) -> int:
    return watcher.call("status")["counters"]["sends_deferred"]


def test_a_client_that_does_not_read_does_not_hold_up_the_end(daemon: Daemon) -> None:
    client, _ = does_not_read(daemon)
    watcher = daemon.client()
    wait_for(lambda: deferred(watcher) > 0, what="for its pipe to be full")
    daemon.signal(signal.SIGTERM)
    wait_for(lambda: "leaving" in daemon.log())
    daemon.signal(signal.SIGTERM)
    end = time.monotonic() + 18  # ten seconds for last words, two for libzmq
    while daemon.alive() and time.monotonic() < end:
        client.send("ping")  # it lives, it only does not read
        time.sleep(0.2)
    assert daemon.wait(0.1) == 0


def test_a_client_that_comes_back_after_long_silence_is_told(daemon: Daemon) -> None:
    client, numbers = does_not_read(daemon)
    watcher = daemon.client()
    wait_for(lambda: deferred(watcher) > 0, what="for its pipe to be full")
    wait_for(lambda: running(watcher) == [], 10)
    time.sleep(6)  # cancelled after five seconds, and not even that was taken after ten
    told: set[int] = set()
    end = time.monotonic() + 20
    while told != set(numbers) and time.monotonic() < end:
        client.pump(0.2)
        for number in numbers:
            if client.replies[number] and client.replies[number][-1]["type"] == "error":
                told.add(number)
            else:
                client.send("ack", request=number, seq=len(client.replies[number]))
    assert told == set(numbers)
    assert client.call("run", model=model(), ids=[1], raw=True, max_new=3)["ids"]


def test_an_answer_waits_for_a_pipe_that_a_stream_filled(daemon: Daemon) -> None:
    """What was asked beside a stream is answered in order once the client reads."""
    client, streams = does_not_read(daemon)
    watcher = daemon.client()
    asked: list[int] = []

    def filled() -> bool:
        asked.append(client.send("ping"))  # a sign of life, too
        time.sleep(0.1)
        return deferred(watcher) > 0

    wait_for(filled, 60, "for its pipe to be full")
    asked += [client.send("status") for _ in range(5)]
    for number in streams:
        client.send("cancel", request=number)
    answered: list[int] = []

    def all_answered() -> bool:
        client.pump(0.2)
        for number in asked[len(answered) :]:
            if not client.replies[number]:
                break
            answered.append(number)
        return len(answered) == len(asked)

    # All that the streams had to say comes first: hundreds of megabytes, through Python.
    wait_for(all_answered, 300, f"for {len(asked)} answers")
    assert all(client.replies[number][0]["type"] == "done" for number in asked)
    assert watcher.call("status")["counters"]["answers_dropped"] == 0
