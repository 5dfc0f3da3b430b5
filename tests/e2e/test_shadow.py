"""`mk shadow`: small copies of experts, made as a job that survives whatever happens to it."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from daemon_harness import ROOT, Daemon, wait_for
from job_tools import LIMIT, STORY, detach, job_of, kept_on_disk, mk, slow, wait_state
from numpy.typing import NDArray

from conftest import MakeDaemon
from nano.mkim import MkimFile

DSV4 = str(ROOT / "models" / "story-dsv4.bin")
F32 = NDArray[np.float32]
SEED = 0x005EED5A100B15E5


class SplitMix64:
    def __init__(self, seed: int) -> None:
        self.state = seed

    def below(self, n: int) -> int:
        mask = (1 << 64) - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        z = self.state
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
        return (z ^ z >> 31) % n


def nearest(vectors: F32, codebook: F32) -> tuple[NDArray[np.int64], F32]:
    """Index and distance, f32 sums in the order of the columns; the lowest index among equals."""
    indices, distances = [], []
    for part in np.array_split(vectors, max(1, len(vectors) // 4096)):
        total = np.zeros((len(part), len(codebook)), np.float32)
        for j in range(16):
            difference = part[:, j, None] - codebook[None, :, j]
            total += difference * difference
        indices.append(total.argmin(1))
        distances.append(total.min(1))
    return np.concatenate(indices), np.concatenate(distances)


def train(vectors: F32) -> F32:
    """The reference's codebook of fewer vectors than its sample holds."""
    random, chosen = SplitMix64(SEED), list[int]()
    while len(chosen) < 256:
        index = random.below(len(vectors))
        if index not in chosen:
            chosen.append(index)
    codebook = vectors[chosen].copy()
    for round_ in range(30):
        index, error = nearest(vectors, codebook)
        moved = False
        for k in range(256):
            own = vectors[index == k].astype(np.float64)
            if len(own) == 0:
                far = len(error) - 1 - int(error[::-1].argmax())
                codebook[k], error[far] = vectors[far], 0
                continue
            # cumsum adds one after the other, which sum does not.
            mean = (own.cumsum(0)[-1] / len(own)).astype(np.float32)
            moved |= bool((mean != codebook[k]).any())
            codebook[k] = mean
        if round_ > 0 and not moved:
            break
    return codebook


def expected_file(path: str) -> tuple[bytes, float]:
    """A whole file of format 1, and its error, by the book."""
    with MkimFile(path) as file:
        names = [name for name in file.entries if ".experts." in name and "shared" not in name]
        keys = {}
        for name in names:
            parts = name.split(".")
            keys[(int(parts[1]), int(parts[-2]), parts[-1])] = name
        layers = sorted({layer for layer, _, _ in keys})
        experts = 1 + max(expert for _, expert, _ in keys)
        values = [
            file.read(keys[(layer, e, part)]).astype(np.float32).reshape(-1, 16)
            for layer in layers for e in range(experts) for part in ("w1", "w2", "w3")
        ]  # fmt: skip
    codebook = train(np.concatenate(values[: 4 * experts * 3]))
    bytes_, errors = b"", []
    for one in values:
        index, _ = nearest(one, codebook)
        bytes_ += index.astype(np.uint8).tobytes()
        one64, rest = one.astype(np.float64), (one - codebook[index]).astype(np.float64)
        errors.append(np.sqrt((rest**2).sum() / (one64**2).sum()))
    head = b"MKSH0001" + struct.pack(f"<I{len(layers)}I", len(layers), *layers)
    head += struct.pack("<II", experts, len(values[0])) + codebook.astype("<f4").tobytes()
    return head + bytes_, float(np.mean(errors))


def shadow(daemon: Daemon, *args: str) -> dict[str, Any]:
    return json.loads(mk(daemon, "shadow", *args, "--json", limit=300).stdout)


def info(daemon: Daemon, path: str) -> dict[str, Any]:
    return json.loads(mk(daemon, "shadow", "--info", path, "--json").stdout)


def leftovers(path: str) -> list[str]:
    return [name for name in os.listdir(Path(path).parent) if "partial" in name]


def small(daemon: Daemon, arch: str) -> str:
    """A model with few experts."""
    path = str(daemon.home / f"{arch}.bin")
    few = ["--set", "n_experts=8"] if arch == "k3" else ["--set", "n_routed_experts=8"]
    mk(daemon, "build", "--arch", arch, "--preset", "tiny", "--out", path, *few)
    return path


@pytest.mark.parametrize("arch", ["k3", "dsv4"])
def test_files_of_the_reference_are_bit_for_bit_the_books(daemon: Daemon, arch: str) -> None:
    path = small(daemon, arch)
    done = shadow(daemon, path, "--format", "1")
    expected, error = expected_file(path)
    assert Path(path + ".shadows").read_bytes() == expected
    assert done["relative_error"] == pytest.approx(error, abs=1e-6) and done["gain"] == 1
    told = info(daemon, path + ".shadows")
    assert told["format"] == done["format"] == "MKSH0001" and "fingerprint" not in told
    assert told["file_bytes"] == len(expected)


