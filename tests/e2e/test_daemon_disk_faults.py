"""Disks that fail, files that change while they are read, clocks that jump, memory that is short.

A library loaded before the C library makes the daemon's calls fail (tests/faults/fault_shim.cc).
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from daemon_harness import (
    BIN,
    PATIENCE,
    ROOT,
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
from fault_tools import Faults, still_well

from conftest import MakeDaemon

RUN = {"ids": [1, 2, 3], "raw": True, "max_new": 8, "precision": "exact", "want_logits": True}


@pytest.fixture
def daemon(make_daemon: MakeDaemon, faults: Faults) -> Daemon:
    made = make_daemon()
    made.config.write_text("spine_cache_smallest = 0\n")
    return made.start(env=made.env(**faults.environment()))


def result(client: Client, path: str) -> tuple[list[int], bytes]:
    number = client.send("run", model=path, **RUN)
    done = client.finish(number)
    bodies = [one["body"] for one in client.replies[number] if one["type"] == "chunk"]
    return done["ids"], b"".join(one["data"] for one in bodies if one["kind"] == "logits")


@pytest.mark.parametrize(
    ("rule", "code"),
    [("read {} EIO", "io_error"), ("read {} EIO 20", "io_error"),
     ("open {} EACCES", "permission_denied")],
)  # fmt: skip
def test_a_model_that_cannot_be_read_fails_alone(
    daemon: Daemon, client: Client, faults: Faults, tmp_path: Path, rule: str, code: str
) -> None:
    path = copy_model(tmp_path / "bad")
    faults.set(rule.format("/bad/model.bin"))
    for _ in range(3):
        error = error_of(client, "run", model=path, ids=[1], raw=True, max_new=1)
        assert error.code == code and path in error.message
    still_well(daemon, client)
    faults.set()
    assert client.call("run", model=path, ids=[1], raw=True, max_new=1)["ids"]


def test_interrupted_and_short_reads_change_nothing(client: Client, faults: Faults) -> None:
    expected = result(client, model())
    client.call("unload")
    faults.set("read * EINTR", "read * short")
    assert result(client, model()) == expected


def wait_loading(client: Client, path: str) -> None:
    """Until the load has begun to read weights: its memory is reserved."""
    wait_for(
        lambda: (
            any(
                one["path"] == path and one["state"] == "loading"
                for one in client.call("status")["models"]
            )
            and client.call("status")["memory"]["models"] > 0
        ),
        what="for the load to begin",
    )


@pytest.mark.parametrize("change", ["cut", "written"])
def test_a_file_that_changes_while_it_is_read_is_an_error(
    daemon: Daemon, client: Client, faults: Faults, tmp_path: Path, change: str
) -> None:
    path = copy_model(tmp_path / "changing")
    # The header is read by then, and sampled for the fingerprint.
    faults.set("read /changing/model.bin hold 120")
    number = client.send("load", model=path, precision="exact")
    watcher = daemon.client()
    wait_for(lambda: watcher.call("status")["memory"]["models"] > 0)
    if change == "cut":
        os.truncate(path, 5000)
    else:
        with open(path, "r+b") as file:
            file.seek(-100, os.SEEK_END)
            file.write(b"\0" * 100)
    faults.set()
    with pytest.raises(ReplyError) as caught:
        client.finish(number)
    assert caught.value.code == "model_corrupt" and path in caught.value.message
    still_well(daemon, client)
    if change == "cut":
        assert error_of(client, "load", model=path).code == "model_corrupt"


def test_a_file_replaced_while_it_is_read_counts_from_the_next_run_on(
    daemon: Daemon, client: Client, faults: Faults, tmp_path: Path
) -> None:
    old, new = Path(copy_model(tmp_path / "old")), Path(copy_model(tmp_path / "new", "k3b"))
    expected = result(client, str(old)), result(client, str(new))
    client.call("unload")
    wait_for(lambda: client.call("status")["memory"]["models"] == 0)
    faults.set("read /old/model.bin hold 120")
    number = client.send("run", model=str(old), **RUN)
    watcher = daemon.client()
    wait_for(lambda: watcher.call("status")["memory"]["models"] > 0)
    for name in ("model.bin", "base.tiktoken", "vocab.json"):
        os.replace(new.parent / name, old.parent / name)
    faults.set()
    assert client.finish(number)["ids"] == expected[0][0]
    assert result(client, str(old)) == expected[1]


def test_no_model_file_is_mapped(daemon: Daemon, client: Client) -> None:
    """Why no truncation can raise SIGBUS: files are read, never mapped."""
    number = endless(client)
    client.wait_tokens(number, 5)
    maps = Path(f"/proc/{daemon.pid}/maps").read_text()
    assert "libzmq" in maps and model() not in maps


def left_overs(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


@pytest.mark.parametrize(
    "rule",
    ["write /s/2.mkmem ENOSPC", "sync /s/2.mkmem EIO", "write /s/session. ENOSPC",
     "sync /s/session. EIO", "open /s/session. EACCES", "open /s/2.mkmem EACCES"],
)  # fmt: skip
def test_a_turn_that_cannot_be_kept_leaves_the_session_as_it_was(
    daemon: Daemon, client: Client, faults: Faults, rule: str
) -> None:
    first = client.call("run", model=model(), session="s", **RUN)
    more = {"session": "s", "raw": True, "max_new": 4}
    before = client.call("session_show", name="s")
    (folder,) = (daemon.home / "state" / "microkimi").glob("sessions*/s")
    faults.set(rule)
    for _ in range(2):
        error = error_of(client, "run", **more)
        assert error.code in ("io_error", "permission_denied") and "/s/" in error.message
        assert client.call("session_show", name="s") == before
        assert left_overs(folder) == ["1.mkmem", "session"]
    faults.set("write /1.mkmem ENOSPC", "write /session. ENOSPC")
    assert error_of(client, "run", model=model(), session="t", **RUN).code == "io_error"
    assert error_of(client, "session_fork", **{"from": "s", "name": "t"}).code == "io_error"
    assert error_of(client, "session_undo", name="s").code == "io_error"
    assert client.call("session_show", name="s") == before
    assert left_overs(folder.parent) == ["s"]
    faults.set("write * EINTR", "write * short", "read * EINTR", "read * short")
    done = client.call("run", **more)
    faults.set()
    whole = client.call("run", model=model(), **{**RUN, "max_new": 12})
    assert first["ids"] + done["ids"] == whole["ids"]


@pytest.mark.parametrize("rule", ["sync sessions EIO 1", "sync sessions EIO 3"])
def test_what_was_renamed_and_not_synced_is_whole(
    daemon: Daemon, client: Client, faults: Faults, rule: str
) -> None:
    """The folder's own sync fails after the pack, or the record, has its name."""
    client.call("run", model=model(), session="s", **RUN)
    faults.set(rule)
    more = {"session": "s", "raw": True, "max_new": 4}
    assert error_of(client, "run", **more).code == "io_error"
    faults.set()
    turns = client.call("session_show", name="s")["turns"]
    assert len(turns) == (1 if rule.endswith("1") else 2)
    daemon.kill()
    daemon.start()
    client = daemon.client()
    assert client.call("session_show", name="s")["turns"] == turns
    assert client.call("run", **more)["prefix"] == "live"


