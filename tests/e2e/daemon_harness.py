"""Starts real daemons and talks to them with a client that shares no code with ours."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import zmq

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("MK_BIN", ROOT / "build" / "release" / "bin"))
GOLDEN = ROOT / "tests" / "data" / "golden" / "k3"
# A machine under load is slow; a daemon that hangs is found all the same.
PATIENCE = 60.0
# What has to come soon; a fault would take longer, or for ever.
SOON = 25.0

Message = dict[str, Any]


def wait_for(condition: Callable[[], Any], seconds: float = PATIENCE, what: str = "") -> Any:
    """The condition's first true value; fails when none comes in time."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {seconds} s in vain {what}")
        time.sleep(0.01)


class ReplyError(Exception):
    def __init__(self, body: Message) -> None:
        super().__init__(f"{body['code']}: {body['message']}")
        self.code: str = body["code"]
        self.message: str = body["message"]
        self.hint: str = body.get("hint", "")
        self.details: Message = body.get("details", {})


class Client:
    """One connection. Replies are kept per request until they are asked for."""

    def __init__(self, socket: str | Path) -> None:
        self.context = zmq.Context()
        self.dealer = self.context.socket(zmq.DEALER)
        self.dealer.linger = 0
        self.dealer.connect(f"ipc://{socket}")
        self.ids = itertools.count(1)
        self.replies: dict[int, list[Message]] = {}
        self.seen: dict[int, int] = {}
        self.last_ack = 0.0

    def close(self) -> None:
        self.dealer.close()
        self.context.term()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send_raw(self, payload: bytes) -> None:
        self.dealer.send(payload)

    def send(self, op: str, **args: Any) -> int:
        number = next(self.ids)
        self.replies[number] = []
        self.send_raw(msgpack.packb({"v": 1, "id": number, "op": op, "args": args}))
        return number

    def pump(self, seconds: float) -> None:
        """Receives for at most so long, until something came."""
        if self.dealer.poll(int(seconds * 1000)):
            while self.dealer.poll(0):
                reply = msgpack.unpackb(self.dealer.recv())
                self.replies.setdefault(reply["id"], []).append(reply)

    def ack(self, number: int) -> None:
        seen = self.replies[number]
        if seen:
            self.send("ack", request=number, seq=seen[-1]["seq"])

    def next_reply(self, number: int, start: int, seconds: float = PATIENCE) -> Message:
        """The reply at index `start` of a request; acknowledges as a good client does."""
        end = time.monotonic() + seconds
        while len(self.replies[number]) <= start:
            left = end - time.monotonic()
            assert left > 0, f"no reply {start} to request {number} within {seconds} s"
            self.pump(min(left, 0.2))
            if time.monotonic() - self.last_ack > 0.2:
                self.last_ack = time.monotonic()
                self.ack(number)
        return self.replies[number][start]

    def finish(self, number: int, seconds: float = PATIENCE) -> Message:
        """The body of `done`; raises what `error` says."""
        end = time.monotonic() + seconds
        for at in itertools.count():
            reply = self.next_reply(number, at, max(end - time.monotonic(), 0))
            assert reply["seq"] == at
            if reply["type"] == "done":
                return reply["body"]
            if reply["type"] == "error":
                raise ReplyError(reply["body"])
        raise AssertionError

    def call(self, op: str, **args: Any) -> Message:
        return self.finish(self.send(op, **args))

    def tokens(self, number: int) -> list[int]:
        return [
            reply["body"]["id"]
            for reply in self.replies[number]
            if reply["type"] == "chunk" and reply["body"]["kind"] == "token"
        ]

    def wait_tokens(self, number: int, count: int) -> None:
        at = 0
        while len(self.tokens(number)) < count:
            reply = self.next_reply(number, at)
            assert reply["type"] not in ("done", "error"), reply
            at += 1


class Daemon:
    """A daemon in directories of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.run_dir = home / "run"
        self.run_dir.mkdir(mode=0o700)
        self.socket = self.run_dir / "s"
        self.config = home / "config" / "microkimi" / "config.toml"
        self.config.parent.mkdir(parents=True)
        self.program = BIN / "microkimid"
        self.process: subprocess.Popen[bytes] | None = None
        self.clients: list[Client] = []

    def env(self, **extra: str) -> dict[str, str]:
        env = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("XDG_", "MICROKIMI", "NOTIFY_", "LISTEN_"))
        }
        env.update(
            HOME=str(self.home),
            XDG_RUNTIME_DIR=str(self.home / "runtime"),
            XDG_STATE_HOME=str(self.home / "state"),
            XDG_CONFIG_HOME=str(self.home / "config"),
            XDG_DATA_HOME=str(self.home / "data"),
            MICROKIMI_SOCKET=str(self.socket),
        )
        env.update(extra)
        return env

    def command(self, *args: str) -> list[str]:
        return [str(self.program), "--socket", str(self.socket), *args]

    def start(self, *args: str, env: dict[str, str] | None = None, **popen: Any) -> Daemon:
        read_end, write_end = os.pipe()
        with open(self.home / "stderr", "ab") as stderr:
            self.process = subprocess.Popen(
                self.command("--foreground", "--ready-fd", str(write_end), *args),
                env=env or self.env(),
                pass_fds=[write_end],
                stdout=stderr,
                stderr=stderr,
                **popen,
            )
        os.close(write_end)
        with os.fdopen(read_end) as pipe:
            line = pipe.readline()
        assert line == "ready\n", f"{line!r}\n{self.log()}"
        return self

    def log(self) -> str:
        return (self.home / "stderr").read_text()

    def client(self) -> Client:
        client = Client(self.socket)
        self.clients.append(client)
        return client

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, seconds: float = PATIENCE) -> int:
        assert self.process is not None
        return self.process.wait(seconds)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def resident_kib(self) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
        raise AssertionError

    def open_fds(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def clean_up(self) -> None:
        for client in self.clients:
            client.close()
        if self.alive():
            self.signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.wait(10)
                return
            self.kill()


def model(name: str = "k3a") -> str:
    return str(GOLDEN / name / "model.bin")


def copy_model(target: Path, name: str = "k3a") -> str:
    """A model of one's own to damage, with its vocabulary."""
    shutil.copytree(GOLDEN / name, target)
    for path in target.iterdir():
        path.chmod(0o644)
    return str(target / "model.bin")


def endless(client: Client, **more: Any) -> int:
    """A run that goes on until it is ended: greedy on a random model, up to the limit."""
    args = {"model": model(), "ids": [5, 6, 7], "raw": True, "max_new": 900_000, "window": 4096}
    return client.send("run", **{**args, **more})


def running(client: Client) -> list[Message]:
    return client.call("status")["requests"]


def error_of(client: Client, op: str, **args: Any) -> ReplyError:
    """The error that a call must end with."""
    try:
        done = client.call(op, **args)
    except ReplyError as error:
        return error
    raise AssertionError(f"{op} succeeded: {done}")


def prompt_ids(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1, 240) for _ in range(length)]


def long_prompt(client: Client, tokens: int = 500_000) -> int:
    return client.send("run", model=model(), ids=prompt_ids(9, tokens), raw=True, max_new=1)


def in_phase(client: Client, phase: str) -> bool:
    return any(one["phase"] == phase for one in running(client))


def make_daemons(tmp: Path) -> Iterator[Callable[[], Daemon]]:
    made: list[Daemon] = []

    def make() -> Daemon:
        home = tmp / f"d{len(made)}"
        home.mkdir(mode=0o700)
        made.append(Daemon(home))
        return made[-1]

    yield make
    for one in made:
        one.clean_up()
