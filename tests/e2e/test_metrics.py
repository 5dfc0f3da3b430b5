"""What the daemon measures, against what happened; its text is read by Prometheus' own parser."""

from __future__ import annotations

import json
import math
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from daemon_harness import (
    BIN,
    PATIENCE,
    Client,
    Daemon,
    ReplyError,
    copy_model,
    endless,
    error_of,
    in_phase,
    long_prompt,
    model,
    running,
    wait_for,
)
from microkimi import Client as PythonClient
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from conftest import MakeDaemon


class Scrape:
    """The metrics of one moment, from the text."""

    def __init__(self, client: Client) -> None:
        self.text: str = client.call("metrics")["text"]
        self.families: dict[str, Metric] = {}
        for family in text_string_to_metric_families(self.text):
            assert family.name not in self.families, f"{family.name} is there twice"
            self.families[family.name] = family

    def __call__(self, name: str, **labels: str) -> float:
        """A sample's value; 0 for one that is not there."""
        found = [
            sample.value
            for family in self.families.values()
            for sample in family.samples
            if sample.name == name and sample.labels == labels
        ]
        assert len(found) <= 1, (name, labels, found)
        return found[0] if found else 0.0

    def ended(self, op: str, outcome: str) -> float:
        return self("microkimi_requests_total", op=op, outcome=outcome)

    def stopped(self, reason: str) -> float:
        return self("microkimi_requests_stopped_total", reason=reason)


def mk(daemon: Daemon, *args: str, code: int = 0) -> str:
    done = subprocess.run(
        [str(BIN / "mk"), *args],
        env=daemon.env(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE,
    )
    assert done.returncode == code, done
    return done.stdout.decode()


def test_the_text_is_what_prometheus_takes(client: Client) -> None:
    client.call("run", model=model(), ids=[1, 2, 3], raw=True, max_new=5)
    scrape = Scrape(client)
    assert len(scrape.families) > 40
    for family in scrape.families.values():
        assert family.documentation, family.name
        assert family.type in ("counter", "gauge", "histogram"), family.name
        assert family.name.startswith(("microkimi_", "process_"))
        # No sample twice, and none without a number.
        keys = [(one.name, tuple(sorted(one.labels.items()))) for one in family.samples]
        assert len(keys) == len(set(keys)), family.name
        assert not any(math.isnan(one.value) for one in family.samples)
    assert scrape.text.endswith("\n")


def test_histograms_are_consistent(client: Client) -> None:
    client.call("run", model=model(), ids=[1] * 200, raw=True, max_new=40)
    histograms = [one for one in Scrape(client).families.values() if one.type == "histogram"]
    assert len(histograms) >= 7
    for family in histograms:
        series: dict[tuple[Any, ...], dict[str, Any]] = {}
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key != "le"}
            here = series.setdefault(tuple(labels.items()), {"buckets": []})
            kind = sample.name.removeprefix(family.name)
            if kind == "_bucket":
                here["buckets"].append((float(sample.labels["le"]), sample.value))
            else:
                here[kind] = sample.value
        for here in series.values():
            bounds = [bound for bound, _ in here["buckets"]]
            counts = [count for _, count in here["buckets"]]
            assert bounds == sorted(set(bounds)) and bounds[-1] == math.inf
            assert counts == sorted(counts) and counts[-1] == here["_count"]
            # What lies in the buckets can have the sum that is told.
            below, least, most = 0.0, 0.0, 0.0
            for (bound, count), lower in zip(here["buckets"], [0.0, *bounds], strict=False):
                least += lower * (count - below)
                most += bound * (count - below) if count > below else 0.0
                below = count
            assert least <= here["_sum"] * (1 + 1e-9) and here["_sum"] <= most * (1 + 1e-9)


def test_a_run_is_counted_from_end_to_end(client: Client, daemon: Daemon) -> None:
    client.call("load", model=model())
    before = Scrape(client)
    start = time.monotonic()
    client.call("run", model=model(), ids=[5] * 150, raw=True, max_new=30)
    took = time.monotonic() - start
    after = Scrape(client)

    def gain(name: str, **labels: str) -> float:
        return after(name, **labels) - before(name, **labels)

    assert gain("microkimi_requests_total", op="run", outcome="done") == 1
    assert gain("microkimi_prompt_tokens_total") == 150
    assert gain("microkimi_prefill_tokens_total") == 150
    assert gain("microkimi_generated_tokens_total") == 30
    assert gain("microkimi_queue_wait_seconds_count") == 1
    assert gain("microkimi_first_token_seconds_count") == 1
    assert gain("microkimi_token_seconds_count") == 29
    first, rest = gain("microkimi_first_token_seconds_sum"), gain("microkimi_token_seconds_sum")
    assert 0 < first < took and 0 < rest < took and first + rest < took
    # The last chunk of the prompt gives the first token; the others take a step each.
    assert gain("microkimi_step_seconds_count", kind="decode") == 29
    assert gain("microkimi_decode_batch_sequences_count") == 29
    assert gain("microkimi_decode_batch_sequences_sum") == 29
    assert gain("microkimi_prefill_batch_tokens_sum") == 150
    assert gain("microkimi_step_seconds_count", kind="mixed") == 0
    assert gain("microkimi_received_bytes_total") > 0
    assert gain("microkimi_sent_bytes_total") > 30 * 20
    # Alone in every step, so nothing was shared.
    assert gain("microkimi_expert_reads_total") > 0
    assert gain("microkimi_expert_reads_saved_total") == 0
    assert gain("microkimi_expert_picks_total") >= gain("microkimi_expert_reads_total")


