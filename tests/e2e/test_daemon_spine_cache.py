"""Prepared weights outlive a daemon; whatever happens to their files, answers are the same."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from daemon_harness import Client, Daemon, model, wait_for

from conftest import MakeDaemon

ANY_SIZE = 'precision = "q8"\nspine_cache_smallest = 0\n'
RUN: dict[str, Any] = {"ids": [1, 2, 3], "raw": True, "max_new": 8, "seed": 1}


def spines(daemon: Daemon) -> Path:
    return daemon.home / ".cache" / "microkimi" / "spines"


def kept(daemon: Daemon) -> list[Path]:
    return sorted(spines(daemon).glob("*.spine"))


def load(client: Client) -> bool:
    """Loads the model; whether its weights came from the cache."""
    return client.call("load", model=model())["spine_cached"]


def ids(client: Client) -> list[int]:
    return client.call("run", model=model(), **RUN)["ids"]


@pytest.fixture
def daemon_that_keeps(make_daemon: MakeDaemon) -> Daemon:
    daemon = make_daemon()
    daemon.config.write_text(ANY_SIZE)
    return daemon


def test_the_next_daemon_uses_what_was_kept(daemon_that_keeps: Daemon) -> None:
    daemon = daemon_that_keeps
    client = daemon.start().client()
    assert load(client) is False
    first = ids(client)
    wait_for(lambda: kept(daemon))
    daemon.kill()
    client = daemon.start().client()
    assert load(client) is True
    assert ids(client) == first
    assert "from the spine cache" in daemon.log()
    assert client.call("load", model=model(), precision="exact")["spine_cached"] is False


def test_a_damaged_file_is_replaced(daemon_that_keeps: Daemon) -> None:
    daemon = daemon_that_keeps
    client = daemon.start().client()
    load(client)
    first = ids(client)
    wait_for(lambda: kept(daemon))
    content = bytearray(kept(daemon)[0].read_bytes())
    content[-100] ^= 1
    kept(daemon)[0].write_bytes(content)
    client.call("unload")
    assert load(client) is False
    assert ids(client) == first
    assert daemon.log().count("prepared weights are made anew") == 1
    wait_for(lambda: daemon.log().count("spine cache: wrote") == 2)
    client.call("unload")
    assert load(client) is True


def test_a_daemon_that_is_killed_leaves_no_half_of_a_file(daemon_that_keeps: Daemon) -> None:
    daemon = daemon_that_keeps
    first: list[int] = []
    for attempt in range(6):
        client = daemon.start().client()
        load(client)
        first = first or ids(client)
        time.sleep(attempt * 0.002)
        daemon.kill()
        daemon.socket.unlink(missing_ok=True)
    client = daemon.start().client()
    load(client)
    assert ids(client) == first
    wait_for(lambda: kept(daemon))
    assert "made anew" not in daemon.log()


def test_it_can_be_turned_off(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    daemon.config.write_text(ANY_SIZE + "spine_cache = false\n")
    client = daemon.start().client()
    load(client)
    client.call("unload")
    assert load(client) is False
    assert not spines(daemon).exists()


def test_a_cache_that_cannot_be_made_does_no_harm(daemon_that_keeps: Daemon) -> None:
    daemon = daemon_that_keeps
    (daemon.home / ".cache").write_text("not a folder")
    client = daemon.start().client()
    assert load(client) is False
    assert ids(client)
    wait_for(lambda: "prepared weights are not kept" in daemon.log())
