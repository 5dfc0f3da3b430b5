"""From raw text to `mk run`: a tiny model is trained through a kill and a resume, then tells."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from daemon_harness import BIN

pytest.importorskip("torch")
from nano import smoke

STEPS = 60
# The pattern of the smoke text: after this the model must go on with one of its six animals.
ANIMALS = ("dog", "cat", "bird", "bear", "mouse", "fox")


def test_a_model_trained_from_raw_text_answers_through_the_daemon(tmp_path: Path) -> None:
    result = smoke.smoke(tmp_path / "s", steps=STEPS)
    assert 0 < result["killed_after_step"] < STEPS
    assert result["last_loss"] < result["first_loss"] - 1

    home = tmp_path / "home"
    env = dict(os.environ)
    for name in ("RUNTIME_DIR", "STATE_HOME", "CONFIG_HOME", "DATA_HOME", "CACHE_HOME"):
        folder = home / name.lower()
        folder.mkdir(parents=True, mode=0o700)
        env["XDG_" + name] = str(folder)

    def mk(*args: str) -> str:
        done = subprocess.run([BIN / "mk", *args], env=env, capture_output=True, text=True,
                              timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        prompt = result["prompt"]
        text = mk("run", "--model", str(result["model"]), "--max-new", "40", prompt)
        assert text.strip().startswith(ANIMALS), text
        assert mk("verify", str(result["model"])) is not None
    finally:
        mk("stop")
