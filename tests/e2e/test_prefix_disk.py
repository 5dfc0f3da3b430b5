"""States of prompts on disk: the next daemon goes on from them, and nothing that happens to their
files changes an answer."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from daemon_harness import (
    BIN,
    PATIENCE,
    Client,
    Daemon,
    Message,
    copy_model,
    model,
    prompt_ids,
    wait_for,
)
from prefix_tools import PRECISIONS, Mk, prompt

from conftest import MakeDaemon

TALK = prompt_ids(3, 300)


def folder(daemon: Daemon) -> Path:
    return daemon.home / "state" / "microkimi" / "prefix"


def files(daemon: Daemon, suffix: str = ".mkmem") -> list[Path]:
    return sorted(folder(daemon).glob(f"*/*{suffix}"))


def answer(client: Client, ids: list[int], path: str = "", **more: Any) -> tuple[Message, bytes]:
    """What a run says, and its logits."""
    args = {"raw": True, "max_new": 4, "precision": "exact", "want_logits": True, "seed": 1}
    number = client.send("run", model=path or model(), ids=ids, **{**args, **more})
    done = client.finish(number)
    bodies = [one["body"] for one in client.replies[number] if one["type"] == "chunk"]
    return done, b"".join(one["data"] for one in bodies if one["kind"] == "logits")


def cached(client: Client, ids: list[int], **more: Any) -> int:
    return answer(client, ids, **more)[0]["usage"]["cached"]


def totals(client: Client) -> dict[str, int]:
    return client.call("pck_info")["totals"]


def written(client: Client) -> None:
    wait_for(lambda: totals(client)["disk_waiting"] == 0)


def proven(daemon: Daemon, ids: list[int] = TALK) -> Client:
    """A daemon that has written the state of a prompt, because it was used."""
    client = daemon.start().client()
    answer(client, ids)
    answer(client, ids)
    wait_for(lambda: files(daemon))
    written(client)
    return client


def stop(daemon: Daemon, client: Client) -> None:
    client.call("stop", grace_ms=20_000)
    assert daemon.wait() == 0


@pytest.mark.parametrize("arch", ["k3", "dsv4"])
def test_the_next_daemon_goes_on_with_the_same_bits(
    make_daemon: MakeDaemon, tmp_path: Path, arch: str
) -> None:
    mk = Mk(make_daemon(), tmp_path, arch)
    talk = prompt(300)
    steps = [talk, talk + prompt(50, 7), talk[:256] + prompt(90, 5), talk[:270]]
    for precision in PRECISIONS:
        mk.run(talk, precision=precision)
        mk.run(talk, precision=precision)
    mk("stop")
    for precision in PRECISIONS:
        for ids in steps:
            warm, warm_logits = mk.run(ids, precision=precision)
            cold, cold_logits = mk.run(ids, "--no-prefix-cache", precision=precision)
            assert warm["ids"] == cold["ids"]
            assert warm_logits == cold_logits
            if ids[:300] == talk:
                assert warm["usage"]["cached"] >= 256
            assert cold["usage"]["cached"] == 0
    counters = mk.status()["counters"]
    assert counters["prefix_disk_hits"] >= 3 and counters["prefix_disk_reads"] >= 3
    told = mk("status")
    assert "from disk" in told and "prefixes" in told
    assert 'microkimi_prefix_hits_total{tier="disk"}' in mk("metrics")
    mk("stop")


def test_what_was_never_used_is_written_when_the_daemon_leaves(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    client = daemon.start().client()
    answer(client, TALK)
    assert files(daemon) == []
    stop(daemon, client)
    assert files(daemon)
    assert all(one.stat().st_mode & 0o777 == 0o600 for one in files(daemon))
    assert files(daemon)[0].parent.stat().st_mode & 0o777 == 0o700
    client = daemon.start().client()
    assert cached(client, TALK) == 300
    assert totals(client)["disk_hits"] == 1


def test_what_a_model_leaves_is_there_when_it_comes_back(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    client = daemon.start().client()
    answer(client, TALK)
    client.call("unload")
    wait_for(lambda: files(daemon))
    written(client)
    assert client.call("status")["memory"]["prefixes"] == 0
    assert cached(client, TALK) == 300


def test_what_goes_for_lack_of_room_is_written_before(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    daemon.config.write_text("prefix_cache_limit = 300000\n")
    client = daemon.start().client()
    talks = [prompt_ids(seed, 200) for seed in range(12)]
    for ids in talks:
        answer(client, ids)
        written(client)
    assert totals(client)["evictions"] > 0
    assert totals(client)["memory_bytes"] <= 300_000
    assert cached(client, talks[0]) >= 192
    assert totals(client)["disk_hits"] > 0


def test_a_daemon_that_is_killed_leaves_no_half_of_a_file(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    rng = random.Random(5)
    for attempt in range(8):
        client = daemon.start().client()
        for turn in range(4):
            ids = prompt_ids(100 * attempt + turn, 400)
            answer(client, ids)
            answer(client, ids)
        time.sleep(rng.uniform(0, 0.03))
        daemon.kill()
        for path in files(daemon):
            verified = subprocess.run(
                [str(BIN / "mk"), "pack", "verify", str(path)],
                env=daemon.env(), capture_output=True, timeout=PATIENCE,
            )  # fmt: skip
            assert verified.returncode == 0, verified.stderr
    client = daemon.start().client()
    expected = answer(client, ids, prefix_cache=False)
    assert answer(client, ids)[1] == expected[1]
    assert files(daemon, ".bad") == []
    wait_for(lambda: not [one for one in folder(daemon).glob("*/*") if ".tmp." in one.name])


def damaged(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-200] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (damaged, "damaged"),
        (lambda path: os.truncate(path, path.stat().st_size // 2), "bytes"),
        (lambda path: path.write_bytes(b""), "pack"),
        (lambda path: path.write_bytes(b"MKMEM003" + path.read_bytes()[8:]), ""),
    ],
    ids=["damaged", "torn", "empty", "newer"],
)
def test_a_bad_file_is_set_aside_once(make_daemon: MakeDaemon, harm: Any, reason: str) -> None:
    daemon = make_daemon()
    client = proven(daemon)
    expected = answer(client, TALK, prefix_cache=False)
    daemon.kill()
    for path in files(daemon):
        harm(path)
    count = len(files(daemon))
    client = daemon.start().client()
    done, logits = answer(client, TALK)
    assert done["usage"]["cached"] == 0 and logits == expected[1]
    wait_for(lambda: len(files(daemon, ".bad")) == count)
    assert f"{files(daemon, '.bad')[0]} now" in daemon.log() and reason in daemon.log()
    assert totals(client)["disk_refused"] == count
    assert client.call("pck_info")["models"][0]["refused_files"] == count
    daemon.kill()
    before = daemon.log().count("is not used")
    client = daemon.start().client()
    answer(client, TALK)
    assert daemon.log().count("is not used") == before


def test_a_file_of_another_model_is_refused(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    daemon = make_daemon()
    client = proven(daemon)
    other = copy_model(tmp_path / "other", "k3b")
    answer(client, TALK, other)
    answer(client, TALK, other)
    wait_for(lambda: len({one.parent for one in files(daemon)}) == 2)
    written(client)
    expected = answer(client, TALK, prefix_cache=False)
    daemon.kill()
    # Under the very name that its own has.
    mine = next(one for one in files(daemon) if (one.parent / "model").read_text() == model())
    theirs = next(one for one in files(daemon) if one.parent != mine.parent)
    mine.write_bytes(theirs.read_bytes())
    client = daemon.start().client()
    done, logits = answer(client, TALK)
    assert logits == expected[1] and done["usage"]["cached"] < 300
    assert "of another model" in daemon.log()


def test_a_prompt_that_parts_is_not_served_from_a_longer_file(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    client = proven(daemon)
    daemon.kill()
    client = daemon.start().client()
    for at in (0, 63, 150, 255, 299):
        other = list(TALK)
        other[at] = other[at] % 200 + 1 if other[at] % 200 + 1 != other[at] else 7
        warm, warm_logits = answer(client, other)
        cold, cold_logits = answer(client, other, prefix_cache=False)
        assert warm_logits == cold_logits and warm["ids"] == cold["ids"]
        assert warm["usage"]["cached"] <= at


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_full_disk_costs_nothing_but_a_warning(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    disk = folder(daemon)
    disk.mkdir(parents=True, mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", "size=96k,mode=700", "none", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("no leave to mount")
    try:
        daemon.config.write_text("prefix_disk_limit = 100000000\n")
        client = daemon.start().client()
        for seed in range(6):
            ids = prompt_ids(seed, 300)
            assert answer(client, ids)[1] == answer(client, ids, prefix_cache=False)[1]
            assert cached(client, ids) == 300
        written(client)
        assert daemon.log().count("states are not kept on disk") == 1
        assert client.call("pck_info")["trouble"]
        stop(daemon, client)
        assert not [one for one in disk.glob("*/*") if ".tmp." in one.name]
    finally:
        daemon.clean_up()
        subprocess.run(["umount", str(disk)], check=True)


def test_the_limit_holds_and_the_most_used_stays(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    client = proven(daemon)
    one = files(daemon)[0].stat().st_size
    daemon.kill()
    limit = 4 * one
    daemon.config.write_text(f"prefix_disk_limit = {limit}\n")
    client = daemon.start().client()
    for _ in range(4):
        assert cached(client, TALK) == 300
    for seed in range(10, 20):
        ids = prompt_ids(seed, 300)
        answer(client, ids)
        answer(client, ids)
        written(client)
        assert sum(path.stat().st_size for path in files(daemon)) <= limit
    assert totals(client)["disk_evictions"] > 0
    daemon.kill()
    client = daemon.start().client()
    assert cached(client, TALK) == 300


def test_nothing_is_on_disk_when_that_is_off(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    daemon.config.write_text("prefix_disk_limit = 0\n")
    client = daemon.start().client()
    answer(client, TALK)
    assert cached(client, TALK) == 300
    assert totals(client)["disk_limit"] == 0
    stop(daemon, client)
    assert not folder(daemon).exists()


def test_runs_without_the_cache_leave_nothing(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    client = daemon.start().client()
    answer(client, TALK, prefix_cache=False)
    answer(client, TALK, prefix_cache=False)
    stop(daemon, client)
    assert files(daemon) == []


def test_two_daemons_do_not_share_a_folder(make_daemon: MakeDaemon) -> None:
    first = make_daemon()
    proven(first)
    second = make_daemon()
    second.start(env=second.env(XDG_STATE_HOME=str(first.home / "state")))
    client = second.client()
    assert cached(client, TALK) == 0
    assert cached(client, TALK) == 300
    assert "another daemon uses" in second.log()
    stop(second, client)


def test_info_and_clean(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    mk = Mk(make_daemon(), tmp_path, "k3")
    talk = prompt(300)
    mk.run(talk)
    mk.run(talk)
    mk("stop")
    mk.run(talk + prompt(70, 4))
    info = json.loads(mk("pck", "info", "--json"))
    assert [one["model"] for one in info["models"]] == [mk.model]
    states = info["models"][0]["states"]
    assert {one["tokens"] for one in states} >= {300, 256}
    assert any(one["memory_bytes"] and one["disk_bytes"] for one in states)
    assert all(one["own_bytes"] <= one["memory_bytes"] for one in states)
    assert info["totals"]["disk_files"] == info["models"][0]["disk_files"] > 0
    assert info["totals"]["memory_bytes"] <= info["totals"]["memory_limit"]
    text = mk("pck")
    assert mk.model in text and "TOKENS" in text and "memory, disk" in text
    for selector in (mk.model, info["models"][0]["fingerprint"][:8]):
        again = json.loads(mk("pck", "info", "-m", selector, "--json"))["models"]
        for one, other in zip(again[0]["states"], states, strict=True):
            assert one | {"value": 0} == other | {"value": 0}  # values fade

    count = info["totals"]["disk_files"]
    told = mk("pck", "clean", "-m", mk.model)
    assert f"{count} file" in told and "forgot" in told
    after = json.loads(mk("pck", "info", "--json"))
    assert after["totals"]["disk_files"] == after["totals"]["memory_states"] == 0
    assert after["totals"]["memory_bytes"] == 0
    assert files(mk.place) == []
    told_run, _ = mk.run(talk)
    assert told_run["usage"]["cached"] == 0
    mk("unload", "--all")
    wait_for(lambda: files(mk.place))
    assert "(not loaded)" in mk("pck")
    mk("stop")
    # Without a daemon, too.
    assert json.loads(mk("pck", "clean", "--json"))["files"] > 0
    assert files(mk.place) == []
    mk("stop")


def test_an_unknown_model_is_an_error(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon().start()
    for op in ("info", "clean"):
        done = subprocess.run(
            [str(BIN / "mk"), "pck", op, "-m", "no-such-model"],
            env=daemon.env(), capture_output=True, timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode == 7 and b"no-such-model" in done.stderr
