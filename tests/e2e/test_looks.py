"""Looks into a model at work: logit lens, sizes of hidden states, routing, and their files."""

from __future__ import annotations

import json
import re
import struct
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from daemon_harness import BIN, PATIENCE, ROOT, Client, Daemon, error_of, model

from nano.mkim import MkimFile

K3 = model("k3b")
DSV4 = str(ROOT / "tests" / "data" / "golden" / "dsv4" / "d1" / "model.bin")
MODELS = [K3, DSV4]
IDS = [5, 17, 3, 40, 8]

Run = Callable[..., str]


@pytest.fixture
def mk(daemon: Daemon) -> Run:
    def run(*args: str, code: int = 0) -> str:
        done = subprocess.run(
            [str(BIN / "mk"), *args],
            env=daemon.env(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == code, done
        return (done.stdout if code == 0 else done.stderr).decode()

    return run


def chunks(client: Client, kind: str, **args: Any) -> tuple[list[dict], dict]:
    number = client.send("run", raw=True, **args)
    done = client.finish(number)
    found = [
        one["body"]
        for one in client.replies[number]
        if one["type"] == "chunk" and one["body"]["kind"] == kind
    ]
    return found, done


def rows_of(client: Client, kind: str, **args: Any) -> dict[int, np.ndarray]:
    found, _ = chunks(client, kind, **args)
    rows: dict[int, bytes] = {}
    for one in found:
        rows[one["position"]] = rows.get(one["position"], b"") + one["data"]
    return {position: np.frombuffer(row, "<f4") for position, row in rows.items()}


def softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits.astype(np.float64) - logits.max())
    return e / e.sum()


class Head:
    """The way out of a model, in f64, from its file."""

    def __init__(self, path: str) -> None:
        with MkimFile(path) as file:
            self.config = file.model_config()
            read = {name: file.read(name).astype(np.float64) for name in self.names(path)}
        self.k3 = path == K3
        self.tensors = read

    @staticmethod
    def names(path: str) -> list[str]:
        if path == K3:
            return ["norm.weight", "lm_head.weight"]
        return ["norm.weight", "head.weight", "hc_head_fn", "hc_head_base", "hc_head_scale"]

    def norm(self, x: np.ndarray, eps: float) -> np.ndarray:
        return x / np.sqrt((x * x).mean() + eps) * self.tensors["norm.weight"].ravel()

    def logits(self, row: np.ndarray) -> np.ndarray:
        t, x = self.tensors, row.astype(np.float64)
        if self.k3:
            return t["lm_head.weight"] @ self.norm(x, self.config.rms_eps)
        eps = self.config.rms_norm_eps
        numbers = t["hc_head_fn"] @ x / np.sqrt((x * x).mean() + eps)
        pre = 1 / (1 + np.exp(-(numbers * t["hc_head_scale"] + t["hc_head_base"])))
        pre = pre.ravel() + self.config.hc_eps
        mixed = pre @ x.reshape(len(pre), -1)
        return t["head.weight"] @ self.norm(mixed, eps)


def check_layer(layer: dict, p: np.ndarray, following: int | None, tolerance: float) -> None:
    """A row of the lens against probabilities that were made another way."""
    for one, probability in zip(layer["ids"], layer["probabilities"], strict=True):
        assert probability == pytest.approx(p[one], rel=tolerance)
    order = sorted(range(len(p)), key=lambda i: (-p[i], i))
    for one, best in zip(layer["ids"], order, strict=False):
        assert p[one] == pytest.approx(p[best], rel=tolerance)
    entropy = -float((p[p > 0] * np.log(p[p > 0])).sum())
    assert layer["entropy"] == pytest.approx(entropy, abs=1e-3)
    if following is None:
        assert "rank" not in layer
    else:
        assert layer["probability"] == pytest.approx(p[following], rel=tolerance)
        assert p[order[layer["rank"]]] == pytest.approx(p[following], rel=tolerance)


@pytest.mark.parametrize("path", MODELS)
def test_every_layer_of_the_lens_is_what_its_hidden_state_gives(client: Client, path: str) -> None:
    args = {"model": path, "ids": IDS, "max_new": 4, "precision": "exact"}
    hidden = rows_of(client, "hidden", want_hidden=True, **args)
    logits = rows_of(client, "logits", want_logits=True, **args)
    lens, done = chunks(client, "lens", lens="all", lens_top=4, **args)
    head = Head(path)
    text = IDS + done["ids"]
    assert [one["position"] for one in lens] == list(range(len(text)))
    for one in lens:
        at = one["position"]
        following = text[at + 1] if at + 1 < len(text) else None
        assert one["id"] == text[at]
        assert one.get("next") == following
        assert one.get("index") == (at - len(IDS) if at >= len(IDS) else None)
        layers = hidden[at].reshape(len(one["layers"]), -1)
        for i, layer in enumerate(one["layers"]):
            assert layer["layer"] == i
            last = i + 1 == len(layers)
            if last and path == K3:
                # Its one stream is mixed with earlier blocks before the head.
                if at not in logits:
                    continue
                p = softmax(logits[at])
            else:
                p = softmax(head.logits(layers[i]))
            check_layer(layer, p, following, 2e-4)


@pytest.mark.parametrize("path", MODELS)
@pytest.mark.parametrize("precision", ["exact", "bf16", "q8"])
def test_the_last_layer_is_what_the_model_says(client: Client, path: str, precision: str) -> None:
    args = {"model": path, "ids": IDS, "max_new": 5, "precision": precision}
    logits = rows_of(client, "logits", want_logits=True, **args)
    lens, _ = chunks(client, "lens", lens="answer", lens_top=6, **args)
    assert [one["position"] for one in lens] == sorted(logits)
    for one in lens:
        row = logits[one["position"]]
        last = one["layers"][-1]
        order = sorted(range(len(row)), key=lambda i: (-row[i], i))
        assert last["ids"] == order[:6]
        # Both are f64 sums over the same f32 numbers.
        assert last["probabilities"] == pytest.approx(softmax(row)[order[:6]], rel=1e-12)
        if "next" in one:
            assert last["rank"] == 0  # greedy


@pytest.mark.parametrize("path", MODELS)
def test_looking_changes_nothing(client: Client, path: str) -> None:
    args = {"model": path, "ids": IDS, "max_new": 12, "temperature": 1.0, "seed": 4}
    plain = client.call("run", raw=True, **args)
    looked = client.call(
        "run", raw=True, lens="all", want_hidden_stats=True, want_experts=True, **args
    )
    assert looked["ids"] == plain["ids"]


def test_modes_and_layers(client: Client) -> None:
    args = {"model": K3, "ids": IDS, "max_new": 3}
    last, _ = chunks(client, "lens", lens="last", **args)
    assert [one["position"] for one in last] == [len(IDS) - 1]
    assert len(last[0]["layers"][0]["ids"]) == 5
    answer, _ = chunks(client, "lens", lens="answer", lens_layers=[2, 0], **args)
    assert [one.get("index") for one in answer] == [None, 0, 1, 2]
    assert [[row["layer"] for row in one["layers"]] for one in answer] == [[0, 2]] * 4
    whole, _ = chunks(client, "lens", lens="last", **args)
    assert whole[0]["layers"][2] == last[0]["layers"][2]
    read, done = chunks(client, "lens", lens="last", model=K3, ids=IDS, max_new=0)
    assert done["ids"] == [] and "next" not in read[0]


def test_lens_is_the_same_in_batches(client: Client) -> None:
    args = {"model": K3, "max_new": 6, "lens": "all"}
    prompts = [[n + 1, 9, n + 30] for n in range(4)]
    alone = [chunks(client, "lens", ids=ids, **args)[0] for ids in prompts]
    numbers = [client.send("run", raw=True, ids=ids, **args) for ids in prompts]
    for number, expected in zip(numbers, alone, strict=True):
        client.finish(number)
        found = [
            one["body"]
            for one in client.replies[number]
            if one["type"] == "chunk" and one["body"]["kind"] == "lens"
        ]
        assert found == expected


@pytest.mark.parametrize("path", MODELS)
def test_hidden_stats_are_those_of_the_dumped_rows(client: Client, path: str) -> None:
    args = {"model": path, "ids": IDS, "max_new": 2, "precision": "exact"}
    hidden = rows_of(client, "hidden", want_hidden=True, **args)
    logits = rows_of(client, "logits", want_logits=True, **args)
    stats, _ = chunks(client, "hidden_stats", want_hidden_stats=True, **args)
    assert len(stats) == 1 and stats[0]["position"] == len(IDS) - 1
    rows = hidden[len(IDS) - 1].astype(np.float64).reshape(len(stats[0]["layers"]), -1)
    rms = np.sqrt((rows * rows).mean(axis=1))
    assert [one["rms"] for one in stats[0]["layers"]] == pytest.approx(list(rms), rel=1e-12)
    row = logits[len(IDS) - 1].astype(np.float64)
    assert stats[0]["logits_mean"] == pytest.approx(row.mean(), rel=1e-9, abs=1e-12)
    assert stats[0]["logits_std"] == pytest.approx(row.std(), rel=1e-9)
    assert stats[0]["output_rms"] > 0


@pytest.mark.parametrize("path", MODELS)
def test_counts_are_those_of_the_routes(client: Client, path: str) -> None:
    args = {"model": path, "ids": IDS, "max_new": 4}
    routes, done = chunks(client, "routes", want_routes=True, want_experts=True, **args)
    counts: Counter[tuple[int, int]] = Counter()
    for one in routes:
        for pick in one["layers"]:
            counts.update((pick["layer"], expert) for expert in pick["experts"])
    tally = done["experts"]
    told = {
        (layer["layer"], expert): count
        for layer in tally["counts"]
        for expert, count in zip(layer["experts"], layer["counts"], strict=True)
    }
    assert told == counts
    assert tally["tokens"] == len(IDS) + 4


def test_errors_name_what_is_wrong(client: Client, mk: Run) -> None:
    args = {"model": K3, "ids": IDS, "raw": True}
    error = error_of(client, "run", lens="last", lens_layers=[99], **args)
    assert error.code == "bad_request" and "no layer 99" in error.message
    assert "lens" in error_of(client, "run", lens="first", **args).message
    assert "lens_top" in error_of(client, "run", lens="last", lens_top=0, **args).message
    for words, what in [
        (["--lens-top", "3"], "--logit-lens"),
        (["--logit-lens", "--lens-layers", "3-1"], "list of layers"),
        (["--logit-lens", "--lens-layers", "1,,2"], "list of layers"),
        (["--logit-lens", "--lens-layers", "99999"], "list of layers"),
        (["--logit-lens", "--lens-top", "0"], "--lens-top"),
    ]:
        assert what in mk("run", "-m", K3, "--ids", "1,2", *words, code=2)
    for words, what in [
        (["lens", "-m", K3, "x"], "-o"),
        (["lens", "-m", K3, "x", "-o", "x.png"], ".svg or .html"),
        (["routes", "-m", K3, "x"], "-o"),
        (["routestats", "--reset", "x"], "--daemon"),
        (["routestats", "--daemon", "x"], "excludes a prompt"),
        (["cmsinfo"], "FILE"),
    ]:
        assert what in mk(*words, code=2)
    assert "count_experts" in mk("routestats", "--daemon", code=2)


@pytest.mark.parametrize("path", MODELS)
def test_text_shows_what_json_holds(mk: Run, path: str) -> None:
    words = ["run", "-m", path, "--ids", "5,17,3", "-n", "2"]
    looks = ["--logit-lens-all", "--hidden-stats", "--debug-routing"]
    told = json.loads(mk(*words, *looks, "--json"))
    text = mk(*words, *looks)
    assert len(told["lens"]) == 3 and told["hidden_stats"]["layers"]
    assert text.count("logit lens, ") == 3
    for one in told["lens"]:
        for layer in one["layers"]:
            line = rf"^ +{layer['layer']}  {layer['kind']} .* {layer['probabilities'][0]:.1%}"
            assert re.search(line, text, re.M), (line, text)
    for layer in told["hidden_stats"]["layers"]:
        assert f"{layer['rms']:.4f}" in text
    lines = mk(*words, *looks, "--stream-json").splitlines()
    kinds = Counter(json.loads(line).get("kind") for line in lines)
    assert kinds["lens"] == 3 and kinds["hidden_stats"] == 1 and "routes" not in kinds


@pytest.mark.parametrize("path", MODELS)
def test_the_routing_display_is_what_the_routes_say(mk: Run, path: str) -> None:
    words = ["run", "-m", path, "--ids", "5,17,3", "-n", "3"]
    routes = json.loads(mk(*words, "--routes", "--json"))["routes"]
    text = mk(*words, "--debug-routing").splitlines()
    expected = []
    counts: Counter[tuple[int, int]] = Counter()
    for one in routes:
        for pick in one["layers"]:
            counts.update((pick["layer"], expert) for expert in pick["experts"])
    for one in routes[3:]:
        layers = []
        for pick in one["layers"]:
            best = sorted(range(len(pick["experts"])), key=lambda i, w=pick["weights"]: (-w[i], i))[
                :3
            ]
            layers.append(
                f"L{pick['layer']}: "
                + " ".join(f"E{pick['experts'][i]}({pick['weights'][i]:.2f})" for i in best)
            )
        expected.append(" | ".join(layers))
    assert [line[line.index("  L") + 2 :] for line in text[:3]] == expected
    best = sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:10]
    assert text[3] == "most used: " + ", ".join(f"L{la}/E{e} {n}" for (la, e), n in best)


