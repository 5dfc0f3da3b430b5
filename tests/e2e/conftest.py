"""Fixtures of the tests that drive real daemons."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon_harness import Client, Daemon, make_daemons
from fault_tools import faults  # noqa: F401  a fixture

MakeDaemon = Callable[[], Daemon]
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real processes on a crowded machine may starve once; what fails twice is broken.

    The report names every test that needed its second try.
    """
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=1))


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
