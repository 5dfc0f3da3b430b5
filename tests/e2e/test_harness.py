"""Scorecards and the lm-evaluation harness agree on the same task files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import microkimi
import pytest
from daemon_harness import Daemon
from harness_tools import DATA, MODELS, RECORDED, run
from job_tools import mk


def cards(daemon: Daemon, model: Path) -> dict[str, dict[str, Any]]:
    told = json.loads(
        mk(
            daemon, "eval", str(model), "--precision", "exact", "--json",
            "--task", str(DATA / "choices.jsonl"), "--task", str(DATA / "greedy.jsonl"),
        ).stdout
    )  # fmt: skip
    return {one["name"]: one for one in told["models"][0]["tasks"]}


def check(ours: dict[str, dict[str, Any]], theirs: dict[str, Any]) -> None:
    for name in ("choices", "greedy"):
        card, found = ours[name], theirs[name]
        assert [one["score"] for one in card["outcomes"]] == found["right"]
        assert card["accuracy"]["share"] == pytest.approx(found["acc"])
    choices, found = ours["choices"], theirs["choices"]
    assert choices["acc"]["share"] == pytest.approx(found["acc"])
    assert choices["acc_norm"]["share"] == pytest.approx(found["acc_norm"])
    # What both ways of counting can tell apart is in the file.
    assert found["right"] != found["right_norm"]
    probes = [json.loads(line) for line in (DATA / "choices.jsonl").read_text().splitlines()]
    for probe, outcome, sums in zip(
        probes, choices["outcomes"], found["likelihoods"], strict=True
    ):
        assert outcome["picks"] == [sums.index(max(sums))]
        right = sums[probe["answer"]]
        others = [one for i, one in enumerate(sums) if i != probe["answer"]]
        assert outcome["margin"] == pytest.approx(right - max(others), abs=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_scorecards_are_what_the_harness_recorded(daemon: Daemon, name: str) -> None:
    """tests/e2e/harness_tools.py has run it, on files that have not changed since."""
    check(cards(daemon, MODELS[name]), json.loads(RECORDED.read_text())[name])


def test_the_harness_gives_the_same_today(daemon: Daemon, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval", reason="the lm-evaluation harness is not installed")
    with microkimi.Client(daemon.socket, autostart=False) as client:
        found = run(client, MODELS["story-k3"], tmp_path)
    check(cards(daemon, MODELS["story-k3"]), found)
    recorded = json.loads(RECORDED.read_text())["story-k3"]
    assert found["choices"]["right"] == recorded["choices"]["right"]
