"""Jobs outlive their daemon: killed, stopped, with damaged records, without a place for them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess

import pytest
from daemon_harness import model, wait_for
from job_tools import (
    LIMIT,
    STORY,
    detach,
    job_of,
    jobs,
    kept_on_disk,
    mk,
    record,
    slow,
    start_mk,
    wait_state,
)

from conftest import MakeDaemon


def test_a_killed_daemon_leaves_jobs_that_go_on_where_they_were(make_daemon: MakeDaemon) -> None:
    daemon = slow(make_daemon(), 'jobs_read_limit = "384KiB"\n')
    direct = detach(daemon, "verify", STORY)
    waiting = detach(daemon, "verify", model())
    kept = wait_for(lambda: kept_on_disk(daemon, direct), LIMIT, "for a checkpoint")
    daemon.kill()
    daemon.start()
    for job in (direct, waiting):
        was = job_of(daemon, job)
        assert was["state"] == "interrupted" and was["error"]["code"] == "shutting_down"
        assert f"jobs resume {job}" in was["error"]["hint"]
    before = job_of(daemon, direct)["kept"]
    assert before >= kept
    assert f"resume {direct}" in mk(daemon, "jobs", "attach", direct, code=3).stderr
    assert "% on" in mk(daemon, "jobs", "resume", direct).stdout
    assert "from the start" in mk(daemon, "jobs", "resume", waiting).stdout
    wait_for(lambda: job_of(daemon, direct)["done"] != before, LIMIT)
    assert job_of(daemon, direct)["done"] > before
    daemon.config.write_text("")
    daemon.signal(signal.SIGHUP)
    ended = wait_state(daemon, direct, "done")
    assert ended["runs"] == 2
    wait_state(daemon, waiting, "done")
    report = json.loads(mk(daemon, "jobs", "show", direct, "--json").stdout)
    assert report["result"]["verify"] == json.loads(mk(daemon, "verify", STORY, "--json").stdout)


def test_stopping_interrupts_them(make_daemon: MakeDaemon) -> None:
    daemon = slow(make_daemon())
    job = detach(daemon, "verify", STORY)
    watcher = start_mk(daemon, "jobs", "attach", job)
    try:
        wait_for(lambda: job_of(daemon, job)["attached"] == 1, LIMIT)
        mk(daemon, "stop")
        assert daemon.wait() == 0
        _, err = watcher.communicate(timeout=LIMIT)
        assert watcher.returncode == 3 and f"resume {job}" in err
    finally:
        watcher.kill()
        watcher.communicate()
    daemon.start()
    assert job_of(daemon, job)["state"] == "interrupted"


def test_a_record_that_is_damaged_is_set_aside_once(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon().start()
    good, torn = (detach(daemon, "verify", model()) for _ in range(2))
    for job in (good, torn):
        wait_state(daemon, job, "done")
    wait_for(lambda: all(job["saved"] for job in jobs(daemon)), LIMIT)
    path = record(daemon, torn)
    daemon.kill()
    path.write_bytes(path.read_bytes()[:-3])
    (path.parent / "zzzzzz.job").write_bytes(os.urandom(3000))
    (path.parent / f"{good}.job.tmp.1").write_bytes(b"half")
    daemon.start()
    assert [job["id"] for job in jobs(daemon)] == [good]
    left = sorted(one.name for one in path.parent.iterdir())
    assert left == sorted([f"{good}.job", f"{torn}.job.bad", "zzzzzz.job.bad"])
    log = daemon.log()
    assert log.count("is set aside") == 2 and "length" in log
    daemon.kill()
    daemon.start()
    assert daemon.log().count("is set aside") == 2


def test_without_a_place_for_records_jobs_run_and_it_is_said(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    state = daemon.home / "state" / "microkimi"
    state.mkdir(parents=True)
    # Where the folder should be there is a file: nobody, not even root, can write into it.
    daemon.start()
    folder = wait_for(lambda: list(state.glob("jobs*")), LIMIT)[0]
    daemon.kill()
    for one in folder.iterdir():
        one.unlink()
    folder.rmdir()
    folder.write_text("in the way")
    daemon.start()
    started = mk(daemon, "verify", model(), "--detach")
    job = started.stdout.strip()
    assert "its record cannot be saved" in started.stderr
    assert not wait_state(daemon, job, "done")["saved"]
    assert "records of jobs are not saved" in mk(daemon, "jobs").stdout
    assert json.loads(mk(daemon, "jobs", "--json").stdout)["trouble"]
    assert "not saved" in mk(daemon, "status").stdout
    assert "microkimi_jobs_unsaved 1" in mk(daemon, "metrics").stdout
    folder.unlink()
    wait_for(lambda: job_of(daemon, job)["saved"], LIMIT, "for the record")
    assert "microkimi_jobs_unsaved 0" in mk(daemon, "metrics").stdout
    assert record(daemon, job).stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_disk_full_of_something_else_costs_the_records_only(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    state = daemon.home / "state" / "microkimi"
    state.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(state)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("no leave to mount")
    try:
        daemon.start()
        before = detach(daemon, "verify", model())
        assert wait_state(daemon, before, "done")["saved"]
        filler = state / "filler"
        with filler.open("wb", buffering=0) as full, contextlib.suppress(OSError):
            while full.write(b"x" * 4096):
                pass
        started = mk(daemon, "verify", model(), "--detach")
        assert "its record cannot be saved" in started.stderr
        job = started.stdout.strip()
        assert not wait_state(daemon, job, "done")["saved"]
        assert "No space left" in mk(daemon, "jobs").stdout
        assert record(daemon, before).stat().st_size > 0
        filler.unlink()
        wait_for(lambda: job_of(daemon, job)["saved"], LIMIT, "for the record")
        assert list(state.rglob("*.tmp*")) == []
        daemon.kill()
        daemon.start()
        assert {one["id"] for one in jobs(daemon)} == {before, job}
    finally:
        daemon.kill()
        subprocess.run(["umount", str(state)], check=True)


def test_an_idle_daemon_stays_for_its_jobs(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    daemon.config.write_text('idle_exit = "1s"\njobs_read_limit = "8MiB"\n')
    daemon.start()
    job = detach(daemon, "verify", STORY)
    assert daemon.wait(LIMIT) == 0
    daemon.config.write_text("")
    daemon.start()
    assert job_of(daemon, job)["state"] == "done"


def test_ended_jobs_are_forgotten_beyond_a_number(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    daemon.config.write_text("jobs_keep = 2\n")
    daemon.start()
    for _ in range(4):
        last = detach(daemon, "verify", model())
        wait_for(lambda: all(job["state"] == "done" for job in jobs(daemon)), LIMIT)
    wait_for(lambda: len(jobs(daemon)) == 2, LIMIT)
    assert jobs(daemon)[-1]["id"] == last
    folder = record(daemon, last).parent
    wait_for(lambda: len(list(folder.iterdir())) == 2, LIMIT)
    assert mk(daemon, "jobs", "rm", "--done").stdout == "removed 2 jobs\n"
    assert mk(daemon, "jobs").stdout == "no jobs\n"
