"""The examples of docs/ print what the pages show."""

from __future__ import annotations

import subprocess
import sys

from daemon_harness import BIN, ROOT


def test_pages_show_what_commands_print() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "make_examples"), "--check", "--bin", str(BIN)],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
