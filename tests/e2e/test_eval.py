"""`mk eval`: scorecards, whatever happens meanwhile, and tasks of one's own."""

from __future__ import annotations

import json
import math
import shutil
import signal
import subprocess
from typing import Any

import microkimi
import pytest
from daemon_harness import BIN, PATIENCE, ROOT, Daemon, wait_for
from job_tools import detach, job_of, kept_on_disk, mk, start_mk, wait_state

from conftest import MakeDaemon

STORY = str(ROOT / "models" / "story-k3.bin")
DSV4 = str(ROOT / "models" / "story-dsv4.bin")
DATA = ROOT / "eval" / "data"
EXACT = ("--precision", "exact")
# Much more than any test waits for: a job that runs until it is ended.
LONG = "".join(f"Paragraph {n}. " + "The little dog ran to the big tree. " * 60 + "\n\n"
               for n in range(600))  # fmt: skip


def card(daemon: Daemon, *args: str) -> dict[str, Any]:
    (model,) = json.loads(mk(daemon, "eval", *args, "--json", limit=120).stdout)["models"]
    return model


def task(daemon: Daemon, *probes: dict[str, Any]) -> str:
    path = daemon.home / "task.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in probes))
    return str(path)


def documents() -> list[dict[str, str]]:
    return [json.loads(line) for line in (DATA / "fables.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("path", [STORY, DSV4], ids=["k3", "dsv4"])
def test_a_scorecard_is_the_same_bytes_again(make_daemon: MakeDaemon, path: str) -> None:
    cards = []
    for threads in ("1", "2"):
        daemon = make_daemon().start("--threads", threads)
        cards.append(mk(daemon, "eval", path, *EXACT, "--json", limit=240).stdout)
        cards.append(mk(daemon, "eval", path, *EXACT, "--json", limit=240).stdout)
        daemon.clean_up()
    assert len(set(cards)) == 1
    told = json.loads(cards[0])
    assert told["schema"] == "mk-eval-1"
    (model,) = told["models"]
    assert model["model"]["precision"] == "exact" and not model["model"]["degraded"]
    (text,) = model["texts"]
    assert text["documents"] == len(documents())
    assert text["bytes"] == sum(len(one["text"].encode()) for one in documents())
    assert text["perplexity"] == pytest.approx(math.exp(text["nats"] / text["tokens"]))
    assert text["bits_per_byte"] == pytest.approx(text["nats"] / math.log(2) / text["bytes"])
    assert text["perplexity_per_byte"] == pytest.approx(2 ** text["bits_per_byte"])
    assert 0 < text["top1"]["hits"] <= text["top5"]["hits"] < text["tokens"]
    facts, stories = model["tasks"]
    assert facts["probes"] >= 80 and facts["phrasings"] == 2 * facts["probes"]
    assert facts["chance"] == stories["chance"] == 0.25
    for one in (facts, stories):
        score = sum(each["score"] for each in one["outcomes"])
        assert one["accuracy"]["hits"] == pytest.approx(score)
        assert sum(each["accuracy"]["count"] for each in one["categories"]) == one["probes"]
        hits = sum(each["accuracy"]["hits"] for each in one["categories"])
        assert hits == pytest.approx(score)
    # Both know much of stories; neither knows the world.
    assert stories["accuracy"]["low"] > 0.4
    assert facts["accuracy"]["share"] < 0.5


def test_likelihoods_are_those_of_scores(daemon: Daemon) -> None:
    lines = daemon.home / "fables.txt"
    lines.write_text("".join(one["text"] + "\n" for one in documents()))
    told = mk(daemon, "score", "-m", STORY, *EXACT, "--lines", "-f", str(lines), "--json").stdout
    scores = [json.loads(line) for line in told.splitlines()]
    (text,) = card(daemon, STORY, *EXACT, "--text", "fables")["texts"]
    # Documents that fit into one window.
    assert all(one["tokens"] <= 512 for one in scores[:-1])
    for key in ("tokens", "bytes"):
        assert text[key] == scores[-1]["total"][key]
    assert text["nats"] == pytest.approx(-scores[-1]["total"]["logprob"], rel=1e-12)
    assert text["top1"]["hits"] == scores[-1]["total"]["top1"]
    assert text["top5"]["hits"] == sum(rank <= 5 for one in scores[:-1] for rank in one["ranks"])


def test_long_documents_are_read_in_windows(daemon: Daemon) -> None:
    words = " ".join(one["text"] for one in documents())[:4000]
    path = daemon.home / "one.jsonl"
    path.write_text(json.dumps({"text": words}) + "\n")
    (text,) = card(daemon, STORY, *EXACT, "--text", str(path))["texts"]
    with microkimi.Client(daemon.socket, autostart=False) as python:
        ids = python.tokenize(words, model=STORY).ids
        bos, ids = ids[0], ids[1:]
        assert len(ids) > 2 * 512
        windows = [ids[at : at + 512] for at in range(0, len(ids), 512)]
        scores = python.score(
            [{"ids": window, "context_ids": [bos]} for window in windows],
            model=STORY, precision="exact",
        )  # fmt: skip
    assert text["tokens"] == len(ids) == sum(one.tokens for one in scores)
    assert text["nats"] == pytest.approx(-sum(one.logprob for one in scores), rel=1e-12)
    assert text["bytes"] == len(words.encode())


def test_plain_files_are_cut_into_documents(daemon: Daemon) -> None:
    path = daemon.home / "plain.txt"
    path.write_text(LONG[:20_000])
    (text,) = card(daemon, STORY, "--text", str(path))["texts"]
    assert text["name"] == "plain" and text["bytes"] == 20_000 and text["documents"] >= 8


def test_every_rule_of_a_task(daemon: Daemon) -> None:
    prompt = "Once upon a time, there was a"
    said = json.loads(
        mk(daemon, "run", "-m", STORY, *EXACT, prompt, "-n", "12", "--raw", "--json").stdout
    )["text"]
    words = said.split()
    assert said.startswith(" ") and len(words) > 3
    path = task(
        daemon,
        {"prompt": prompt, "answer": words[0] + " " + words[1], "category": "a"},
        {"prompt": prompt, "answer": "zebra", "category": "a"},
        {"prompt": prompt, "answer": words[0], "rule": "generate", "until": [" " + words[1]]},
        {"prompt": prompt, "answer": ["no", said], "rule": "generate", "max_new": 12,
         "until": ["@@"]},
        {"prompt": prompt, "answer": said + "!", "rule": "generate", "max_new": 12},
        {"prompt": prompt, "choices": ["of", words[0]], "answer": 1, "rule": "choice"},
        {"prompts": [prompt, "She was"], "choices": ["of the", words[0]], "answer": words[0]},
    )  # fmt: skip
    (told,) = card(daemon, STORY, *EXACT, "--task", path)["tasks"]
    scores = [one["score"] for one in told["outcomes"]]
    assert scores[:6] == [1, 0, 1, 1, 0, 1]
    assert told["outcomes"][5]["picks"] == [1] and len(told["outcomes"][6]["picks"]) == 2
    assert told["outcomes"][0]["picks"] == [-1]
    # Not all have choices.
    assert "acc" not in told and told["chance"] == 0
    assert [one["name"] for one in told["by_phrasing"]] == ["1", "2"]
    assert [one["name"] for one in told["categories"]] == ["a", ""]
    text = mk(daemon, "eval", STORY, *EXACT, "--task", path, "--limit", "2").stdout
    assert "task: 2 probes" in text and "50.0 %" in text


def test_choices_are_ranked_by_their_likelihood(daemon: Daemon) -> None:
    probes = [json.loads(line) for line in (DATA / "facts.jsonl").read_text().splitlines()][:12]
    (told,) = card(daemon, DSV4, *EXACT, "--task", "facts", "--limit", "12")["tasks"]
    with microkimi.Client(daemon.socket, autostart=False) as python:
        for probe, outcome in zip(probes, told["outcomes"], strict=True):
            for prompt, pick in zip(probe["prompts"], outcome["picks"], strict=True):
                scores = python.score(
                    [" " + one for one in probe["choices"]], context=prompt, model=DSV4,
                    precision="exact", tokens=False,
                )  # fmt: skip
                rates = [one.logprob / len(choice)
                         for one, choice in zip(scores, probe["choices"], strict=True)]  # fmt: skip
                assert pick == rates.index(max(rates))
            rights = [pick == probe["answer"] for pick in outcome["picks"]]
            assert outcome["score"] == sum(rights) / 2 and outcome["id"] == probe["id"]


def test_several_models_stand_side_by_side(daemon: Daemon) -> None:
    args = ("--task", "stories", "--limit", "8", *EXACT)
    text = mk(daemon, "eval", STORY, DSV4, *args).stdout
    assert text.splitlines()[0].split() == ["story-k3", "story-dsv4"]
    told = json.loads(mk(daemon, "eval", STORY, DSV4, *args, "--json").stdout)["models"]
    assert [one["model"]["architecture"] for one in told] == ["k3", "deepseek_v4"]
    row = next(line for line in text.splitlines() if line.startswith("  accuracy"))
    for one in told:
        assert f"{100 * one['tasks'][0]['accuracy']['share']:.1f} %" in row


def test_jobs_are_detached_and_shown(daemon: Daemon) -> None:
    args = ("eval", STORY, "--task", "stories", "--limit", "6")
    job = detach(daemon, *args)
    shown = mk(daemon, "jobs", "attach", job).stdout
    assert shown == mk(daemon, *args).stdout
    assert shown in mk(daemon, "jobs", "show", job).stdout
    assert job_of(daemon, job)["kind"] == "eval"
    two = mk(daemon, "eval", STORY, DSV4, "--text", "fables", "--detach").stdout.split()
    assert len(two) == 2
    for one in two:
        wait_state(daemon, one, "done")


def test_one_that_was_interrupted_comes_to_the_same(daemon: Daemon) -> None:
    path = daemon.home / "long.txt"
    path.write_text(LONG[:200_000])
    args = ("eval", STORY, *EXACT, "--text", str(path), "--task", "stories")
    job = detach(daemon, *args)
    kept = wait_for(lambda: kept_on_disk(daemon, job), PATIENCE, "for a save")
    daemon.kill()
    daemon.start()
    assert job_of(daemon, job)["state"] == "interrupted"
    assert job_of(daemon, job)["resumable"] and job_of(daemon, job)["kept"] >= kept
    assert "from" in mk(daemon, "jobs", "resume", job).stdout
    resumed = mk(daemon, "jobs", "attach", job, limit=300).stdout
    assert job_of(daemon, job)["runs"] == 2
    assert resumed == mk(daemon, *args, limit=300).stdout


def test_it_runs_beside_others_and_can_be_ended(daemon: Daemon) -> None:
    path = daemon.home / "long.txt"
    path.write_text(LONG)
    job = detach(daemon, "eval", STORY, "--text", str(path))
    wait_for(lambda: job_of(daemon, job)["phase"] == "eval", PATIENCE, "for it to run")
    for _ in range(3):
        mk(daemon, "run", "-m", STORY, "Once", "-n", "5")
    assert job_of(daemon, job)["state"] == "running"
    mk(daemon, "jobs", "cancel", job)
    wait_state(daemon, job, "cancelled")
    alone = start_mk(daemon, "eval", STORY, "--text", str(path))
    wait_for(lambda: mk(daemon, "jobs").stdout.count(" running "), PATIENCE, "for it to run")
    alone.send_signal(signal.SIGINT)
    assert alone.wait(PATIENCE) == 130
    alone.communicate()
    memory = lambda: json.loads(mk(daemon, "status", "--json").stdout)["memory"]  # noqa: E731
    assert wait_for(lambda: memory()["sequences"] == 0)


def fails(daemon: Daemon, code: int, *args: str) -> str:
    return mk(daemon, *args, code=code).stderr


def test_what_is_wrong_is_named_with_its_line(daemon: Daemon) -> None:
    good = {"prompt": "a", "answer": "b"}
    path = task(daemon, good, {"prompt": "a", "choices": ["x", "y"], "answer": "z"})
    told = fails(daemon, 2, "eval", STORY, "--task", path)
    assert f'{path}:2: "answer" is none of the choices' in told
    assert "hint: give its number" in told
    told = fails(daemon, 7, "eval", STORY, "--task", "riddles")
    assert 'no bundled task or text "riddles"' in told and "facts, stories" in told
    told = fails(daemon, 7, "eval", STORY, "--text", str(daemon.home / "absent.txt"))
    assert "absent.txt" in told
    (daemon.home / "latin.txt").write_bytes(b"caf\xe9")
    told = fails(daemon, 2, "eval", STORY, "--text", str(daemon.home / "latin.txt"))
    assert "latin.txt is not UTF-8" in told and "iconv" in told
    (daemon.home / "empty.txt").write_bytes(b"")
    assert "is empty" in fails(daemon, 2, "eval", STORY, "--text", str(daemon.home / "empty.txt"))
    assert "absent" in fails(daemon, 7, "eval", "absent")
    told = mk(daemon, "eval", STORY, "--task", path, "--json", code=2).stdout
    assert ":2: " in json.loads(told)["error"]["message"]


def test_text_that_cannot_be_spelled_costs_eight_bits_a_byte(daemon: Daemon) -> None:
    """The golden model's vocabulary knows a part of the bytes only."""
    from daemon_harness import model

    text = "the cat \u4e2d\u6587 sat"
    path = daemon.home / "t.jsonl"
    path.write_text(json.dumps({"text": text}) + "\n")
    told = card(daemon, model(), *EXACT, "--text", str(path))
    (one,) = told["texts"]
    if one["unk"] == 0:
        pytest.skip("this vocabulary spells everything")
    assert one["hidden"] > 0 and told["warnings"]
    assert one["bits_per_byte"] == pytest.approx(
        (one["nats"] / math.log(2) + 8 * one["hidden"]) / one["bytes"]
    )


def test_python_measures_as_mk_does(daemon: Daemon) -> None:
    told = card(daemon, STORY, *EXACT, "--task", "stories", "--text", "fables")
    steps: list[microkimi.Progress] = []
    with microkimi.Client(daemon.socket, autostart=False) as python:
        ours = python.evaluate(model=STORY, precision="exact", tasks=["stories"],
                               texts=[DATA / "fables.jsonl"], progress=steps.append)  # fmt: skip
    assert ours.texts[0].nats == told["texts"][0]["nats"]
    assert [one.picks for one in ours.tasks[0].outcomes] == [
        one["picks"] for one in told["tasks"][0]["outcomes"]
    ]
    assert {one.stage for one in steps} <= {"queue", "load", "prepare", "eval"}
    assert any(one.stage == "eval" and one.total > 100 for one in steps)


def test_an_installed_daemon_finds_the_bundled_files(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    script = BIN.parent / "eval" / "cmake_install.cmake"
    if shutil.which("cmake") is None or not script.is_file():
        pytest.skip("no cmake, or no build tree of it")
    prefix = daemon.home / "prefix"
    subprocess.run(
        ["cmake", f"-DCMAKE_INSTALL_PREFIX={prefix}", "-P", str(script)],
        check=True, capture_output=True, timeout=PATIENCE,
    )  # fmt: skip
    (prefix / "bin").mkdir()
    daemon.program = shutil.copy(BIN / "microkimid", prefix / "bin")
    daemon.start()
    (told,) = card(daemon, STORY, "--task", "facts", "--limit", "1")["tasks"]
    assert told["probes"] == 1
    daemon.clean_up()
    (prefix / "share" / "microkimi" / "eval" / "facts.jsonl").unlink()
    daemon.start()
    told = fails(daemon, 7, "eval", STORY, "--task", "facts")
    assert "one of: fables, stories" in told
