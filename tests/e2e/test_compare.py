"""`mk compare`: two models on the same texts and tasks."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from typing import Any

import microkimi
import numpy as np
import pytest
from daemon_harness import ROOT, Daemon
from job_tools import detach, job_of, mk

STORY = str(ROOT / "models" / "story-k3.bin")
DSV4 = str(ROOT / "models" / "story-dsv4.bin")
DATA = ROOT / "eval" / "data"


def compare(daemon: Daemon, *args: str) -> dict[str, Any]:
    told = json.loads(mk(daemon, "compare", *args, "--json", limit=240).stdout)
    assert told["schema"] == "mk-compare-1"
    return told


def short_text(daemon: Daemon, *texts: str) -> str:
    path = daemon.home / "short.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


@pytest.mark.parametrize("path", [STORY, DSV4], ids=["k3", "dsv4"])
def test_a_model_is_equivalent_to_itself(daemon: Daemon, path: str) -> None:
    told = compare(daemon, path, path, "--precision", "exact", "--resamples", "500")
    fidelity = told["fidelity"]
    assert fidelity["top1"]["mean"] == fidelity["top5"]["mean"] == 1
    assert fidelity["kl"] == {"mean": 0, "low": 0, "high": 0} and fidelity["kl_max"] == 0
    assert fidelity["positions"] == told["texts"][0]["a"]["tokens"]
    assert fidelity["routers"] and all(one["overlap"] == 1 for one in fidelity["routers"])
    for one in (told["texts"][0]["bits_per_byte"], *(task["accuracy"] for task in told["tasks"])):
        assert one["difference"] == one["low"] == one["high"] == 0
        assert one["verdict"] == "equivalent" and one["sign_p"] == 1
        assert one["ties"] == one["units"] and one["a"] == one["b"]


@pytest.mark.parametrize("path", [STORY, DSV4], ids=["k3", "dsv4"])
def test_divergence_and_routers_are_those_of_dumps(daemon: Daemon, path: str) -> None:
    """Everything once more from raw rows of logits and the picks of every token."""
    text = "Once there was a dog. He ran to the lake."
    told = compare(daemon, path, path, "--precision", "exact", "--precision-b", "q8",
                   "--no-chunked-prefill", "--text", short_text(daemon, text))  # fmt: skip
    rows: dict[str, list[np.ndarray]] = {"exact": [], "q8": []}
    picks: dict[str, list[dict[int, set[int]]]] = {"exact": [], "q8": []}
    with microkimi.Client(daemon.socket, autostart=False) as python:
        ids = python.tokenize(text, model=path).ids
        for precision, found in rows.items():
            how: dict[str, Any] = {"model": path, "precision": precision,
                                   "chunked_prefill": False, "prefix_cache": False}  # fmt: skip
            for end in range(1, len(ids)):
                dump = daemon.home / "logits.f32"
                run = python.run(ids=ids[:end], max_new=0, logits_path=dump, **how)
                assert run.ids == []
                found.append(np.fromfile(dump, dtype="<f4").astype(np.longdouble))
            run = python.run(ids=ids[:-1], max_new=0, routes=True, **how)
            picks[precision] = [
                {pick.layer: set(pick.experts) for pick in one.layers} for one in run.routes
            ]
    kls, nats, same, shared = [], {"exact": 0.0, "q8": 0.0}, 0, 0
    for a, b, target in zip(rows["exact"], rows["q8"], ids[1:], strict=True):
        log = {name: row - row.max() - np.log(np.exp(row - row.max()).sum())
               for name, row in (("exact", a), ("q8", b))}  # fmt: skip
        kls.append(float((np.exp(log["exact"]) * (log["exact"] - log["q8"])).sum()))
        for name in nats:
            nats[name] -= float(log[name][target])
        same += int(a.argmax() == b.argmax())
        top = [set(np.argsort(-row, kind="stable")[:5].tolist()) for row in (a, b)]
        shared += len(top[0] & top[1])
    fidelity, count = told["fidelity"], len(ids) - 1
    assert fidelity["positions"] == count
    assert fidelity["kl"]["mean"] == pytest.approx(np.mean(kls), rel=1e-9)
    assert fidelity["kl_max"] == pytest.approx(max(kls), rel=1e-9) and max(kls) > 0
    assert fidelity["kl_median"] == pytest.approx(sorted(kls)[-(-count // 2) - 1], rel=1e-9)
    assert fidelity["top1"]["mean"] == pytest.approx(same / count)
    assert fidelity["top5"]["mean"] == pytest.approx(shared / 5 / count)
    (one,) = told["texts"]
    assert one["a"]["nats"] == pytest.approx(nats["exact"], rel=1e-12)
    assert one["b"]["nats"] == pytest.approx(nats["q8"], rel=1e-12)
    # One document carries no interval.
    assert one["bits_per_byte"]["verdict"] == "too few to tell"
    assert "low" not in one["bits_per_byte"] and "low" not in fidelity["kl"]
    overlap: dict[int, list[float]] = {}
    for a, b in zip(picks["exact"], picks["q8"], strict=True):
        for layer, experts in a.items():
            overlap.setdefault(layer, []).append(len(experts & b[layer]) / len(experts))
    assert {one["layer"]: one["overlap"] for one in fidelity["routers"]} == pytest.approx(
        {layer: sum(all_) / len(all_) for layer, all_ in overlap.items()}
    )


def test_other_vocabularies_are_compared_in_bits_per_byte(daemon: Daemon) -> None:
    told = compare(daemon, STORY, DSV4, "--precision", "exact")
    assert "fidelity" not in told and "vocabularies differ" in told["no_fidelity"]
    (text,) = told["texts"]
    bits = text["bits_per_byte"]
    # The smaller model was trained on a quarter of the tokens.
    assert bits["verdict"] == "worse" and 0 < bits["low"] < bits["difference"] < bits["high"]
    assert bits["worse"] > bits["better"] and bits["units"] == len(text["documents"])
    total = {side: sum(one[f"bits_{side}"] for one in text["documents"]) for side in "ab"}
    size = sum(one["bytes"] for one in text["documents"])
    assert bits["a"] == pytest.approx(total["a"] / size)
    assert bits["b"] == pytest.approx(total["b"] / size)
    for side, path in (("a", STORY), ("b", DSV4)):
        (card,) = json.loads(
            mk(daemon, "eval", path, "--precision", "exact", "--json", limit=240).stdout
        )["models"]
        assert card["texts"][0] == text[side]
        assert card["tasks"] == [one[side] for one in told["tasks"]]
        assert card["model"] == told[side]
    facts = told["tasks"][0]["accuracy"]
    assert facts["difference"] == pytest.approx(facts["b"] - facts["a"])
    assert facts["better"] + facts["worse"] + facts["ties"] == facts["units"] >= 80
    assert any("worse than A in bits per byte on fables" in one for one in told["verdict"])


def test_the_same_seed_gives_the_same_bytes(daemon: Daemon) -> None:
    args = ("compare", STORY, DSV4, "--precision", "exact", "--task", "stories", "--json")
    first = mk(daemon, *args).stdout
    assert mk(daemon, *args, "--seed", "1").stdout == first
    other = json.loads(mk(daemon, *args, "--seed", "2").stdout)
    told = json.loads(first)
    one, two = (each["tasks"][0]["accuracy"] for each in (told, other))
    assert one["difference"] == two["difference"] and told["seed"] != other["seed"]
    plain = json.loads(mk(daemon, *args, "--interval", "percentile").stdout)
    assert plain["tasks"][0]["accuracy"]["interval"] == "percentile"


def test_text_tells_it_in_words(daemon: Daemon) -> None:
    args = ("compare", STORY, STORY, "--precision", "exact", "--precision-b", "q8")
    text = mk(daemon, *args).stdout
    assert text.startswith("A  story-k3 (exact)\nB  story-k3 (q8)\n")
    for words in ("fables, bits per byte", "facts, % right", "same likeliest token", "KL(A to B)",
                  "experts shared, by layer", "B has the likeliest token of A"):  # fmt: skip
        assert words in text
    job = detach(daemon, *args)
    assert mk(daemon, "jobs", "attach", job).stdout == text
    assert job_of(daemon, job)["kind"] == "compare"


@pytest.mark.parametrize("pair", [(STORY, STORY), (STORY, DSV4)], ids=["alike", "unlike"])
def test_pictures(daemon: Daemon, pair: tuple[str, str]) -> None:
    svg, page = daemon.home / "c.svg", daemon.home / "c.html"
    args = ("compare", *pair, "--precision-b", "exact", "--task", "stories", "--text", "fables")
    told = mk(daemon, *args, "-o", str(svg)).stdout
    assert f"wrote {svg}" in told and told.startswith("A  ")
    root = ET.fromstring(svg.read_text())
    space = "{http://www.w3.org/2000/svg}"
    texts = [one.text or "" for one in root.iter(f"{space}text")]
    assert "fables" in texts and "stories" in texts
    numbers = compare(daemon, *args[1:])
    hovers = [one.text or "" for one in root.iter(f"{space}title")]
    for document in numbers["texts"][0]["documents"]:
        bits = [document[f"bits_{side}"] / document["bytes"] for side in "ab"]
        assert f"{document['id']}\nA {bits[0]:.4f}, B {bits[1]:.4f}" in hovers
    assert ("same likeliest token" in texts) == (pair[0] == pair[1])
    mk(daemon, *args, "-o", str(page))
    assert "<script" not in page.read_text()
    assert mk(daemon, *args, "-o", "-").stdout == svg.read_text()


def test_what_is_wrong_is_named(daemon: Daemon) -> None:
    for args, code, words in [
        ((STORY,), 2, "two models, not 1"),
        ((STORY, "absent"), 7, "absent"),
        ((STORY, STORY, "-o", "x.png"), 2, ".svg or .html"),
        ((STORY, STORY, "--resamples", "5"), 2, "--resamples"),
        ((STORY, STORY, "-o", "x.svg", "--detach"), 2, "exclude"),
        ((STORY, STORY, "--text", "facts"), 2, "facts.jsonl:1: unknown field"),
    ]:
        assert words in mk(daemon, "compare", *args, code=code).stderr


def test_python_compares_as_mk_does(daemon: Daemon) -> None:
    told = compare(daemon, STORY, STORY, "--precision", "exact", "--precision-b", "q8",
                   "--text", "fables")  # fmt: skip
    with microkimi.Client(daemon.socket, autostart=False) as python:
        ours = python.compare(STORY, STORY, precision="exact", precision_b="q8", texts=["fables"])
    assert ours.fidelity and ours.fidelity.kl.mean == told["fidelity"]["kl"]["mean"]
    assert ours.texts[0].bits_per_byte.low == told["texts"][0]["bits_per_byte"]["low"]
    assert ours.verdict == told["verdict"]