@pytest.mark.parametrize("rule", ["write {} ENOSPC", "write {} ENOSPC 5", "sync {} EIO"])
def test_a_disk_that_is_full_leaves_no_half_of_a_model(
    daemon: Daemon, client: Client, faults: Faults, tmp_path: Path, rule: str
) -> None:
    folder = tmp_path / "full"
    folder.mkdir()
    out = folder / "built.bin"
    faults.set(rule.format("/full/built.bin"))
    error = error_of(client, "build", preset="tiny", out=str(out))
    assert error.code == "io_error" and "built.bin" in error.message
    assert left_overs(folder) == []
    faults.set("write * EINTR", "write * short")
    client.call("build", preset="tiny", out=str(out))
    faults.set()
    assert client.call("verify", model=str(out))["ok"] is True


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_small_disk_that_fills_up(daemon: Daemon, client: Client, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("no leave to mount")
    try:
        error = error_of(client, "build", preset="tiny", out=str(disk / "built.bin"))
        assert error.code in ("io_error", "bad_request") and error.hint
        assert left_overs(disk) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_prepared_weights_that_cannot_be_kept_do_no_harm(
    daemon: Daemon, client: Client, faults: Faults
) -> None:
    expected = result(client, model())
    client.call("unload")
    spines = daemon.home / ".cache" / "microkimi" / "spines"
    faults.set("write /spines/ ENOSPC")
    client.call("load", model=model(), precision="q8")
    wait_for(lambda: "spine cache:" in daemon.log(), what="for the log to tell")
    assert client.call("run", model=model(), ids=[1], raw=True, max_new=2, precision="q8")["ids"]
    assert result(client, model()) == expected
    client.call("unload")
    wait_for(lambda: not spines.exists() or not list(spines.glob("*.spine*")))


@pytest.mark.parametrize("seconds", [86_400 * 400, -86_400 * 400])
def test_a_clock_that_jumps_disturbs_nothing(
    daemon: Daemon, client: Client, faults: Faults, seconds: int
) -> None:
    client.call("load", model=model("k3b"), keep_alive_ms=3_600_000)
    number = endless(client, timeout_ms=600_000)
    client.wait_tokens(number, 5)
    faults.set(f"clock - {seconds}")
    client.call("models")  # touches files, and with them the rules
    seen = len(client.tokens(number))
    client.wait_tokens(number, seen + 100)
    status = client.call("status")
    assert 0 <= status["uptime_ms"] < 3_600_000
    assert {one["path"] for one in status["models"]} == {model(), model("k3b")}
    assert all(0 <= one["age_ms"] < 3_600_000 for one in status["requests"])
    late = client.send("run", model=model(), ids=[1], raw=True, max_new=900_000, timeout_ms=100)
    with pytest.raises(ReplyError) as caught:
        client.finish(late)
    assert caught.value.code == "timeout"
    client.call("cancel", request=number)
    assert client.finish(number)["finish_reason"] == "cancelled"


def address_space(daemon: Daemon) -> int:
    return int(Path(f"/proc/{daemon.pid}/statm").read_text().split()[0]) * os.sysconf(
        "SC_PAGE_SIZE"
    )


def test_a_low_limit_of_memory_ends_requests_and_not_the_daemon(make_daemon: MakeDaemon) -> None:
    """The system refuses what the budget would have allowed."""
    daemon = make_daemon().start()
    client, other = daemon.client(), daemon.client()
    number = endless(other, max_new=100_000)
    other.wait_tokens(number, 5)
    before = resource.prlimit(daemon.pid, resource.RLIMIT_AS)
    resource.prlimit(daemon.pid, resource.RLIMIT_AS, (address_space(daemon) + (4 << 20), before[1]))
    error = error_of(client, "load", model=str(ROOT / "models" / "story-k3.bin"))  # 11 MB
    assert error.code == "out_of_memory" and error.message and error.hint
    # A message of megabytes, and one whose state would have to grow.
    error = error_of(client, "run", model=model(), ids=[1, 2] * 250_000, raw=True, max_new=1)
    assert error.code == "out_of_memory" and error.message and error.hint
    resource.prlimit(daemon.pid, resource.RLIMIT_AS, before)
    seen = len(other.tokens(number))
    other.wait_tokens(number, seen + 20)
    assert client.call("run", model=model(), ids=[1], raw=True, max_new=2)["ids"]
    other.call("cancel", request=number)
    other.finish(number)
    assert client.call("status")["memory"]["sequences"] == 0


def test_clients_killed_at_any_moment_leave_nothing(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon().start()
    client = daemon.client()
    client.call("load", model=model())
    rng = random.Random(3)
    for _ in range(15):
        command = [str(BIN / "mk"), "run", "-m", model(), "--raw", "-n", "5000", "left the river"]
        process = subprocess.Popen(
            command, env=daemon.env(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(rng.random() * 0.1)
        process.kill()
        process.wait(PATIENCE)
    wait_for(lambda: running(client) == [], what="for their requests to go")
    wait_for(lambda: client.call("status")["connections"] == 1)
    assert client.call("status")["memory"]["sequences"] == 0


def test_a_daemon_killed_at_any_moment_is_replaced(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    daemon = make_daemon()
    daemon.config.write_text("spine_cache_smallest = 0\n")
    rng = random.Random(4)
    expected = None
    for turn in range(6):
        client = daemon.start().client()
        done = client.call("run", model=model(), ids=[1, 2], raw=True, max_new=5, seed=1)
        expected = expected or done["ids"]
        assert done["ids"] == expected
        for precision in ("exact", "bf16"):
            client.send("load", model=model("k3b"), precision=precision)
        client.send("build", preset="nano", out=str(tmp_path / f"{turn}.bin"))
        endless(client)
        time.sleep(rng.random() * 0.2)
        daemon.signal(signal.SIGKILL)
        daemon.wait()
    # What was half done does not look done.
    client = daemon.start().client()
    for built in tmp_path.glob("*.bin"):
        assert client.call("verify", model=str(built))["ok"] is True
    shutil.rmtree(tmp_path / "d0" / ".cache", ignore_errors=True)
