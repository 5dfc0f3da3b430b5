"""Models whose experts stay in the file: the answers are those of the resident model, whatever the
memory; what cannot be read is an error of the request that needs it, and of nobody else."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from daemon_harness import BIN, Client, Daemon, copy_model, error_of, running, wait_for
from fault_tools import Faults, still_well

from conftest import MakeDaemon

RUN = {"ids": [1, 2, 3, 5, 8], "raw": True, "max_new": 24, "want_logits": True}
PRECISIONS = ("exact", "bf16", "q8")


@pytest.fixture(params=["k3", "dsv4"])
def path(request: pytest.FixtureRequest, client: Client, tmp_path: Path) -> str:
    if request.param == "k3":
        return copy_model(tmp_path / "k3.bin")
    made = str(tmp_path / "tiny.bin")
    client.call("build", arch="dsv4", preset="tiny", out=made)
    return made


def answer(client: Client, path: str, **options: Any) -> tuple[list[int], bytes]:
    number = client.send("run", model=path, **(RUN | options))
    done = client.finish(number)
    bodies = [one["body"] for one in client.replies[number] if one["type"] == "chunk"]
    return done["ids"], b"".join(one["data"] for one in bodies if one["kind"] == "logits")


def smallest(client: Client, path: str) -> int:
    """The least memory for experts, which the refusal of less names."""
    error = error_of(client, "load", model=path, stream="on", stream_memory=1)
    assert error.code == "out_of_memory"
    return int(error.hint.split("at least ")[1].split(" KiB")[0]) * 1024


def stream_of(client: Client) -> dict[str, Any]:
    (entry,) = client.call("status")["models"]
    return entry["stream"]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_answers_are_those_of_the_resident_model(client: Client, path: str, precision: str) -> None:
    resident = answer(client, path, precision=precision)
    least = smallest(client, path)
    done = client.call("load", model=path, precision=precision, stream="on", stream_memory=least)
    assert done["warnings"] == [] or "vocab" in done["warnings"][0]
    assert done["model"]["stream"]["budget"] == least
    assert answer(client, path, precision=precision) == resident
    counts = stream_of(client)
    assert counts["demands"] == counts["hits"] + counts["misses"] + counts["joined"] > 0
    assert counts["evictions"] > 0 and counts["failed_reads"] == 0
    assert counts["cached_bytes"] <= least
    # Several at once.
    numbers = [client.send("run", model=path, **(RUN | {"precision": precision})) for _ in range(4)]
    for number in numbers:
        assert client.finish(number)["ids"] == resident[0]


def test_what_a_run_did_is_told(client: Client, path: str) -> None:
    least = smallest(client, path)
    done = client.finish(client.send("run", model=path, stream_memory=least, **RUN))
    assert done["stream"]["demands"] > 0 and done["stream"]["reads"] > 0
    assert done["trust"]["degraded"] is False
    client.call("unload")
    assert "stream" not in client.finish(client.send("run", model=path, **RUN))


def test_a_model_is_loaded_again_when_it_is_wanted_otherwise(client: Client, path: str) -> None:
    client.call("load", model=path)
    assert "stream" not in client.call("status")["models"][0]
    client.call("load", model=path, stream="on")
    most = stream_of(client)["budget"]
    assert most >= stream_of(client)["all_bytes"]
    done = client.call("load", model=path, stream_memory=most - 4096)
    assert done["model"]["stream"]["budget"] == most - 4096
    # Nothing is said: it stays as it is.
    client.call("load", model=path)
    assert stream_of(client)["budget"] == most - 4096
    client.call("load", model=path, stream="off")
    assert "stream" not in client.call("status")["models"][0]


def test_a_model_in_use_stays_as_it_is(client: Client, path: str) -> None:
    number = client.send("run", model=path, ids=[1], raw=True, max_new=1 << 19)
    client.wait_tokens(number, 1)
    done = client.call("load", model=path, stream="on")
    assert any("in use" in warning for warning in done["warnings"])
    client.call("cancel", request=number)


def test_what_does_not_fit_is_streamed(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    path = str(tmp_path / "nano.bin")
    with make_daemon().start().client() as client:
        shape = ["n_layers=4", "vocab=512", "n_experts=512"]
        client.call("build", preset="nano", out=path, set=shape)
        client.call("load", model=path)
        whole = client.call("status")["models"][0]["memory_bytes"]
        expected = answer(client, path)
    small = make_daemon()
    small.config.write_text(f"memory = {whole * 3 // 4}\n")
    with small.start().client() as client:
        assert answer(client, path) == expected
        told = client.call("status")
        assert told["models"][0]["stream"]["budget"] < whole * 3 // 4
        assert told["memory"]["used"] <= whole * 3 // 4
        client.call("unload")
        error = error_of(client, "load", model=path, stream="off")
        assert error.code == "out_of_memory"


def test_the_command_line(client: Client, daemon: Daemon, path: str) -> None:
    def mk(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BIN / "mk", *args], env=daemon.env(), capture_output=True, text=True, timeout=60
        )

    least = smallest(client, path)
    done = mk("load", path, "--stream", "--stream-ram", f"{least // 1024 + 1}KiB", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["model"]["stream"]["budget"] == (least // 1024 + 1) * 1024
    shown = mk("ps").stdout
    assert "EXPERTS" in shown and " of " in shown.splitlines()[1]
    refused = mk("load", path, "--stream-ram", "1KiB")
    assert refused.returncode == 1 and "at least" in refused.stderr
    for wrong in ("x", "0", "-1", "1XB"):
        bad = mk("load", path, f"--stream-ram={wrong}")
        assert bad.returncode == 2 and "--stream-ram" in bad.stderr
    assert mk("load", path, "--no-stream", "--stream").returncode == 2


# ------------------------------------------------------------------------------ disks that fail


@pytest.fixture
def faulty(make_daemon: MakeDaemon, faults: Faults) -> Daemon:
    made = make_daemon()
    made.config.write_text('spine_cache_smallest = 0\nstream_io = "threads"\n')
    return made.start(env=made.env(**faults.environment()))


def test_a_disk_that_fails_fails_the_run_alone(
    faulty: Daemon,
    faults: Faults,
    tmp_path: Path,
) -> None:
    path = copy_model(tmp_path / "k3.bin")
    with faulty.client() as client:
        expected = answer(client, path)
        least = smallest(client, path)
        client.call("load", model=path, stream_memory=least)
        for rule in ("EIO", "EIO 40"):
            faults.set(f"read {path} {rule}")
            error = error_of(client, "run", model=path, **RUN)
            assert error.code == "io_error" and path in error.message
            assert running(client) == []
            faults.set()
            assert answer(client, path) == expected
        # A signal, half of the bytes: no matter.
        for rule in ("EINTR", "short"):
            faults.set(f"read {path} {rule}")
            assert answer(client, path) == expected
            faults.set()
        still_well(faulty, client)


def test_a_file_that_is_cut_while_it_is_streamed(client: Client, daemon: Daemon, path: str) -> None:
    least = smallest(client, path)
    client.call("load", model=path, stream_memory=least)
    number = client.send("run", model=path, ids=[1], raw=True, max_new=1 << 19)
    client.wait_tokens(number, 2)
    size = os.path.getsize(path)
    os.truncate(path, size // 3)
    error = wait_for(
        lambda: next(
            (one["body"] for one in _replies(client, number) if one["type"] == "error"), None
        )
    )
    assert error["code"] == "model_corrupt" and "cut" in error["message"]
    still_well(daemon, client)


def _replies(client: Client, number: int) -> list[dict[str, Any]]:
    client.pump(0.05)
    client.ack(number)
    return client.replies[number]


# ------------------------------------------------------------------------------ warm again


def test_a_model_comes_back_warm(client: Client, daemon: Daemon, path: str) -> None:
    client.call("load", model=path, stream="on")
    expected = answer(client, path)
    used = stream_of(client)["cached_experts"]
    client.call("unload")
    folder = daemon.home / ".cache" / "microkimi" / "experts"
    files = lambda: list(folder.glob("*.hot"))  # noqa: E731
    (file,) = wait_for(files, what="for the list of experts")
    client.call("load", model=path, stream="on")
    wait_for(lambda: stream_of(client)["cached_experts"] >= used, what="for the experts")
    before = stream_of(client)["misses"]
    assert answer(client, path) == expected
    assert stream_of(client)["misses"] == before
    # A damaged list is none.
    client.call("unload")
    wait_for(lambda: not client.call("status")["models"])
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    client.call("load", model=path, stream="on")
    assert answer(client, path) == expected


# ------------------------------------------------------------------------------ shadows


def test_guesses_by_shadows_give_the_same_answer(client: Client, path: str) -> None:
    expected = answer(client, path, precision="exact")
    client.call("shadow", model=path)
    least = smallest(client, path)
    client.call("load", model=path, precision="exact", stream_memory=least)
    assert stream_of(client)["shadow_bytes"] > 0
    for seed in (None, 3):
        options: dict[str, Any] = {"precision": "exact"}
        if seed is not None:
            options |= {"temperature": 0.8, "seed": seed}
            expected = answer(client, path, prefix_cache=False, **options)
        number = client.send("run", model=path, spec_shadow=6, **(RUN | options))
        done = client.finish(number)
        assert done["ids"] == expected[0]
        assert done["trust"]["degraded"] is False
        assert done["speculation"]["drafted"] > 0
    assert stream_of(client)["shadowed"] > 0


def test_stand_ins_degrade_the_answer(client: Client, daemon: Daemon, path: str) -> None:
    def mk(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BIN / "mk", *args], env=daemon.env(), capture_output=True, text=True, timeout=60
        )

    run = ("run", "-m", path, "--ids", "1,2,3", "-n", "6", "--stream-fallback", "--stats")
    least = smallest(client, path)
    client.call("load", model=path, stream_memory=least)
    error = error_of(client, "run", model=path, stream_fallback=True, **RUN)
    assert error.code == "not_found" and "mk shadow" in error.hint
    client.call("shadow", model=path)
    client.call("load", model=path, stream="off")
    client.call("load", model=path, stream_memory=least)
    number = client.send("run", model=path, stream_fallback=True, **RUN)
    done = client.finish(number)
    assert done["trust"]["degraded"] is True and done["trust"]["shadow_tokens"] > 0
    assert done["usage"]["cached"] == 0
    for more in ({"session": "s"}, {"spec_shadow": 2}):
        error = error_of(client, "run", model=path, stream_fallback=True, **(RUN | more))
        assert error.code in ("bad_request", "not_found")
    # Experts that shadows stood in for have come meanwhile: as if nothing had been asked before.
    for more, code in (((), 4), (("--allow-degraded",), 0)):
        client.call("load", model=path, stream="off")
        client.call("load", model=path, stream_memory=least)
        told = mk(*run, *more)
        assert told.returncode == code, told.stderr
        assert "DEGRADED" in told.stderr


def test_without_streaming_shadows_are_not_needed(client: Client, path: str) -> None:
    expected = answer(client, path)
    assert answer(client, path, spec_shadow=4) == expected
    assert answer(client, path, stream_fallback=True) == expected


# ------------------------------------------------------------------------------ scores, scorecards


def test_a_scorecard_is_that_of_the_resident_model(client: Client, tmp_path: Path) -> None:
    path = copy_model(tmp_path / "k3.bin")
    text = tmp_path / "text.txt"
    text.write_text(
        "A fox saw a crow that held a piece of cheese. How well you look, it said.\n" * 4
    )
    items = {"texts": [str(text)], "precision": "exact"}
    resident = client.call("eval", model=path, **items)
    least = smallest(client, path)
    streamed = client.call("eval", model=path, stream_memory=least, **items)
    assert stream_of(client)["budget"] == least and stream_of(client)["demands"] > 0
    assert streamed == resident
    client.call("shadow", model=path)
    client.call("load", model=path, stream="off")
    degraded = client.call("eval", model=path, stream_memory=least, stream_fallback=True, **items)
    assert degraded["model"]["degraded"] is True and degraded["model"]["shadow_tokens"] > 0
    scored = client.finish(
        client.send("score", model=path, texts=[{"text": "A fox"}], stream_fallback=True)
    )
    assert isinstance(scored["trust"]["degraded"], bool)
    both = error_of(client, "compare", a={"model": path}, b={"model": path}, stream_fallback=True)
    assert both.code == "bad_request"
