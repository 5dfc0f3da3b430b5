"""The walk of docs/graft.md: its commands run, and end in an ordinary model and a verdict."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from daemon_harness import BIN, ROOT, Daemon

WALK = re.compile(r"<!-- walk -->\n```console\n(.*?)```", re.S)


def test_the_walk_through_the_story_model(daemon: Daemon, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "graft.md").read_text()
    (block,) = WALK.findall(text)
    commands = [line[2:] for line in block.splitlines() if line.startswith("$ ")]
    assert len(commands) == 7
    env = os.environ | {"W": str(tmp_path), "PATH": f"{BIN}:{os.environ['PATH']}",
                        "MICROKIMI_SOCKET": str(daemon.socket), "OMP_NUM_THREADS": "1",
                        "PYTHONPATH": str(ROOT)}
    printed = []
    for command in commands:
        command = command.replace("python ", f"{sys.executable} ", 1)
        done = subprocess.run(["bash", "-c", command], cwd=ROOT, env=env, capture_output=True,
                              text=True, timeout=400, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        printed.append(done.stdout)
    assert "sound" in printed[4] and printed[5].strip()
    assert re.search(r"B - A = .* bits/byte \[.*: (worse|inconclusive|equivalent)", printed[6])
    cost = json.loads((tmp_path / "cost" / "report.json").read_text())["results"]["bits_per_byte"]
    assert 0 < cost["estimate"] < 0.03  # eight of 48 experts of each layer: little, not nothing
    worth = json.loads((tmp_path / "worth" / "report.json").read_text())["results"]
    assert worth["agreement"]["spearman"] > 0.5 and worth["measured"] == 30
