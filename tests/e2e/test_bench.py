"""`mk bench`: what it tells, and that it has the machine for itself. No speed is judged here."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
from functools import partial
from typing import Any

import job_tools
import pytest
from daemon_harness import (
    BIN,
    ROOT,
    Client,
    Daemon,
    endless,
    error_of,
    in_phase,
    model,
    running,
    wait_for,
)

STORY = str(ROOT / "models" / "story-k3.bin")
PATIENCE = 240
mk = partial(job_tools.mk, limit=PATIENCE)


def check_point(point: dict[str, Any]) -> None:
    for key, value in point.items():
        if key in ("kind", "limit_by"):
            continue
        if key == "gb_per_s" and point["kind"] in ("prefill", "first_token"):
            assert value == 0
            continue
        assert math.isfinite(value) and value > 0, (key, point)
    assert point["limit_by"] in ("reads", "arithmetic")
    assert point["step_ms_p10"] <= point["step_ms"] <= point["step_ms_p90"]
    assert point["share"] == pytest.approx(point["tokens_per_s"] / point["limit_tokens_per_s"])
    tokens = point["batch"] if point["kind"] in ("decode", "batch") else point["tokens"]
    assert point["tokens_per_s"] == pytest.approx(1000 * tokens / point["step_ms"])


def check_result(result: dict[str, Any]) -> None:
    for key in ("load_ms", "ping_ms", "ttft_ms", "seconds", "threads", "processors", "vocab"):
        assert result[key] > 0, key
    for key in ("fingerprint", "target", "date", "build_id"):
        assert result[key], key
    assert result["model_path"] == STORY and result["ttft_prompt_tokens"] == 16
    for ceilings in result["ceilings"]:
        assert all(value > 0 for value in ceilings.values()), ceilings
    assert result["ceilings"][-1]["threads"] == result["threads"]
    assert all(value > 0 for value in result["roof"].values()), result["roof"]
    for point in result["points"]:
        check_point(point)


def test_all_precisions_of_the_story_model(daemon: Daemon) -> None:
    results = json.loads(mk(daemon, "bench", STORY, "--quick", "--json").stdout)["results"]
    assert [result["precision"] for result in results] == ["exact", "bf16", "q8"]
    for result in results:
        check_result(result)
        assert result["quick"] is True
        kinds = [(point["kind"], point["tokens"], point["batch"]) for point in result["points"]]
        assert kinds == [
            ("decode", 128, 1),
            ("batch", 128, 1),
            ("batch", 128, 4),
            ("prefill", 500, 1),
            ("first_token", 16, 1),
        ]
    exact, bf16, q8 = (result["roof"]["spine_bytes"] for result in results)
    assert exact > bf16 > q8


def test_text_and_markdown_name_the_roof(daemon: Daemon) -> None:
    options = ("bench", STORY, "--quick", "--precision", "q8", "--threads", "1")
    for form in ((), ("--markdown",)):
        text = mk(daemon, *options, *form).stdout
        assert any(target in text for target in ("AVX", "NEON", "SCALAR"))
        for word in (
            "story-k3.bin",
            "tok/s",
            "GB/s",
            "share of limit",
            "L = ",
            "1 thread:",
            "ping",
        ):
            assert word in text, word
        assert "exact\n" not in text


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("nosuch",), 7, 'no model "nosuch"'),
        (("--precision", "q4"), 2, "q4"),
        (("--threads", "0"), 2, "--threads"),
        (("--json", "--markdown"), 2, "exclude each other"),
        (("",), 2, "MODEL is given, but empty"),
    ],
)
def test_bad_input_is_an_error_with_a_remedy(
    daemon: Daemon, args: tuple[str, ...], code: int, words: str
) -> None:
    lines = mk(daemon, "bench", *args, code=code).stderr.splitlines()
    assert len(lines) == 2 and words in lines[0] and lines[1].startswith("  hint: "), lines


def test_errors_as_json_too(daemon: Daemon) -> None:
    done = mk(daemon, "bench", "nosuch", "--json", code=7)
    assert json.loads(done.stdout)["error"]["code"] == "model_not_found"


def test_is_refused_while_others_run(client: Client, daemon: Daemon) -> None:
    number = endless(client)
    client.wait_tokens(number, 1)
    error = error_of(client, "bench", model=model())
    assert error.code == "busy" and "1 other request is open" in error.message and error.hint
    client.call("cancel", request=number)
    client.finish(number)


def test_a_run_waits_for_its_end(client: Client, daemon: Daemon) -> None:
    bench = client.send("bench", model=STORY, precision="q8", quick=True)
    wait_for(lambda: in_phase(client, "working"))
    run = client.send("run", model=model(), ids=[1, 2], raw=True, max_new=2)
    assert client.next_reply(run, 0)["body"]["queue_position"] == 1
    assert client.finish(bench, PATIENCE)["points"]
    assert len(client.finish(run)["ids"]) == 2


def test_cancel_ends_it_at_once(client: Client, daemon: Daemon) -> None:
    for _ in range(2):
        number = client.send("bench", model=STORY, precision="exact")
        wait_for(lambda: in_phase(client, "working"))
        assert client.call("cancel", request=number)["found"]
        with pytest.raises(Exception, match="cancelled"):
            client.finish(number)
    assert running(client) == []
    assert client.call("run", model=model(), ids=[1], raw=True, max_new=1)["ids"]


def test_interrupt_ends_mk_and_the_measurement(daemon: Daemon) -> None:
    process = subprocess.Popen(
        [str(BIN / "mk"), "bench", STORY],
        env=daemon.env(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        client = daemon.client()
        wait_for(lambda: in_phase(client, "working"))
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 130 and out == b"" and b"cancelled" in err
        wait_for(lambda: running(client) == [])
    finally:
        process.kill()
        process.communicate()


def test_a_stopping_daemon_does_not_wait_for_it(client: Client, daemon: Daemon) -> None:
    number = client.send("bench", model=STORY, precision="exact")
    wait_for(lambda: in_phase(client, "working"))
    client.call("stop", grace_ms=0)
    with pytest.raises(Exception, match="shutting_down"):
        client.finish(number)
    assert daemon.wait() == 0
