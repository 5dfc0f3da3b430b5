"""The Python client for asyncio, against real daemons."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import time
from pathlib import Path
from typing import Any

import microkimi
import pytest
from daemon_harness import BIN, ROOT, SOON, Daemon, model, wait_for
from microkimi import AsyncClient, Client, Progress

from conftest import MakeDaemon

STORY = str(ROOT / "models" / "story-k3.bin")
ENDLESS: dict[str, Any] = {"model": model(), "ids": [5, 6, 7], "max_new": 900_000}
PROMPTS = ["Once upon a time", "The little fox", "Tom and his dog", "One day, a girl named Lily"]


def wait_idle(daemon: Daemon) -> None:
    with Client(daemon.socket, autostart=False) as watcher:
        wait_for(lambda: watcher.status().requests == [], 4, "for the request to go")


def test_tasks_share_a_client_and_get_what_each_gets_alone(daemon: Daemon) -> None:
    options: dict[str, Any] = {
        "model": STORY, "max_new": 80, "precision": "exact", "temperature": 0.9, "seed": 3,
    }  # fmt: skip
    with Client(daemon.socket, autostart=False) as python:
        alone = [python.run(prompt, **options) for prompt in PROMPTS]
        scores = python.score(PROMPTS, model=STORY, precision="exact")
        before = python.status().counters["forwards"]

    async def streamed(client: AsyncClient, prompt: str) -> tuple[str, list[int]]:
        async with client.stream(prompt, **options) as stream:
            text = "".join([piece async for piece in stream])
            return text, (await stream.result()).ids

    async def main() -> list[tuple[str, list[int]]]:
        async with AsyncClient(daemon.socket, autostart=False) as client:
            found = await asyncio.gather(*(streamed(client, prompt) for prompt in PROMPTS * 2))
            status = await client.status()
            assert status.connections == 1
            assert await client.score(PROMPTS, model=STORY, precision="exact") == scores
            assert status.counters["forwards"] - before < 80 * 8  # they did share steps
            return found

    assert asyncio.run(main()) == [(one.text, one.ids) for one in alone] * 2


async def leave_by_break(client: AsyncClient) -> None:
    async for _ in client.stream(**ENDLESS):
        break


async def leave_by_cancelled_task(client: AsyncClient) -> None:
    task = asyncio.create_task(client.run(**ENDLESS))
    await asyncio.sleep(0.5)
    assert len((await client.status()).requests) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def leave_by_timeout(client: AsyncClient) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            async for _ in client.stream(**ENDLESS):
                pass


@pytest.mark.parametrize("leave", [leave_by_break, leave_by_cancelled_task, leave_by_timeout])
def test_leaving_early_frees_the_request(daemon: Daemon, leave: Any) -> None:
    async def main() -> None:
        async with AsyncClient(daemon.socket, autostart=False) as client:
            await client.load(model())
            await leave(client)
            await asyncio.to_thread(wait_idle, daemon)
            assert (await client.run(ids=[1], model=model(), max_new=2)).ids

    asyncio.run(main())


def test_an_event_loop_that_ends_frees_the_request(daemon: Daemon) -> None:
    client = AsyncClient(daemon.socket, autostart=False)
    stream = client.stream(**ENDLESS)
    asyncio.run(anext(stream))  # type: ignore[arg-type]
    wait_idle(daemon)
    asyncio.run(client.close())


def test_a_busy_event_loop_is_no_dead_client(daemon: Daemon) -> None:
    async def main() -> None:
        async with (
            AsyncClient(daemon.socket, autostart=False) as client,
            client.stream(**(ENDLESS | {"max_new": 500})) as stream,
        ):
            await anext(stream)
            time.sleep(6)  # blocks the loop
            assert len((await stream.result()).ids) == 500

    asyncio.run(main())


def test_a_daemon_killed_in_a_stream_is_an_error_and_the_next_run_works(daemon: Daemon) -> None:
    async def main() -> None:
        async with AsyncClient(daemon.socket, autostart=False) as client:
            stream = client.stream(**ENDLESS)
            await anext(stream)
            daemon.kill()
            start = time.monotonic()
            with pytest.raises(microkimi.UnreachableError, match="closed the connection"):
                await stream.result()
            assert time.monotonic() - start < SOON
            with pytest.raises(microkimi.UnreachableError, match="no daemon runs"):
                await client.run("x")
            await asyncio.to_thread(daemon.start)
            assert (await client.ping()).pid == daemon.pid

    asyncio.run(main())


def test_everything_else(daemon: Daemon, tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncClient(daemon.socket, autostart=False) as client:
            steps: list[Progress] = []
            built = await client.build(tmp_path / "t.bin", preset="tiny", progress=steps.append)
            assert built.written and any(one.stage == "build" for one in steps)
            assert (await client.verify(tmp_path / "t.bin")).ok
            assert (await client.load(STORY)).model.state == "ready"
            tokens = await client.tokenize("hello there", model=STORY, plain=True)
            assert await client.detokenize(tokens.ids, model=STORY) == "hello there"
            assert any(one.name == "story-k3" for one in await client.models())
            await client.run(ids=list(range(1, 151)), model=STORY, max_new=1)
            assert (await client.prefix_cache(STORY)).models[0].memory_states > 0
            assert (await client.clean_prefix_cache()).states > 0
            assert await client.unload(STORY) == 1
            stream = client.stream(**ENDLESS)
            await anext(stream)
            stream.cancel()
            assert (await stream.result()).finish_reason == "cancelled"
            with pytest.raises(microkimi.ModelNotFoundError):
                await client.run("x", model="no-such-model")
            with pytest.raises(microkimi.DeadlineError):
                await client.run(timeout=0.5, **ENDLESS)
            bench = await client.bench(model(), precision="exact", quick=True, threads=1)
            assert bench.points

    asyncio.run(main())


def test_a_daemon_is_started(make_daemon: MakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in make_daemon().env().items():
        monkeypatch.setenv(name, value)

    async def main() -> int:
        async with AsyncClient(daemon=BIN / "microkimid") as client:
            pids = await asyncio.gather(*(start(client) for _ in range(4)))
            assert len(set(pids)) == 1
            return pids[0]

    async def start(client: AsyncClient) -> int:
        await client.run(ids=[1], model=model(), max_new=2)
        return (await client.ping()).pid

    pid = asyncio.run(main())
    handle = os.pidfd_open(pid)
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: _has_ended(handle))
    os.close(handle)


def _has_ended(handle: int) -> bool:
    return bool(select.select([handle], [], [], 0)[0])


def test_sessions_are_kept_and_forked(daemon: Daemon) -> None:
    async def main() -> None:
        async with AsyncClient(daemon.socket, autostart=False) as client:
            await client.run("Once upon a time", model=STORY, session="story", max_new=4)
            names = [f"copy{number}" for number in range(4)]
            await asyncio.gather(*(client.sessions.fork("story", name) for name in names))
            told = await asyncio.gather(
                *(client.run(f" {name}", session=name, max_new=4) for name in names)
            )
            assert all(one.session is not None and one.session.turns == 2 for one in told)
            assert (await client.sessions.diff("copy0", "copy1")).common_turns == 1
            assert (await client.sessions.undo("copy0")).turns == 1
            assert len((await client.sessions.show("copy1")).turns) == 2
            assert await client.sessions.remove(*names) == 4
            assert [one.name for one in await client.sessions.list()] == ["story"]

    asyncio.run(main())
