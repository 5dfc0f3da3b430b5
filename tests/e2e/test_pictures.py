"""The pictures of mk lens and mk routes: whole, well-formed, and of nothing from elsewhere."""

from __future__ import annotations

import json
import re
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from daemon_harness import BIN, PATIENCE, ROOT, Daemon, copy_model, model

K3 = model("k3b")
DSV4 = str(ROOT / "tests" / "data" / "golden" / "dsv4" / "d1" / "model.bin")
SVG = "{http://www.w3.org/2000/svg}"

Run = Callable[..., str]


@pytest.fixture
def mk(daemon: Daemon) -> Run:
    def run(*args: str) -> str:
        done = subprocess.run(
            [str(BIN / "mk"), *args],
            env=daemon.env(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done
        return done.stdout.decode()

    return run


class Page(HTMLParser):
    """Every tag is closed, and none fetches anything."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.open.append(tag)
        for name, value in attrs:
            assert name not in ("src", "href", "xlink:href", "onload", "onclick"), (tag, name)
            assert name == "xmlns" or "//" not in (value or ""), (tag, name, value)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_self_contained(text: str) -> None:
    assert "<script" not in text and "@import" not in text and "url(" not in text
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)


def texts(root: ET.Element) -> list[str]:
    return [one.text or "" for one in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("path", [K3, DSV4])
def test_lens_pictures_show_the_lens(mk: Run, tmp_path: Path, path: str) -> None:
    out = tmp_path / "lens.svg"
    words = ["-m", path, "Hi <&'\"> there", "-n", "3"]
    assert "wrote" in mk("lens", *words, "-o", str(out))
    svg = out.read_text()
    check_self_contained(svg)
    root = ET.fromstring(svg)
    told = json.loads(mk("run", *words, "--logit-lens-all", "--json"))
    last = told["lens"][-1]
    columns = len(told["prompt_ids"]) + len(told["ids"])
    hovers = [one.text or "" for one in root.iter(f"{SVG}title")]
    cells = [one for one in hovers if one.startswith("layer ")]
    assert len(cells) == columns * len(last["layers"])
    best = last["layers"][-1]
    found = [one for one in cells if one.startswith(f"layer {best['layer']} {best['kind']}, ")]
    for one in best["probabilities"]:
        assert (f"  {100 * one:.1f} %" if one >= 0.01 else f"  {100 * one:.2f} %") in found[-1]
    assert f"entropy {best['entropy']:.2f} nats" in found[-1]
    shown = texts(root)
    assert "Logit lens" in shown and "generated" in shown and "came next" in shown
    width = float(root.get("width", "0"))
    for rect in root.iter(f"{SVG}rect"):
        assert float(rect.get("x", "0")) + float(rect.get("width", "0")) <= width + 0.01


def test_lens_pages_are_well_formed(mk: Run, tmp_path: Path) -> None:
    out = tmp_path / "lens.html"
    mk("lens", "-m", K3, "One day", "-n", "2", "--colour", "entropy", "-o", str(out))
    text = out.read_text()
    check_self_contained(text)
    assert {"html", "title", "svg", "text"} <= Page(text).seen
    assert "entropy in nats" in text
    body = re.sub(r"<!DOCTYPE html>\n", "", text)
    ET.fromstring(body)  # it is XML as well
    plain = mk("lens", "-m", K3, "One day", "-n", "2", "--colour", "entropy", "-o", "-")
    assert plain in text


def test_many_tokens_make_narrow_columns_and_old_ones_go(mk: Run) -> None:
    words = " ".join(f"word{n}" for n in range(120))
    root = ET.fromstring(mk("lens", "-m", K3, words, "-n", "2", "--lens-layers", "0", "-o", "-"))
    cells = [one for one in root.iter(f"{SVG}title") if (one.text or "").startswith("layer 0 ")]
    assert len(cells) == 256
    assert any("tokens are left out" in one for one in texts(root))


@pytest.mark.parametrize("path", [K3, DSV4])
def test_routes_pictures_show_the_counts(mk: Run, tmp_path: Path, path: str) -> None:
    out = tmp_path / "routes.html"
    words = ["-m", path, "Hello there", "-n", "5"]
    mk("routes", *words, "-o", str(out))
    text = out.read_text()
    check_self_contained(text)
    Page(text)
    stats = json.loads(mk("routestats", *words, "--json"))
    hovers = re.findall(r"layer (\d+), expert (\d+)\n(\d+) picks", text)
    assert [tuple(map(int, one)) for one in hovers] == [
        (layer["layer"], expert, count)
        for layer in stats["layers"]
        for expert, count in enumerate(layer["counts"])
        if count > 0
    ]
    for layer in stats["layers"]:
        assert f"Gini coefficient {layer['gini']:.3f}" in text


def test_names_that_are_markup_are_text(mk: Run, tmp_path: Path) -> None:
    """The name of a model stands in every picture."""
    path = Path(copy_model(tmp_path / "m", "k3b"))
    evil = path.with_name('a<b>&"quote"\x01.bin')
    path.rename(evil)
    for words in (["lens", "-n", "1"], ["routes", "-n", "1"]):
        root = ET.fromstring(mk(*words, "-m", str(evil), "x", "-o", "-"))
        assert any('a<b>&"quote"\\x01' in one for one in texts(root))
