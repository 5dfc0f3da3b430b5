"""Interactive requests go before the background, which still comes on."""

from __future__ import annotations

import subprocess

from daemon_harness import (
    BIN,
    PATIENCE,
    Client,
    Daemon,
    endless,
    error_of,
    model,
    prompt_ids,
    running,
    wait_for,
)

from conftest import MakeDaemon


def priorities(client: Client) -> list[str]:
    return [one["priority"] for one in running(client)]


def position(client: Client, number: int) -> int | None:
    """What the request was told last of how many are before it."""
    client.pump(0.05)
    told = None
    for reply in client.replies[number]:
        if reply["type"] == "accepted":
            told = reply["body"].get("queue_position", 0)
        elif reply["type"] == "event" and reply["body"]["stage"] == "queue":
            told = reply["body"]["done"]
    return told


def test_the_background_waits_behind_interactive_requests(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    daemon.config.write_text("max_queue = 40\nmax_batch = 1\n")  # four sequences at once
    streams, late, early = daemon.start().client(), daemon.client(), daemon.client()
    fill = [endless(streams) for _ in range(4)]
    for number in fill:
        streams.wait_tokens(number, 1)
    run = {"model": model(), "ids": [3], "raw": True, "max_new": 3}
    background = late.send("run", priority="background", **run)
    wait_for(lambda: position(late, background) == 0)
    wait_for(lambda: len(running(early)) == 5)
    interactive = early.send("run", **run)
    wait_for(lambda: position(early, interactive) == 0)
    another = early.send("run", priority="background", **run)
    wait_for(lambda: position(early, another) == 2)
    assert priorities(early) == ["interactive"] * 4 + ["background", "interactive", "background"]
    streams.call("cancel", request=fill[0])
    early.finish(interactive)
    # Three of four places are interactive streams' now; the background has the fourth.
    late.finish(background)
    early.finish(another)


def test_a_background_stream_comes_on_beside_a_full_batch(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    daemon.config.write_text("max_batch = 1\n")
    client, other = daemon.start().client(), daemon.client()
    number = endless(client)
    client.wait_tokens(number, 5)
    ids = prompt_ids(1, 200)
    alone = {"model": model(), "ids": ids, "raw": True, "max_new": 20}
    slow = other.send("run", priority="background", **alone)
    done = other.finish(slow)
    assert client.tokens(number), "the stream went on"
    client.call("cancel", request=number)
    assert other.call("run", **alone)["ids"] == done["ids"]  # and what it says is the same


def test_an_unknown_priority_is_refused(client: Client) -> None:
    error = error_of(client, "run", model=model(), ids=[1], raw=True, priority="high")
    assert error.code == "bad_request" and "background" in error.message + error.hint


def test_map_runs_in_the_background_unless_told_otherwise(daemon: Daemon, client: Client) -> None:
    for options, expected in (([], "background"), (["--priority", "interactive"], "interactive")):
        command = [str(BIN / "mk"), "map", "-m", model(), "-n", "100000", "-j", "2", *options]
        process = subprocess.Popen(
            command,
            env=daemon.env(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert process.stdin
            process.stdin.write(b"one\ntwo\n")
            process.stdin.flush()
            wait_for(lambda want=expected: priorities(client) == [want] * 2)
        finally:
            process.kill()
            process.wait(PATIENCE)
        wait_for(lambda: running(client) == [])
