"""mk map: many prompts over one connection, answered in order."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon_harness import BIN, PATIENCE, SOON, Daemon, model, wait_for

from conftest import MakeDaemon

EXACT = ["-m", model(), "--precision", "exact"]
ENDLESS = [*EXACT, "-n", "1000000"]
WORDS = "river boat lamp kettle stone wind a the of and small old seven left on".split()


def prompts(count: int, seed: int = 1) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randrange(1, 30))) for _ in range(count)]


def unescape(line: str) -> str:
    """Undoes the escapes of a line of text."""
    marks = {"n": "\n", "r": "\r", "\\": "\\"}
    text = ""
    characters = iter(line)
    for character in characters:
        text += marks[next(characters)] if character == "\\" else character
    return text


class Mk:
    """mk in a place of its own."""

    def __init__(self, place: Daemon) -> None:
        self.place = place
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *args: str, **popen: Any) -> subprocess.Popen[bytes]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(
            [str(BIN / "mk"), *args], env=self.place.env(), **{**pipes, **popen}
        )
        self.started.append(process)
        return process

    def __call__(self, *args: str, stdin: str | bytes = b"", code: int = 0) -> tuple[str, str]:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        process = self.start(*args)
        out, err = process.communicate(data, timeout=PATIENCE)
        assert process.returncode == code, (process.returncode, out[:500], err[:2000])
        return out.decode(), err.decode()

    def objects(self, *args: str, stdin: str | bytes = b"", code: int = 0) -> list[dict]:
        out, _ = self("map", *args, stdin=stdin, code=code)
        return [json.loads(line) for line in out.splitlines()]

    def status(self) -> dict:
        return json.loads(self("status", "--json")[0])

    def nothing_left(self) -> None:
        """No request of ours lives on, and nothing that it held."""
        wait_for(lambda: self.status()["requests"] == [], 5, "for the requests to go")
        status = self.status()
        assert status["memory"]["sequences"] == 0
        assert [one["users"] for one in status["models"]] == [0]


@pytest.fixture
def mk(make_daemon: MakeDaemon) -> Iterator[Mk]:
    made = Mk(make_daemon().start())
    made("load", model(), "--precision", "exact")
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
            process.communicate()


def in_flight(mk: Mk, count: int) -> None:
    wait_for(
        lambda: sum(one["generated"] > 3 for one in mk.status()["requests"]) == count,
        what=f"for {count} runs",
    )


@pytest.mark.parametrize("sampling", [[], ["--temp", "0.9", "--top-p", "0.95"]])
def test_answers_are_those_of_single_runs_in_order(mk: Mk, sampling: list[str]) -> None:
    texts = prompts(24)
    options = [*EXACT, "-n", "30", *sampling]
    out, _ = mk("map", *options, "--seed", "100", stdin="\n".join(texts) + "\n")
    lines = out.split("\n")
    assert lines.pop() == "" and len(lines) == len(texts)
    for index, (text, line) in enumerate(zip(texts, lines, strict=True)):
        alone, _ = mk("run", *options, "--seed", str(100 + index), text)
        assert unescape(line) == alone
    # Whatever runs beside them, and in whatever order they end.
    for jobs in ("1", "3", "40"):
        again, _ = mk("map", *options, "--seed", "100", "-j", jobs, stdin="\n".join(texts))
        assert again == out


def test_long_and_short_ones_come_in_the_order_of_the_input(mk: Mk) -> None:
    lengths = [300, 1, 5, 200, 2, 1, 1, 90, 3, 1, 150, 1]
    items = [
        {"id": {"n": index}, "ids": [1 + index, 2, 3], "max_new": length}
        for index, length in enumerate(lengths)
    ]
    answers = mk.objects(*EXACT, "--jsonl", stdin="\n".join(json.dumps(one) for one in items))
    assert [one["index"] for one in answers] == list(range(len(items)))
    assert [one["id"]["n"] for one in answers] == list(range(len(items)))
    assert [len(one["ids"]) for one in answers] == lengths
    assert {one["status"] for one in answers} == {"done"}
    assert answers[3]["prompt_ids"] == [4, 2, 3]


def test_nul_carries_any_text(mk: Mk) -> None:
    texts = ["two\nlines\r\n", "one \\ line", "left the", "\n"]
    data = "\0".join(texts)
    out, _ = mk("map", "-0", *EXACT, "-n", "25", stdin=data)
    answers = out.split("\0")
    assert answers.pop() == "" and len(answers) == len(texts)
    for text, answer in zip(texts, answers, strict=True):
        assert answer == mk("run", *EXACT, "-n", "25", text)[0]
    assert mk("map", "-0", *EXACT, "-n", "25", stdin=data + "\0")[0] == out


def test_a_failing_item_stops_no_other(mk: Mk) -> None:
    lines = b"left the\n\nsmall \xff boat\nthe old\n"
    out, err = mk("map", *EXACT, "-n", "6", stdin=lines, code=1)
    good = [mk("run", *EXACT, "-n", "6", text)[0] for text in ("left the", "the old")]
    assert [unescape(line) for line in out.split("\n")] == [good[0], "", "", good[1], ""]
    assert "mk: item 2: the prompt is empty" in err and "mk: item 3: " in err
    assert err.endswith("mk: 2 of 4 items failed\n")


BAD_ITEMS = [
    ("not json", "not a JSON object"),
    ("[1]", "not a JSON object"),
    ('{"id": "x"}', 'one of "prompt", "ids" and "messages"'),
    ('{"prompt": "a", "ids": [1]}', 'one of "prompt", "ids" and "messages"'),
    ('{"prompt": "a", "tempo": 1}', 'unknown field "tempo"'),
    ('{"prompt": "a", "window": 1}', 'unknown field "window"'),
    ('{"prompt": "a", "max_new": "9"}', 'value of "max_new"'),
    ('{"prompt": "a", "max_new": -1}', 'value of "max_new"'),
    ('{"prompt": "a", "max_new": 4294967296}', 'value of "max_new"'),
    ('{"prompt": "a", "max_new": 1048577}', "max_new"),
    ('{"prompt": "a", "top_p": 0}', "top_p"),
    ('{"prompt": "a", "precision": "f8"}', "precision"),
    ('{"ids": [1, -2]}', 'value of "ids"'),
    ('{"ids": [100000]}', "100000"),
    ('{"ids": [1], "chat": true}', '"ids" excludes'),
    ('{"prompt": "a", "id": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
    ('{"prompt": "a", "model": "/no/such/model.bin"}', "/no/such/model.bin"),
]


def test_every_wrong_item_is_told_in_its_place(mk: Mk) -> None:
    good = '{"ids": [1, 2], "max_new": 2}'
    lines = [line for bad, _ in BAD_ITEMS for line in (bad, good, "")]
    answers = mk.objects(*EXACT, "--jsonl", stdin="\n".join(lines), code=1)
    assert len(answers) == 2 * len(BAD_ITEMS)
    for (_, why), answer in zip(BAD_ITEMS, answers[::2], strict=True):
        assert answer["status"] == "failed" and why in answer["error"]["message"], answer
    assert answers[4]["id"] == "x"
    assert {one["status"] for one in answers[1::2]} == {"done"}


def test_an_item_overrides_options(mk: Mk) -> None:
    items = [
        {"prompt": "left the", "temperature": 0.8, "seed": 7, "max_new": 9, "precision": "q8"},
        {"prompt": "left the", "stop": "zzz", "top_k": 5},
        {"prompt": "left the"},
    ]
    data = "\n".join(json.dumps(one) for one in items)
    answers = mk.objects(*EXACT, "-n", "4", "--seed", "50", "--jsonl", stdin=data)
    options = [one["options"] for one in answers]
    assert [one["seed"] for one in options] == [7, 51, 52]
    assert [one["max_new"] for one in options] == [9, 4, 4]
    assert [one["precision"] for one in options] == ["q8", "exact", "exact"]
    assert options[1]["stop"] == ["zzz"] and options[1]["top_k"] == 5
    alone = mk(
        *("run", "-m", model(), "--precision", "q8", "-n", "9", "--temp", "0.8", "--seed", "7"),
        "left the",
    )[0]
    assert answers[0]["text"] == alone


def test_fail_fast_stops_at_the_first_failure(mk: Mk) -> None:
    data = "\n" + "\n".join(prompts(6))
    start = time.monotonic()
    answers = mk.objects(*ENDLESS, "--json", "--fail-fast", "-j", "4", stdin=data, code=1)
    assert time.monotonic() - start < SOON
    assert answers[0]["status"] == "failed"
    assert {one["status"] for one in answers[1:]} <= {"cancelled"}
    mk.nothing_left()


def test_a_model_that_is_not_there_ends_it_once(mk: Mk) -> None:
    out, err = mk("map", "-m", "nosuch", stdin="a\n" * 1000, code=7)
    assert out == "" and err.count("mk: ") == 1 and "nosuch" in err


def test_control_c_cancels_everything(mk: Mk, tmp_path: Path) -> None:
    (tmp_path / "p").write_text("\n".join(prompts(50)))
    process = mk.start("map", *ENDLESS, "--json", str(tmp_path / "p"))
    in_flight(mk, 8)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    assert mk.status()["requests"] == []
    answers = [json.loads(line) for line in out.splitlines()]
    assert [one["index"] for one in answers] == list(range(8))
    assert {one["status"] for one in answers} == {"cancelled"}
    # What they had said is told; the daemon made no token after that.
    made = mk.status()["counters"]["generated_tokens"]
    assert sum(len(one["ids"]) for one in answers) == made
    mk.nothing_left()


def test_a_closed_pipe_cancels_everything_quietly(mk: Mk) -> None:
    lines = "\n".join(['{"ids": [5], "max_new": 2}', *['{"ids": [6]}'] * 50])
    process = mk.start("map", *ENDLESS, "--jsonl")
    assert process.stdin and process.stdout and process.stderr
    process.stdin.write(lines.encode())
    process.stdin.close()
    assert json.loads(process.stdout.readline())["index"] == 0
    in_flight(mk, 8)
    process.stdout.close()
    assert process.wait(PATIENCE) == -signal.SIGPIPE
    assert process.stderr.read() == b""
    mk.nothing_left()


def test_control_c_ends_it_when_nobody_reads(mk: Mk) -> None:
    process = mk.start("map", *EXACT, "--json", stdin=subprocess.PIPE)
    assert process.stdin
    # More answers than a pipe takes, and what mk holds besides.
    process.stdin.write(b"\n" * 20_000)
    process.stdin.close()
    process.stdin = None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    end = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < end:
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
    assert process.returncode in (130, -signal.SIGINT)
    mk.nothing_left()


def test_items_run_as_they_come(mk: Mk) -> None:
    """A slow producer gets each answer before the next item is there."""
    process = mk.start("map", *EXACT, "-n", "5")
    assert process.stdin and process.stdout
    for text in prompts(3):
        process.stdin.write(text.encode() + b"\n")
        process.stdin.flush()
        line = process.stdout.readline().decode()
        assert unescape(line[:-1]) == mk("run", *EXACT, "-n", "5", text)[0]
    process.stdin.close()
    assert process.wait(PATIENCE) == 0


def test_a_busy_daemon_is_waited_for(make_daemon: MakeDaemon) -> None:
    place = make_daemon()
    place.config.write_text("max_batch = 1\nmax_queue = 0\n")
    mk = Mk(place.start())
    mk("load", model(), "--precision", "exact")
    texts = prompts(12)
    both = [mk.start("map", *EXACT, "-n", "20", "-j", "64") for _ in range(4)]
    outs = [one.communicate("\n".join(texts).encode(), timeout=2 * PATIENCE) for one in both]
    assert [one.returncode for one in both] == [0] * 4, outs
    assert len({out for out, _ in outs}) == 1 and outs[0][0].count(b"\n") == len(texts)
    # Else nothing was tested.
    assert mk.status()["counters"]["requests_run_busy"] > 0


def test_a_daemon_that_dies_is_one_error(mk: Mk) -> None:
    process = mk.start("map", *ENDLESS)
    assert process.stdin
    process.stdin.write(b"left the\n" * 100)
    process.stdin.close()
    process.stdin = None
    in_flight(mk, 8)
    mk.place.kill()
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 3 and out == b""
    assert err.decode().count("mk: ") == 1 and b"closed the connection" in err


def test_a_million_lines_cost_no_memory(mk: Mk, tmp_path: Path) -> None:
    """Empty prompts: refused by mk itself, so that reading and ordering alone are measured."""
    lines = 1_000_000
    (tmp_path / "p").write_bytes(b"\n" * (lines - 1) + b"left the\n")
    with open(tmp_path / "out", "wb") as out:
        process = mk.start(
            *("map", *EXACT, "-n", "1", "--json", str(tmp_path / "p")),
            stdout=out,
            stderr=subprocess.DEVNULL,
        )
        # Not ru_maxrss, which counts the memory of this process too: the child begins as its copy.
        most = 0
        while process.poll() is None:
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
            if (peak := re.search(r"VmHWM:\s*(\d+) kB", status)) and "Name:\tmk\n" in status:
                most = int(peak[1])
            time.sleep(0.02)
    assert process.returncode == 1
    with open(tmp_path / "out", encoding="utf-8") as written:
        count = sum(1 for _ in written)
    assert count == lines
    assert 0 < most < 64 * 1024  # KiB


def test_a_line_that_is_too_long_fails_alone(mk: Mk) -> None:
    data = b"left the\n" + b"x" * ((16 << 20) + 1) + b"\nleft the\n"
    out, err = mk("map", *EXACT, "-n", "3", stdin=data, code=1)
    first, second, third = out.splitlines()
    assert first == third != "" and second == ""
    assert "item 2: longer than" in err
