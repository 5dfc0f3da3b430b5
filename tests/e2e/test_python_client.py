"""The Python client for threads, against real daemons."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import microkimi
import microkimi.wire
import pytest
from daemon_harness import BIN, PATIENCE, ROOT, SOON, Daemon, copy_model, model, wait_for
from microkimi import Client, Progress

from conftest import MakeDaemon

STORY = str(ROOT / "models" / "story-k3.bin")
ENDLESS: dict[str, Any] = {"model": model(), "ids": [5, 6, 7], "max_new": 900_000}
SAMPLED: dict[str, Any] = {"temperature": 0.8, "seed": 7, "max_new": 60, "precision": "exact"}


@pytest.fixture
def python(daemon: Daemon) -> Iterator[Client]:
    with Client(daemon.socket, autostart=False) as made:
        yield made


def mk_json(daemon: Daemon, *args: str) -> dict[str, Any]:
    done = subprocess.run(
        [str(BIN / "mk"), *args, "--json"],
        env=daemon.env(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE,
        check=True,
    )
    return json.loads(done.stdout)


def wait_idle(daemon: Daemon) -> None:
    """Nothing runs. Seen by another client, as the one under test might be broken."""
    with Client(daemon.socket, autostart=False) as watcher:
        wait_for(lambda: watcher.status().requests == [], SOON, "for the request to go")
        # What a job used is freed by its thread.
        wait_for(lambda: watcher.status().memory["sequences"] == 0, SOON, "for its memory")


def test_a_stream_is_the_whole_answer_and_what_mk_says(daemon: Daemon, python: Client) -> None:
    prompt = "Once upon a time, there was a small boat."
    options = SAMPLED | {"model": STORY}
    with python.stream(prompt, **options) as stream:
        pieces = list(stream)
        streamed = stream.result()
    assert len(pieces) > 20
    whole = python.run(prompt, **options)
    assert "".join(pieces) == whole.text == streamed.text
    told = mk_json(
        daemon, "run", "-m", STORY, "--temp", "0.8", "--seed", "7", "-n", "60",
        "--precision", "exact", prompt,
    )  # fmt: skip
    assert whole.ids == streamed.ids == told["ids"] and len(whole.ids) == 60
    # All but times, under the same names.
    ours = json.loads(whole.to_json())
    assert ours["timing"].keys() == told["timing"].keys()
    ours["timing"] = told["timing"]
    assert ours == told


@pytest.mark.parametrize(
    ("path", "dialect", "channel"), [(STORY, "nano-sft", "answer"), (model(), "k3", "reasoning")]
)
def test_a_chat_turn_streams_its_answer_alone(
    daemon: Daemon, python: Client, path: str, dialect: str, channel: str
) -> None:
    options = SAMPLED | {"model": path, "system": "Be kind.", "dialect": dialect}
    with python.stream("Who are you?", **options) as stream:
        tokens = list(stream.tokens())
        result = stream.result()
    assert any(one.channel == channel and one.text for one in tokens)
    answer = "".join(one.text for one in tokens if one.channel == "answer")
    assert answer + result.rest == result.text == "".join(python.stream("Who are you?", **options))
    told = mk_json(
        daemon, "run", "-m", path, "--temp", "0.8", "--seed", "7", "-n", "60", "--system",
        "Be kind.", "--dialect", dialect, "--precision", "exact", "Who are you?",
    )  # fmt: skip
    assert told["prompt_ids"] == result.prompt_ids and told["ids"] == result.ids
    assert "reasoning" in result.to_dict()


def test_a_conversation_goes_on_from_the_ids_of_its_turns(python: Client) -> None:
    options: dict = {"model": model(), "thinking": False, "max_new": 9}
    said: list = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "<|close|>Hi"},
    ]
    first = python.run(messages=said, **options)
    one_turn = python.run(said[1]["content"], system=said[0]["content"], **options)
    assert first.prompt_ids == one_turn.prompt_ids and first.ids == one_turn.ids
    said += [
        {"role": "assistant", "content": first.text, "ids": first.ids},
        {"role": "user", "content": "And you?"},
    ]
    known = first.prompt_ids + first.ids
    second = python.run(messages=said, **options)
    assert second.prompt_ids[: len(known)] == known
    # Text that says something else is what counts.
    said[2]["content"] = "No."
    edited = python.run(messages=said, **options)
    assert edited.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids
    assert edited.prompt_ids[: len(known)] != known


def test_messages_are_one_text_for_a_model_without_a_template(python: Client) -> None:
    said: list = [{"role": "user", "content": "One day"}]
    options: dict = {"max_new": 9, "precision": "exact"}
    with pytest.raises(microkimi.UnsupportedError, match="no chat template"):
        python.run(messages=said, **options)
    first = python.run(messages=said, chat=False, **options)
    assert first.ids == python.run("One day", **options).ids
    said += [
        {"role": "assistant", "content": first.text, "ids": first.ids},
        {"role": "user", "content": " Then"},
    ]
    second = python.run(messages=said, chat=False, **options)
    then = python.tokenize(" Then", plain=True).ids
    assert second.prompt_ids == first.prompt_ids + first.ids + then


def test_options_reach_the_daemon(python: Client) -> None:
    result = python.run(
        ids=[1, 2, 3], model=model(), max_new=9, temperature=1.5, top_p=0.9, top_k=50, min_p=0.01,
        seed=11, precision="bf16", chunked_prefill=False, stop=["zzz", "yyy"], timeout=60,
        logprobs=True, routes=True,
    )  # fmt: skip
    told = result.options
    assert (told.max_new, told.temperature, told.top_p, told.top_k) == (9, 1.5, 0.9, 50)
    assert (told.min_p, told.seed, told.precision) == (0.01, 11, "bf16")
    assert (told.chunked_prefill, told.stop, told.timeout_ms) == (False, ["zzz", "yyy"], 60_000)
    assert result.prompt_ids == [1, 2, 3] and result.trust.precision == "bf16"
    assert len(result.logprobs) == len(result.ids) == 9 and max(result.logprobs) <= 0
    assert [one.position for one in result.routes] == list(range(12))
    assert all(pick.experts and pick.weights for one in result.routes for pick in one.layers)


def test_penalties_and_alternatives_reach_the_daemon(python: Client) -> None:
    options: dict = {"ids": [1, 2, 3], "model": model(), "max_new": 9, "precision": "exact"}
    first = python.run(**options).ids[0]
    result = python.run(
        logit_bias={7: -1.5}, ban=[first], dry_multiplier=0.5, dry_breakers="x", dry_range=50,
        repetition_penalty=1.25, frequency_penalty=0.5, presence_penalty=-0.25, penalty_window=9,
        penalty_prompt=True, typical_p=0.75, logprobs=3, **options,
    )  # fmt: skip
    told = result.options
    assert told.logit_bias == [microkimi.TokenBias(7, -1.5)] and told.ban == [first]
    assert (told.dry_multiplier, told.dry_breakers, told.dry_range) == (0.5, ["x"], 50)
    assert (told.repetition_penalty, told.frequency_penalty) == (1.25, 0.5)
    assert (told.presence_penalty, told.penalty_window, told.penalty_prompt) == (-0.25, 9, True)
    assert told.typical_p == 0.75 and first not in result.ids
    assert [len(one) for one in result.top_logprobs] == [3] * 9 and len(result.logprobs) == 9
    assert result.top_logprobs[0][0].id == first
    assert not python.run(logprobs=True, **options).top_logprobs


def test_texts_are_scored(python: Client) -> None:
    options: dict = {"model": STORY, "precision": "exact"}
    hot, cold = python.score([" hot.", {"text": " kettle."}], context="The sun is", **options)
    assert hot.tokens == len(hot.ids) == len(hot.logprobs) == len(hot.ranks) > 0
    assert "".join(hot.pieces) == " hot." and sum(hot.logprobs) == pytest.approx(hot.logprob)
    assert hot.perplexity < cold.perplexity
    (sums,) = python.score([{"ids": [5, 6, 7], "context_ids": [4]}], tokens=False, **options)
    assert (sums.tokens, sums.context_tokens, sums.ids) == (3, 1, [])
    with pytest.raises(microkimi.BadRequestError, match="texts"):
        python.score([], **options)
    with pytest.raises(TypeError, match="max_new"):
        python.score("a", max_new=3, **options)  # type: ignore[call-arg]


def test_looks_are_those_that_mk_shows(daemon: Daemon, python: Client) -> None:
    result = python.run(
        ids=[1, 2, 3], model=model(), max_new=2, lens="answer", lens_top=2, lens_layers=[0, 1],
        hidden_stats=True, experts=True,
    )  # fmt: skip
    words = ["-m", model(), "--ids", "1,2,3", "-n", "2", "--lens-top", "2", "--lens-layers", "0-1"]
    told = mk_json(daemon, "run", *words, "--logit-lens-all", "--hidden-stats")
    ours = json.loads(result.to_json())
    assert ours["lens"] == told["lens"] and ours["hidden_stats"] == told["hidden_stats"]
    assert len(result.lens) == 3 and result.lens[2].layers[0].rank is None
    assert result.experts is not None and result.experts.tokens == 5
    stats = python.expert_stats(model())
    assert not stats.counting and stats.models == []


def test_a_stop_text_ends_the_answer(python: Client) -> None:
    options: dict[str, Any] = {"model": STORY, "max_new": 40, "precision": "exact"}
    text = python.run("Once upon a time", **options).text
    stop = text.split()[8]
    result = python.run("Once upon a time", stop=stop, **options)
    assert result.finish_reason == "stop" and result.text == text[: text.index(stop)]
    assert "".join(python.stream("Once upon a time", stop=stop, **options)) == result.text


def test_text_that_came_with_no_token_is_streamed_too(
    python: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = microkimi.wire.decode_reply

    def with_rest(message: bytes) -> microkimi.wire.Reply:
        reply = decode(message)
        if "finish_reason" in reply.body:
            reply.body["rest"] = "é"
            reply.body["text"] += "é"
        return reply

    monkeypatch.setattr(microkimi.wire, "decode_reply", with_rest)
    with python.stream("Once", model=STORY, max_new=5) as stream:
        text = "".join(stream)
        assert text == stream.result().text and text.endswith("é") and len(text) > 5
        assert list(stream) == []


def test_dumps_are_the_bytes_that_mk_writes(daemon: Daemon, python: Client, tmp_path: Path) -> None:
    ids = [3, 1, 4, 1, 5, 9, 2, 6]
    logits, hidden = tmp_path / "l.f32", tmp_path / "h.f32"
    result = python.run(
        ids=ids, model=model(), max_new=5, precision="exact", logits_path=logits, hidden_path=hidden
    )
    mk_json(
        daemon, "run", "-m", model(), "--ids", "3,1,4,1,5,9,2,6", "-n", "5", "--precision", "exact",
        "--dump-logits", str(tmp_path / "ml"), "--dump-hidden", str(tmp_path / "mh"),
    )  # fmt: skip
    assert logits.read_bytes() == (tmp_path / "ml").read_bytes() != b""
    assert hidden.read_bytes() == (tmp_path / "mh").read_bytes() != b""
    assert result.logits is not None and result.hidden is not None
    assert (result.logits.rows, result.logits.row_floats) == (6, 256)
    assert result.hidden.rows == len(ids) + 5
    # A run that does not end leaves no file behind.
    with python.stream(logits_path=tmp_path / "x", **ENDLESS) as stream:
        next(stream)
        assert (tmp_path / "x.part").exists()
    assert not (tmp_path / "x.part").exists() and not (tmp_path / "x").exists()
    with pytest.raises(microkimi.IoError, match="cannot write"):
        python.run(ids=[1], model=model(), logits_path=tmp_path / "none" / "x")


def leave_by_break(python: Client) -> None:
    for _ in python.stream(**ENDLESS):
        break


def leave_by_with(python: Client) -> None:
    with python.stream(**ENDLESS) as stream:
        next(stream)


def leave_by_error(python: Client) -> None:
    with contextlib.suppress(ZeroDivisionError):
        for _ in python.stream(**ENDLESS):
            _ = 1 // 0


def leave_by_interrupt(python: Client) -> None:
    """Control-C comes while the main thread waits for the end of a run."""
    main = threading.main_thread().ident
    assert main is not None
    # Earlier tests may have left a handler of their own.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Timer(0.5, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            python.run(**ENDLESS)
    finally:
        signal.signal(signal.SIGINT, before)


def leave_by_own_error(python: Client) -> None:
    """A callback of the caller fails."""

    def fail(_: Progress) -> None:
        raise ZeroDivisionError

    ids = [one % 200 + 1 for one in range(300_000)]
    with pytest.raises(ZeroDivisionError):
        python.run(**(ENDLESS | {"ids": ids, "max_new": 9, "progress": fail}))


def leave_a_job(python: Client) -> None:
    def fail(_: Progress) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        python.bench(model(), precision="exact", progress=fail)


@pytest.mark.parametrize(
    "leave",
    [
        leave_by_break,
        leave_by_with,
        leave_by_error,
        leave_by_interrupt,
        leave_by_own_error,
        leave_a_job,
    ],
)
def test_leaving_early_frees_the_request(daemon: Daemon, python: Client, leave: Any) -> None:
    python.load(model())
    leave(python)
    wait_idle(daemon)
    assert python.run(ids=[1], model=model(), max_new=2).ids  # the connection is as good as before


def test_cancel_keeps_what_was_made(python: Client) -> None:
    with python.stream(**ENDLESS) as stream:
        tokens = stream.tokens()
        seen = [next(tokens).id for _ in range(10)]
        stream.cancel()
        seen += [one.id for one in tokens]
        result = stream.result()
    assert result.finish_reason == "cancelled" and result.ids == seen
    assert python.status().counters["generated_tokens"] == len(seen)


def test_a_slow_reader_is_no_dead_one(python: Client) -> None:
    with python.stream(**(ENDLESS | {"max_new": 2000})) as stream:
        tokens = stream.tokens()
        next(tokens)
        time.sleep(6.5)  # a daemon that hears nothing for 5 s ends the request
        # It did not run far ahead of the reader either.
        (request,) = python.status().requests
        assert request.generated < 1000
        assert len(list(tokens)) == 1999


def test_threads_share_a_client_and_get_what_each_gets_alone(python: Client) -> None:
    prompts = ["the small boat left the river", "a kettle", "seven lamps on a wall", "Tom"]
    options: dict[str, Any] = {"model": model(), "max_new": 150, "precision": "exact"}
    alone = [python.run(prompt, **options).ids for prompt in prompts]
    assert len({tuple(ids) for ids in alone}) == len(prompts)
    before = python.status().counters["forwards"]
    found: dict[int, list[int]] = {}
    start = threading.Barrier(8)

    def work(at: int) -> None:
        start.wait()
        found[at] = python.run(prompts[at % 4], **options).ids

    threads = [threading.Thread(target=work, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert found == {at: alone[at % 4] for at in range(8)}
    # They did share steps, over one connection.
    assert python.status().counters["forwards"] - before < 150 * 8
    assert python.status().connections == 1


def test_models_and_text(daemon: Daemon, python: Client) -> None:
    steps: list[Progress] = []
    loaded = python.load(STORY, keep=3600, precision="exact", progress=steps.append)
    assert loaded.model.path == STORY and loaded.precision == "exact" and not loaded.was_loaded
    assert python.load(STORY, precision="exact").was_loaded
    status = python.status()
    assert [one.path for one in status.models] == [STORY] and status.pid == daemon.pid
    assert status.models[0].keep_alive_ms == 3_600_000
    assert python.ping().pid == daemon.pid
    assert any(one.name == "story-k3" for one in python.models())
    text = "The little fox said: 'héllo'."
    tokens = python.tokenize(text, model=STORY)
    assert tokens.ids == mk_json(daemon, "tokenize", "-m", STORY, text)["ids"]
    plain = python.tokenize(text, model=STORY, plain=True)
    assert len(plain.ids) == len(tokens.ids) - 1
    assert python.detokenize(plain.ids, model=STORY) == text
    assert python.unload(STORY) == 1 and python.status().models == []


def test_sessions_are_kept_forked_and_compared(python: Client, tmp_path: Path) -> None:
    first = python.run("Once upon a time", model=STORY, session="story", max_new=6)
    assert first.session is not None and first.session.created and first.session.turns == 1
    assert python.sessions.fork("story", "other").forked_from == "story"
    on = python.run(session="story", max_new=6)
    new = python.run(" Then a dragon came", session="other", max_new=6)
    assert on.prefix == new.prefix == "live"
    assert on.session is not None and on.to_dict()["session"]["tokens"] == on.session.tokens
    diff = python.sessions.diff("story", "other")
    assert diff.common_turns == 1 and "Then a dragon" in diff.rest_b
    assert {one.array for one in diff.arrays} > {"kda_matrix"}
    again = python.run(" Then", session="other", session_undo=1, max_new=2)
    assert again.session is not None and again.session.turns == 2
    shown = python.sessions.show("other")
    assert [one.user for one in shown.turns] == ["Once upon a time", " Then"]
    saved = python.sessions.save("story", tmp_path / "story.mkmem")
    assert saved.path == str(tmp_path / "story.mkmem")
    assert python.sessions.restore("copy", tmp_path / "story.mkmem").turns == 2
    assert python.sessions.undo("copy", None).turns == 0
    assert python.sessions.rename("copy", "empty").name == "empty"
    assert python.sessions.new("talk", model=model(), system="Be kind.").kind == "chat"
    assert [one.name for one in python.sessions.list()] == ["empty", "other", "story", "talk"]
    assert python.sessions.remove("empty", "talk") == 2
    with pytest.raises(microkimi.NotFoundError):
        python.sessions.show("empty")


def test_the_cache_of_prompts(python: Client) -> None:
    ids = [1 + i % 200 for i in range(300)]
    for _ in range(2):
        python.run(ids=ids, model=STORY, max_new=1)
    kept = python.prefix_cache()
    assert [one.model for one in kept.models] == [STORY] and kept.models[0].loaded
    assert any(one.tokens == 300 and one.memory_bytes > 0 for one in kept.models[0].states)
    assert kept.totals["hits"] == 1 and kept.folder.endswith("/prefix")
    forgotten = python.clean_prefix_cache(STORY)
    assert forgotten.states == len(kept.models[0].states) and forgotten.bytes > 0
    assert python.prefix_cache(STORY).totals["memory_states"] == 0


def test_jobs_tell_their_progress(python: Client, tmp_path: Path) -> None:
    steps: list[Progress] = []
    out = tmp_path / "tiny.bin"
    dry = python.build(out, preset="tiny", dry_run=True)
    assert not dry.written and not out.exists()
    built = python.build(out, preset="tiny", seed=3, progress=steps.append)
    assert built.written and out.stat().st_size == built.file_bytes == dry.file_bytes
    assert steps and {one.stage for one in steps} <= {"queue", "build"}
    assert all(0 <= one.done <= one.total for one in steps if one.stage == "build")
    with pytest.raises(microkimi.MicrokimiError, match=str(out)):
        python.build(out, preset="tiny")
    verified = python.verify(out)
    assert verified.ok and verified.path == str(out) and verified.problems == []
    bench = python.bench(model(), precision="q8", quick=True, threads=1)
    assert bench.precision == "q8" and bench.quick and bench.threads == 1
    assert bench.points and all(one.tokens_per_s > 0 for one in bench.points)


def test_errors_are_of_the_class_of_their_code(python: Client, tmp_path: Path) -> None:
    with pytest.raises(microkimi.ModelNotFoundError) as caught:
        python.run("x", model="no-such-model")
    error = caught.value
    assert error.code == "model_not_found" and "no-such-model" in error.message and error.hint
    assert error.hint in str(error)
    with pytest.raises(microkimi.BadRequestError, match="no prompt"):
        python.run()
    with pytest.raises(microkimi.BadRequestError, match="temperature"):
        python.run("x", temperature=-1)
    with pytest.raises(microkimi.BadRequestError, match="not Unicode"):
        python.run("\ud800")
    with pytest.raises(microkimi.BadRequestError, match="timeout"):
        python.run("x", timeout=0)
    with pytest.raises(TypeError, match="tempratur"):
        python.run("x", tempratur=1)  # type: ignore[call-arg]
    with pytest.raises(microkimi.ContextOverflowError):
        python.run(ids=[1] * 300_000, model=model(), max_new=900_000)
    start = time.monotonic()
    with pytest.raises(microkimi.DeadlineError):
        python.run(timeout=0.6, **ENDLESS)
    assert time.monotonic() - start < SOON
    path = copy_model(tmp_path / "m")
    os.truncate(path, 1000)
    with pytest.raises(microkimi.ModelCorruptError, match=r"model\.bin"):
        python.load(path)
    # One error costs one request.
    assert python.run(ids=[1], model=model(), max_new=2).ids


def test_busy_tells_the_queue(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    daemon.config.write_text("max_queue = 4\nmax_batch = 1\n")
    daemon.start()
    with Client(daemon.socket, autostart=False) as python:
        open_ones = [python.stream(**ENDLESS) for _ in range(4)]
        wait_for(lambda: len(python.status().requests) == 4)
        with pytest.raises(microkimi.BusyError) as caught:
            python.run(**ENDLESS)
        assert caught.value.hint and caught.value.details
        del open_ones
    wait_idle(daemon)


def test_closing_a_client_ends_its_requests(daemon: Daemon) -> None:
    python = Client(daemon.socket, autostart=False)
    stream = python.stream(**ENDLESS)
    next(stream)
    threading.Timer(0.5, python.close).start()
    with pytest.raises(microkimi.CancelledError, match="closed"):
        stream.result()
    wait_idle(daemon)
    with pytest.raises(microkimi.BadRequestError, match="closed"):
        python.ping()


def test_a_client_that_is_dropped_leaves_nothing(daemon: Daemon) -> None:
    def threads() -> list[str]:
        return [one.name for one in threading.enumerate() if one.name == "microkimi"]

    stream = Client(daemon.socket, autostart=False).stream(**ENDLESS)
    assert next(stream) and next(stream)  # the stream keeps its client
    assert len(threads()) == 1
    del stream
    wait_for(lambda: threads() == [])
    wait_idle(daemon)


def test_another_version_is_named(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(microkimi.wire, "PROTOCOL_MIN", 90)
    monkeypatch.setattr(microkimi.wire, "PROTOCOL_MAX", 99)
    with Client(daemon.socket) as python:
        with pytest.raises(microkimi.UnsupportedVersionError) as caught:
            python.ping()
        assert caught.value.hint


def test_a_program_that_just_ends_leaves_nothing(daemon: Daemon) -> None:
    """Neither a warning, nor a wait, nor a request; with a run open and no close()."""
    program = """
import microkimi, sys, threading
client = microkimi.Client(sys.argv[1])
with microkimi.Client(sys.argv[1]) as other:
    other.ping()
stream = client.stream(ids=[1], model=sys.argv[2], max_new=900_000)
next(stream)
print(len([one for one in threading.enumerate() if one.name == "microkimi"]))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(daemon.socket), model()],
        env=daemon.env(PYTHONPATH=str(ROOT / "client" / "python")),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
    wait_idle(daemon)
