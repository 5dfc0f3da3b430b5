"""Jobs: detached work that lives on, is watched by many, and is forgotten."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest
from daemon_harness import BIN, Client, Daemon, error_of, in_phase, model, wait_for
from job_tools import (
    LIMIT,
    STORY,
    detach,
    job_of,
    jobs,
    mk,
    slow,
    start_mk,
    wait_state,
)
from terminal import CTRL_C, Terminal

from conftest import MakeDaemon


def test_detached_work_ends_by_itself_and_its_result_is_kept(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon().start()
    direct = json.loads(mk(daemon, "verify", STORY, "--json").stdout)
    job = detach(daemon, "verify", STORY)
    ended = wait_state(daemon, job, "done")
    assert ended["kind"] == "verify" and ended["what"] == STORY and ended["detached"]
    assert ended["started_ms"] <= ended["ended_ms"] and ended["done"] == ended["total"] > 0
    mk(daemon, "stop")
    assert daemon.wait() == 0
    daemon.start()
    report = json.loads(mk(daemon, "jobs", "show", job, "--json").stdout)
    assert report["result"]["verify"] == direct and report["job"]["saved"]
    text = mk(daemon, "jobs", "attach", job)
    assert text.stdout == mk(daemon, "verify", STORY).stdout and text.stderr == ""
    for word in (job, "verify", "done", "100 %", STORY):
        assert word in mk(daemon, "jobs").stdout, word
    assert "sound" in mk(daemon, "jobs", "show", job).stdout
    assert job in mk(daemon, "jobs", "--ids").stdout.split()
    assert mk(daemon, "jobs", "rm", job).stdout == "removed 1 job\n"
    assert "no job" in mk(daemon, "jobs", "show", job, code=7).stderr
    wait_for(lambda: not list((daemon.home / "state").rglob(f"{job}.job")), LIMIT)


def test_exit_codes_are_those_of_the_work(daemon: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "broken.bin"
    data = bytearray(Path(STORY).read_bytes())
    data[-4:] = b"\xc0\x7f\xc0\x7f"  # not a number, of bfloat16 too
    path.write_bytes(bytes(data))
    direct = mk(daemon, "verify", str(path), code=1)
    attached = mk(daemon, "jobs", "attach", detach(daemon, "verify", str(path)), code=1)
    assert (attached.stdout, attached.stderr) == (direct.stdout, direct.stderr)
    mk(daemon, "verify", "nosuch", "--detach", code=7)
    assert len(jobs(daemon)) == 2


def test_two_watch_and_one_who_leaves_ends_nothing(make_daemon: MakeDaemon) -> None:
    daemon = slow(make_daemon())
    job = detach(daemon, "verify", STORY)
    watching = [start_mk(daemon, "jobs", "attach", job) for _ in range(2)]
    try:
        wait_for(lambda: job_of(daemon, job)["attached"] == 2, LIMIT)
        wait_for(lambda: job_of(daemon, job)["done"] > 0, LIMIT)
        watching[0].send_signal(signal.SIGINT)
        out, err = watching[0].communicate(timeout=LIMIT)
        assert watching[0].returncode == 130 and out == ""
        assert f"detached; job {job} goes on" in err and "\x1b" not in err
        wait_for(lambda: job_of(daemon, job)["attached"] == 1, LIMIT)
        assert job_of(daemon, job)["state"] == "running"
        assert "cancelled" in mk(daemon, "jobs", "cancel", job).stdout
        out, err = watching[1].communicate(timeout=LIMIT)
        assert watching[1].returncode == 130 and f"job {job}: cancelled" in err
    finally:
        for process in watching:
            process.kill()
            process.communicate()
    assert wait_state(daemon, job, "cancelled")["error"]["code"] == "cancelled"
    assert "ended already" in mk(daemon, "jobs", "cancel", job, code=2).stderr


def test_who_watches_at_a_terminal_sees_how_far_it_is(make_daemon: MakeDaemon) -> None:
    daemon = slow(make_daemon())
    job = detach(daemon, "verify", STORY)
    terminal = Terminal([str(BIN / "mk"), "jobs", "attach", job], daemon.env())
    try:
        terminal.expect("verify")
        terminal.expect(" % [#")
        terminal.expect(" MiB of 22 MiB, ")
        terminal.expect(" s left")
        terminal.type(CTRL_C)
        terminal.expect(f"job {job} goes on")
        assert terminal.wait() == 130
    finally:
        terminal.close()
    assert job_of(daemon, job)["state"] == "running"
    mk(daemon, "jobs", "cancel", job)


def test_interrupting_who_started_it_attached_ends_it(make_daemon: MakeDaemon) -> None:
    daemon = slow(make_daemon())
    process = start_mk(daemon, "verify", STORY)
    try:
        (job,) = wait_for(lambda: jobs(daemon), LIMIT)
        assert not job["detached"]
        wait_state(daemon, job["id"], "running")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=LIMIT)
        assert process.returncode == 130 and "cancelled" in err
    finally:
        process.kill()
        process.communicate()
    wait_state(daemon, job["id"], "cancelled")


def test_a_client_that_dies_takes_its_own_job_along_only(make_daemon: MakeDaemon) -> None:
    daemon = slow(make_daemon())
    kept = detach(daemon, "verify", STORY)
    watcher = start_mk(daemon, "jobs", "attach", kept)
    owner = start_mk(daemon, "verify", STORY)
    try:
        own = wait_for(lambda: [one for one in jobs(daemon) if not one["detached"]], LIMIT)[0]["id"]
        wait_for(lambda: job_of(daemon, kept)["attached"] == 1, LIMIT)
        assert job_of(daemon, own)["state"] == "queued" and job_of(daemon, own)["queue"] == 1
    finally:
        for process in (watcher, owner):
            process.kill()
            process.communicate()
    wait_state(daemon, own, "cancelled")
    wait_for(lambda: job_of(daemon, kept)["attached"] == 0, LIMIT)
    assert job_of(daemon, kept)["state"] == "running"


def test_a_detached_benchmark_waits_until_nobody_runs(client: Client, daemon: Daemon) -> None:
    run = start_mk(daemon, "run", "--model", model(), "--ids", "5,6,7", "-n", "900000")
    try:
        wait_for(lambda: in_phase(client, "decode") or in_phase(client, "paused"), LIMIT)
        job = detach(daemon, "bench", STORY, "--quick", "--precision", "q8")
        waits = job_of(daemon, job)
        assert waits["state"] == "queued" and waits["phase"] == "quiet"
    finally:
        run.kill()
        run.communicate()
    wait_for(lambda: job_of(daemon, job)["state"] == "done", 240)
    assert "tok/s" in mk(daemon, "jobs", "attach", job).stdout
    report = json.loads(mk(daemon, "jobs", "show", job, "--json").stdout)
    assert report["result"]["bench"]["points"] and report["job"]["kind"] == "bench"


def test_a_long_benchmark_can_be_cancelled(client: Client, daemon: Daemon) -> None:
    job = detach(daemon, "bench", STORY, "--precision", "exact")
    wait_state(daemon, job, "running")
    mk(daemon, "jobs", "cancel", job)
    wait_state(daemon, job, "cancelled")
    assert client.call("run", model=model(), ids=[1], raw=True, max_new=1)["ids"]


def test_everybody_can_see_them(make_daemon: MakeDaemon) -> None:
    daemon = slow(make_daemon())
    job = detach(daemon, "verify", STORY)
    wait_state(daemon, job, "running")
    status = json.loads(mk(daemon, "status", "--json").stdout)
    assert [one["id"] for one in status["jobs"]] == [job]
    assert job in mk(daemon, "status").stdout
    assert 'microkimi_jobs{state="running"} 1' in mk(daemon, "metrics").stdout
    assert "JOBS  1 running" in mk(daemon, "top", "--once").stdout
    assert job in mk(daemon, "top", "--once").stdout
    top = json.loads(mk(daemon, "top", "--once", "--json").stdout)
    assert top["status"]["jobs"][0]["id"] == job
    wait_for(lambda: "eta_ms" in job_of(daemon, job), LIMIT, "for an estimate")


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("show",), 2, "takes the id of one job"),
        (("show", "abc234"), 7, "no job abc234"),
        (("attach", "abc234"), 7, "no job abc234"),
        (("cancel", "abc234"), 7, "no job abc234"),
        (("resume", "abc234"), 7, "no job abc234"),
        (("rm", "abc234"), 7, "no job abc234"),
        (("show", "../x"), 7, "no id of a job"),
        (("rm",), 2, "rm takes ids or --done"),
        (("rm", "abc234", "--done"), 2, "rm takes ids or --done"),
        (("list", "abc234"), 2, "list takes no id"),
        (("--done",), 2, "--done goes with rm"),
        (("frob",), 2, "frob"),
    ],
)
def test_bad_input_is_an_error_with_a_remedy(
    daemon: Daemon, args: tuple[str, ...], code: int, words: str
) -> None:
    lines = mk(daemon, "jobs", *args, code=code).stderr.splitlines()
    assert len(lines) == 2 and words in lines[0] and lines[1].startswith("  hint: "), lines


def test_what_is_no_text_cannot_be_detached(daemon: Daemon) -> None:
    done = subprocess.run(
        [str(BIN / "mk"), "verify", b"/tmp/\xff.bin", "--detach"],
        env=daemon.env(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT,
    )
    assert done.returncode == 2 and b"not UTF-8" in done.stderr and done.stdout == b""


def test_removing_is_all_or_nothing_and_never_what_runs(make_daemon: MakeDaemon) -> None:
    daemon = slow(make_daemon())
    runs = detach(daemon, "verify", STORY)
    gone = detach(daemon, "verify", model())
    mk(daemon, "jobs", "cancel", gone)
    assert "is running" in mk(daemon, "jobs", "rm", gone, runs, code=6).stderr
    assert len(jobs(daemon)) == 2
    assert "is running" in mk(daemon, "jobs", "resume", runs, code=2).stderr
    assert mk(daemon, "jobs", "rm", "--done").stdout == "removed 1 job\n"
    assert [job["id"] for job in jobs(daemon)] == [runs]


def test_the_protocol_refuses_jobs_that_mean_nothing(client: Client) -> None:
    assert error_of(client, "job_start").code == "bad_request"
    assert error_of(client, "job_start", verify={}, bench={}).code == "bad_request"
    error = error_of(client, "job_start", verify={"modle": "x"})
    assert error.code == "bad_request" and "modle" in error.message
    assert error_of(client, "job_remove").code == "bad_request"
