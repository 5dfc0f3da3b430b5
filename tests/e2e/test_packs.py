"""`mk pack`: files alone; no daemon, no model."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from daemon_harness import BIN

DATA = Path(__file__).parents[1] / "data"
OLD = [DATA / "golden" / "k3" / "k3c" / f"{name}.mkmem" for name in ("short", "long")]
NEW = DATA / "packs" / "k3c-prefill.mkmem"


class Packs:
    """mk pack with a state folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "state" / "microkimi" / "packs"

    def run(self, *words: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        env = {key: value for key, value in os.environ.items() if not key.startswith("MICROKIMI")}
        env["XDG_STATE_HOME"] = str(self.folder / "state")
        env["XDG_RUNTIME_DIR"] = str(self.folder)
        done = subprocess.run(
            [str(BIN / "mk"), "pack", *map(str, words)],
            cwd=self.folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, done
        return done

    def json(self, *words: str | Path) -> dict:
        return json.loads(self.run(*words, "--json").stdout)


@pytest.fixture
def packs(tmp_path: Path) -> Packs:
    return Packs(tmp_path)


def test_what_a_pack_says(packs: Packs) -> None:
    told = packs.json("info", NEW, *OLD)["packs"]
    assert [pack["format"] for pack in told] == ["MKMEM002", "MKMEM001", "MKMEM001"]
    assert told[0]["tokens"] == 12
    assert told[0]["precision"] == "exact"
    assert told[0]["has_tokens"] and told[0]["has_logits"]
    assert not told[0]["experimental"]
    assert len(told[0]["state_id"]) == 64
    assert told[0]["bytes"] == NEW.stat().st_size
    assert "kda_matrix" in {section["type"] for section in told[0]["sections"]}
    text = packs.run("info", NEW).stdout
    assert "MKMEM002" in text and told[0]["state_id"] in text
    assert not (packs.folder / "state").exists(), "looking made a folder"


def test_names_live_in_the_state_folder(packs: Packs) -> None:
    assert packs.json("list") == {"packs": []}
    packs.run("import", NEW)
    packs.run("import", OLD[0], "--out", "old")
    assert packs.store.stat().st_mode & 0o777 == 0o700
    assert (packs.store / "old.mkmem").read_bytes() == OLD[0].read_bytes()
    assert (packs.store / "old.mkmem").stat().st_mode & 0o777 == 0o600
    listed = packs.json("list")["packs"]
    assert [pack["name"] for pack in listed] == ["k3c-prefill", "old"]
    packs.run("import", NEW, code=2)
    packs.run("import", NEW, "--force")
    packs.run("export", "old", "--out", "here.mkmem")
    assert (packs.folder / "here.mkmem").read_bytes() == OLD[0].read_bytes()
    assert packs.json("rm", "old")["removed"] == [str(packs.store / "old.mkmem")]
    packs.run("rm", "old", code=7)
    packs.run("info", "old", code=7)
    for name in ("..", ".x", "a b", "a" * 65):
        packs.run("info", name, code=2)


def test_decay_and_merge_mark_what_they_make(packs: Packs) -> None:
    made = packs.json("decay", NEW, "--half-life", "3", "--units", "3", "--out", "old")
    assert made["experimental"] and made["decayed"]
    assert not made["has_tokens"] and not made["has_logits"]
    differences = {}
    for section in packs.json("diff", NEW, "old")["sections"]:
        differences.setdefault(section["type"], []).append(section["relative"])
    assert differences["kda_matrix"] == pytest.approx([0.5] * len(differences["kda_matrix"]))
    assert set(differences["latent_rows"]) == {0.0}
    packs.run("merge", NEW, "old", "--average", "--out", "both")
    packs.run("merge", NEW, "old", "--alpha", "1", "--out", "same")
    changed = packs.json("diff", NEW, "same")["sections"]
    assert all(section["different"] == 0 for section in changed)
    assert packs.run("diff", NEW, NEW).stdout == "identical\n"
    packs.run("merge", NEW, OLD[0], "--out", "mixed", code=1)
    assert [pack["name"] for pack in packs.json("list")["packs"]] == ["both", "old", "same"]


def test_packs_of_the_reference_stay_in_their_format(packs: Packs) -> None:
    packs.run("merge", *OLD, "--shuffle", "2", "--out", "control.mkmem")
    made = packs.json("verify", "control.mkmem")["packs"][0]
    assert made["format"] == "MKMEM001"
    assert not made["has_logits"]


def test_damaged_and_foreign_files_are_refused(packs: Packs) -> None:
    good = NEW.read_bytes()
    torn = packs.folder / "torn.mkmem"
    torn.write_bytes(good[: len(good) // 2])
    flipped = packs.folder / "flipped.mkmem"
    flipped.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    text = packs.folder / "text.mkmem"
    text.write_text("no pack")
    assert "torn.mkmem" in packs.run("verify", torn, code=1).stderr
    packs.run("info", flipped)
    failed = packs.run("verify", NEW, flipped, code=1)
    assert "sound" in failed.stdout and "damaged" in failed.stderr
    assert "not a memory pack" in packs.run("info", text, code=2).stderr
    packs.run("import", flipped, code=1)
    assert not packs.store.exists() or not list(packs.store.iterdir())
    packs.run("decay", NEW, "--half-life", "1", "--out", text, "--force", code=2)
    packs.run("rm", text, code=2)
    assert text.read_text() == "no pack"
    packs.run("rm", torn)
    assert not torn.exists()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("frob", "ACTION"),
        ("info", "takes 1 or more packs"),
        ("diff a", "takes 2 packs"),
        ("list a", "takes 0 packs"),
        ("decay a --out b", "needs --half-life"),
        ("decay a --half-life 1", "needs --out"),
        ("decay a --half-life 0 --out b", "--half-life"),
        ("decay a b --half-life 1 --out c", "takes 1 pack"),
        ("merge a b --alpha 2 --out c", "--alpha"),
        ("merge a b c --alpha 1 --out d", "--alpha blends two packs"),
        ("merge a b --half-life 1 --out c", "goes with mk pack decay only"),
        ("merge a b --shuffle 1 --out c", "--shuffle"),
        ("info a --force", "makes no pack"),
    ],
)
def test_wrong_command_lines_say_so(packs: Packs, words: str, problem: str) -> None:
    assert problem in packs.run(*words.split(), code=2).stderr


def test_without_the_daemons_program_it_says_so(packs: Packs) -> None:
    shutil.copy(BIN / "mk", packs.folder / "mk")
    done = subprocess.run(
        [str(packs.folder / "mk"), "pack", "list"],
        env={"PATH": "/nowhere", "HOME": str(packs.folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3
    assert "microkimid" in done.stderr
