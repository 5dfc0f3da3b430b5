"""The Python client when its daemon is absent, dies, hangs or comes back."""

from __future__ import annotations

import math
import os
import re
import resource
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import microkimi
import microkimi.channel
import microkimi.errors
import microkimi.link
import microkimi.messages
import microkimi.requests
import pytest
from daemon_harness import BIN, ROOT, SOON, Daemon, model, wait_for
from microkimi import Client, UnreachableError

from conftest import MakeDaemon

ENDLESS: dict[str, Any] = {"model": model(), "ids": [5, 6, 7], "max_new": 900_000}


def daemons_of(daemon: Daemon) -> list[int]:
    """All processes that serve this test's socket."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if words[0].endswith(b"microkimid") and str(daemon.socket).encode() in words:
            found.append(int(path.parent.name))
    return found


@pytest.fixture
def absent(make_daemon: MakeDaemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """The place of a daemon that does not run, in the environment of this process."""
    daemon = make_daemon()
    for name, value in daemon.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MICROKIMI_DAEMON", str(BIN / "microkimid"))
    yield daemon
    for pid in daemons_of(daemon):
        os.kill(pid, signal.SIGTERM)
    wait_for(lambda: daemons_of(daemon) == [])


def fails_soon(request: Any, what: str, seconds: float = SOON) -> UnreachableError:
    start = time.monotonic()
    with pytest.raises(UnreachableError, match=what) as caught:
        request()
    assert time.monotonic() - start < seconds
    assert caught.value.hint
    return caught.value


def test_no_daemon_and_none_may_be_started(absent: Daemon) -> None:
    with Client(autostart=False) as python:
        error = fails_soon(lambda: python.run("x"), "no daemon runs: there is no socket")
        assert error.nobody and str(absent.socket) in error.message
    # Those that only look never start one.
    with Client() as python:
        for look in (python.status, python.ping, python.models, python.unload):
            fails_soon(look, "no daemon runs")
    assert daemons_of(absent) == []


def test_what_is_no_daemon_is_named(absent: Daemon) -> None:
    absent.socket.write_text("")
    with Client() as python:
        error = fails_soon(lambda: python.run("x"), "is not a socket")
        assert not error.nobody
        absent.socket.unlink()
        absent.run_dir.chmod(0o755)
        fails_soon(lambda: python.run("x"), "is open to others")
    with pytest.raises(microkimi.BadRequestError, match="too long"):
        Client("/tmp/" + "x" * 200)
    assert daemons_of(absent) == []


def test_many_clients_start_one_daemon(absent: Daemon) -> None:
    clients = [Client() for _ in range(6)]
    pids: list[int] = []

    def work(python: Client) -> None:
        python.load(model())
        pids.append(python.ping().pid)

    threads = [threading.Thread(target=work, args=(one,)) for one in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(pids) == 6 and set(pids) == set(daemons_of(absent))
    assert len(set(pids)) == 1
    for one in clients:
        one.close()


def test_a_daemon_that_cannot_start_says_why(
    absent: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent.config.write_text("max_batch = 'many'\n")
    with Client() as python:
        fails_soon(lambda: python.run("x"), "could not be started.*max_batch")
    with Client(daemon="/nowhere/microkimid") as python:
        fails_soon(lambda: python.run("x"), "cannot run /nowhere/microkimid")


def test_a_daemon_killed_in_a_stream_is_an_error_and_the_next_run_works(absent: Daemon) -> None:
    with Client() as python:
        stream = python.stream(**ENDLESS)
        for _ in range(5):
            next(stream)
        killed = python.ping().pid
        os.kill(killed, signal.SIGKILL)
        fails_soon(stream.result, "the daemon closed the connection")
        # The stream has ended, and stays so.
        assert list(stream) == []
        assert len(python.run(ids=[1], model=model(), max_new=3).ids) == 3
        assert python.ping().pid != killed


def test_a_daemon_that_was_started_again_is_found(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon().start()
    with Client(daemon.socket, autostart=False) as python:
        first = python.ping().pid
        daemon.kill()
        fails_soon(python.status, "nobody listens|closed the connection")
        fails_soon(python.status, "nobody listens")
        daemon.start()
        assert python.ping().pid == daemon.pid != first


def test_a_daemon_that_hangs_is_not_waited_for(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(microkimi.channel, "ASK_AFTER", 0.5)
    monkeypatch.setattr(microkimi.channel, "DAEMON_SILENCE", 2.5)
    monkeypatch.setattr(microkimi.link, "CONTROL_TIMEOUT", 1.0)
    with Client(daemon.socket, autostart=False) as python:
        stream = python.stream(**ENDLESS)
        next(stream)
        daemon.signal(signal.SIGSTOP)
        try:
            fails_soon(stream.result, "does not answer any more")
            fails_soon(python.ping, "does not answer")  # nor to a new hello
        finally:
            daemon.signal(signal.SIGCONT)
        assert python.ping().pid == daemon.pid


def test_a_daemon_that_is_stopped_says_so(daemon: Daemon) -> None:
    with Client(daemon.socket, autostart=False) as python:
        stream = python.stream(**ENDLESS)
        next(stream)
        daemon.signal(signal.SIGTERM)
        with pytest.raises(microkimi.ShuttingDownError):
            stream.result()


def test_no_descriptors_left_is_an_error_of_ours(daemon: Daemon) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Client(daemon.socket, autostart=False) as python:
        lowest = os.dup(0)
        os.close(lowest)
        try:
            # From none for the probe to some, where ZeroMQ would abort the process.
            for more in (0, 1, 3, 5, 10):
                resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + more, limits[1]))
                with pytest.raises(microkimi.IoError, match="Too many open files"):
                    python.ping()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert python.ping().pid == daemon.pid


def test_a_fork_gets_a_connection_of_its_own(daemon: Daemon) -> None:
    with Client(daemon.socket, autostart=False) as python:
        stream = python.stream(**ENDLESS)
        next(stream)
        child = os.fork()
        if child == 0:
            ok = False
            try:
                ok = python.run(ids=[1], model=model(), max_new=2).finish_reason == "length"
            finally:
                os._exit(0 if ok else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        next(stream)
        stream.cancel()
        assert stream.result().finish_reason == "cancelled"


# ---------------------------------------------------------------- the schemas


def declared(header: str) -> dict[str, dict[str, bool]]:
    """Fields of every schema of the protocol, and whether they must be there."""
    text = (ROOT / "protocol" / header).read_text()
    found = {}
    for struct, body in re.findall(r"struct Schema<(\w+)> \{(.*?)\n\};", text, re.S):
        marks = re.findall(r'(Required|Optional)\(\s*"(\w+)"', body)
        found[struct] = {name: kind == "Required" for kind, name in marks}
        if re.search(r"Inline\(&\w+::model\)", body):
            found[struct] |= found["ModelSelector"]
        if re.search(r"Inline\(&\w+::stream\)", body):
            found[struct] |= declared("stream_fields.h")["StreamWish"]
    return found


REPLIES = {
    "Progress": microkimi.Progress, "TokenChunk": microkimi.Token,
    "RouterPick": microkimi.RouterPick, "RoutesChunk": microkimi.Routes,
    "IndexPick": microkimi.IndexPick, "CompressedRow": microkimi.CompressedRow,
    "PingDone": microkimi.Ping, "ModelStatus": microkimi.ModelStatus,
    "RequestStatus": microkimi.RequestStatus, "StatusDone": microkimi.Status,
    "LatencyStatus": microkimi.Latency,
    "JobStatus": microkimi.JobStatus, "JobError": microkimi.JobFault,
    "ModelEntry": microkimi.ModelEntry, "ModelsDone": microkimi.messages.ModelList,
    "LoadDone": microkimi.Loaded, "UnloadDone": microkimi.messages.Unloaded,
    "Usage": microkimi.Usage, "Timing": microkimi.Timing, "RunOptions": microkimi.RunOptions,
    "Trust": microkimi.Trust, "RunDone": microkimi.RunResult, "SavedPack": microkimi.SavedPack,
    "AbsorbDone": microkimi.Absorbed, "ShadowDone": microkimi.ShadowFile,
    "EvalDone": microkimi.Scorecard, "CompareDone": microkimi.Comparison,
    **{name: getattr(microkimi, name) for name in (
        "EvaluatedModel", "Proportion", "NamedProportion", "TextCard", "ProbeOutcome", "TaskCard",
        "PairedDifference", "ComparedDocument", "ComparedText", "ComparedTask", "PositionMean",
        "LayerOverlap", "Fidelity",
    )},
    "TokenizeDone": microkimi.Tokens,
    "DetokenizeDone": microkimi.messages.Text, "VerifyProblem": microkimi.VerifyProblem,
    "VerifyDone": microkimi.Verified, "BuildDone": microkimi.Built,
    "BenchCeilings": microkimi.BenchCeilings, "BenchRoof": microkimi.BenchRoof,
    "BenchPoint": microkimi.BenchPoint, "BenchDone": microkimi.Bench,
    "MetricBucket": microkimi.MetricBucket, "MetricSample": microkimi.MetricSample,
    "MetricFamily": microkimi.MetricFamily,
    "MetricsDone": microkimi.metric_messages.MetricsAnswer,
    "PrefixStatus": microkimi.PrefixState, "PrefixModel": microkimi.PrefixModel,
    "StreamStatus": microkimi.ExpertStream, "PrefetchStatus": microkimi.Prefetch,
    "StreamUse": microkimi.StreamUse, "LensLayer": microkimi.LensLayer, "LensChunk": microkimi.Lens,
    "LayerRms": microkimi.LayerRms, "HiddenStatsChunk": microkimi.HiddenStats,
    "ExpertCounts": microkimi.ExpertCounts, "ExpertTally": microkimi.ExpertTally,
    "ExpertStatsModel": microkimi.ModelExperts, "ExpertStatsDone": microkimi.ExpertStats,
    "PckInfoDone": microkimi.PrefixCache, "PckCleanDone": microkimi.Forgotten,
}  # fmt: skip


@pytest.mark.parametrize("struct", REPLIES)
def test_replies_have_the_fields_of_the_protocol(struct: str) -> None:
    headers = (
        "reply_fields.h",
        "bench_fields.h",
        "metrics_fields.h",
        "job_fields.h",
        "eval_fields.h",
        "pack_fields.h",
        "shadow_fields.h",
        "prefix_fields.h",
        "look_fields.h",
        "stream_fields.h",
    )
    schema = {name: one for header in headers for name, one in declared(header).items()}[struct]
    ours = {
        one.name: one.default is MISSING and one.default_factory is MISSING
        for one in fields(REPLIES[struct])
    }
    # One that may be left out may also be of a later version than this daemon's.
    assert {name for name, must in ours.items() if must} == {
        name for name, must in schema.items() if must
    }
    assert ours.keys() >= schema.keys()


def test_requests_have_the_fields_of_the_protocol() -> None:
    schemas = declared("request_fields.h")
    run = microkimi.requests.run_request(
        "x",
        {
            "ids": [1],
            "messages": [],
            "system": "s",
            "seed": 1,
            "timeout": 1.0,
            "prefix_cache": False,
            "memory": "m",
            "save": "s",
            "save_format": 1,
            "session": "x",
            "spec": 1,
            "spec_rosa": 1,
            "spec_shadow": 1,
            "stream_fallback": True,
            "ban_text": "x",
            "logprobs": 0,
        },
    )
    assert run.args.keys() == schemas["RunArgs"].keys()
    processing = declared("sampling_fields.h")["ProcessingOptions"].keys()
    given = {"logit_bias": {1: 1.0}, "ban": [1], "dry_breakers": "x", "ids": [1]}
    given |= dict.fromkeys(processing - given.keys(), 1)
    more = microkimi.requests.run_request(None, given)  # type: ignore[arg-type]
    assert processing <= more.args.keys()
    load = microkimi.requests.load_request(1.0, "auto", None, {}).args
    pinned = microkimi.requests.load_request(math.inf, "auto", None, {}).args
    assert pinned["pin"] is True and "pin" not in load
    assert load.keys() | pinned.keys() == schemas["LoadArgs"].keys()
    text = microkimi.requests.tokenize_request("x", False, {"system": "s"})
    assert text.args.keys() == schemas["TokenizeArgs"].keys()
    bench = microkimi.requests.bench_request("auto", False, 0, None, {})
    assert bench.args.keys() == schemas["BenchArgs"].keys()
    absorb = microkimi.requests.absorb_request("t", "s", None, {})
    assert absorb.args.keys() | {"spooled"} == schemas["AbsorbArgs"].keys()
    shadow = microkimi.requests.shadow_request(None, None, {})
    assert shadow.args.keys() == schemas["ShadowArgs"].keys()
    items = schemas["EvalItems"].keys()
    card = microkimi.eval_messages.eval_request({})
    assert card.args.keys() == schemas["EvalArgs"].keys() | items
    both = microkimi.eval_messages.compare_request("a", "b", {})
    assert both.args.keys() == schemas["CompareArgs"].keys() | items
    options = set(microkimi.requests.BuildOptions.__annotations__) | {"out"}
    assert options == schemas["BuildArgs"].keys()


def test_every_code_has_its_class() -> None:
    text = (ROOT / "protocol" / "error.cc").read_text()
    codes = set(re.findall(r'ErrorCodeInfo\{k\w+, "(\w+)"', text))
    assert len(codes) > 15 and set(microkimi.errors.ERROR_CLASSES) == codes
    unknown = microkimi.errors.error_from_body({"code": "of_tomorrow", "message": "m"})
    assert type(unknown) is microkimi.InternalError and unknown.code == "of_tomorrow"