def column(layer: int, expert: int, row: int) -> int:
    mask = (1 << 64) - 1
    z = ((layer << 32 | expert) + 0x9E3779B97F4A7C15 * (row + 1)) & mask
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
    return (z ^ z >> 31) % 4096


def sketch_of(counts: Counter[tuple[int, int]]) -> bytes:
    cells = np.zeros((4, 4096), "<u4")
    for (layer, expert), count in counts.items():
        for row in range(4):
            cells[row, column(layer, expert, row)] += count
    head = struct.pack(
        "<8sIIIIIQ", b"MKCMS001", 1, 4, 4096, 1 + max(la for la, _ in counts),
        1 + max(e for _, e in counts), sum(counts.values()),
    )  # fmt: skip
    return head + cells.tobytes()


@pytest.mark.parametrize("path", MODELS)
def test_files_hold_what_the_routers_picked(mk: Run, tmp_path: Path, path: str) -> None:
    files = {name: str(tmp_path / name) for name in ("cms", "trace", "demands", "store")}
    words = ["run", "-m", path, "--ids", "5,17,3", "-n", "3", "--json", "--routes"]
    told = json.loads(
        mk(
            *words, "--cms", files["cms"], "--trace", files["trace"],
            "--demand-trace", files["demands"], "--routes-store", files["store"],
        )
    )  # fmt: skip
    counts: Counter[tuple[int, int]] = Counter()
    records = []
    demands: list[tuple[int, int]] = []
    prompt: dict[int, list[int]] = {}
    for one in told["routes"]:
        for pick in one["layers"]:
            counts.update((pick["layer"], expert) for expert in pick["experts"])
            for expert in pick["experts"]:
                read = one["position"] < 3
                records.append((one["position"], pick["layer"], expert, 8 if read else 0, 0))
                if read:
                    seen = prompt.setdefault(pick["layer"], [])
                    if expert not in seen:
                        seen.append(expert)
                else:
                    demands.append((pick["layer"], expert))
    demands = [(la, e) for la in sorted(prompt) for e in prompt[la]] + demands
    assert Path(files["cms"]).read_bytes() == sketch_of(counts)
    trace = Path(files["trace"]).read_bytes()
    assert trace[:8] == b"MKTRC002"
    assert trace[32:48].hex() == told["trust"]["fingerprint"]
    assert list(struct.iter_unpack("<IHHBB", trace[64:])) == records
    assert list(struct.iter_unpack("<II", Path(files["demands"]).read_bytes())) == demands

    store = Path(files["store"]).read_bytes()
    assert store[:8] == b"MKRTS001" and struct.unpack_from("<I", store, 20) == (1,)
    assert struct.unpack_from("<Q", store, 28) == (len(demands),)
    mk(*words, "--routes-store", files["store"])
    again = Path(files["store"]).read_bytes()
    assert struct.unpack_from("<I", again, 20) == (2,)
    assert again[28:] == 2 * store[28:]
    assert Path(files["store"]).stat().st_mode & 0o777 == 0o600


