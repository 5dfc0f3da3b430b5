"""Fixtures of the tests that drive real daemons."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon_harness import Client, Daemon, make_daemons

MakeDaemon = Callable[[], Daemon]


@pytest.fixture
def make_daemon(tmp_path: Path) -> Iterator[MakeDaemon]:
    """Daemons that are not started yet."""
    yield from make_daemons(tmp_path)


@pytest.fixture
def daemon(make_daemon: MakeDaemon) -> Daemon:
    """One that serves."""
    return make_daemon().start()


@pytest.fixture
def client(daemon: Daemon) -> Client:
    return daemon.client()
