"""`mk absorb`: texts of any length become memory packs, in the background, whatever happens."""

from __future__ import annotations

import json
import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import microkimi
import pytest
from daemon_harness import BIN, PATIENCE, ROOT, Daemon, model, wait_for
from job_tools import detach, job_of, kept_on_disk, mk, start_mk, wait_state

STORY = str(ROOT / "models" / "story-k3.bin")
WORDS = "the fox went over hills and the moon was bright while rivers sang of old days".split()
# Much more than the text: a job that runs until it is ended, in a test.
LONG = 150_000


def text(words: int, seed: int = 0) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(words)) + "\n"


def write(daemon: Daemon, name: str, words: int, seed: int = 0) -> str:
    path = daemon.home / name
    path.write_text(text(words, seed))
    return str(path)


def pack(daemon: Daemon, name: str) -> str:
    return str(daemon.home / f"{name}.mkmem")


def info(daemon: Daemon, path: str) -> dict[str, Any]:
    return json.loads(mk(daemon, "pack", "info", path, "--json").stdout)["packs"][0]


def spool(daemon: Daemon) -> list[str]:
    state = daemon.home / "state" / "microkimi"
    return sorted(one.name for one in state.glob("jobs*/absorb/*"))


def same(daemon: Daemon, a: str, b: str) -> bool:
    return mk(daemon, "pack", "diff", a, b).stdout == "identical\n"


def test_a_text_becomes_the_state_that_reading_it_leaves(daemon: Daemon) -> None:
    path = write(daemon, "a.txt", 3000)
    a, b, c = (pack(daemon, name) for name in "abc")
    done = json.loads(mk(daemon, "absorb", path, "-m", STORY, "--save", a, "--json").stdout)
    mk(daemon, "prefill", "-f", path, "-m", STORY, "--save", b, "--no-prefix-cache")
    # The newline at the end of a file is no part of a prompt, but of a text.
    assert done["tokens"] >= info(daemon, b)["tokens"] > 3000
    exact = daemon.home / "exact.txt"
    exact.write_text(Path(path).read_text().rstrip("\n"))
    mk(daemon, "absorb", str(exact), "-m", STORY, "--save", c)
    assert same(daemon, b, c)
    told = mk(daemon, "absorb", path, "-m", STORY, "--memory", c, "--save", c).stdout
    assert "read" in told and c in told
    assert info(daemon, c)["tokens"] >= 2 * info(daemon, b)["tokens"] - 1
    assert info(daemon, c)["has_logits"]
    more = json.loads(mk(daemon, "run", "", "-n", "5", "-m", STORY, "--memory", c, "--json").stdout)
    assert more["usage"]["cached"] == info(daemon, c)["tokens"]


def test_it_reads_beside_others_and_can_be_left_and_ended(daemon: Daemon) -> None:
    path = write(daemon, "long.txt", LONG)
    job = detach(daemon, "absorb", path, "-m", STORY, "--save", pack(daemon, "long"))
    wait_for(lambda: job_of(daemon, job)["phase"] == "absorb", PATIENCE, "for it to read")
    assert job_of(daemon, job)["unit"] == "tokens"
    for _ in range(3):
        mk(daemon, "run", "Once", "-n", "5", "-m", STORY)
    assert job_of(daemon, job)["state"] == "running"
    mk(daemon, "jobs", "cancel", job)
    wait_state(daemon, job, "cancelled")
    assert not Path(pack(daemon, "long")).exists()
    assert wait_for(
        lambda: json.loads(mk(daemon, "status", "--json").stdout)["memory"]["sequences"] == 0
    )


@pytest.mark.parametrize("arch", ["k3", "dsv4"])
def test_one_that_was_interrupted_comes_to_the_same(daemon: Daemon, arch: str) -> None:
    chosen = STORY if arch == "k3" else str(ROOT / "models" / "story-dsv4.bin")
    words = LONG // 5 if arch == "k3" else 2500
    base = pack(daemon, "base")
    mk(daemon, "prefill", "Once upon a time", "-m", chosen, "--save", base)
    path = write(daemon, "long.txt", words)
    whole, cut = pack(daemon, "whole"), pack(daemon, "cut")
    how = ["absorb", path, "-m", chosen, "--memory", base, "--save"]
    mk(daemon, *how, whole, limit=300)
    job = detach(daemon, *how, cut)
    kept = arch == "k3" and wait_for(lambda: kept_on_disk(daemon, job), PATIENCE, "for a save")
    daemon.kill()
    assert not Path(cut).exists() or arch == "dsv4"
    daemon.start()
    # A short one may have been done before.
    if job_of(daemon, job)["state"] == "interrupted":
        assert kept == 0 or len(spool(daemon)) == 1
        told = mk(daemon, "jobs", "resume", job).stdout
        assert "job" in told
    wait_state(daemon, job, "done")
    assert same(daemon, whole, cut)
    if kept:
        result = json.loads(mk(daemon, "jobs", "show", job, "--json").stdout)["result"]["absorb"]
        first = json.loads(mk(daemon, "jobs", "show", job, "--json").stdout)["job"]
        assert first["runs"] == 2 and result["warnings"] == []
    assert spool(daemon) == []


