"""Sessions: what is said is kept turn by turn, goes on with the same bits, and forks."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from daemon_harness import (
    ROOT,
    Client,
    Daemon,
    Message,
    ReplyError,
    copy_model,
    error_of,
    in_phase,
    model,
    wait_for,
)

from conftest import MakeDaemon

STORY = str(ROOT / "models" / "story-k3.bin")
DSV4 = str(ROOT / "tests" / "data" / "golden" / "dsv4" / "d1" / "model.bin")
PROMPT = [5, 6, 7, 9, 11]


def folder(daemon: Daemon) -> Path:
    (found,) = (daemon.home / "state" / "microkimi").glob("sessions*")
    return found


def begin(client: Client, name: str = "s", **more: Any) -> Message:
    args = {"model": model(), "ids": PROMPT, "raw": True, "max_new": 8, "session": name}
    return client.call("run", **{**args, **more})


def go_on(client: Client, name: str = "s", **more: Any) -> Message:
    return client.call("run", **{"raw": True, "max_new": 8, "session": name, **more})


def show(client: Client, name: str = "s") -> Message:
    return client.call("session_show", name=name)


def names(client: Client) -> list[str]:
    return [one["name"] for one in client.call("sessions")["sessions"]]


def restarted(daemon: Daemon, kill: bool = False) -> Client:
    if kill:
        daemon.kill()
    else:
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0
    daemon.start()
    return daemon.client()


def logits(client: Client, number: int) -> bytes:
    bodies = [one["body"] for one in client.replies[number] if one["type"] == "chunk"]
    return b"".join(one["data"] for one in bodies if one["kind"] == "logits")


def bits(client: Client, **args: Any) -> tuple[Message, list[bytes]]:
    """The end of a run, and the row of logits after its prompt and after every token."""
    number = client.send("run", want_logits=True, **args)
    done = client.finish(number)
    data = logits(client, number)
    rows = len(done["ids"]) + 1
    size = len(data) // rows
    return done, [data[at : at + size] for at in range(0, len(data), size)]


# ---------------------------------------------------------------- the same bits


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("precision", ["exact", "bf16", "q8"])
@pytest.mark.parametrize("path", [model(), DSV4])
def test_turns_have_the_bits_of_one_run(
    daemon: Daemon, path: str, precision: str, restart: bool
) -> None:
    client = daemon.client()
    rng = random.Random(precision + path)
    prompt = [rng.randrange(1, 200) for _ in range(70)]
    how = {"model": path, "raw": True, "precision": precision}
    whole, rows = bits(client, ids=prompt, max_new=24, prefix_cache=False, **how)
    assert len(whole["ids"]) == 24
    said: list[int] = []
    for turn, count in enumerate((7, 1, 16)):
        first = {"ids": prompt} if turn == 0 else {}
        done, part = bits(client, session="s", max_new=count, **how, **first)
        assert part == rows[len(said) : len(said) + count + 1]
        said += done["ids"]
        assert done["prefix"] == ("cold" if turn == 0 else "live")
        assert done["session"]["tokens"] == 70 + len(said)
        assert (done["session"]["reload_ms"] > 0) == (turn > 0 and restart)
        if restart:
            client = restarted(daemon, kill=turn == 1)
    assert said == whole["ids"]
    # New text on top is read token by token here, as one prompt would be.
    how["chunked_prefill"] = False
    more = [3, 4, 5]
    whole, rows = bits(client, ids=prompt, max_new=5, **how)
    begin(client, "t", model=path, ids=prompt, max_new=5, precision=precision,
          chunked_prefill=False)  # fmt: skip
    done, part = bits(client, session="t", ids=more, max_new=6, **how)
    assert done["prompt_ids"] == more
    ids = prompt + whole["ids"] + more
    again, rows = bits(client, ids=ids, max_new=6, prefix_cache=False, **how)
    assert (done["ids"], part) == (again["ids"], rows)


def test_a_chat_in_a_session_is_the_chat_without(daemon: Daemon) -> None:
    client = daemon.client()
    # Token by token, what was generated leaves the very state that reading it would.
    how = {"model": model(), "thinking": False, "max_new": 8, "temperature": 1.0,
           "chunked_prefill": False}  # fmt: skip
    said: list[Message] = [{"role": "system", "content": "Be kind."}]
    for turn, text in enumerate(["Hello", "Größe?", "And <|close|>?"]):
        said.append({"role": "user", "content": text})
        alone = client.call("run", messages=said, seed=turn, **how)
        more = {"system": "Be kind."} if turn == 0 else {}
        done = client.call("run", prompt=text, seed=turn, session="talk", **how, **more)
        assert (done["prompt_ids"], done["ids"]) == (alone["prompt_ids"], alone["ids"])
        assert done["text"] == alone["text"] and done["reasoning"] == alone["reasoning"]
        assert (done["prefix"] == "live") == (turn > 0)
        said.append({"role": "assistant", "content": done["text"], "ids": done["ids"]})
        if turn == 1:
            client = restarted(daemon)
    told = show(client, "talk")
    assert told["session"]["kind"] == "chat" and told["system"] == "Be kind."
    assert [one["user"] for one in told["turns"]] == ["Hello", "Größe?", "And <|close|>?"]
    # In blocks the state is that of the run as it was: its answers are the same all the same.
    how |= {"chunked_prefill": True, "temperature": 0.0, "precision": "exact"}
    said = said[:1]
    for turn, text in enumerate(["Hello", "Größe?"]):
        said.append({"role": "user", "content": text})
        alone = client.call("run", messages=said, **how)
        more = {"system": "Be kind."} if turn == 0 else {}
        done = client.call("run", prompt=text, session="blocks", **how, **more)
        assert done["prompt_ids"] == alone["prompt_ids"] and done["text"] == alone["text"]
        said.append({"role": "assistant", "content": done["text"], "ids": done["ids"]})


def test_a_new_system_message_is_read_with_all_that_was_said(client: Client) -> None:
    how = {"model": model(), "thinking": False, "max_new": 8, "chunked_prefill": False}
    said: list[Message] = [{"role": "system", "content": "Be kind."}]
    for text in ("Hello", "So?"):
        done = client.call("run", prompt=text, session="talk", system="Be kind.", **how)
        said.append({"role": "user", "content": text})
        said.append({"role": "assistant", "content": done["text"], "ids": done["ids"]})
    # Another system message: the conversation is read anew, and goes on.
    done = client.call("run", prompt="Now?", session="talk", system="Be brief.", **how)
    assert done["prefix"] != "live" and done["session"]["turns"] == 3
    said[0]["content"] = "Be brief."
    said.append({"role": "user", "content": "Now?"})
    assert done["ids"] == client.call("run", messages=said, **how)["ids"]
    assert show(client, "talk")["system"] == "Be brief."


def test_an_edited_turn_goes_on_from_the_state_before_it(client: Client) -> None:
    how = {"model": model(), "thinking": False, "max_new": 6}
    first = client.call("run", prompt="One", session="s", **how)
    client.call("run", prompt="Two", session="s", **how)
    done = client.call("run", prompt="Three", session="s", session_undo=1, **how)
    assert done["session"]["turns"] == 2
    assert done["session"]["known"] == first["session"]["tokens"]
    assert [one["user"] for one in show(client)["turns"]] == ["One", "Three"]
    error = error_of(client, "run", prompt="Four", session="s", session_undo=3, **how)
    assert error.code == "bad_request" and "2 turns" in error.message
    assert [one["user"] for one in show(client)["turns"]] == ["One", "Three"]


# ---------------------------------------------------------------- nothing lost


def test_what_was_acknowledged_survives_sigkill(daemon: Daemon) -> None:
    client = daemon.client()
    rng = random.Random(7)
    begin(client, max_new=4)
    for turn in range(6):
        before = show(client)
        number = client.send(
            "run", raw=True, session="s", max_new=900_000 if turn % 2 else 4, window=4096
        )
        if turn % 2:
            client.wait_tokens(number, rng.randrange(1, 40))
            client = restarted(daemon, kill=True)
            assert show(client)["turns"] == before["turns"]
        else:
            done = client.finish(number)
            time.sleep(rng.random() * 0.01)
            client = restarted(daemon, kill=True)
            assert len(show(client)["turns"]) == done["session"]["turns"]
    # The text is that of one run.
    whole = client.call("run", model=model(), ids=PROMPT, raw=True, max_new=16)["ids"]
    said = "".join(one["content"] for one in show(client)["turns"])
    assert said == client.call("detokenize", model=model(), ids=whole[:16])["text"]
    assert not list(folder(daemon).glob(".*")) and not list(folder(daemon).glob("*/*.tmp.*"))


def test_sigkill_while_a_turn_is_kept(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon().start()
    client = daemon.client()
    begin(client)
    rng = random.Random(3)
    for _ in range(8):
        before = len(show(client)["turns"])
        number = client.send("run", raw=True, session="s", max_new=1)
        time.sleep(rng.random() * 0.03)
        client.pump(0)
        acknowledged = any(one["type"] == "done" for one in client.replies[number])
        client = restarted(daemon, kill=True)
        after = show(client)
        assert len(after["turns"]) in ((before + 1,) if acknowledged else (before, before + 1))
        # Whole: it goes on, from a state.
        assert go_on(client, max_new=1)["prefix"] == "live"


def test_a_cancelled_answer_is_kept_as_far_as_it_came(client: Client) -> None:
    begin(client)
    number = client.send("run", raw=True, session="s", max_new=900_000)
    client.wait_tokens(number, 5)
    client.call("cancel", request=number)
    done = client.finish(number)
    assert done["finish_reason"] == "cancelled" and done["session"]["kept"]
    turn = show(client)["turns"][1]
    assert turn["finish_reason"] == "cancelled" and turn["generated"] == len(done["ids"]) >= 5
    assert go_on(client)["session"]["known"] == turn["tokens"]


def test_a_prompt_that_was_not_read_leaves_the_session(client: Client) -> None:
    begin(client)
    before = show(client)
    number = client.send("run", raw=True, session="s", ids=[3] * 500_000, max_new=1)
    wait_for(lambda: in_phase(client, "prefill"))
    client.call("cancel", request=number)
    client.finish(number)
    assert show(client)["turns"] == before["turns"]
    error = error_of(client, "run", raw=True, session="s", ids=[3] * 500_000, timeout_ms=300)
    assert error.code == "timeout"
    assert show(client)["turns"] == before["turns"]


def small_disk(path: Path, megabytes: int) -> bool:
    path.mkdir(parents=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0700", "tmpfs", str(path)],
        capture_output=True,
    )
    return done.returncode == 0


def test_a_full_disk_leaves_the_session_as_it_was(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    disk = daemon.home / "state" / "microkimi"
    if not small_disk(disk, 4):
        pytest.skip("no small file system can be mounted")
    try:
        client = daemon.start().client()
        begin(client)
        before = show(client)
        left = os.statvfs(disk)
        (disk / "filler").write_bytes(bytes(left.f_bavail * left.f_frsize))
        error = error_of(client, "run", raw=True, session="s", max_new=4)
        assert error.code == "io_error" and "No space left" in error.message
        assert show(client)["turns"] == before["turns"]
        assert error_of(client, "run", raw=True, session="new", model=model(), ids=PROMPT,
                        max_new=4).code == "io_error"  # fmt: skip
        assert names(client) == ["s"]
        (disk / "filler").unlink()
        assert go_on(client)["session"]["turns"] == 2
    finally:
        daemon.clean_up()
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize("damage", ["a bit", "another state"])
def test_a_damaged_state_is_set_aside_and_its_text_read_again(daemon: Daemon, damage: str) -> None:
    client = daemon.client()
    first = begin(client)
    begin(client, "other", ids=[3, 4])
    whole = client.call("run", model=model(), ids=PROMPT, raw=True, max_new=16)
    pack = folder(daemon) / "s" / "1.mkmem"
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    if damage == "another state":
        data = bytearray((folder(daemon) / "other" / "1.mkmem").read_bytes())
    client = restarted(daemon)
    pack.write_bytes(data)
    done = go_on(client)
    assert any("cannot be used" in one for one in done["warnings"]), done["warnings"]
    assert first["ids"] + done["ids"] == whole["ids"]
    assert not pack.exists() and pack.with_name("1.mkmem.bad").exists()
    assert "set aside" in " ".join(client.call("sessions")["troubles"])
    client = restarted(daemon)
    done = go_on(client)
    assert not done["warnings"] and done["prefix"] == "live"


def test_a_damaged_session_is_set_aside_once(daemon: Daemon) -> None:
    client = daemon.client()
    begin(client, "good")
    begin(client, "bad")
    record = folder(daemon) / "bad" / "session"
    record.write_bytes(record.read_bytes()[:-1])
    client = restarted(daemon)
    told = client.call("sessions")
    assert [one["name"] for one in told["sessions"]] == ["good"]
    assert len(told["troubles"]) == 1 and "session bad is damaged" in told["troubles"][0]
    assert (folder(daemon) / ".bad" / "bad-1" / "1.mkmem").exists()
    client = restarted(daemon)
    assert client.call("sessions")["troubles"] == []
    begin(client, "bad")  # its name is free
    # A name of something else is told before anything is generated.
    (folder(daemon) / "file").write_text("x")
    error = error_of(client, "run", session="file", model=model(), ids=PROMPT, raw=True)
    assert error.code == "bad_request" and "is no session" in error.message


# ---------------------------------------------------------------- forks


def test_a_fork_and_its_twin_go_their_own_ways(daemon: Daemon) -> None:
    client = daemon.client()
    first = begin(client)
    fork = client.call("session_fork", **{"from": "s", "name": "twin"})["session"]
    assert fork["forked_from"] == "s" and fork["turns"] == 1
    # While one of them is in the middle of a turn.
    number = client.send("run", raw=True, session="s", max_new=900_000, window=4096)
    client.wait_tokens(number, 3)
    client.call("session_fork", **{"from": "s", "name": "third"})
    other = go_on(client, "twin", ids=[3, 4], max_new=6)
    client.call("cancel", request=number)
    mine = client.finish(number)
    assert mine["prompt_ids"] == [] and other["prompt_ids"] == [3, 4]
    assert mine["usage"]["cached"] == len(PROMPT + first["ids"])
    assert show(client, "third")["turns"] == show(client, "twin")["turns"][:1]
    assert go_on(client, "third", ids=[3, 4], max_new=6)["ids"] == other["ids"]
    client = restarted(daemon)
    client.call("session_remove", names=["s"])
    assert go_on(client, "twin")["prefix"] == "live"
    assert names(client) == ["third", "twin"]


def test_undo_takes_turns_back(client: Client) -> None:
    first = begin(client)
    second = go_on(client)
    third = go_on(client)
    assert client.call("session_undo", name="s", turns=2)["session"]["turns"] == 1
    again = go_on(client)
    assert again["ids"] == second["ids"] and again["prefix"] == "live"
    assert go_on(client)["ids"] == third["ids"]
    assert error_of(client, "session_undo", name="s", turns=4).code == "bad_request"
    assert client.call("session_undo", name="s")["removed"] == 3
    assert show(client)["session"]["kind"] == ""
    assert begin(client)["ids"] == first["ids"]


def test_turns_beyond_the_kept_states_are_read_again(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    daemon.config.write_text("session_states = 2\n")
    client = daemon.start().client()
    begin(client)
    second = go_on(client)
    for _ in range(3):
        go_on(client)
    info = show(client)
    assert [bool(one["state_id"]) for one in info["turns"]] == [False, False, False, True, True]
    assert len(list((folder(daemon) / "s").glob("*.mkmem"))) == 2
    client.call("session_undo", name="s", turns=4)
    assert error_of(client, "session_save", name="s").code == "unsupported"
    # Nothing is said: the session stays as it was, but for the state that there was none of.
    made = go_on(client, max_new=0)
    assert made["prefix"] != "live" and not made["session"]["kept"]
    assert [bool(one["state_id"]) for one in show(client)["turns"]] == [True]
    client.call("session_save", name="s")
    again = go_on(client)
    assert again["prefix"] == "live" and again["ids"] == second["ids"]
    # Without that: it is read on the way.
    client.call("session_undo", name="s")
    begin(client)
    for _ in range(3):
        go_on(client)
    client.call("session_undo", name="s", turns=3)
    again = go_on(client)
    assert again["prefix"] != "live" and again["ids"] == second["ids"]
    assert again["prompt_ids"] == [] and again["usage"]["prompt_tokens"] == len(PROMPT) + 8


def test_a_message_without_an_answer_is_not_kept(client: Client) -> None:
    how = {"model": model(), "thinking": False, "session": "s"}
    done = client.call("run", prompt="Hi", max_new=0, **how)
    assert not done["session"]["kept"] and names(client) == []
    client.call("run", prompt="Hi", max_new=2, **how)
    done = client.call("run", prompt="So?", max_new=0, **how)
    assert not done["session"]["kept"] and done["session"]["turns"] == 1
    assert [one["user"] for one in show(client)["turns"]] == ["Hi"]
    # The template that was the vocabulary's may be named.
    usual = show(client)["dialect"]
    assert usual
    assert client.call("run", prompt="So?", max_new=2, dialect=usual, **how)["session"]["kept"]


# ---------------------------------------------------------------- clients


def test_two_runs_in_a_session_are_one_after_the_other(daemon: Daemon) -> None:
    one, two, looker = daemon.client(), daemon.client(), daemon.client()
    begin(one)
    first = one.send("run", raw=True, session="s", max_new=900_000, window=4096)
    one.wait_tokens(first, 3)
    second = two.send("run", raw=True, session="s", max_new=5)
    assert two.next_reply(second, 0)["body"]["queue_position"] == 1
    third = two.send("run", raw=True, session="s", max_new=5)
    assert two.next_reply(third, 0)["body"]["queue_position"] == 2
    # Looking waits for nobody; changing is refused; others are not held up.
    (info,) = looker.call("sessions")["sessions"]
    assert info["in_use"] and info["waiting"] == 2
    assert len(show(looker)["turns"]) == 1
    for op, args in (
        ("session_remove", {"names": ["s"]}),
        ("session_undo", {"name": "s"}),
        ("session_rename", {"from": "s", "name": "t"}),
        ("session_fork", {"from": "s", "name": "s"}),
    ):
        assert error_of(looker, op, **args).code == "busy"
    looker.call("run", model=model(), ids=PROMPT, raw=True, max_new=2)
    two.call("cancel", request=second)
    with pytest.raises(ReplyError, match="cancelled"):
        two.finish(second)
    one.call("cancel", request=first)
    done = one.finish(first)
    after = two.finish(third)
    assert after["session"]["turns"] == 3
    assert after["session"]["known"] == len(PROMPT) + 8 + len(done["ids"])
    client = daemon.client()
    count = 8 + len(done["ids"]) + 5
    whole = client.call("run", model=model(), ids=PROMPT, raw=True, max_new=count)
    assert done["ids"] + after["ids"] == whole["ids"][8:]


def test_a_client_that_leaves_gives_the_session_up(daemon: Daemon) -> None:
    one, two = daemon.client(), daemon.client()
    begin(one)
    first = one.send("run", raw=True, session="s", max_new=900_000, window=4096)
    one.wait_tokens(first, 1)
    second = two.send("run", raw=True, session="s", max_new=5)
    two.next_reply(second, 0)
    daemon.clients.remove(one)
    one.close()
    assert two.finish(second)["session"]["turns"] == 2


# ---------------------------------------------------------------- what is refused


def test_a_session_belongs_to_its_model(daemon: Daemon, tmp_path: Path) -> None:
    client = daemon.client()
    path = copy_model(tmp_path / "own")
    begin(client, model=path)
    error = error_of(client, "run", raw=True, session="s", model=DSV4, max_new=2)
    assert error.code == "incompatible_pack"
    assert path in error.message and DSV4 in error.message and "--model" in error.hint
    # The same bytes elsewhere are the same model.
    moved = copy_model(tmp_path / "moved")
    assert go_on(client, model=moved)["session"]["turns"] == 2
    assert show(client)["session"]["model"] == moved
    Path(moved).unlink()
    error = error_of(client, "run", raw=True, session="s", max_new=2)
    assert error.code == "model_not_found" and moved in error.message and "--model" in error.hint
    os.replace(other_model(tmp_path), moved)
    error = error_of(client, "run", raw=True, session="s", max_new=2)
    assert error.code == "incompatible_pack" and "another one now" in error.message
    assert len(show(client)["turns"]) == 2


def other_model(tmp_path: Path) -> str:
    copy = tmp_path / "other.bin"
    copy.write_bytes(Path(DSV4).read_bytes())
    return str(copy)


def test_what_does_not_fit_a_session_is_refused(client: Client) -> None:
    begin(client, precision="exact")
    chat = {"model": model(), "thinking": False, "max_new": 2}
    client.call("run", prompt="Hi", session="talk", **chat)
    for args, what in (
        ({"session": "s", "raw": True, "precision": "q8"}, "precision exact"),
        ({"session": "s", "prompt": "Hi"}, "a text that goes on"),
        ({"session": "talk", "raw": True}, "a conversation"),
        ({"session": "talk", "prompt": "Hi", "dialect": "k3"}, "template"),
        ({"session": "s", "raw": True, "chunked_prefill": False}, "blocks"),
    ):
        error = error_of(client, "run", max_new=2, **args)
        assert error.code == "incompatible" and what in error.message, error
    for args in (
        {"session": "s", "messages": [{"role": "user", "content": "x"}]},
        {"session": "talk"},
        {"prompt": "x", "session_undo": 1},
    ):
        assert error_of(client, "run", **args).code == "bad_request"
    # There is nothing that it could go on with.
    assert error_of(client, "run", session="new", raw=True).code == "not_found"
    assert names(client) == ["s", "talk"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "-x", "a b", "x" * 65, "ä", "a\n"])
def test_names_are_checked(client: Client, name: str) -> None:
    for op, args in (
        ("session_new", {"name": name}),
        ("session_show", {"name": name}),
        ("session_fork", {"from": "s", "name": name}),
        ("session_remove", {"names": [name]}),
    ):
        error = error_of(client, op, **args)
        assert error.code == "bad_request" and "name" in error.message
    if name:
        assert error_of(client, "run", prompt="x", session=name).code == "bad_request"


def test_names_that_are_there_or_not(client: Client) -> None:
    begin(client)
    assert error_of(client, "session_show", name="none").code == "not_found"
    assert error_of(client, "session_undo", name="none").code == "not_found"
    assert error_of(client, "session_remove", names=["s", "none"]).code == "not_found"
    assert error_of(client, "session_new", name="s", model=model()).code == "bad_request"
    assert error_of(client, "session_fork", **{"from": "s", "name": "s"}).code == "bad_request"
    client.call("session_rename", **{"from": "s", "name": "t"})
    assert names(client) == ["t"]
    assert go_on(client, "t")["session"]["turns"] == 2


# ---------------------------------------------------------------- packs


def test_a_session_becomes_a_pack_and_a_session_again(daemon: Daemon, tmp_path: Path) -> None:
    client = daemon.client()
    begin(client)
    go_on(client)
    chat = {"model": model(), "thinking": False, "max_new": 4}
    client.call("run", prompt="Hi", session="talk", system="Be kind.", **chat)
    out = str(tmp_path / "talk.mkmem")
    client.call("session_save", name="talk", pack=out)
    client.call("session_save", name="s")
    assert error_of(client, "session_save", name="s").code == "bad_request"
    client.call("session_save", name="s", replace=True)
    client.call("session_restore", name="s2", pack="s")
    client.call("session_restore", name="talk2", pack=out)
    for name in ("s", "talk"):
        old, new = show(client, name), show(client, f"{name}2")
        assert [one["content"] for one in new["turns"]] == [one["content"] for one in old["turns"]]
        assert new["turns"][-1]["state_id"] == old["turns"][-1]["state_id"]
    assert go_on(client, "s2")["ids"] == go_on(client, "s")["ids"]
    one = client.call("run", prompt="So?", session="talk", **chat)
    two = client.call("run", prompt="So?", session="talk2", **chat)
    assert one["ids"] == two["ids"] and two["prefix"] == "live"
    # A damaged one makes no session.
    data = bytearray(Path(out).read_bytes())
    data[-5] ^= 1
    Path(out).write_bytes(data)
    assert error_of(client, "session_restore", name="no", pack=out).code == "pack_corrupt"
    assert error_of(client, "session_restore", name="no", pack="none").code == "not_found"
    assert "no" not in names(client)


def test_diff_tells_where_two_part(client: Client) -> None:
    begin(client, max_new=4)
    client.call("session_fork", **{"from": "s", "name": "t"})
    diff = client.call("session_diff", a="s", b="t")
    assert diff["identical"] and diff["common_turns"] == 1 and not diff["rest_a"]
    go_on(client, "s", ids=[3, 4, 5], max_new=4)
    go_on(client, "t", ids=[3, 4, 6], max_new=4)
    diff = client.call("session_diff", a="s", b="t")
    assert not diff["identical"] and diff["same_model"] and not diff["states_missing"]
    assert diff["common_turns"] == 1 and diff["common_tokens"] == 5 + 4 + 2
    arrays = {one["array"]: one for one in diff["arrays"]}
    assert 0 < arrays["kda_matrix"]["relative"] < 100 and arrays["kda_matrix"]["different"] > 0


# ---------------------------------------------------------------- memory


def test_a_thousand_sessions_fit_into_little_memory(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    daemon.config.write_text('prefix_cache = false\nsession_idle = "-1"\n')
    client = daemon.start().client()
    for number in range(1000):
        client.call("run", session=f"s{number}", model=STORY, raw=True, max_new=2,
                    prompt=f"Once upon a time there were {number} birds.")  # fmt: skip
    assert len(names(client)) == 1000
    resident = daemon.resident_kib()
    held = client.call("status")["memory"]["sessions"]
    print(f"1,000 sessions: {resident / 1024:.0f} MiB resident, {held >> 20} MiB of it states")
    assert resident < 256 * 1024
    # Nobody uses them: their states go from memory.
    daemon.config.write_text('prefix_cache = false\nsession_idle = "1s"\n')
    daemon.signal(signal.SIGHUP)
    wait_for(lambda: client.call("status")["memory"]["sessions"] == 0, what="for idle states to go")
    wait_for(lambda: daemon.resident_kib() < 100 * 1024, what="for their memory")
    client = restarted(daemon)
    assert len(names(client)) == 1000
    assert client.call("run", session="s999", raw=True, max_new=2)["prefix"] == "live"
    assert daemon.resident_kib() < 256 * 1024


def test_a_fork_is_made_in_no_time(client: Client) -> None:
    client.call("run", session="s", model=STORY, raw=True, max_new=8, prompt="Once upon a time")
    before = client.call("status")["memory"]["sessions"]
    begun = time.monotonic()
    for number in range(50):
        client.call("session_fork", **{"from": "s", "name": f"f{number}"})
    print(f"a fork with its files: {(time.monotonic() - begun) / 50 * 1e3:.1f} ms")
    assert client.call("status")["memory"]["sessions"] == before > 0
    # From memory: the state is the one that is there.
    assert client.call("run", session="f49", raw=True, max_new=2)["session"]["reload_ms"] == 0


def test_states_give_way_and_come_back_from_disk(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    daemon.config.write_text('session_idle = "100ms"\n')
    client = daemon.start().client()
    begin(client)
    wait_for(lambda: client.call("status")["memory"]["sessions"] == 0, what="for the state to go")
    done = go_on(client)
    assert done["prefix"] == "live" and done["session"]["reload_ms"] > 0
    daemon.config.write_text('session_idle = "-1"\n')
    client = restarted(daemon)
    go_on(client)
    assert client.call("status")["memory"]["sessions"] > 0
    assert go_on(client)["session"]["reload_ms"] == 0
    client.call("unload")
    wait_for(lambda: client.call("status")["memory"]["sessions"] == 0, what="for the model to go")
    assert go_on(client)["session"]["reload_ms"] > 0


