"""`scan`, expert matching and `paired` with known answers."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nano.graft.activations import choose_rows, collect
from nano.graft.checkpoint import open_checkpoint
from nano.graft.cli import main
from nano.graft.errors import GraftError
from nano.graft.experts import match_experts
from nano.graft.paired import match, read_scores, score_documents, token_nats, windows
from nano.graft.probes import BUNDLED, compare_probes, is_hit, read_probes
from nano.graft.runner import open_runner
from nano.graft.scan import ScanOptions, scan
from nano.graft.texts import (
    ByteCodec,
    read_corpus,
    shared_positions,
    tokenize,
)
from nano.tests import graft_models as models

pytest.importorskip("transformers", reason="the oracle of these tests is not installed")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.texts(tmp_path_factory.mktemp("texts") / "t.jsonl", 40)


def corpus(path: Path, models: int = 2) -> Any:
    return read_corpus(path, [ByteCodec()] * models, 100_000, 128)


def test_a_rotated_copy_is_recognised(tmp_path: Path, texts: Path) -> None:
    plain = models.save_library("llama", tmp_path / "a")
    turned = models.rewrite(plain, tmp_path / "b", models.rotate)
    ids = models.token_ids()
    with open_checkpoint(plain) as a, open_checkpoint(turned) as b, torch.no_grad():
        x, y = open_runner(a).logits(ids), open_runner(b).logits(ids)
        assert float((x - y).abs().max()) < 1e-5 * float(x.abs().max())
        r = scan(a, b, corpus(texts), ScanOptions())
    assert r["verdict"] == "rotated copy" and r["alignment"] == [[0, 0], [1, 1], [2, 2]]
    for pair in r["pairs"]:
        assert abs(pair["cka"] - 1) < 1e-4 and pair["procrustes_residual"] < 1e-8
        assert pair["a_to_b"]["r2"] > 0.9999


def test_shuffled_experts_are_found(tmp_path: Path, texts: Path) -> None:
    plain, order = models.save_raw("qwen3_5_moe", tmp_path / "a"), torch.tensor([3, 0, 4, 1, 2])

    def shuffle(state: dict[str, torch.Tensor]) -> None:
        for name in state:
            if name.endswith(("mlp.gate.weight", "gate_up_proj", "experts.down_proj")):
                state[name] = state[name][order]

    shuffled = models.rewrite(plain, tmp_path / "b", shuffle)
    with open_checkpoint(plain) as a, open_checkpoint(shuffled) as b:
        r = scan(a, b, corpus(texts), ScanOptions())
    assert len(r["experts"]) == 4
    for found in r["experts"]:
        assert [[order[j].item(), j] for _, j, *_ in found["pairs"]] == [p[:2] for p in
                                                                        found["pairs"]]
        assert min(p[2] for p in found["pairs"]) >= 0.9999 and found["unmatched"] == []


def test_experts_of_independent_models_match_by_chance_only(tmp_path: Path, texts: Path) -> None:
    paths = [models.save_library("qwen3_5_moe", tmp_path / str(seed), seed) for seed in (1, 2)]
    with open_checkpoint(paths[0]) as a, open_checkpoint(paths[1]) as b:
        c = corpus(texts)
        chosen = choose_rows(c)
        rows = [collect(open_runner(s), c, i, chosen, [(3, "ffn_in_gained"), (3, "ffn_resid")])
                for i, s in enumerate((a, b))]
        found = match_experts(a, 3, b, 3, rows, chosen, c)
    assert abs(found["mean"]) < 0.3 and abs(found["chance"]) < 0.1


def test_streaming_and_cache_change_nothing(tmp_path: Path, texts: Path) -> None:
    path = models.save_library("qwen3", tmp_path / "m")
    with open_checkpoint(path) as source:
        c = corpus(texts, 1)
        chosen, sites = choose_rows(c), [(1, "resid_in"), (2, "ffn_out")]
        plain = collect(open_runner(source), c, 0, chosen, sites, tmp_path / "cache")
        streamed = collect(open_runner(source, stream=True), c, 0, chosen, sites)
        again = collect(open_runner(source), c, 0, chosen, sites, tmp_path / "cache")
        for site in sites:
            assert np.allclose(plain[site], streamed[site], atol=1e-5)
            assert np.array_equal(plain[site], again[site])
        assert len(list((tmp_path / "cache").iterdir())) == 2


class Pieces:
    """Tokens of fixed length in bytes."""

    def __init__(self, size: int) -> None:
        self.name, self.bos, self.length = f"pieces-{size}", 0, size

    def encode(self, text: str) -> list[int]:
        data = text.encode()
        return [1 + i for i in range(0, len(data), self.length)]

    def spell(self, token: int) -> bytes | None:
        return self.data[token - 1 : token - 1 + self.length]

    def size(self) -> int:
        return 1 << 16


def test_shared_positions_by_brute_force() -> None:
    text = "a text of forty-one bytes, more or less.."
    two, three = Pieces(2), Pieces(3)
    two.data = three.data = text.encode()
    a, b = tokenize(two, text), tokenize(three, text)
    ends = [min(2 * (i + 1), len(text)) for i in range(len(a.ids) - 1)]
    both = [e for e in ends if e % 3 == 0 or e == len(text)]
    i, j = shared_positions(a, b)
    assert [a.ends[k] for k in i] == both == [b.ends[k] for k in j]
    assert both[-1] == len(text) and a.spelled and b.spelled


class UniformBytes:
    """Every byte costs ln 256, however it is cut into tokens."""

    class cfg:
        hidden = 1

    def __init__(self, codec: Pieces, text: str) -> None:
        self.costs = [len(codec.spell(t) or b"") * math.log(256) for t in codec.encode(text)]

    def trunk(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.zeros(*ids.shape, 1)

    def token_nats(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        by_token = {1 + i * self.size: c for i, c in enumerate(self.costs)}
        return torch.tensor([by_token[int(t)] for t in targets], dtype=torch.float64)


@pytest.mark.parametrize("seq", [8, 500])
def test_bits_per_byte_do_not_depend_on_the_tokens(seq: int) -> None:
    text = "Some text that is long enough to need several windows of eight tokens each."
    for size in (1, 2, 5):
        codec = Pieces(size)
        codec.data = text.encode()
        runner = UniformBytes(codec, text)
        runner.size = size
        (found,) = score_documents(runner, codec, [text], seq)  # type: ignore[arg-type]
        assert found.nll / math.log(2) / found.bytes == pytest.approx(8)


def test_windows_score_every_token_once() -> None:
    for length in (2, 7, 8, 9, 30, 31):
        scored = [t for s, e, f in windows(length, 8) for t in range(f, e)]
        assert scored == list(range(1, length))
        assert all(f - s >= 3 for s, _, f in windows(length, 8)[1:])


def test_nats_are_those_of_the_logits(tmp_path: Path) -> None:
    path = models.save_library("llama", tmp_path / "m")
    with open_checkpoint(path) as source:
        runner = open_runner(source)
        rows = [[1, 5, 9, 200], [1, 7], [1, 8, 3, 4, 5, 6]]
        for row, nats in zip(rows, token_nats(runner, rows), strict=True):
            with torch.no_grad():
                logp = runner.logits(torch.tensor([row]))[0].double().log_softmax(dim=-1)
            want = [-float(logp[i, t]) for i, t in enumerate(row[1:])]
            assert nats.tolist() == pytest.approx(want, abs=1e-5)


def test_tables_made_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    a, b = tmp_path / "a.csv", tmp_path / "b.jsonl"
    with a.open("w", newline="") as f:
        w = csv.writer(f)
        w.writerow(["doc_id", "bytes", "tokens", "nll"])
        w.writerows([i, 100, 25, 80 + rng.standard_normal()] for i in range(30))
    with b.open("w") as f:  # as `mk score --jsonl --json` writes them
        for i in reversed(range(30)):
            f.write(json.dumps({"id": str(i), "bytes": 100, "tokens": 25, "unk": 0,
                                "logprob": -(70 + rng.standard_normal())}) + "\n")
        f.write(json.dumps({"total": {}}) + "\n")
    out = tmp_path / "out"
    assert main(["paired", str(a), str(b), "--from", "--out", str(out)]) == 0
    assert "better" in capsys.readouterr().out
    report = json.loads((out / "report.json").read_text())
    d = np.array(report["results"]["bits_per_byte"]["d"])
    assert report["results"]["bits_per_byte"]["estimate"] == pytest.approx(d.sum() / 3000)
    assert -0.16 < report["results"]["bits_per_byte"]["estimate"] < -0.13
    gate = ["paired", str(b), str(a), "--from", "--out", str(out), "--gate", "not-worse"]
    assert main(gate) == 3
    a.write_text(a.read_text().replace("29,100", "31,100"))
    assert main(["paired", str(a), str(b), "--from", "--out", str(out)]) == 65
    with pytest.raises(GraftError, match="twice"):
        b.write_text(b.read_text() * 2)
        read_scores(b)


def test_texts_that_a_vocabulary_cannot_spell_are_left_out() -> None:
    from nano.graft.paired import DocScore

    a = [DocScore("0", 10, 3, 5.0), DocScore("1", 10, 3, 5.0, spelled=False)]
    b = [DocScore("1", 10, 2, 4.0), DocScore("0", 10, 2, 4.0)]
    kept, other, left = match(a, b)
    assert [d.doc for d in kept] == ["0"] == [d.doc for d in other] and left == ["1"]
    assert len(match(a, b, keep_unspelled=True)[0]) == 2


def test_probes(tmp_path: Path) -> None:
    probes = read_probes(BUNDLED)
    assert len(probes) == 80 and len({p.group for p in probes}) == 40
    assert is_hit("It is Paris.", ("Paris",)) and is_hit(" paris", ("Paris",))
    assert not is_hit("Parisian", ("Paris",)) and not is_hit("145", ("4",))
    a = [{"group": p.group, "hit": i % 2 == 0} for i, p in enumerate(probes)]
    b = [{"group": p.group, "hit": True} for p in probes]
    r = compare_probes(a, b)
    assert r["points"]["estimate"] == pytest.approx(0.5) and r["points"]["verdict"] == "better"
    assert (r["only_a"], r["only_b"]) == (0, 40)
    assert r["points"]["tests"]["mcnemar_p"] == pytest.approx(2 / 2**40)
    bad = tmp_path / "p.jsonl"
    bad.write_text('{"id": 1, "group": "g", "prompt": "x", "answers": [], "mode": "generate"}\n')
    with pytest.raises(GraftError, match="answers"):
        read_probes(bad)


def test_choice_probes_take_the_likeliest(tmp_path: Path) -> None:
    from nano.graft.probes import Probe, choose

    path = models.save_library("llama", tmp_path / "m")
    probe = Probe("p", "g", "the sun is ", ("hot",), ("hot", "cold", "a tree"))
    with open_checkpoint(path) as source:
        runner, codec = open_runner(source), ByteCodec()
        (said,) = choose(runner, codec, [probe])
        scores = {}
        for c in probe.choices:
            ids = [10, *(probe.prompt + c).encode()]
            with torch.no_grad():
                logp = runner.logits(torch.tensor([ids]))[0].log_softmax(dim=-1)
            spots = range(len(ids) - len(c), len(ids))
            scores[c] = sum(float(logp[i - 1, ids[i]]) for i in spots) / len(c)
    assert said == max(scores, key=lambda c: scores[c])
