"""What runs go on from and what they leave, as memory packs: the bits, and nothing is ever lost."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import microkimi
import pytest
from daemon_harness import BIN, GOLDEN, PATIENCE, ROOT, endless, model, wait_for

from conftest import MakeDaemon

STORY = str(ROOT / "models" / "story-k3.bin")
Json = dict[str, Any]


class Mk:
    """mk with a daemon that can be killed."""

    def __init__(self, make_daemon: MakeDaemon, folder: Path) -> None:
        self.place = make_daemon()
        self.folder = folder
        self.numbers = itertools.count()
        self.place.start()

    def restart(self) -> None:
        self.place.kill()
        self.place.start()

    def try_it(
        self, *args: str | Path, code: int = 0, stdin: bytes = b""
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(BIN / "mk"), *map(str, args)],
            env=self.place.env(),
            cwd=self.folder,
            input=stdin,
            capture_output=True,
            timeout=PATIENCE,
        )
        text = subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
        )
        assert done.returncode == code, (text.stdout[-1000:], text.stderr)
        return text

    def __call__(self, *args: str | Path) -> str:
        return self.try_it(*args).stdout

    def json(self, *args: str | Path) -> Json:
        return json.loads(self(*args, "--json"))

    def run(self, *args: str | Path) -> Json:
        """The answer, with its rows of logits under "rows"."""
        logits = self.folder / f"logits{next(self.numbers)}"
        told = self.json("run", *args, "--dump-logits", logits)
        size = 4 * told["logits"]["row_floats"]
        data = logits.read_bytes()
        told["rows"] = [data[at : at + size] for at in range(0, len(data), size)]
        return told

    def info(self, pack: str | Path) -> Json:
        return self.json("pack", "info", pack)["packs"][0]

    def same(self, a: str | Path, b: str | Path) -> bool:
        return self("pack", "diff", a, b) == "identical\n"


@pytest.fixture
def mk(make_daemon: MakeDaemon, tmp_path: Path) -> Mk:
    return Mk(make_daemon, tmp_path)


@pytest.fixture
def beside(mk: Mk) -> Iterator[Callable[[str], None]]:
    """Keeps the daemon busy with other runs of a model."""
    stop = threading.Event()
    threads: list[threading.Thread] = []

    def work(path: str, precision: str) -> None:
        for seed in itertools.count():
            if stop.is_set():
                return
            ids = ",".join(str(one) for one in prompt(90, seed))
            subprocess.run(
                [str(BIN / "mk"), "run", "-m", path, "--precision", precision, "-n", "20",
                 "--no-autostart", "--ids", ids],
                env=mk.place.env(), capture_output=True, timeout=PATIENCE,
            )  # fmt: skip

    def start(path: str, precision: str = "exact") -> None:
        threads.append(threading.Thread(target=work, args=(path, precision)))
        threads[-1].start()

    yield start
    stop.set()
    for thread in threads:
        thread.join()


def prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1, 240) for _ in range(length)]


def text_of(ids: list[int]) -> str:
    return ",".join(map(str, ids))


@pytest.mark.parametrize("precision", ["exact", "bf16", "q8"])
@pytest.mark.parametrize("arch", ["k3", "dsv4"])
def test_a_run_that_is_cut_in_two_comes_to_the_same(
    mk: Mk, beside: Callable[..., None], arch: str, precision: str
) -> None:
    path = str(mk.folder / "model.bin")
    mk("build", "--arch", arch, "--preset", "tiny", "--out", path)
    beside(path, precision)
    how = ["-m", path, "--precision", precision]
    rng = random.Random(f"{arch} {precision}")
    for length in (rng.randrange(2, 63), rng.randrange(65, 200)):
        ids = text_of(prompt(length, length))
        new = 24
        whole = mk.run("--ids", ids, "-n", str(new), *how, "--save", "whole.mkmem")
        for cut in rng.sample(range(new + 1), 3):
            first = mk.run("--ids", ids, "-n", str(cut), *how, "--save", "part.mkmem")
            if cut % 2:
                mk.restart()
            rest = ["", "-n", str(new - cut), "--memory", "part.mkmem", *how]
            second = mk.run(*rest, "--save", "rest.mkmem")
            assert first["ids"] + second["ids"] == whole["ids"]
            assert second["rows"] == whole["rows"][cut:]
            assert second["prefix"] == "live"
            assert second["usage"]["cached"] == length + cut
            assert second["prompt_ids"] == []
            assert second["saved"]["state_id"] == whole["saved"]["state_id"]
            assert mk.same("whole.mkmem", "rest.mkmem")
    assert mk.info("rest.mkmem")["tokens"] == length + new


def test_a_stop_string_and_ctrl_c_leave_what_was_said(mk: Mk) -> None:
    whole = mk.run("Once upon a time", "-n", "60", "-m", STORY)
    word = sorted(set(whole["text"].split()), key=len)[-1]
    stopped = mk.run("Once upon a time", "--stop", word, "-m", STORY, "--save", "a.mkmem")
    assert stopped["finish_reason"] == "stop"
    said = len(stopped["ids"])
    assert stopped["ids"] == whole["ids"][:said]
    assert stopped["saved"]["tokens"] == stopped["usage"]["prompt_tokens"] + said
    more = mk.run("", "-n", str(60 - said), "--memory", "a.mkmem", "-m", STORY)
    assert more["ids"] == whole["ids"][said:]
    assert more["rows"] == whole["rows"][said:]

    talk = subprocess.Popen(
        [str(BIN / "mk"), "run", "--ids", "5,6,7", "-n", "900000", "-m", model(), "--stream-json",
         "--save", "b.mkmem"],
        env=mk.place.env(), cwd=mk.folder, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert talk.stdout is not None
    lines = (json.loads(line) for line in talk.stdout)
    tokens = (line for line in lines if line.get("kind") == "token")
    for _ in range(20):
        next(tokens)
    talk.send_signal(signal.SIGINT)
    done = list(tokens) and None
    assert talk.wait(PATIENCE) == 130 and done is None
    tokens_saved = mk.info("b.mkmem")["tokens"]
    assert tokens_saved >= 23
    more = mk.run("", "-n", "5", "--memory", "b.mkmem", "-m", model())
    whole = mk.run("--ids", "5,6,7", "-n", str(tokens_saved - 3 + 5), "-m", model())
    assert more["ids"] == whole["ids"][-5:]
    assert more["rows"] == whole["rows"][-6:]


def test_a_run_that_fails_saves_nothing(mk: Mk) -> None:
    late = ["run", "--ids", "5,6,7", "-n", "900000", "-m", model(), "--save"]
    told = mk.try_it(*late, "late.mkmem", "--timeout", "0.5", code=124)
    assert told.stdout and not (mk.folder / "late.mkmem").exists()
    gone = subprocess.Popen(
        [str(BIN / "mk"), *late, str(mk.folder / "gone.mkmem"), "--stream-json"],
        env=mk.place.env(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert gone.stdout is not None
    assert any("token" in line for line in gone.stdout)
    gone.kill()
    gone.wait()
    assert wait_for(lambda: mk.json("status")["memory"]["sequences"] == 0)
    assert not (mk.folder / "gone.mkmem").exists()


def test_two_go_on_from_one_pack(mk: Mk) -> None:
    mk.run("--ids", text_of(prompt(100)), "-n", "3", "-m", model(), "--save", "base.mkmem")
    before = (mk.folder / "base.mkmem").read_bytes()
    on_top = [["--ids", text_of(prompt(7, 1))], ["--ids", text_of(prompt(80, 2))], [""]]
    alone = [
        mk.run(*one, "-n", "30", "-m", model(), "--memory", "base.mkmem", "--save", f"{at}.mkmem")
        for at, one in enumerate(on_top)
    ]
    runs = [
        subprocess.Popen(
            [str(BIN / "mk"), "run", *one, "-n", "30", "-m", model(), "--memory", "base.mkmem",
             "--save", f"twin{at}.mkmem", "--json"],
            env=mk.place.env(), cwd=mk.folder, stdout=subprocess.PIPE, text=True,
        )
        for at, one in enumerate(on_top)
    ]  # fmt: skip
    for at, run in enumerate(runs):
        told = json.loads(run.communicate(timeout=PATIENCE)[0])
        assert told["ids"] == alone[at]["ids"]
        assert mk.same(f"{at}.mkmem", f"twin{at}.mkmem")
    assert (mk.folder / "base.mkmem").read_bytes() == before
    mapped = mk.try_it(
        "map", "--jsonl", "-m", model(), "--memory", "base.mkmem", "-n", "30",
        stdin=b"".join(json.dumps({"ids": prompt(n, s)}).encode() + b"\n"
                       for n, s in ((7, 1), (80, 2))),
    )  # fmt: skip
    ids = [json.loads(line)["ids"] for line in mapped.stdout.splitlines()]
    assert ids == [alone[0]["ids"], alone[1]["ids"]]


def test_packs_of_the_reference_go_on_and_are_made(mk: Mk) -> None:
    golden = json.loads((GOLDEN / "k3c" / "golden.json").read_text())
    for name in ("short", "long"):
        pack = GOLDEN / "k3c" / f"{name}.mkmem"
        greedy = golden["prompts"][name]["exact"]["greedy_ids"]
        told = mk.run("", "-n", str(len(greedy)), "-m", model("k3c"), "--memory", pack,
                      "--precision", "exact", "--save", "on.mkmem")  # fmt: skip
        assert told["ids"] == greedy
        info = mk.info("on.mkmem")
        assert not info["has_tokens"] and info["has_logits"]
        # What goes on from rows that are multiplied out goes on so.
        mk.run("", "-n", "4", "-m", model("k3c"), "--memory", "on.mkmem", "--precision", "exact")
        old = ["-n", "0", "-m", model("k3c"), "--precision", "exact", "--save-format", "1"]
        mk.run("", *old, "--memory", pack, "--save", "again.mkmem")
        assert (mk.folder / "again.mkmem").read_bytes() == pack.read_bytes()
    refused = mk.try_it("run", "x", "-m", str(ROOT / "models" / "story-dsv4.bin"), "--save",
                        "x.mkmem", "--save-format", "1", code=1)  # fmt: skip
    assert "k3" in refused.stderr


def test_a_chat_goes_on_after_the_end_of_its_last_answer(mk: Mk) -> None:
    chat = ["-m", model(), "--chat", "--no-thinking"]
    first = mk.run("Hello", *chat, "-n", "6", "--save", "talk")
    second = mk.run("Who are you?", *chat, "-n", "6", "--memory", "talk", "--save", "talk")
    client = mk.place.client()
    said = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": first["text"], "ids": first["ids"]},
        {"role": "user", "content": "Who are you?"},
    ]
    whole = client.call("run", model=model(), messages=said, thinking=False, max_new=6)
    # Token by token the same; chunks are read in other places, so that bits may differ.
    assert first["prompt_ids"] + first["ids"] + second["prompt_ids"] == whole["prompt_ids"]
    assert mk.info("talk")["tokens"] == len(whole["prompt_ids"]) + 6
    assert [one["name"] for one in mk.json("pack", "list")["packs"]] == ["talk"]
    empty = mk.try_it("run", "", *chat, "--memory", "talk", code=2)
    assert "message" in empty.stderr
    # The answer itself goes on without a turn, and has its end all the same.
    mk.run("", "-m", model(), "-n", "2", "--memory", "talk", "--save", "more")
    third = mk.run("And?", *chat, "-n", "1", "--memory", "more")
    assert third["prompt_ids"][:1] == second["prompt_ids"][:1]


def test_packs_of_sessions_are_gone_on_from_and_back(mk: Mk) -> None:
    chat = ["-m", model(), "--chat", "--no-thinking"]
    mk("run", "Hello", *chat, "-n", "6", "--session", "talk")
    mk("run", "Hello", *chat, "-n", "6", "--save", "alone")
    mk("session", "save", "talk", "saved")
    assert mk.same("saved", "alone")
    one = mk.run("Who are you?", *chat, "-n", "6", "--memory", "saved", "--save", "a")
    two = mk.run("Who are you?", *chat, "-n", "6", "--memory", "alone", "--save", "b")
    assert one["prompt_ids"] == two["prompt_ids"] and one["rows"] == two["rows"]
    assert mk.same("a", "b")
    mk("session", "restore", "again", "saved")
    mk("session", "save", "again", "copy")
    three = mk.run("Who are you?", *chat, "-n", "6", "--memory", "copy")
    assert three["prompt_ids"] == one["prompt_ids"] and three["rows"] == one["rows"]
    mk("run", "Once", "-m", model(), "-n", "4", "--session", "text")
    mk("session", "save", "text", "text")
    told = mk.run("", "-m", model(), "-n", "4", "--memory", "text")
    assert told["prefix"] == "live"
    refused = mk.try_it("run", "x", "-m", model(), "--session", "text", "--memory", "a", code=2)
    assert "session" in refused.stderr


def test_prefill_reads_and_says_what_it_made(mk: Mk) -> None:
    told = mk("prefill", "Once upon a time", "-m", STORY, "--save", "a.mkmem")
    assert "a.mkmem" in told and "tokens" in told
    done = json.loads(
        mk.try_it("prefill", "-", "-m", STORY, "--memory", "a.mkmem", "--save", "b.mkmem",
                  "--json", stdin=b" there was a fox\n").stdout
    )  # fmt: skip
    assert done["ids"] == [] and done["saved"]["tokens"] == done["usage"]["prompt_tokens"]
    on_top = mk.run("", "-n", "20", "-m", STORY, "--memory", "b.mkmem")
    at_once = mk.run("Once upon a time", "-n", "0", "-m", STORY)
    assert on_top["usage"]["cached"] == len(at_once["prompt_ids"]) + len(done["prompt_ids"])
    assert len(on_top["ids"]) == 20
    mk.try_it("prefill", "x", "-m", STORY, code=2)
    mk.try_it("prefill", "", "-m", STORY, "--save", "c.mkmem", code=2)
    chat = mk.json("prefill", "Hi", "-m", model(), "--chat", "--save", "chat.mkmem")
    assert chat["options"]["raw"] is False


def test_what_cannot_be_used_is_refused_and_left_alone(mk: Mk) -> None:
    mk.run("--ids", "1,2,3", "-n", "3", "-m", model("k3b"), "--save", "b.mkmem")
    mk.run("--ids", "1,2,3", "-n", "3", "-m", model(), "--precision", "q8", "--save", "q.mkmem")
    good = (mk.folder / "b.mkmem").read_bytes()
    made = {
        "torn": good[: len(good) // 2],
        "flipped": good[:-5] + bytes([good[-5] ^ 4]) + good[-4:],
        "newer": b"MKMEM003" + good[8:],
        "text": b"Once upon a time\n",
        "nothing": b"",
    }
    for name, content in made.items():
        (mk.folder / f"{name}.mkmem").write_bytes(content)
    (mk.folder / "folder.mkmem").mkdir()
    codes = {"torn": 1, "flipped": 1, "newer": 1, "text": 2, "nothing": 2, "missing": 7,
             "folder": 2}  # fmt: skip
    for name, code in codes.items():
        path = mk.folder / f"{name}.mkmem"
        told = mk.try_it("run", "x", "-m", model("k3b"), "--memory", path, "--save", "b.mkmem",
                         code=code)  # fmt: skip
        assert str(path) in told.stderr, told.stderr
        assert told.stdout == ""
    for name, code in {"torn": 0, "flipped": 0, "newer": 0, "text": 2, "folder": 2}.items():
        copy = mk.folder / f"to-{name}.mkmem"
        if name == "folder":
            copy.mkdir()
        else:
            copy.write_bytes(made[name])
        mk.try_it("run", "x", "-n", "1", "-m", model("k3b"), "--save", copy, code=code)
        if name == "text":
            assert copy.read_bytes() == made[name]
    other = mk.try_it("run", "x", "-m", model("k3c"), "--memory", "b.mkmem", code=1)
    assert "b.mkmem" in other.stderr and "another model" in other.stderr
    precision = mk.try_it("run", "x", "-m", model(), "--precision", "exact", "--memory", "q.mkmem",
                          code=1)  # fmt: skip
    assert "--precision q8" in precision.stderr
    reading = mk.try_it("run", "x", "-m", model("k3b"), "--no-chunked-prefill", "--memory",
                        "b.mkmem", code=1)  # fmt: skip
    assert "--no-chunked-prefill" in reading.stderr
    for name in ("..", "a b", ".x"):
        mk.try_it("run", "x", "-m", model("k3b"), "--memory", name, code=2)
    mk.try_it("run", "x", "-m", model("k3b"), "--save", "no/such/folder.mkmem", code=7)
    # Packs that arithmetic made do not tell what comes next.
    mk("pack", "decay", "b.mkmem", "--half-life", "3", "--out", "old.mkmem")
    assert "prompt" in mk.try_it("run", "", "-m", model("k3b"), "--memory", "old.mkmem",
                                 code=2).stderr  # fmt: skip
    mk.run("--ids", "7", "-n", "2", "-m", model("k3b"), "--memory", "old.mkmem")
    assert (mk.folder / "b.mkmem").read_bytes() == good
    assert mk.json("status")["memory"]["sequences"] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_disk_that_is_full_leaves_the_old_pack(mk: Mk, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    run = ["run", "--ids", text_of(prompt(60)), "-m", model()]
    mk(*run, "-n", "0", "--save", tmp_path / "fits.mkmem")
    size = (tmp_path / "fits.mkmem").stat().st_size
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size + size // 2}", "none", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("no leave to mount")
    try:
        mk(*run, "-n", "0", "--save", disk / "a.mkmem")
        before = (disk / "a.mkmem").read_bytes()
        told = mk.try_it(*run, "-n", "40", "--save", disk / "a.mkmem", code=1)
        assert "a.mkmem" in told.stderr and "No space" in told.stderr
        assert told.stdout  # what was said was said
        assert (disk / "a.mkmem").read_bytes() == before
        assert [one.name for one in disk.iterdir()] == ["a.mkmem"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_daemon_that_is_killed_leaves_the_old_pack_or_the_new_one(mk: Mk) -> None:
    pack = mk.folder / "p.mkmem"
    rng = random.Random(3)
    mk("prefill", "A", "-m", model(), "--save", pack)
    tokens = mk.info(pack)["tokens"]
    for _ in range(12):
        run = subprocess.Popen(
            [str(BIN / "mk"), "run", "", "-m", model(), "-n", "200", "--memory", str(pack),
             "--save", str(pack), "--no-autostart", "--json"],
            env=mk.place.env(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        time.sleep(rng.random() * 0.25)
        mk.place.kill()
        told = run.wait(PATIENCE)
        now = mk.json("pack", "verify", pack)["packs"][0]["tokens"]
        assert now in (tokens, tokens + 200)
        if told == 0:
            assert now == tokens + 200
        tokens = now
        mk.place.start()
    assert len(mk.run("", "-n", "3", "-m", model(), "--memory", pack)["ids"]) == 3


def test_a_run_that_comes_while_the_daemon_leaves_goes_on_once(mk: Mk) -> None:
    mk.run("--ids", "1,2,3", "-n", "10", "-m", model(), "--save", "p.mkmem")
    client = mk.place.client()
    number = endless(client)
    client.wait_tokens(number, 2)
    mk.place.signal(signal.SIGTERM)
    told = mk.run("", "-n", "5", "-m", model(), "--memory", "p.mkmem", "--save", "p.mkmem")
    assert told["saved"]["tokens"] == mk.info("p.mkmem")["tokens"] == 18
    mk("stop")


def test_names_and_the_python_client(mk: Mk) -> None:
    with microkimi.Client(str(mk.place.socket)) as python:
        first = python.run("Once upon a time", model=STORY, max_new=5, save="story")
        assert first.saved is not None
        assert first.saved.path.endswith("/microkimi/packs/story.mkmem")
        second = python.run(model=STORY, max_new=5, memory="story", save=mk.folder / "b.mkmem")
        whole = python.run("Once upon a time", model=STORY, max_new=10)
        assert first.ids + second.ids == whole.ids
        assert second.prefix == "live" and second.prompt_ids == []
        with pytest.raises(microkimi.NotFoundError):
            python.run("x", model=STORY, memory="nobody")
        shutil.copy(mk.folder / "b.mkmem", mk.folder / "torn.mkmem")
        os.truncate(mk.folder / "torn.mkmem", 5000)
        with pytest.raises(microkimi.PackCorruptError):
            python.run("x", model=STORY, memory=mk.folder / "torn.mkmem")
        with pytest.raises(microkimi.IncompatiblePackError):
            python.run("x", model=model(), memory=mk.folder / "b.mkmem")
        with pytest.raises(microkimi.BadRequestError):
            python.run(model=model(), chat=True, memory="story")


def test_states_have_their_room_in_the_budget(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    mk = Mk(make_daemon, tmp_path)
    exact = ["-m", model(), "--precision", "exact"]
    mk.run("--ids", text_of(prompt(3000)), "-n", "1", *exact, "--save", "long.mkmem")
    held = mk.json("status")["memory"]
    mk.place.signal(signal.SIGTERM)
    mk.place.wait()
    budget = held["models"] + (mk.folder / "long.mkmem").stat().st_size // 2
    mk.place.config.write_text(f'memory = "{budget // 1024}KiB"\n')
    mk.place.start()
    told = mk.try_it("run", "x", *exact, "--memory", "long.mkmem", code=1)
    assert "memory" in told.stderr
    assert wait_for(lambda: mk.json("status")["memory"]["sequences"] == 0)
    mk.run("--ids", "1,2", "-n", "1", *exact)
    mk.place.signal(signal.SIGTERM)
    mk.place.wait()

    # Room for one and a half: it waits for a run that has more than half, and ends in the end.
    size = (mk.folder / "long.mkmem").stat().st_size
    mk.place.config.write_text(f'memory = "{(held["models"] + size * 3 // 2) // 1024}KiB"\n')
    mk.place.start()
    client = mk.place.client()
    number = endless(client, max_new=2500, window=4, precision="exact")
    client.wait_tokens(number, 2)
    waits = subprocess.Popen(
        [str(BIN / "mk"), "run", "", "-n", "3", *exact, "--memory", "long.mkmem", "--json"],
        env=mk.place.env(), cwd=mk.folder, stdout=subprocess.PIPE,
    )  # fmt: skip
    wait_for(lambda: len(mk.json("status")["requests"]) == 2, what="for the second run")
    time.sleep(0.3)
    assert waits.poll() is None
    client.call("cancel", request=number)
    client.finish(number)
    told = json.loads(waits.communicate(timeout=PATIENCE)[0])
    assert len(told["ids"]) == 3 and waits.returncode == 0
