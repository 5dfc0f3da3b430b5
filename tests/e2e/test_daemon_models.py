"""Models come and go; jobs that read and make them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from daemon_harness import (
    Client,
    Daemon,
    ReplyError,
    copy_model,
    endless,
    error_of,
    model,
    running,
    wait_for,
)

from conftest import MakeDaemon


def test_bad_models_are_errors_with_a_remedy(client: Client, tmp_path: Path) -> None:
    run = {"ids": [1], "raw": True, "max_new": 1}
    error = error_of(client, "run", model="/nonexistent/x.bin", **run)
    assert error.code == "model_not_found" and "/nonexistent/x.bin" in error.message and error.hint
    assert error_of(client, "run", model="nosuch", **run).code == "model_not_found"
    truncated = copy_model(tmp_path / "m")
    os.truncate(truncated, os.path.getsize(truncated) // 2)
    error = error_of(client, "run", model=truncated, **run)
    assert error.code == "model_corrupt" and truncated in error.message
    foreign = tmp_path / "foreign.bin"
    foreign.write_bytes(os.urandom(5000))
    assert error_of(client, "load", model=str(foreign)).code in ("model_corrupt", "unsupported")
    assert error_of(client, "load", model=str(tmp_path)).code == "bad_request"
    assert client.call("run", model=model(), **run)["ids"]


def test_a_default_that_does_not_exist_is_named(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    daemon.config.write_text('default_model = "nosuch"\n')
    error = error_of(daemon.start().client(), "run", ids=[1], raw=True)
    assert error.code == "model_not_found" and '"nosuch"' in error.message


def test_the_config_names_the_default(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    daemon.config.write_text(f'default_model = "mine"\n[aliases]\nmine = "{model()}"\n')
    client = daemon.start().client()
    done = client.call("run", ids=[1], raw=True, max_new=1)
    assert done["trust"]["model_path"] == model()
    listed = client.call("models")["models"]
    assert [one["name"] for one in listed if one["is_default"]] == ["mine"]


def test_a_replaced_file_is_a_new_model(client: Client, tmp_path: Path) -> None:
    path = Path(copy_model(tmp_path / "m", "k3a"))
    args = {"model": str(path), "ids": [1, 2], "raw": True, "max_new": 3}
    first = client.call("run", **args)
    other = Path(copy_model(tmp_path / "n", "k3b"))
    for name in ("model.bin", "base.tiktoken", "vocab.json"):
        os.replace(other.parent / name, path.parent / name)
    second = client.call("run", **args)
    assert first["trust"]["fingerprint"] != second["trust"]["fingerprint"]


def test_a_model_truncated_while_loaded_does_not_hurt_the_daemon(
    daemon: Daemon, client: Client, tmp_path: Path
) -> None:
    path = copy_model(tmp_path / "m")
    number = endless(client, model=path)
    client.wait_tokens(number, 20)
    os.truncate(path, 1000)
    before = len(client.tokens(number))
    client.wait_tokens(number, before + 200)  # the weights are in memory
    client.call("cancel", request=number)
    client.finish(number)
    assert error_of(client, "run", model=path, ids=[1], raw=True).code == "model_corrupt"
    assert daemon.alive()


def test_models_in_use_stay_and_idle_ones_go(client: Client) -> None:
    number = endless(client)
    client.wait_tokens(number, 1)
    assert error_of(client, "unload", model=model()).code == "busy"
    assert client.call("unload")["unloaded"] == 0
    client.call("cancel", request=number)
    client.finish(number)
    assert client.call("unload", model=model())["unloaded"] == 1
    assert error_of(client, "unload", model=model()).code == "model_not_found"
    assert client.call("status")["models"] == []
    wait_for(lambda: client.call("status")["memory"]["used"] == 0)  # the states of prompts too


def test_keep_alive_unloads(client: Client) -> None:
    client.call("load", model=model(), keep_alive_ms=0)
    wait_for(lambda: client.call("status")["models"] == [])
    client.call("load", model=model(), keep_alive_ms=-1)
    time.sleep(1.5)
    assert len(client.call("status")["models"]) == 1


def test_the_memory_budget_refuses_before_it_is_spent(make_daemon: MakeDaemon) -> None:
    small = make_daemon().start("--memory", "100K").client()
    error = error_of(small, "load", model=model())
    assert error.code == "out_of_memory" and "config set memory" in error.hint
    medium = make_daemon().start("--memory", "20M").client()
    args = {"model": model(), "ids": [1], "raw": True}
    assert medium.call("run", max_new=5, **args)["ids"]
    assert error_of(medium, "run", max_new=900_000, **args).code == "out_of_memory"
    assert medium.call("run", max_new=5, **args)["ids"]


def test_idle_models_make_room_for_the_next(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    daemon = make_daemon().start()
    needed = daemon.client().call("load", model=model("k3b"))["model"]["memory_bytes"]
    tight = make_daemon().start("--memory", str(needed + 200_000)).client()
    tight.call("load", model=model("k3a"), keep_alive_ms=-1)
    tight.call("load", model=model("k3b"))
    loaded = [one["path"] for one in tight.call("status")["models"]]
    assert loaded == [model("k3b")]


def test_verify_finds_what_is_wrong(client: Client, tmp_path: Path) -> None:
    assert client.call("verify", model=model())["ok"] is True
    damaged = Path(copy_model(tmp_path / "m"))
    data = bytearray(damaged.read_bytes())
    data[-5000:-4000] = b"\xff" * 1000  # NaN in any format
    damaged.write_bytes(data)
    report = client.call("verify", model=str(damaged))
    assert report["ok"] is False and report["problems_total"] > 0
    assert report["problems"][0]["message"]


def test_a_built_model_runs(client: Client, tmp_path: Path) -> None:
    out = str(tmp_path / "built.bin")
    built = client.call("build", arch="k3", preset="tiny", out=out, seed=3)
    assert built["written"] is True and os.path.getsize(out) == built["file_bytes"]
    assert client.call("verify", model=out)["ok"] is True
    done = client.call("run", model=out, ids=[1, 2, 3], raw=True, max_new=4)
    assert len(done["ids"]) == 4
    assert error_of(client, "build", preset="tiny", out=out).code == "bad_request"  # it exists
    error = error_of(client, "build", preset="nosuch", out=out + "2")
    assert error.code == "bad_request" and "nosuch" in error.message


def test_a_job_can_be_cancelled_and_leaves_nothing(client: Client, tmp_path: Path) -> None:
    out = tmp_path / "built.bin"
    number = client.send("build", arch="k3", preset="nano", out=str(out), seed=3)
    client.next_reply(number, 1)  # accepted, and the first progress
    client.call("cancel", request=number)
    with pytest.raises(ReplyError) as caught:
        client.finish(number)
    assert caught.value.code == "cancelled"
    wait_for(lambda: list(tmp_path.glob("built.bin*")) == [], what="for the half file to go")


def test_jobs_leave_streams_and_status_alone(daemon: Daemon, tmp_path: Path) -> None:
    worker, client = daemon.client(), daemon.client()
    job = worker.send("build", arch="k3", preset="nano", out=str(tmp_path / "x.bin"))
    assert client.call("run", model=model(), ids=[1], raw=True, max_new=20)["ids"]
    assert any(one["op"] == "build" for one in running(client)) or worker.finish(job)