@pytest.mark.parametrize("model", [STORY, DSV4])
def test_shadows_tell_what_they_are(daemon: Daemon, model: str) -> None:
    out = str(daemon.home / "story.shadows")
    errors = []
    for bits in ("0.5", "1"):
        done = shadow(daemon, model, "--bits", bits, "--out", out)
        told = info(daemon, out)
        assert done["path"] == told["path"] == out and done["format"] == "MKSH0002"
        assert done["file_bytes"] == told["file_bytes"] == os.path.getsize(out)
        for name in ("fingerprint", "relative_error", "gain", "stages", "experts"):
            assert done[name] == told[name]
        assert len(told["layers"]) == done["layers"] and done["resumed_layers"] == 0
        assert done["gain"] > 1.1
        errors.append(done["relative_error"])
    # Of a Gaussian nothing with half a bit comes nearer than 0.71, nothing with a bit than 0.5.
    assert 0.7 < errors[0] < 0.8 and 0.5 < errors[1] < 0.62
    assert "MKSH0002" in mk(daemon, "shadow", "--info", out).stdout
    assert leftovers(out) == []


@pytest.mark.parametrize("arch", ["k3", "dsv4"])
@pytest.mark.parametrize("how", [["--format", "1"], []])
def test_a_killed_daemon_leaves_one_that_goes_on(
    make_daemon: MakeDaemon, arch: str, how: list[str]
) -> None:
    daemon = slow(make_daemon(), 'jobs_read_limit = "16KiB"\n')
    path = small(daemon, arch)
    cut, whole = (str(daemon.home / name) for name in ("cut", "whole"))
    job = detach(daemon, "shadow", path, "--out", cut, *how)
    wait_for(lambda: kept_on_disk(daemon, job), LIMIT, "for a layer")
    daemon.kill()
    assert not Path(cut).exists() and leftovers(cut) == ["cut.partial"]
    daemon.config.write_text("")
    daemon.start()
    assert job_of(daemon, job)["state"] == "interrupted" and job_of(daemon, job)["resumable"]
    mk(daemon, "jobs", "resume", job)
    wait_state(daemon, job, "done")
    report = json.loads(mk(daemon, "jobs", "show", job, "--json").stdout)
    assert report["result"]["shadow"]["resumed_layers"] > 0 and report["job"]["runs"] == 2
    again = shadow(daemon, path, "--out", whole, *how)
    assert Path(cut).read_bytes() == Path(whole).read_bytes()
    assert report["result"]["shadow"]["relative_error"] == again["relative_error"]
    assert leftovers(cut) == []


def test_one_that_was_ended_leaves_nothing_when_it_is_forgotten(make_daemon: MakeDaemon) -> None:
    daemon = slow(make_daemon(), 'jobs_read_limit = "16KiB"\n')
    out = str(daemon.home / "ended")
    job = detach(daemon, "shadow", small(daemon, "k3"), "--out", out)
    wait_for(lambda: kept_on_disk(daemon, job), LIMIT, "for a layer")
    assert "shadow of" in mk(daemon, "jobs", "show", job).stdout
    assert job_of(daemon, job)["unit"] == "bytes"
    mk(daemon, "jobs", "cancel", job)
    wait_state(daemon, job, "cancelled")
    assert leftovers(out) == ["ended.partial"]
    mk(daemon, "jobs", "rm", job)
    wait_for(lambda: leftovers(out) == [], LIMIT, "for the file to go")
    assert not Path(out).exists()


def test_what_cannot_be_made_is_told(daemon: Daemon, tmp_path: Path) -> None:
    def refused(*args: str, code: int) -> str:
        return mk(daemon, "shadow", *args, code=code).stderr

    path = small(daemon, "k3")
    other = Path(shutil.copy(path, tmp_path / "story.bin"))
    assert "no file of shadows" in refused(path, "--out", str(other), code=2)
    assert other.read_bytes() == Path(path).read_bytes()
    assert "no file of shadows" in refused("--info", str(other), code=1)
    assert "none.bin" in refused(str(tmp_path / "none.bin"), code=7)
    assert "no/folder" in refused(path, "--out", str(tmp_path / "no" / "folder"), code=7)
    assert "format 1" in refused(path, "--format", "1", "--bits", "1", code=2)
    assert "--info" in refused(path, "--info", "x", code=2)
    assert leftovers(str(other)) == []
    # Shadows, whole or damaged, are replaced.
    out = tmp_path / "a.shadows"
    out.write_bytes(b"MKSH0002 and nothing more, not even a table of what there is")
    assert "a.shadows" in refused("--info", str(out), code=1)
    text = mk(daemon, "shadow", path, "--out", str(out)).stdout
    assert str(out) in text and "relative error" in text
    shadow(daemon, path, "--out", str(out), "--bits", "0.5")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk_leaves_no_half(daemon: Daemon, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32k", "none", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        done = mk(daemon, "shadow", small(daemon, "k3"), "--out", str(disk / "s"), code=1)
        assert "No space left" in done.stderr and str(disk) in done.stderr
        assert os.listdir(disk) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)
