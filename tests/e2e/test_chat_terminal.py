"""mk chat at a terminal: editing, history, Ctrl-C, Ctrl-D, Ctrl-Z."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon_harness import BIN, Daemon, model, wait_for
from terminal import (
    BACKSPACE,
    CTRL_C,
    CTRL_D,
    CTRL_R,
    CTRL_Z,
    LEFT,
    RIGHT,
    TAB,
    UP,
    Terminal,
)

TALKER = ["-m", model(), "--no-thinking"]
# A prompt is drawn anew while a line is edited; this stands before the first time.
PROMPT = b"\x1b[?2004h> "
Chat = Callable[..., Terminal]


@pytest.fixture
def chat(daemon: Daemon) -> Iterator[Chat]:
    made: list[Terminal] = []

    def start(*args: str, max_new: int = 4, **env: str) -> Terminal:
        command = [str(BIN / "mk"), "chat", *TALKER, "-n", str(max_new), *args]
        made.append(Terminal(command, daemon.env(**env)))
        made[-1].expect("> ")
        return made[-1]

    yield start
    for terminal in made:
        terminal.close()


def ask(terminal: Terminal, line: str) -> str:
    """Types a line; what is shown for it up to the next prompt."""
    before = terminal.raw.count(PROMPT)
    terminal.line(line)
    wait_for(lambda: (terminal.pump(0.01), terminal.raw.count(PROMPT) > before)[1])
    shown = terminal.shown[terminal.at :]
    terminal.at = len(terminal.shown)
    return shown


def said(terminal: Terminal, path: Path) -> list[dict[str, Any]]:
    """The conversation, as /save has it."""
    ask(terminal, f"/save {path}")
    return json.loads(path.read_text())["messages"]


def users(terminal: Terminal, path: Path) -> list[str]:
    return [one["content"] for one in said(terminal, path) if one["role"] == "user"]


def test_a_chat_at_a_terminal(chat: Chat, tmp_path: Path) -> None:
    terminal = chat()
    ask(terminal, "Hello")
    ask(terminal, "")  # nothing is said
    ask(terminal, "   ")
    assert "/undo" in ask(terminal, "/help")
    assert "there is no command /hlep" in ask(terminal, "/hlep")
    assert users(terminal, tmp_path / "t.json") == ["Hello"]
    assert "1 turn taken back" in ask(terminal, "/undo")
    assert "tok/s" in ask(terminal, "/stats")
    terminal.type(CTRL_D)
    assert terminal.wait() == 0
    assert terminal.echoes()


@pytest.mark.parametrize("word", ["/quit", "/exit", "quit", "exit"])
def test_words_that_leave(chat: Chat, word: str) -> None:
    terminal = chat()
    terminal.line(word)
    assert terminal.wait() == 0


def test_history_lives_on(chat: Chat, daemon: Daemon, tmp_path: Path) -> None:
    history = daemon.home / "state" / "microkimi" / "chat_history"
    first = chat()
    ask(first, "Größe \\ eins")
    first.line('"""two')
    first.expect(". ")
    ask(first, 'lines"""')
    ask(first, "/stats off")
    first.type(CTRL_D)
    first.wait()
    assert history.stat().st_mode & 0o777 == 0o600
    second = chat()
    second.type(UP)
    second.expect("/stats off")
    ask(second, "")
    second.type(UP * 2)
    second.expect("lines")
    ask(second, "")
    second.type(CTRL_R + "Grö")
    second.expect("Größe")
    ask(second, "")
    assert users(second, tmp_path / "t.json") == ["two\nlines", "Größe \\ eins"]
    second.type(CTRL_D)
    second.wait()
    # A terminal that is gone loses nothing either.
    third = chat()
    third.line("last words")
    third.expect("\n> ")
    os.kill(third.pid, signal.SIGKILL)
    third.wait()
    assert history.read_text().splitlines()[-1] == "last words"
    quiet = chat("--no-history")
    quiet.type(UP)
    quiet.settle()
    ask(quiet, "a secret")
    assert users(quiet, tmp_path / "q.json") == ["a secret"]
    assert "secret" not in history.read_text()


def test_a_history_that_cannot_be_used_is_no_reason_not_to_chat(
    chat: Chat, daemon: Daemon, tmp_path: Path
) -> None:
    history = daemon.home / "state" / "microkimi" / "chat_history"
    history.parent.mkdir(parents=True, exist_ok=True)
    history.symlink_to(tmp_path / "elsewhere")
    terminal = chat()
    assert "is a symbolic link" in terminal.shown and "--no-history" in terminal.shown
    ask(terminal, "Hello")
    assert not (tmp_path / "elsewhere").exists()


def test_messages_of_several_lines(chat: Chat, tmp_path: Path) -> None:
    terminal = chat()
    terminal.line("one\\")
    terminal.expect(". ")
    ask(terminal, "two")
    terminal.line('"""three')
    terminal.expect(". ")
    terminal.line("")
    terminal.expect(". ")
    ask(terminal, 'four"""')
    terminal.type("\x1b[200~five\rsix\tand\x1b[31m seven\x1b[201~!")
    terminal.settle()
    ask(terminal, "")
    # Ctrl-C drops a text that is not whole.
    terminal.line('"""dropped')
    terminal.expect(". ")
    terminal.type(CTRL_C)
    terminal.expect("\n> ")
    assert users(terminal, tmp_path / "t.json") == [
        "one\ntwo",
        "three\n\nfour",
        "five\nsix\tand[31m seven!",
    ]