def test_standard_input_is_kept_as_long_as_it_is_needed(daemon: Daemon) -> None:
    done = subprocess.run(
        [str(BIN / "mk"), "absorb", "-", "-m", STORY, "--save", "book", "--json"],
        input=text(500).encode(), env=daemon.env(), capture_output=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["saved"]["path"].endswith("/packs/book.mkmem")
    assert spool(daemon) == []
    started = subprocess.run(
        [str(BIN / "mk"), "absorb", "-", "-m", STORY, "--save", pack(daemon, "b"), "--detach"],
        input=text(LONG).encode(), env=daemon.env(), capture_output=True, timeout=PATIENCE,
    )  # fmt: skip
    job = started.stdout.decode().strip()
    assert len(spool(daemon)) >= 1
    assert "standard input" in job_of(daemon, job)["what"]
    mk(daemon, "jobs", "cancel", job)
    wait_state(daemon, job, "cancelled")
    assert [one for one in spool(daemon) if one.startswith("stdin-")]  # for `mk jobs resume`
    mk(daemon, "jobs", "rm", job)
    assert spool(daemon) == []


def test_ctrl_c_ends_it(daemon: Daemon) -> None:
    path = write(daemon, "long.txt", LONG)
    run = start_mk(daemon, "absorb", path, "-m", STORY, "--save", pack(daemon, "x"))
    wait_for(
        lambda: any(
            one["phase"] == "absorb"
            for one in json.loads(mk(daemon, "jobs", "--json").stdout)["jobs"]
        )
    )
    run.send_signal(signal.SIGINT)
    assert run.wait(PATIENCE) == 130
    assert not Path(pack(daemon, "x")).exists()


def test_what_cannot_be_read_is_told(daemon: Daemon) -> None:
    bad = daemon.home / "bad.txt"
    bad.write_bytes(b"Once upon \xff a time")
    to = ["-m", STORY, "--save", pack(daemon, "x")]
    told = mk(daemon, "absorb", str(bad), *to, code=2).stderr
    assert "bad.txt" in told and "offset 10" in told
    assert "missing.txt" in mk(daemon, "absorb", str(daemon.home / "missing.txt"), *to,
                               code=7).stderr  # fmt: skip
    mk(daemon, "absorb", str(daemon.home), *to, code=2)
    empty = daemon.home / "empty.txt"
    empty.write_bytes(b"")
    assert "empty" in mk(daemon, "absorb", str(empty), *to, code=2).stderr
    good = write(daemon, "good.txt", 20)
    mk(daemon, "absorb", good, "-m", STORY, code=2)
    mk(daemon, "absorb", good, *to, "--memory", "nobody", code=7)
    mk(daemon, "absorb", good, "-m", STORY, "--save", "no/such/place.mkmem", code=7)
    taken = daemon.home / "taken.mkmem"
    taken.write_text("mine")
    mk(daemon, "absorb", good, "-m", STORY, "--save", str(taken), code=2)
    assert taken.read_text() == "mine"
    # More than the model can hold.
    dsv4 = str(ROOT / "models" / "story-dsv4.bin")
    long = write(daemon, "long.txt", 20_000)
    told = mk(daemon, "absorb", long, "-m", dsv4, "--save", pack(daemon, "y"), code=1).stderr
    assert "limit" in told


def test_a_changed_text_is_read_from_its_beginning(daemon: Daemon) -> None:
    path = write(daemon, "long.txt", LONG // 5)
    job = detach(daemon, "absorb", path, "-m", STORY, "--save", pack(daemon, "cut"))
    wait_for(lambda: kept_on_disk(daemon, job), PATIENCE, "for a save")
    mk(daemon, "jobs", "cancel", job)
    wait_state(daemon, job, "cancelled")
    Path(path).write_text(text(300, 7))
    mk(daemon, "jobs", "resume", job)
    wait_state(daemon, job, "done")
    mk(daemon, "absorb", path, "-m", STORY, "--save", pack(daemon, "new"))
    assert same(daemon, pack(daemon, "cut"), pack(daemon, "new"))


def test_a_pack_that_was_replaced_meanwhile_is_not_gone_on_from(daemon: Daemon) -> None:
    path, base = write(daemon, "long.txt", LONG), pack(daemon, "base")
    mk(daemon, "prefill", "Once upon a time", "-m", STORY, "--save", base)
    job = detach(daemon, "absorb", path, "-m", STORY, "--memory", base, "--save", base)
    wait_for(lambda: job_of(daemon, job)["phase"] == "absorb", PATIENCE, "for it to read")
    mk(daemon, "jobs", "cancel", job)
    wait_state(daemon, job, "cancelled")
    for one in (daemon.home / "state" / "microkimi").glob("jobs*/absorb/*"):
        one.unlink()
    mk(daemon, "prefill", "Another one", "-m", STORY, "--save", base)
    before = Path(base).read_bytes()
    mk(daemon, "jobs", "resume", job)
    wait_state(daemon, job, "failed")
    assert "changed" in mk(daemon, "jobs", "show", job).stdout
    assert Path(base).read_bytes() == before


def test_the_python_client_absorbs(daemon: Daemon) -> None:
    path = write(daemon, "a.txt", 200)
    seen: list[str] = []
    with microkimi.Client(str(daemon.socket)) as python:
        done = python.absorb(path, "book", model=STORY, progress=lambda one: seen.append(one.stage))
        assert done.saved.tokens == done.tokens and done.unk == 0
        more = python.absorb(path, "book", model=STORY, memory="book")
        assert more.saved.tokens > done.tokens
        with pytest.raises(microkimi.NotFoundError):
            python.absorb(daemon.home / "nothing", "book", model=model())