def test_requests_of_a_step_share_expert_reads(client: Client, daemon: Daemon) -> None:
    numbers = [endless(one, max_new=400) for one in (client, daemon.client(), daemon.client())]
    client.finish(numbers[0])
    scrape = Scrape(client)
    reads = scrape("microkimi_expert_reads_total")
    saved = scrape("microkimi_expert_reads_saved_total")
    assert saved > 0
    # Alone, every token would have read what it picked; tokens of one prompt share as well.
    assert reads + saved <= scrape("microkimi_expert_picks_total")
    steps = scrape("microkimi_decode_batch_sequences_count")
    assert scrape("microkimi_decode_batch_sequences_sum") > steps


def test_ends_are_counted_by_op_outcome_and_reason(client: Client, daemon: Daemon) -> None:
    number = endless(client)
    client.wait_tokens(number, 3)
    client.call("cancel", request=number)
    client.finish(number)
    with pytest.raises(ReplyError):
        client.finish(endless(client, timeout_ms=300))
    error_of(client, "run", model="no-such-model", ids=[1], raw=True)
    error_of(client, "unload", model="no-such-model")
    client.call("ping")
    scrape = Scrape(client)
    assert scrape.ended("run", "cancelled") == 1 and scrape.stopped("client") == 1
    assert scrape.ended("run", "timeout") == 1 and scrape.stopped("deadline") == 1
    assert scrape.ended("run", "model_not_found") == 1
    assert scrape.ended("unload", "model_not_found") == 1
    assert scrape.ended("ping", "done") == 1 and scrape.ended("cancel", "done") == 1
    assert scrape.ended("run", "done") == 0

    other = daemon.client()
    other.wait_tokens(endless(other), 3)
    other.close()
    daemon.clients.remove(other)
    wait_for(lambda: running(client) == [])
    assert Scrape(client).stopped("client_left") == 1


def test_garbage_is_counted_as_rejected(client: Client) -> None:
    client.send_raw(b"\xc1")
    client.send_raw(b"\x93\x01\x02\x03")
    wait_for(lambda: Scrape(client)("microkimi_messages_rejected_total") == 2)


def test_a_stream_that_is_not_read_is_paused_and_counted(client: Client, daemon: Daemon) -> None:
    slow = daemon.client()
    number = endless(slow, window=16)
    wait_for(lambda: in_phase(client, "paused"))
    scrape = Scrape(client)
    assert scrape("microkimi_outbox_pauses_total") == 1
    assert scrape("microkimi_open_requests", phase="paused") == 1
    generated = scrape("microkimi_generated_tokens_total")
    assert 16 <= generated <= 17
    slow.wait_tokens(number, 100)  # it reads now
    assert Scrape(client)("microkimi_generated_tokens_total") >= 100


def test_gauges_tell_what_is_there(client: Client, daemon: Daemon) -> None:
    client.call("load", model=model())
    reader = daemon.client()
    long_prompt(reader)
    wait_for(lambda: in_phase(client, "prefill"))
    scrape = Scrape(client)
    assert scrape("microkimi_models", state="ready") == 1
    assert scrape("microkimi_model_users", model=model(), entry="1") == 1
    status = client.call("status")
    held = scrape("microkimi_model_memory_bytes", model=model(), entry="1")
    assert held == status["models"][0]["memory_bytes"] > 0
    for kind in ("models", "sequences"):
        used = scrape("microkimi_memory_used_bytes", kind=kind)
        assert used == status["memory"][kind] > 0
    assert scrape("microkimi_memory_budget_bytes") == status["memory"]["budget"]
    assert scrape("microkimi_open_requests", phase="prefill") == 1
    assert scrape("microkimi_connections") == 2
    assert scrape("microkimi_build_info", version=status["version"], build_id=status["build_id"])