def test_what_is_no_store_is_not_overwritten(mk: Run, tmp_path: Path) -> None:
    path = tmp_path / "letter"
    path.write_text("Dear friend")
    words = ["run", "-m", K3, "--ids", "1", "-n", "1", "--routes-store", str(path)]
    assert "MKRTS001" in mk(*words, code=2)
    assert path.read_text() == "Dear friend"


def test_files_are_looked_at_before_the_run(mk: Run, tmp_path: Path) -> None:
    run = ["run", "-m", K3, "--ids", "5,17", "-n", "2"]
    for option in ("--cms", "--trace", "--demand-trace", "--routes-store"):
        assert "cannot write" in mk(*run, option, str(tmp_path / "no" / "x"), code=1)
        assert "not a regular file" in mk(*run, option, str(tmp_path), code=1)
    one = str(tmp_path / "one")
    assert "two options name" in mk(*run, "--cms", one, "--trace", one, code=2)
    assert "two options name" in mk(*run, "--dump-logits", one, "--dump-hidden", one, code=2)
    assert not Path(one).exists()
    for options in (["lens", "-o", "a.svg"], ["routes", "-o", "a.svg"], ["routestats", "-o", "a"]):
        name = str(tmp_path / "no" / options[2])
        assert "cannot write" in mk(options[0], "-m", K3, "x", options[1], name, code=1)


