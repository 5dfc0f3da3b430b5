"""mk top, on a terminal and elsewhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon_harness import BIN, PATIENCE, Client, Daemon, copy_model, endless, model, wait_for
from screen_terminal import Emulator, Terminal

from conftest import MakeDaemon

Top = Callable[..., Terminal]
HOSTILE = 'x\x1b[2J\x1b]0;owned\x07\r\n"'


def env_of(daemon: Daemon, **more: str) -> dict[str, str]:
    env = daemon.env(TERM="xterm-256color", **more)
    if "NO_COLOR" not in more:
        env.pop("NO_COLOR", None)
    return env


@pytest.fixture
def top() -> Iterator[Top]:
    """Starts `mk top` on a terminal."""
    made: list[Terminal] = []

    def start(
        daemon: Daemon, interval: str = "200ms", columns: int = 110, rows: int = 40, **env: str
    ) -> Terminal:
        command = [str(BIN / "mk"), "top", "--interval", interval]
        made.append(Terminal(command, env_of(daemon, **env), columns, rows))
        return made[-1]

    yield start
    for one in made:
        one.close()


def mk(daemon: Daemon, *args: str, code: int = 0, **env: str) -> str:
    done = subprocess.run(
        [str(BIN / "mk"), *args],
        env=env_of(daemon, **env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE,
    )
    assert done.returncode == code, done
    return done.stdout.decode()


class Stream:
    """A run that goes on, acknowledged whenever it is asked to."""

    def __init__(self, client: Client, **more: Any) -> None:
        self.client = client
        self.number = endless(client, **more)
        client.wait_tokens(self.number, 1)

    def keep_up(self) -> None:
        self.client.pump(0.01)
        self.client.ack(self.number)


def see(terminal: Terminal, part: str, stream: Stream) -> None:
    def there(screen: Emulator) -> bool:
        stream.keep_up()
        return part in screen.text

    terminal.wait_for(there)


def gave_the_terminal_back(terminal: Terminal) -> bool:
    screen = terminal.emulator
    return (
        not screen.alternate
        and screen.cursor_shown
        and screen.wraps
        and terminal.settings_are_as_before()
    )


def test_a_stream_is_shown_live_and_q_leaves(daemon: Daemon, client: Client, top: Top) -> None:
    stream = Stream(client)
    terminal = top(daemon)
    see(terminal, "decode", stream)
    screen = terminal.emulator
    assert screen.alternate and not screen.cursor_shown and not screen.wraps
    assert not terminal.settings_are_as_before()
    assert "microkimid" in screen.lines[0] and f"pid {daemon.pid}" in screen.lines[0]
    assert "REQUESTS  1 running, 0 waiting" in screen.text
    see(terminal, "/s generated", stream)
    (row,) = (line for line in screen.lines if " decode " in line)
    words = row.split()
    assert words[:2] == ["client", "1"] and words[2:4] == ["run", "decode"]
    assert row.rstrip().endswith("k3a/model.bin")
    assert any("ready" in line and "k3a/model.bin" in line for line in screen.lines)
    # The numbers move.
    before = screen.text
    see(terminal, "of the last", stream)
    terminal.wait_for(lambda now: stream.keep_up() or now.text != before)
    (step,) = (line for line in screen.lines if line.startswith("step"))
    assert step.count(" ms") >= 3
    terminal.type("q")
    assert terminal.wait() == 0
    assert gave_the_terminal_back(terminal)
    assert screen.main == ""  # nothing is left on the ordinary screen


@pytest.mark.parametrize("way", ["ctrl-c", "SIGTERM", "SIGHUP", "SIGINT"])
def test_every_way_out_gives_the_terminal_back(daemon: Daemon, top: Top, way: str) -> None:
    terminal = top(daemon)
    terminal.see("microkimid")
    if way == "ctrl-c":
        terminal.type("\x03")
    else:
        os.kill(terminal.pid, signal.Signals[way])
    assert terminal.wait() == 0
    assert gave_the_terminal_back(terminal)


def test_other_keys_do_nothing(daemon: Daemon, top: Top) -> None:
    terminal = top(daemon)
    terminal.see("microkimid")
    terminal.type("abc \x1b[A\x1b[B\r\t")
    time.sleep(0.5)
    assert terminal.poll() is None
    assert not terminal.settings_are_as_before()


def test_ctrl_z_gives_the_terminal_to_the_shell_for_a_while(daemon: Daemon, top: Top) -> None:
    terminal = top(daemon)
    terminal.see("microkimid")
    terminal.type("\x1a")
    terminal.wait_stopped()
    assert gave_the_terminal_back(terminal)
    terminal.emulator.lines = [""] * terminal.emulator.rows
    os.kill(terminal.pid, signal.SIGCONT)
    terminal.see("microkimid")
    assert terminal.emulator.alternate and not terminal.settings_are_as_before()
    terminal.type("q")
    assert terminal.wait() == 0
    assert gave_the_terminal_back(terminal)


def test_after_a_stop_from_elsewhere_the_screen_is_taken_again(daemon: Daemon, top: Top) -> None:
    terminal = top(daemon)
    terminal.see("microkimid")
    os.kill(terminal.pid, signal.SIGSTOP)
    terminal.wait_stopped()
    terminal.emulator.alternate = False  # as another program would leave it
    terminal.emulator.lines = [""] * terminal.emulator.rows
    os.kill(terminal.pid, signal.SIGCONT)
    terminal.see("microkimid")
    assert terminal.emulator.alternate


def test_a_resize_is_drawn_at_once(daemon: Daemon, client: Client, top: Top) -> None:
    client.call("load", model=model())
    terminal = top(daemon, interval="30s", columns=120, rows=40)
    terminal.see("k3a/model.bin")
    terminal.resize(40, 12)
    terminal.see("REQUESTS", 5)  # long before the next look
    assert all(len(line) <= 40 for line in terminal.emulator.lines)
    terminal.see("MODELS")
    terminal.resize(120, 40)
    terminal.see("k3a/model.bin", 5)


def test_no_color_means_none(daemon: Daemon, client: Client, top: Top) -> None:
    client.call("load", model=model())
    coloured, plain = top(daemon), top(daemon, NO_COLOR="1")
    coloured.see("ready")
    plain.see("ready")
    assert "32" in coloured.emulator.colours and "1" in coloured.emulator.colours
    assert plain.emulator.colours <= {"0"}
    assert plain.emulator.alternate


def test_it_waits_for_a_daemon_and_survives_its_death(make_daemon: MakeDaemon, top: Top) -> None:
    daemon = make_daemon()
    terminal = top(daemon)
    terminal.see("waiting for a daemon on")
    terminal.see("no daemon runs")
    time.sleep(0.6)
    assert not daemon.socket.exists()  # it started none
    daemon.start()
    terminal.see(f"pid {daemon.pid}")
    assert "waiting for" not in terminal.emulator.text
    first = daemon.pid
    daemon.kill()
    terminal.see("waiting for a daemon on")
    daemon.start()
    assert daemon.pid != first
    terminal.see(f"pid {daemon.pid}")
    terminal.type("q")
    assert terminal.wait() == 0


def test_a_daemon_that_hangs_is_told(daemon: Daemon, top: Top) -> None:
    terminal = top(daemon)
    terminal.see(f"pid {daemon.pid}")
    daemon.signal(signal.SIGSTOP)
    try:
        terminal.see("the daemon does not answer")
        terminal.type("q")  # and the keys still work
        assert terminal.wait() == 0
    finally:
        daemon.signal(signal.SIGCONT)


def test_the_end_of_the_terminal_is_the_end(daemon: Daemon, top: Top) -> None:
    terminal = top(daemon)
    terminal.see("microkimid")
    os.close(terminal.slave)
    terminal.slave = os.open("/dev/null", os.O_RDONLY)
    os.close(terminal.master)
    terminal.master = os.open("/dev/null", os.O_RDONLY)
    wait_for(lambda: terminal.poll() is not None, 10, "for its end")
    terminal.status = 0


def test_hostile_names_stay_text(daemon: Daemon, client: Client, top: Top, tmp_path: Path) -> None:
    path = copy_model(tmp_path / HOSTILE)
    client.call("hello", protocol_min=1, protocol_max=1, build_id="b", client="bidi\u202etxet")
    stream = Stream(client, model=path)
    terminal = top(daemon, columns=300)
    # The emulator fails on any sequence that is not ours and on control characters.
    see(terminal, "x\\x1b[2J\\x1b]0;owned\\x07\\r\\n", stream)
    see(terminal, "bidi\\u{202e}txet", stream)
    for text in (mk(daemon, "top", "--once"), mk(daemon, "status")):
        assert not any(char < " " and char != "\n" for char in text)
        assert "\u202e" not in text


def test_a_client_that_does_not_keep_up_is_shown_as_paused(daemon: Daemon, client: Client) -> None:
    number = endless(daemon.client(), window=16)
    assert number
    wait_for(lambda: "paused" in mk(daemon, "top", "--once"))


def test_without_a_terminal_it_prints_once(daemon: Daemon, client: Client) -> None:
    client.call("run", model=model(), ids=[1, 2, 3], raw=True, max_new=20)
    for args in (["top"], ["top", "--once"]):
        text = mk(daemon, *args)
        assert "\x1b" not in text
        assert text.startswith("microkimid ")
        assert "20 generated, 3 read so far" in text
        assert "since the daemon started" in text
        assert model() in text  # paths are whole
        assert "REQUESTS  0 running, 0 waiting" in text


def test_without_a_daemon_once_is_an_error(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon()
    assert mk(daemon, "top", code=3) == ""
    told = json.loads(mk(daemon, "top", "--json", "--once", code=3))
    assert told["error"]["code"] == "unreachable"
    assert not daemon.socket.exists()


def test_json_is_a_line_per_look(make_daemon: MakeDaemon) -> None:
    daemon = make_daemon().start()
    client = daemon.client()
    stream = Stream(client)
    process = subprocess.Popen(
        [str(BIN / "mk"), "top", "--json", "--interval", "200ms"],
        env=env_of(daemon),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        looks = []
        for _ in range(6):
            stream.keep_up()
            looks.append(json.loads(process.stdout.readline()))
        assert looks[0]["rates"] is None
        assert all(one["rates"]["generated_tokens_per_s"] >= 0 for one in looks[1:])
        assert any(one["rates"]["generated_tokens_per_s"] > 0 for one in looks[1:])
        (request,) = looks[-1]["status"]["requests"]
        assert request["tokens_per_s_now"] >= 0 and request["phase"] in ("decode", "paused")
        assert looks[-1]["latency"]["window_s"] > 0.5
        assert set(looks[-1]["latency"]) == {
            "window_s", "step", "token", "first_token", "queue_wait",
        }  # fmt: skip
        daemon.kill()
        line = {}
        while "error" not in line:
            line = json.loads(process.stdout.readline())
        assert line["error"]["code"] == "unreachable" and line["time"]
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    finally:
        process.kill()
        process.communicate()


def test_a_closed_pipe_ends_json_quietly(daemon: Daemon) -> None:
    done = subprocess.run(
        f"{BIN / 'mk'} top --json --interval 100ms | head -n 2",
        shell=True,
        env=env_of(daemon),
        capture_output=True,
        timeout=PATIENCE,
    )
    assert len(done.stdout.splitlines()) == 2 and done.stderr == b""


@pytest.mark.parametrize("interval", ["0", "99ms", "2h", "soon", ""])
def test_intervals_are_checked(daemon: Daemon, interval: str) -> None:
    assert mk(daemon, "top", "--once", "--interval", interval, code=2) == ""