def test_the_process_is_measured(client: Client, daemon: Daemon) -> None:
    started = time.time()
    scrape = Scrape(client)
    proc = Path(f"/proc/{daemon.pid}")
    fields = (proc / "stat").read_text().rsplit(")", 1)[1].split()
    cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    assert abs(scrape("process_cpu_seconds_total") - cpu) < 1
    assert abs(scrape("process_open_fds") - daemon.open_fds()) <= 2
    resident = daemon.resident_kib() * 1024
    assert 0.5 < scrape("process_resident_memory_bytes") / resident < 2
    assert scrape("process_threads") == len(list((proc / "task").iterdir()))
    assert scrape("process_max_fds") >= 256
    assert started - 60 < scrape("process_start_time_seconds") <= time.time()


def test_hostile_names_of_models_are_escaped(client: Client, tmp_path: Path) -> None:
    folder = 'back\\slash "quoted"\nnew line {le="1"} 9'
    path = copy_model(tmp_path / folder)
    client.call("load", model=path)
    scrape = Scrape(client)
    assert scrape("microkimi_model_users", model=path, entry="1") == 0
    labels = [one.labels for one in scrape.families["microkimi_model_users"].samples]
    assert labels == [{"model": path, "entry": "1"}]


def test_families_say_what_the_text_says(client: Client) -> None:
    client.call("run", model=model(), ids=[1, 2, 3], raw=True, max_new=20)
    families = {one["name"]: one for one in client.call("metrics", form="families")["families"]}
    scrape = Scrape(client)
    wait = families["token_seconds"]
    assert wait["type"] == "histogram" and wait["unit"] == "seconds" and wait["help"]
    (sample,) = wait["samples"]
    assert sample["count"] == sum(one["count"] for one in sample["buckets"]) == 19
    assert sample["value"] == pytest.approx(scrape("microkimi_token_seconds_sum"))
    for bucket in sample["buckets"]:
        assert bucket["above"] < bucket["up_to"] <= bucket["above"] * 1.13 or not bucket["above"]
    generated = families["generated_tokens"]["samples"]
    assert generated == [{"labels": {}, "value": 20.0, "count": 0, "buckets": []}]
    assert error_of(client, "metrics", form="xml").code == "bad_request"


def test_status_sums_up_the_latencies(client: Client) -> None:
    client.call("run", model=model(), ids=[1, 2, 3], raw=True, max_new=20)
    status = client.call("status")
    latency = {one["name"]: one for one in status["latency"]}
    assert set(latency) == {"queue_wait", "first_token", "token", "step", "load"}
    assert latency["token"]["count"] == 19 and latency["step"]["count"] == 20
    for one in latency.values():
        assert one["count"] > 0
        assert one["p50_ms"] <= one["p90_ms"] <= one["p99_ms"]
        assert 0 < one["mean_ms"] < one["p99_ms"] * 1.2
    assert status["counters"]["requests_run_done"] == 1
    assert status["counters"]["requests_stopped_client"] == 0


def test_mk_metrics_prints_both_forms(daemon: Daemon, client: Client) -> None:
    client.call("run", model=model(), ids=[1], raw=True, max_new=3)
    families = list(text_string_to_metric_families(mk(daemon, "metrics")))
    assert len(families) > 40
    told = json.loads(mk(daemon, "metrics", "--json"))
    names = {one["name"] for one in told["families"]}
    assert len(names) == len(families)
    (tokens,) = (one for one in told["families"] if one["name"] == "generated_tokens")
    assert tokens["samples"][0]["value"] == 3


def test_the_python_client_has_both_forms(daemon: Daemon, client: Client) -> None:
    client.call("run", model=model(), ids=[1], raw=True, max_new=9)
    with PythonClient(daemon.socket, autostart=False) as python:
        families = {one.name: one for one in python.metrics()}
        assert families["token_seconds"].samples[0].count == 8
        assert families["token_seconds"].samples[0].buckets[0].count >= 1
        assert list(text_string_to_metric_families(python.metrics_text()))


def test_counters_only_grow_while_a_crowd_works(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon().start()
    watcher = daemon.client()
    workers = [daemon.client() for _ in range(4)]
    numbers = [endless(one) for one in workers]
    last: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for _ in range(15):
        for one in workers:
            one.pump(0.01)
        for number, one in zip(numbers, workers, strict=True):
            one.ack(number)
        for family in Scrape(watcher).families.values():
            if family.type == "gauge":
                continue
            for sample in family.samples:
                key = (sample.name, tuple(sorted(sample.labels.items())))
                assert sample.value >= last.get(key, 0), key
                last[key] = sample.value
    assert last[("microkimi_generated_tokens_total", ())] > 0
