"""What stays in memory, what goes, and what is refused: pins, the budget, `mk ps`."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

from daemon_harness import (
    BIN,
    PATIENCE,
    ROOT,
    Client,
    Daemon,
    Message,
    copy_model,
    endless,
    error_of,
    model,
    running,
    wait_for,
)

from conftest import MakeDaemon

ONE = {"ids": [1], "raw": True, "max_new": 1}


def mk(daemon: Daemon, *args: str, code: int = 0) -> tuple[str, str]:
    done = subprocess.run(
        [str(BIN / "mk"), *args], env=daemon.env(), capture_output=True, timeout=PATIENCE
    )
    assert done.returncode == code, done
    return done.stdout.decode(), done.stderr.decode()


def models(client: Client) -> dict[str, Message]:
    return {one["path"]: one for one in client.call("status")["models"]}


def weight_of(make_daemon: MakeDaemon, *names: str) -> list[int]:
    """Bytes that models hold when they are loaded."""
    client = make_daemon().start().client()
    return [client.call("load", model=model(one))["model"]["memory_bytes"] for one in names]


def state_of(make_daemon: MakeDaemon, **args: Any) -> int:
    """Bytes that the state of a run takes."""
    client = make_daemon().start().client()
    number = endless(client, **args)
    client.wait_tokens(number, 1)
    return client.call("status")["memory"]["sequences"]


def test_a_pinned_model_is_a_promise(make_daemon: MakeDaemon) -> None:
    a, b = weight_of(make_daemon, "k3a", "k3b")
    daemon = make_daemon().start("--memory", str(max(a, b) + 300_000))
    client = daemon.client()
    told = client.call("load", model=model("k3a"), pin=True, keep_alive_ms=0)["model"]
    assert told["pinned"] is True and "expires_ms" not in told
    error = error_of(client, "load", model=model("k3b"))
    assert error.code == "out_of_memory" and model("k3b") in error.message
    assert error.details["needed"] == b and error.details["unloadable"] == 0
    assert error.details["free"] < b <= error.details["budget"]
    # Neither time nor need made it go; its name does.
    assert list(models(client)) == [model("k3a")]
    assert client.call("unload", model=model("k3a"))["unloaded"] == 1
    assert client.call("load", model=model("k3b"))["model"]["pinned"] is False


def test_a_load_without_a_pin_leaves_the_pin(client: Client) -> None:
    client.call("load", model=model(), pin=True)
    assert client.call("load", model=model())["model"]["pinned"] is True
    client.call("run", model=model(), **ONE)
    assert models(client)[model()]["pinned"] is True
    assert client.call("unload")["unloaded"] == 1  # all that nobody uses, pinned ones too


def test_the_model_used_longest_ago_makes_room(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    (weight,) = weight_of(make_daemon, "k3a")
    paths = [copy_model(tmp_path / name) for name in "abcd"]
    client = make_daemon().start("--memory", str(3 * weight + 300_000)).client()
    for path in paths[:3]:
        client.call("load", model=path)
    client.call("run", model=paths[0], **ONE)
    client.call("load", model=paths[3])
    assert set(models(client)) == {paths[0], paths[2], paths[3]}


def test_nothing_is_unloaded_for_what_would_not_fit_anyway(make_daemon: MakeDaemon) -> None:
    a, b = weight_of(make_daemon, "k3a", "k3b")
    small, large = sorted([("k3a", a), ("k3b", b)], key=lambda one: one[1])
    assert small[1] < large[1], "the models are of one size"
    client = make_daemon().start("--memory", str(large[1] - 1)).client()
    client.call("load", model=model(small[0]))
    error = error_of(client, "load", model=model(large[0]), stream="off")
    assert error.code == "out_of_memory" and error.details["unloadable"] == small[1]
    assert list(models(client)) == [model(small[0])]


def test_a_run_that_can_never_fit_is_refused_with_numbers(make_daemon: MakeDaemon) -> None:
    (weight,) = weight_of(make_daemon, "k3a")
    client = make_daemon().start("--memory", str(weight + 2_000_000)).client()
    error = error_of(client, "run", model=model(), ids=[1], raw=True, max_new=900_000)
    assert error.code == "out_of_memory" and "fewer tokens" in error.hint
    assert error.details["needed"] > error.details["free"]
    status = client.call("status")
    assert status["memory"]["sequences"] == 0 and status["memory"]["used"] == weight
    assert client.call("run", model=model(), **ONE)["ids"]


def test_a_run_that_may_fit_later_waits(make_daemon: MakeDaemon) -> None:
    args = {"max_new": 500_000}
    state = state_of(make_daemon, **args)
    (weight,) = weight_of(make_daemon, "k3a")
    daemon = make_daemon().start("--memory", str(weight + state * 3 // 2))
    first, second = daemon.client(), daemon.client()
    one = endless(first, **args)
    first.wait_tokens(one, 1)
    two = endless(second, **args)
    wait_for(lambda: [r["phase"] for r in running(first)] == ["decode", "queued"])
    seen = len(first.tokens(one))
    first.wait_tokens(one, seen + 20)
    assert second.tokens(two) == []
    first.call("cancel", request=one)
    second.wait_tokens(two, 1)


def test_a_model_that_becomes_idle_makes_room_for_who_waits(make_daemon: MakeDaemon) -> None:
    long = {"max_new": 500_000}
    state, short_state = (
        state_of(make_daemon, **long),
        state_of(make_daemon, model=model("k3b"), max_new=1000),
    )
    a, b = weight_of(make_daemon, "k3a", "k3b")
    margin = short_state + 100_000
    daemon = make_daemon().start("--memory", str(a + b + margin))
    first, second = daemon.client(), daemon.client()
    one = endless(first, model=model("k3b"), max_new=1000)
    first.wait_tokens(one, 1)
    # More than the margin, and less than that and the other model.
    two = endless(second, max_new=(margin + b // 2) * long["max_new"] // state)
    first.finish(one)
    second.wait_tokens(two, 1)
    assert list(models(second)) == [model("k3a")]


def test_the_ledger_is_empty_after_everything(make_daemon: MakeDaemon) -> None:
    client = make_daemon().start("--memory", "30M").client()
    for max_new in (5, 900_000, 5):
        number = client.send("run", model=model(), ids=[1], raw=True, max_new=max_new)
        client.send("cancel", request=number)
        wait_for(lambda: client.pump(0.1) or running(client) == [])
    client.call("unload")
    wait_for(lambda: client.call("status")["memory"]["used"] == 0)
    memory = client.call("status")["memory"]
    assert memory["models"] == memory["sequences"] == 0


def test_the_state_that_is_reserved_is_enough(make_daemon: MakeDaemon) -> None:
    """What the process grows by while a state fills stays within what the ledger was told."""
    daemon = make_daemon().start()
    client = daemon.client()
    client.call("run", model=model(), ids=[1] * 600, raw=True, max_new=1)  # scratch is there now
    before = daemon.resident_kib()
    number = client.send(
        "run", model=model(), ids=[1, 2] * 20_000, raw=True, max_new=2, window=4096
    )
    client.next_reply(number, 1)
    reserved = client.call("status")["memory"]["sequences"]
    client.finish(number)
    assert (daemon.resident_kib() - before) * 1024 < reserved + (16 << 20)


def test_who_holds_a_model_is_told(daemon: Daemon, client: Client) -> None:
    client.call("hello", protocol_min=1, protocol_max=1, build_id="x", client="watcher", pid=7)
    number = endless(client)
    client.wait_tokens(number, 1)
    one = models(client)[model()]
    assert one["holders"] == ["watcher 7 run"] and one["users"] == 1
    assert one["memory"]["weights"] == one["memory_bytes"]
    assert one["memory"]["sequences"] == client.call("status")["memory"]["sequences"] > 0
    error = error_of(client, "unload", model=model())
    assert error.code == "busy" and "watcher 7 run" in error.message
    out, _ = mk(daemon, "ps")
    head, line, memory = out.splitlines()
    assert head.split()[:4] == ["STATE", "ARCH", "PRECISION", "WEIGHTS"]
    assert "in use" in line and "watcher 7 run" in line and model() in line
    assert memory.startswith("memory: ")
    assert "watcher 7 run" in mk(daemon, "unload", model(), code=6)[1]


def test_a_benchmark_without_room_is_refused_and_holds_up_nobody(make_daemon: MakeDaemon) -> None:
    story = str(ROOT / "models" / "story-k3.bin")
    roomy = make_daemon().start().client()
    weight = roomy.call("load", model=story)["model"]["memory_bytes"]
    client = make_daemon().start("--memory", str(weight + 50_000)).client()
    error = error_of(client, "bench", model=story, quick=True)
    assert error.code == "out_of_memory" and error.details["needed"] > 50_000
    assert client.call("unload", model=story)["unloaded"] == 1
    assert client.call("run", model=model(), **ONE)["ids"]


def test_a_model_that_a_job_uses_stays(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon().start()
    client, watcher = daemon.client(), daemon.client()
    story = str(ROOT / "models" / "story-k3.bin")
    number = client.send("bench", model=story)
    wait_for(lambda: story in models(watcher) and models(watcher)[story]["state"] == "ready")
    assert models(watcher)[story]["holders"] == ["a job"]
    error = error_of(watcher, "unload", model=story)
    assert error.code == "busy" and "a job" in error.message
    client.call("cancel", request=number)
    wait_for(lambda: models(watcher)[story]["users"] == 0)


def test_mk_ps_and_the_pin_from_the_command_line(daemon: Daemon) -> None:
    assert mk(daemon, "ps")[0].startswith("no model is loaded\n")
    mk(daemon, "load", model(), "--keep")
    mk(daemon, "load", model("k3b"), "--keep-alive", "2h")
    mk(daemon, "load", model("k3c"), "--keep-alive", "forever")
    lines = {line.split()[-1]: line for line in mk(daemon, "ps")[0].splitlines()[1:-1]}
    assert "pinned" in lines[model()] and "for ever" in lines[model("k3c")]
    assert re.search(r" (2 h 0|1 h 5\d) min ", lines[model("k3b")])
    told = json.loads(mk(daemon, "ps", "--json")[0])
    assert set(told) == {"memory", "models"}
    by_path = {one["path"]: one for one in told["models"]}
    assert by_path[model()]["pinned"] is True and by_path[model("k3b")]["pinned"] is False
    assert 7_000_000 < by_path[model("k3b")]["expires_ms"] <= 7_200_000
    assert by_path[model("k3c")].get("expires_ms") is None
    assert by_path[model()]["memory"].keys() == {"weights", "sequences"}
    assert sum(one["memory"]["weights"] for one in told["models"]) == told["memory"]["models"]
    assert "excludes" in mk(daemon, "load", model(), "--keep", "--keep-alive", "1h", code=2)[1]
    assert mk(daemon, "unload", model())[0] == "unloaded 1 model\n"
    assert mk(daemon, "unload", "--all")[0] == "unloaded 2 models\n"


def test_columns_of_models_stay_aligned(daemon: Daemon, tmp_path: Path) -> None:
    folder = daemon.home / "data" / "microkimi" / "models"
    folder.mkdir(parents=True)
    for name, source in (("a", model()), ("a-model-with-a-long-name", model("k3b"))):
        os.symlink(source, folder / f"{name}.bin")
    (folder / "broken.bin").write_bytes(b"x")
    dsv4 = Path(model()).parents[2] / "dsv4"
    found = next(dsv4.rglob("model.bin"), None)
    assert found, "no golden DeepSeek-V4 model"
    os.symlink(found, folder / "deep.bin")
    mk(daemon, "load", "a", "--precision", "exact")
    lines = mk(daemon, "models")[0].splitlines()
    starts = {line.index("/") for line in lines}
    assert len(starts) == 1 and any("deepseek_v4" in line for line in lines)
    assert [line for line in lines if "broken" in line and "unusable" in line]


def test_ps_and_models_start_no_daemon(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    for verb in ("ps", "models"):
        assert "no daemon" in mk(daemon, verb, code=3)[1]
    assert not daemon.socket.exists()


def test_the_default_budget_fits_the_machine(client: Client) -> None:
    budget = client.call("status")["memory"]["budget"]
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < budget <= machine * 3 // 4