def test_damaged_stores_stay_as_they_are(mk: Run, tmp_path: Path) -> None:
    store = tmp_path / "store"
    run = ["run", "-m", K3, "--ids", "5,17", "-n", "2", "--routes-store", str(store)]
    for _ in range(3):
        mk(*run)
    whole = store.read_bytes()
    counts = struct.pack("<I", 1)
    for damaged in (whole[:-1], whole + b"x", whole[:20] + counts + whole[24:],
                    whole[:12] + b"\x01\x00" + whole[14:]):  # fmt: skip
        store.write_bytes(damaged)
        assert "is not overwritten" in mk(*run, code=2)
        assert store.read_bytes() == damaged
    store.write_bytes(whole)
    store.chmod(0o640)
    mk(*run)
    assert len(store.read_bytes()) > len(whole) and store.stat().st_mode & 0o777 == 0o640


def test_sketches_are_shown_and_merged(mk: Run, tmp_path: Path) -> None:
    a, b, both = (str(tmp_path / name) for name in ("a", "b", "both"))
    first = Counter({(1, 3): 5, (2, 7): 9, (2, 1): 5})
    Path(a).write_bytes(sketch_of(first))
    Path(b).write_bytes(sketch_of(Counter({(1, 3): 2})))
    text = mk("cmsinfo", a)
    assert re.search(r"pairs touched +3\n", text) and re.search(r"total +19\n", text)
    rows = re.findall(r"^ *(\d+) +(\d+) +(\d+)$", text, re.M)
    assert rows == [("2", "7", "9"), ("1", "3", "5"), ("2", "1", "5")]
    assert re.search(r"^ +25 % +1 +47\.37 %$", text, re.M)
    merged = json.loads(mk("cmsinfo", a, b, "--merge", both, "--json"))
    assert merged["pairs"][1] == {"layer": 1, "expert": 3, "count": 7}
    assert Path(both).read_bytes() == sketch_of(first + Counter({(1, 3): 2}))
    bad = tmp_path / "bad"
    bad.write_bytes(sketch_of(first)[:-1])
    assert "65571 bytes" in mk("cmsinfo", str(bad), code=2)
    assert "no such" in mk("cmsinfo", str(tmp_path / "none"), code=7).lower()
    assert "MKCMS001" in mk("cmsinfo", K3, code=2)


