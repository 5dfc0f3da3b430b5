"""mk run --session, mk chat --session and mk session, as people use them."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from daemon_harness import BIN, PATIENCE, ROOT, Daemon, model, wait_for
from terminal import CTRL_D, Terminal

STORY = str(ROOT / "models" / "story-k3.bin")
Mk = Callable[..., str]


@pytest.fixture
def mk(daemon: Daemon, tmp_path: Path) -> Mk:
    def run(*args: str, stdin: str = "", code: int = 0, err: str | None = None) -> str:
        done = subprocess.run(
            [str(BIN / "mk"), *args],
            input=stdin,
            env=daemon.env(),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == code, done
        if err is not None:
            assert err in done.stderr, done
        return done.stdout

    return run


def info(mk: Mk, name: str) -> dict[str, Any]:
    return json.loads(mk("session", "info", name, "--json"))


def test_a_text_goes_on_turn_by_turn(mk: Mk) -> None:
    run = ["run", "-m", STORY, "-n", "12", "--precision", "exact"]
    whole = mk("run", "-m", STORY, "-n", "24", "--precision", "exact", "Once upon a time")
    first = mk(*run, "--session", "story", "Once upon a time")
    second = mk("run", "-n", "12", "--session", "story", "--continue")
    assert first + second == whole
    told = json.loads(mk("run", "-n", "2", "--session", "story", "--json", " Then"))
    assert told["session"]["turns"] == 3 and told["prefix"] == "live"
    assert told["options"]["precision"] == "exact"
    text = "Once upon a time" + whole + " Then" + told["text"]
    assert mk("session", "show", "story") == text + ("" if text.endswith("\n") else "\n")
    shown = info(mk, "story")
    assert [one["generated"] for one in shown["turns"]] == [12, 12, len(told["ids"])]
    assert shown["session"]["model"] == STORY
    # In the place of the last turn.
    mk("run", "-n", "2", "--session", "story", "--undo", "1", " But then")
    assert [one.get("user") for one in info(mk, "story")["turns"]] == [
        "Once upon a time", None, " But then",
    ]  # fmt: skip
    assert ", sessions " in mk("status")  # what their states hold
    table = mk("session")
    assert re.search(r"story +text +3 +\d+ +3 ", table) and "story-k3" in table
    assert mk("session", "ls", "--names") == "story\n"


def test_forks_by_hand(mk: Mk) -> None:
    mk("run", "-m", STORY, "-n", "8", "--session", "a", "Once upon a time")
    mk("run", "-n", "8", "--session", "a", "--continue")
    assert mk("session", "fork", "a", "b").startswith("b: text, 2 turns")
    assert mk("session", "fork", "a", "c", "--turns", "1").startswith("c: text, 1 turn,")
    mk("run", "-n", "8", "--session", "b", " Then a dragon came")
    out = mk("session", "diff", "a", "b")
    assert "2 turns in common" in out and "b goes on:  Then a dragon came" in out
    assert "kda_matrix" in out
    assert mk("session", "undo", "b").startswith("b: text, 2 turns")
    assert "states: the same" in mk("session", "diff", "a", "b")
    assert mk("session", "undo", "b", "--all").startswith("b: new, 0 turns")
    assert mk("session", "rename", "b", "d").startswith("d: new")
    saved = mk("session", "save", "a", "./kept.mkmem")
    assert "/kept.mkmem: " in saved
    mk("session", "export", "a", "out.mkmem")
    assert "out.mkmem" in mk("pack", "verify", "./out.mkmem")
    mk("session", "export", "a", "out.mkmem", code=2, err="exists")
    assert mk("session", "restore", "e", "./kept.mkmem").startswith("e: text, 2 turns")
    assert mk("session", "show", "e") == mk("session", "show", "a")
    assert mk("pack", "verify", "./kept.mkmem").startswith("./kept.mkmem: sound")
    # For the reference engine.
    mk("session", "save", "a")
    go_on = ["run", "-m", STORY, "--memory", "a", "--continue", "-n", "0"]
    mk(*go_on, "--save", "./reference.mkmem", "--save-format", "1")
    assert "MKMEM001" in mk("pack", "info", "./reference.mkmem")
    assert mk("session", "rm", "c", "d", "e") == "removed 3 sessions\n"
    assert mk("session", "ls", "--names") == "a\n"


def test_what_is_wrong_is_said(mk: Mk) -> None:
    mk("run", "-m", STORY, "-n", "1", "--session", "a", "Once")
    for args, code, err in (
        (("session", "info", "none"), 7, "no session none"),
        (("session", "info", "a/b"), 2, "letters, digits"),
        (("session", "fork", "a"), 2, "a name for the copy"),
        (("session", "undo", "a", "none"), 2, "no number of turns"),
        (("session", "undo", "a", "2"), 2, "has 1 turn, not 2"),
        (("session", "rm", "a", "--force"), 2, "--force does not go"),
        (("session", "fork", "a", "a"), 2, "already"),
        (("run", "--continue"), 2, "needs --session"),
        (("run", "--session", "a", "--continue", "x"), 2, "excludes a prompt"),
        (("run", "--session", "new", "--continue"), 7, "no session new to go on with"),
        (("run", "--session", "a", "--chat", "x"), 1, "a text that goes on"),
        (("run", "--session", "a", "--precision", "exact", "x"), 1, "precision q8"),
        (("chat", "--session", "a", "--load", "x.json"), 2, "--session excludes --load"),
    ):
        mk(*args, code=code, err=err)
    assert mk("session", "ls", "--names") == "a\n"


def test_a_chat_is_kept_and_goes_on(mk: Mk, daemon: Daemon) -> None:
    talk = ["chat", "-m", model(), "--no-thinking", "-n", "6", "--temp", "1", "--seed", "5"]
    plain = [json.loads(one) for one in mk(*talk, "--json", stdin="One\nTwo\n").splitlines()]
    kept = [
        json.loads(one)
        for one in mk(*talk, "--json", "--session", "work", stdin="One\nTwo\n").splitlines()
    ]
    assert [one["ids"] for one in kept] == [one["ids"] for one in plain]
    assert [one["turn"] for one in kept] == [1, 2]
    # Another mk, without the options of the first: it knows where it was.
    out = mk("chat", "--session", "work", "-n", "6", "--json", stdin="Three\n")
    (third,) = [json.loads(one) for one in out.splitlines()]
    assert third["turn"] == 3
    assert third["prompt_ids"][: len(kept[1]["prompt_ids"])] == kept[1]["prompt_ids"]
    assert [one["user"] for one in info(mk, "work")["turns"]] == ["One", "Two", "Three"]


def test_commands_of_a_chat_work_on_its_session(mk: Mk) -> None:
    talk = ["chat", "-m", model(), "--no-thinking", "-n", "4", "--commands", "--session", "work"]
    out = mk(*talk, stdin="One\nTwo\n/fork twin\n/undo\nThree\n/show\n/save kept\n")
    assert "session twin is a copy" in out and "1 turn taken back, 1 left" in out
    assert "saved in " in out
    assert [one["user"] for one in info(mk, "work")["turns"]] == ["One", "Three"]
    assert [one["user"] for one in info(mk, "twin")["turns"]] == ["One", "Two"]
    out = mk(*talk, stdin="/retry\n/load twin\n/show\nFour\n/reset\n/load work\n/show\n")
    assert "session twin, 2 turns" in out and "> Two\n" in out and "> Three\n" in out
    assert info(mk, "twin")["turns"] == []
    assert [one["user"] for one in info(mk, "work")["turns"]] == ["One", "Three"]
    mk("session", "restore", "again", "kept")
    assert [one["user"] for one in info(mk, "again")["turns"]] == ["One", "Three"]
    # A new system message counts from the next answer on.
    mk(*talk, stdin="/system Be brief.\nFive\n")
    assert info(mk, "work")["system"] == "Be brief."
    mk(*talk, stdin="/model x\n", code=2, err="a session stays with its model")
    mk(*talk, stdin="/precision exact\n", code=2, err="a session stays with its precision")
    mk(*talk, stdin="/load nosuch\n", code=7, err="no session nosuch")
    assert "nosuch" not in mk("session", "ls", "--names")
    # What this chat has saved it may save again; what another one has saved it may not.
    mk(*talk, stdin="/save kept\n", code=2, err="kept")
    assert mk(*talk, stdin="/save own\nSix\n/save own\n").count("saved in ") == 2
    # The form of the conversation is settled.
    mk(*talk, "--dialect", "k3", stdin="Seven\n", code=1, err="has the chat template nano-sft")
    mk("run", "-m", model(), "--chat", "-n", "1", "--session", "thinks", "One")
    mk("chat", "--session", "thinks", "--no-thinking", stdin="x\n", code=1, err="lets the model")
    mk("chat", "-m", model(), "--commands", stdin="/fork x\n", code=2, err="mk chat --session")


def test_a_chat_takes_back_only_what_it_has_shown(mk: Mk, daemon: Daemon) -> None:
    talk = [str(BIN / "mk"), "chat", "-m", model(), "--no-thinking", "-n", "4", "--session", "two"]
    terminal = Terminal(talk, daemon.env())
    try:
        terminal.expect("> ")
        terminal.line("One")
        wait_for(lambda: "two" in mk("session", "ls", "--names"), what="for the turn")
        wait_for(lambda: len(info(mk, "two")["turns"]) == 1, what="for the turn")
        mk("run", "--chat", "--session", "two", "-n", "4", "Two")
        terminal.line("/retry")
        terminal.expect("it has 2 turns now")
        terminal.expect("> ")
        assert [one["user"] for one in info(mk, "two")["turns"]] == ["One", "Two"]
        terminal.line("/undo")
        terminal.expect("1 turn taken back, 1 left")
        assert [one["user"] for one in info(mk, "two")["turns"]] == ["One"]
        terminal.type(CTRL_D)
        assert terminal.wait() == 0
    finally:
        terminal.close()


def test_plain_text_is_chatted_with(mk: Mk) -> None:
    talk = ["chat", "-m", STORY, "--raw", "-n", "6", "--commands", "--session", "tale"]
    mk(*talk, stdin="Once upon a time\n/more\nThen\n")
    turns = info(mk, "tale")["turns"]
    assert [one.get("user") for one in turns] == ["Once upon a time", None, " Then"]
    whole = mk("session", "show", "tale")
    assert whole.startswith("Once upon a time")
    assert mk("chat", "--session", "tale", "--commands", stdin="/show\n") == whole


def test_the_example_of_the_manual(mk: Mk, daemon: Daemon, tmp_path: Path) -> None:
    """The commands of docs/sessions.md, one after the other, as they stand there."""
    text = (ROOT / "docs" / "sessions.md").read_text()
    (example,) = re.findall(r"## One story, three endings\n(.*?)\n## ", text, re.S)
    commands = "\n".join(re.findall(r"```sh\n(.*?)```", example, re.S))
    assert commands.count("mk session fork") == 3
    env = daemon.env(PATH=f"{BIN}:{os.environ['PATH']}")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done
    (beginning,) = {mk("session", "show", "story").strip()}
    endings = [mk("session", "show", f"ending{i}") for i in (1, 2, 3)]
    assert all(one.startswith(beginning) for one in endings) and len(set(endings)) == 3


def test_completions_know_sessions(mk: Mk) -> None:
    assert "mk session ls --names" in mk("completions", "bash")
    for shell in ("bash", "zsh", "fish"):
        assert "session" in mk("completions", shell)
    assert "mk session" in mk("--man")
