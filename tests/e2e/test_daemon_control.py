"""Control while work goes on: status, cancel, deadlines, the queue, the end."""

from __future__ import annotations

import signal
import time

import pytest
from daemon_harness import (
    SOON,
    Client,
    Daemon,
    ReplyError,
    endless,
    error_of,
    in_phase,
    long_prompt,
    model,
    running,
    wait_for,
)

from conftest import MakeDaemon


def test_status_answers_while_a_long_prompt_is_read(client: Client, daemon: Daemon) -> None:
    number = long_prompt(client)
    watcher = daemon.client()
    wait_for(lambda: in_phase(watcher, "prefill"))
    # All of them within the one prompt, which takes tens of seconds.
    told = [watcher.call("status")["requests"] for _ in range(100)]
    assert all(told), "the prompt was read too fast for this test"
    assert told[0][0]["prompt_done"] < told[-1][0]["prompt_done"] < told[-1][0]["prompt_total"]
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
    assert time.monotonic() - start < SOON
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
    assert time.monotonic() - start < SOON
    assert running(client) == []


def test_a_long_prompt_does_not_hold_up_a_stream(daemon: Daemon) -> None:
    stream, reader = daemon.client(), daemon.client()
    number = endless(stream)
    stream.wait_tokens(number, 10)
    long = long_prompt(reader, 900_000)
    wait_for(lambda: in_phase(reader, "prefill"))
    before = len(stream.tokens(number))
    stream.wait_tokens(number, before + 100)
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
        client.send("run", model=model(), ids=[1], raw=True, max_new=100, window=4096)
        for _ in range(12)
    ]
    for number in numbers:
        client.finish(number)
    events = [
        reply["body"]["done"]
        for reply in client.replies[numbers[-1]]
        if reply["type"] == "event" and reply["body"]["stage"] == "queue"
    ]
    assert events and events == sorted(events, reverse=True)


def test_stop_lets_short_runs_end(daemon: Daemon, client: Client) -> None:
    number = client.send("run", model=model(), ids=[1], raw=True, max_new=1000, window=4096)
    client.wait_tokens(number, 1)
    daemon.client().call("stop", grace_ms=60_000)
    assert client.finish(number)["finish_reason"] == "length"
    assert daemon.wait() == 0


def test_what_has_not_begun_is_told_at_once_that_the_daemon_leaves(
    make_daemon: MakeDaemon,
) -> None:
    daemon = make_daemon()
    daemon.config.write_text("max_batch = 1\n")
    client = daemon.start().client()
    begun = [endless(client) for _ in range(4)]
    waits = endless(client)
    for number in begun:
        client.wait_tokens(number, 1)
    daemon.client().call("stop", grace_ms=60_000)
    start = time.monotonic()
    with pytest.raises(ReplyError) as caught:
        client.finish(waits)
    assert caught.value.code == "shutting_down" and time.monotonic() - start < SOON
    for number in begun:  # and they go on until they are cancelled
        client.call("cancel", request=number)
        assert client.finish(number)["finish_reason"] == "cancelled"
    assert daemon.wait() == 0


def test_after_the_grace_time_runs_end_with_shutting_down(daemon: Daemon, client: Client) -> None:
    number = endless(client)
    client.wait_tokens(number, 10)
    daemon.client().call("stop", grace_ms=4000)
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
    daemon.signal(signal.SIGTERM)  # at once, not after the grace time of three seconds
    for one, number in zip(clients, numbers, strict=True):
        with pytest.raises(ReplyError) as caught:
            one.finish(number)
        assert caught.value.code == "shutting_down"
    assert daemon.wait() == 0
    assert "asked twice" in daemon.log()


def test_a_killed_daemon_is_replaced_by_the_next(daemon: Daemon, client: Client) -> None:
    number = endless(client)
    client.wait_tokens(number, 10)
    daemon.kill()
    daemon.start()
    assert daemon.client().call("ping")["pid"] == daemon.pid
