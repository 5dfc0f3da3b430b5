"""Control ops beside work: status while a prompt is read, and how soon a cancel is silence."""

from __future__ import annotations

import time

from bench_place import Place, say

from daemon_figures.bench_daemon import Client, Daemon, serving
from daemon_figures.figure import Figure, percentile

PROMPT_TOKENS = 4000
GROUP = "Answers beside work"


def prompt(tokens: int) -> list[int]:
    return [1 + (7 * i + i * i) % 200 for i in range(tokens)]


def _run(model: str, tokens: int, max_new: int) -> dict[str, object]:
    """Reads its prompt every time."""
    ids = prompt(tokens)
    return {"model": model, "ids": ids, "raw": True, "max_new": max_new, "prefix_cache": False}


def _status_times(daemon: Daemon, model: str, samples: int) -> list[float]:
    """Milliseconds of status calls, taken only while the prompt was being read."""
    times: list[float] = []
    reader, watcher = daemon.client(), daemon.client()
    while len(times) < samples:
        number = reader.send("run", **_run(model, PROMPT_TOKENS, 1))
        last_ack = 0.0
        while len(times) < samples:
            start = time.perf_counter()
            status = watcher.call("status")
            took = 1e3 * (time.perf_counter() - start)
            phases = [one["phase"] for one in status["requests"]]
            if phases == ["prefill"]:
                times.append(took)
            reader.pump(0)
            if reader.replies[number] and reader.replies[number][-1]["type"] in ("done", "error"):
                break
            if time.monotonic() - last_ack > 0.5:
                last_ack = time.monotonic()
                reader.ack(number)
            time.sleep(0.002)
        reader.call("cancel", request=number)
        reader.replies.pop(number, None)
    return times


def status_figures(place: Place, model: str, samples: int) -> list[Figure]:
    say("status while a prompt is read")
    figures = []
    with serving(place) as daemon:
        daemon.client().call("load", model=model)
        idle = daemon.client()
        alone = []
        for _ in range(samples):
            start = time.perf_counter()
            idle.call("status")
            alone.append(1e3 * (time.perf_counter() - start))
        busy = _status_times(daemon, model, samples)
    detail = f"{len(busy)} calls, p50 {percentile(busy, 0.5):.2f} ms"
    name = f"status p99 while {PROMPT_TOKENS:,} tokens are read"
    figures.append(Figure(GROUP, name, percentile(busy, 0.99), "ms", 20, detail=detail))
    figures.append(Figure(GROUP, "status p99 of an idle daemon", percentile(alone, 0.99), "ms"))
    return figures


def _silence(client: Client, number: int) -> float:
    """Milliseconds from the cancel to the last message of the request."""
    start = time.perf_counter()
    client.send("cancel", request=number)
    at = len(client.replies[number])
    while True:
        while len(client.replies[number]) <= at:
            client.pump(5)
        if client.replies[number][at]["type"] in ("done", "error"):
            return 1e3 * (time.perf_counter() - start)
        at += 1


def _cancels(daemon: Daemon, model: str, phase: str, rounds: int) -> list[float]:
    times = []
    client, watcher = daemon.client(), daemon.client()
    for turn in range(rounds):
        tokens = PROMPT_TOKENS if phase == "prefill" else 8
        number = client.send("run", **_run(model, tokens, 2000))
        if phase == "decode":
            client.wait_tokens(number, 5 + turn % 7)
        while phase == "prefill" and _phase_of_any(watcher) != "prefill":
            time.sleep(0.001)
        # Not always at the same point of a step.
        time.sleep(0.003 * (turn % 5))
        times.append(_silence(client, number))
        client.replies.pop(number)
    return times


def _phase_of_any(client: Client) -> str:
    requests = client.call("status")["requests"]
    return str(requests[0]["phase"]) if requests else ""


def cancel_figures(place: Place, model: str, rounds: int) -> list[Figure]:
    figures = []
    with serving(place) as daemon:
        daemon.client().call("load", model=model)
        for phase, bar in (("decode", 100), ("prefill", 250)):
            say(f"cancel in {phase}")
            times = _cancels(daemon, model, phase, rounds)
            detail = f"{rounds} cancels, p50 {percentile(times, 0.5):.1f} ms"
            name = f"cancel to silence p99 in {phase}"
            figures.append(Figure(GROUP, name, percentile(times, 0.99), "ms", bar, detail=detail))
    return figures