def test_lines_are_edited_by_character(chat: Chat, tmp_path: Path) -> None:
    terminal = chat()
    ask(terminal, f"Straße{LEFT}{BACKSPACE}ss{RIGHT} 🦊x{BACKSPACE}日本{BACKSPACE}")
    ask(terminal, "ab" + LEFT * 9 + "c" + "\x05d" + "\x01e")
    terminal.type("long " * 40 + "\x17")
    terminal.resize(60)
    ask(terminal, "end")
    found = users(terminal, tmp_path / "t.json")
    assert found[:2] == ["Strasse 🦊日", "ecabd"]
    assert found[2] == "long " * 39 + "end"


def test_tab_completes_commands_and_files(chat: Chat, tmp_path: Path) -> None:
    terminal = chat()
    ask(terminal, "Hello")
    ask(terminal, f"/sav{TAB}{tmp_path}/talk.json")
    assert (tmp_path / "talk.json").exists()
    assert "1 turn;" in ask(terminal, f"/loa{TAB}{tmp_path}/ta{TAB}")
    terminal.type("/s" + TAB)
    terminal.expect("/stats")
    terminal.type(CTRL_C)
    terminal.expect("> ")


def generating(daemon: Daemon, count: int = 1) -> bool:
    client = daemon.client()
    return any(one["generated"] >= count for one in client.call("status")["requests"])


def test_ctrl_c_stops_the_answer_and_keeps_what_was_shown(
    chat: Chat, daemon: Daemon, tmp_path: Path
) -> None:
    terminal = chat(max_new=900_000)
    terminal.line("Hello")
    wait_for(lambda: generating(daemon, 20))
    terminal.type(CTRL_C)
    terminal.expect("what was said is kept")
    terminal.expect("> ")
    client = daemon.client()
    wait_for(lambda: client.call("status")["requests"] == [])
    question, answer = said(terminal, tmp_path / "t.json")
    assert question["content"] == "Hello" and len(answer["ids"]) >= 20
    spelled = client.call("detokenize", model=model(), ids=answer["ids"])["text"]
    assert answer["content"] == spelled
    # The next turn builds on it.
    ask(terminal, "/max-new 4")
    ask(terminal, "Go on")
    assert len(said(terminal, tmp_path / "t.json")) == 4
    # At the prompt it only drops the line.
    terminal.type("dropped" + CTRL_C)
    terminal.expect("\n> ")
    terminal.type(CTRL_C)
    terminal.expect("\n> ")
    assert users(terminal, tmp_path / "t.json") == ["Hello", "Go on"]


def test_a_second_ctrl_c_leaves_at_once(chat: Chat, daemon: Daemon) -> None:
    terminal = chat(max_new=900_000)
    terminal.line("Hello")
    wait_for(lambda: generating(daemon))
    # A daemon that does not answer.
    daemon.signal(signal.SIGSTOP)
    try:
        terminal.type(CTRL_C)
        terminal.settle(0.5)
        assert not terminal.ended()
        terminal.type(CTRL_C)
        assert terminal.wait() == 130
    finally:
        daemon.signal(signal.SIGCONT)
    assert terminal.echoes()


@pytest.mark.parametrize("answering", [False, True])
def test_sigterm_leaves_the_terminal_as_it_was(
    chat: Chat, daemon: Daemon, answering: bool
) -> None:
    terminal = chat(max_new=900_000)
    if answering:
        terminal.line("Hello")
        wait_for(lambda: generating(daemon))
    else:
        assert not terminal.echoes()
    terminal.signal(signal.SIGTERM)
    assert terminal.wait() == 130
    assert terminal.echoes()
    client = daemon.client()
    wait_for(lambda: client.call("status")["requests"] == [])


def test_ctrl_z_stops_and_the_line_is_still_there(chat: Chat, tmp_path: Path) -> None:
    terminal = chat()
    terminal.type("half a ")
    terminal.settle()
    terminal.type(CTRL_Z)
    wait_for(lambda: terminal.state() == "T")
    assert terminal.echoes()
    terminal.signal(signal.SIGCONT)
    wait_for(lambda: not terminal.echoes())
    ask(terminal, "line")
    assert users(terminal, tmp_path / "t.json") == ["half a line"]


def test_the_daemon_may_be_restarted_between_turns(
    chat: Chat, daemon: Daemon, tmp_path: Path
) -> None:
    terminal = chat()
    ask(terminal, "Hello")
    daemon.signal(signal.SIGTERM)
    daemon.wait()
    daemon.start()
    ask(terminal, "Still there?")
    assert users(terminal, tmp_path / "t.json") == ["Hello", "Still there?"]
    # Without one, the message is not lost: Arrow-Up has it.
    daemon.kill()
    moved = daemon.socket.with_name("moved")
    daemon.socket.rename(moved)
    daemon.socket.touch()
    assert "is not a socket" in ask(terminal, "Hello?")
    daemon.socket.unlink()
    daemon.start()
    ask(terminal, UP)
    assert users(terminal, tmp_path / "t.json") == ["Hello", "Still there?", "Hello?"]


def test_an_answer_shows_no_colours_with_no_color(chat: Chat) -> None:
    plain = chat("--stats", NO_COLOR="1")
    ask(plain, "Hello")
    assert b"\x1b[2m" not in plain.raw and "tok/s" in plain.shown
    colourful = chat("--stats")
    ask(colourful, "Hello")
    assert b"\x1b[2m" in colourful.raw
