"""mk service with a real user manager of systemd, in a mount namespace of its own.

Needs root, unshare and systemd; where one of them is missing or no manager comes up, it is skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from daemon_harness import BIN

MANAGER = "/usr/lib/systemd/systemd"
PATIENT = 60.0
SKIP = 77  # no manager came up


def tools() -> bool:
    found = shutil.which("unshare") and shutil.which("systemctl") and os.path.exists(MANAGER)
    return bool(found) and os.geteuid() == 0


@pytest.mark.slow
@pytest.mark.skipif(not tools(), reason="needs root, unshare and systemd")
def test_a_real_manager_starts_restarts_and_forgets_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    for name in ("mk", "microkimid"):
        shutil.copy(BIN / name, home / "bin")
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "XDG_RUNTIME_DIR": "/run/user/0"}
    done = subprocess.run(
        ["unshare", "-m", sys.executable, __file__, str(home)],
        env={**env, "PYTHONPATH": os.pathsep.join(sys.path), "MK_BIN": str(BIN)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode == SKIP:
        pytest.skip(f"no user manager comes up here: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stdout + done.stderr


def wait(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENT
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.1)


def systemctl(*args: str) -> str:
    done = subprocess.run(["systemctl", "--user", *args], capture_output=True, text=True)
    return done.stdout.strip()


def mk(home: Path, *args: str, code: int = 0) -> str:
    done = subprocess.run([str(home / "bin" / "mk"), *args], capture_output=True, text=True)
    assert done.returncode == code, done
    return done.stdout


def status(home: Path, code: int = 0) -> dict:
    return json.loads(mk(home, "service", "status", "--json", code=code))


def restarts() -> str:
    return systemctl("show", "microkimid.service", "--property=NRestarts", "--value")


def life(home: Path) -> None:
    mk(home, "service", "install")
    assert status(home)["service"]["pid"] == 0
    mk(home, "ping")  # to connect is to start it
    first = status(home)
    assert first["socket"]["sub_state"] == "running" and first["service"]["pid"] > 0
    assert json.loads(mk(home, "status", "--json"))["pid"] == first["service"]["pid"]
    # An update: nobody is connected, so it makes way, and that is no failure.
    shutil.copy(home / "bin" / "microkimid", home / "bin" / "new")
    os.replace(home / "bin" / "new", home / "bin" / "microkimid")
    wait(lambda: restarts() == "1", "the new program")
    wait(lambda: systemctl("is-active", "microkimid.service") == "active", "the new daemon")
    second = status(home)
    assert second["service"]["pid"] not in (0, first["service"]["pid"])
    assert second["last_failure"] is None
    # A daemon that is killed is started anew.
    os.kill(second["service"]["pid"], 9)
    wait(lambda: restarts() == "2", "the next daemon")
    mk(home, "restart")
    mk(home, "stop")
    mk(home, "service", "install")
    mk(home, "service", "uninstall")
    assert [path for path in (home / ".config").rglob("*") if not path.is_dir()] == []
    assert systemctl("list-units", "--all", "--no-legend", "microkimid*") == ""
    assert status(home, code=7)["installed"] is False


def main() -> int:
    home = Path(sys.argv[1])
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    os.makedirs("/run/systemd/system")  # what says that systemd runs
    os.makedirs("/run/user/0", mode=0o700)
    manager = subprocess.Popen([MANAGER, "--user", "--log-target=console"])
    try:
        end = time.monotonic() + 20
        while systemctl("is-system-running") not in ("running", "degraded"):
            if manager.poll() is not None or time.monotonic() > end:
                return SKIP
            time.sleep(0.1)
        life(home)
        return 0
    finally:
        manager.terminate()
        manager.wait()


if __name__ == "__main__":
    sys.exit(main())
