"""What the tests of jobs share."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from daemon_harness import BIN, ROOT, Daemon, wait_for

STORY = str(ROOT / "models" / "story-k3.bin")
LIMIT = 60
# Reading the story model at this rate takes minutes: a job that runs until it is ended.
SLOW = 'jobs_read_limit = "128KiB"\n'
Job = dict[str, Any]


def mk(
    daemon: Daemon, *args: str | bytes, code: int = 0, limit: float = LIMIT
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(BIN / "mk"), *args],
        env=daemon.env(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit,
    )
    assert done.returncode == code, done
    return done


def start_mk(daemon: Daemon, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(BIN / "mk"), *args],
        env=daemon.env(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def slow(daemon: Daemon, config: str = SLOW) -> Daemon:
    daemon.config.write_text(config)
    return daemon.start()


def jobs(daemon: Daemon) -> list[Job]:
    return json.loads(mk(daemon, "jobs", "--json").stdout)["jobs"]


def job_of(daemon: Daemon, job: str) -> Job:
    return json.loads(mk(daemon, "jobs", "show", job, "--json").stdout)["job"]


def detach(daemon: Daemon, *args: str) -> str:
    job = mk(daemon, *args, "--detach").stdout
    assert len(job) == 7 and job.endswith("\n")
    return job.strip()


def wait_state(daemon: Daemon, job: str, state: str) -> Job:
    wait_for(lambda: job_of(daemon, job)["state"] == state, LIMIT, f"for {state}")
    return job_of(daemon, job)


def record(daemon: Daemon, job: str) -> Path:
    (found,) = (daemon.home / "state" / "microkimi").glob(f"jobs*/{job}.job")
    return found


def kept_on_disk(daemon: Daemon, job: str) -> int:
    status = job_of(daemon, job)
    return status["kept"] if status["saved"] else 0
