"""Clients that die or fall silent, and messages that nobody should send."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgpack
import pytest
from daemon_harness import (
    BIN,
    PATIENCE,
    SOON,
    Client,
    Daemon,
    endless,
    in_phase,
    long_prompt,
    model,
    running,
    wait_for,
)

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


def test_a_killed_client_frees_its_request(
    daemon: Daemon, client: Client
) -> None:
    process = other_process(daemon)
    assert len(running(client)) == 1
    process.kill()
    process.wait()
    start = time.monotonic()
    wait_for(lambda: running(client) == [], what="for the request to go")
    assert time.monotonic() - start < SOON
    status = client.call("status")
    assert status["memory"]["sequences"] == 0 and status["counters"]["clients_lost"] == 1


def test_a_killed_client_is_noticed_though_nothing_is_sent_to_it(
    daemon: Daemon, client: Client
) -> None:
    """Its window is full, so no message finds that nobody is there."""
    gone = Client(daemon.socket)
    number = endless(gone, window=10)
    wait_for(lambda: gone.pump(0.1) or len(gone.tokens(number)) >= 10)
    time.sleep(0.2)
    gone.send("ack", request=number, seq=0)  # the last sign of life
    time.sleep(0.05)
    gone.close()
    start = time.monotonic()
    wait_for(lambda: running(client) == [], what="for the request to go")
    assert time.monotonic() - start < SOON


def test_a_client_killed_while_its_prompt_is_read_frees_it(daemon: Daemon, client: Client) -> None:
    gone = Client(daemon.socket)
    long_prompt(gone, 900_000)
    wait_for(lambda: in_phase(client, "prefill"))
    gone.close()
    start = time.monotonic()
    wait_for(lambda: running(client) == [], what="for the request to go")
    assert time.monotonic() - start < SOON


def test_a_stopped_client_is_cancelled_and_disturbs_nobody(daemon: Daemon, client: Client) -> None:
    process = other_process(daemon)
    try:
        process.send_signal(signal.SIGSTOP)
        start = time.monotonic()
        assert client.call("run", model=model(), ids=[3], raw=True, max_new=50)["ids"]
        wait_for(lambda: running(client) == [], what="for the silent client's request to go")
        assert 3 < time.monotonic() - start < 5 + SOON
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
    client.replies[0] = []
    whole = msgpack.packb({"v": 1, "id": 1, "op": "ping", "args": {}})
    for at, frames in enumerate(([b"a", b"b", b"c"], [whole, b""], [whole, whole])):
        client.dealer.send_multipart(frames)
        refusal = client.next_reply(0, at)["body"]
        assert refusal["code"] == "bad_request" and "one frame" in refusal["message"]
    assert client.call("ping")


def test_ids_of_open_requests_are_unique(client: Client) -> None:
    number = endless(client)
    client.wait_tokens(number, 1)
    client.send_raw(msgpack.packb({"v": 1, "id": number, "op": "models", "args": {}}))
    wait_for(
        lambda: (
            client.pump(0.1)
            or any(
                one["type"] == "error" and "in use" in one["body"]["message"]
                for one in client.replies[number]
            )
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