def test_the_daemon_counts_when_it_is_told(make_daemon: Callable[[], Daemon]) -> None:
    place = make_daemon()
    place.config.write_text("count_experts = true\n")
    client = place.start().client()
    expected: Counter[tuple[int, int]] = Counter()
    for n in range(3):
        routes, _ = chunks(client, "routes", model=K3, ids=[n + 1, 7], max_new=2, want_routes=True)
        for one in routes:
            for pick in one["layers"]:
                expected.update((pick["layer"], expert) for expert in pick["experts"])
    stats = client.call("expert_stats", reset=True)
    assert stats["counting"] is True and len(stats["models"]) == 1
    tally = stats["models"][0]["tally"]
    told = {
        (layer["layer"], expert): count
        for layer in tally["counts"]
        for expert, count in zip(layer["experts"], layer["counts"], strict=True)
    }
    assert told == expected
    assert client.call("expert_stats")["models"][0]["tally"]["counts"] == []
    assert error_of(client, "expert_stats", model="nobody").code == "model_not_found"


def test_nobody_counts_unasked(client: Client) -> None:
    client.call("run", model=K3, ids=IDS, raw=True, max_new=1)
    assert client.call("expert_stats") == {"counting": False, "models": []}


def test_routestats_tells_load_and_leaves_a_sketch(mk: Run, tmp_path: Path) -> None:
    out = str(tmp_path / "sketch")
    told = json.loads(mk("routestats", "-m", K3, "Hello", "-n", "4", "-o", out, "--json"))
    for layer in told["layers"]:
        counts = np.array(layer["counts"], float)
        p = counts[counts > 0] / counts.sum()
        assert layer["entropy"] == pytest.approx(-(p * np.log(p)).sum() / np.log(len(counts)))
        gini = np.abs(counts[:, None] - counts).sum() / (2 * len(counts) * counts.sum())
        assert layer["gini"] == pytest.approx(gini)
        assert layer["unused"] == int((counts == 0).sum())
    info = json.loads(mk("cmsinfo", out, "--json"))
    assert info["total"] == sum(sum(layer["counts"]) for layer in told["layers"])
    text = mk("routestats", "-m", K3, "Hello", "-n", "4")
    assert len(re.findall(r"^ *\d+ +\d+ +[01]\.\d{3} ", text, re.M)) == len(told["layers"])
