"""How likely texts are: against the rows of logits that runs send, prefix by prefix."""

from __future__ import annotations

import json
import math
import random
import signal
import subprocess
from array import array
from pathlib import Path
from typing import Any

import pytest
from daemon_harness import (
    BIN,
    PATIENCE,
    ROOT,
    Client,
    Daemon,
    error_of,
    model,
    prompt_ids,
    running,
    wait_for,
)

STORY = str(ROOT / "models" / "story-k3.bin")


@pytest.fixture(params=["k3", "dsv4"])
def path(request: pytest.FixtureRequest, client: Client, tmp_path: Path) -> str:
    if request.param == "k3":
        return model()
    made = str(tmp_path / "tiny.bin")
    client.call("build", arch="dsv4", preset="tiny", out=made)
    return made


def score(client: Client, path: str, *items: dict, **options: Any) -> tuple[dict, list[dict]]:
    """`done`, and the tokens of each text put together."""
    number = client.send("score", model=path, texts=list(items), **options)
    done = client.finish(number)
    lists: list[dict] = [{key: [] for key in ("ids", "pieces", "logprobs", "ranks")} for _ in items]
    for reply in client.replies[number]:
        if reply["type"] != "chunk":
            continue
        body = reply["body"]
        assert body["kind"] == "score"
        own = lists[body["item"]]
        assert body["index"] == len(own["ids"])
        for key, values in own.items():
            values.extend(body[key])
    return done, lists


def rows_after(client: Client, path: str, ids: list[int], **options: Any) -> list[list[float]]:
    """The row of logits after every prefix, each of a run of its own."""
    rows = []
    for end in range(1, len(ids)):
        number = client.send(
            "run", model=path, ids=ids[:end], raw=True, max_new=0, want_logits=True,
            prefix_cache=False, **options,
        )  # fmt: skip
        client.finish(number)
        (data,) = [one["body"]["data"] for one in client.replies[number] if one["type"] == "chunk"]
        row = array("f")
        row.frombytes(data)
        rows.append(row.tolist())
    return rows


def check(lists: dict, rows: list[list[float]], ids: list[int]) -> None:
    """Tokens of which the first has nothing before it."""
    assert lists["ids"] == ids[1:]
    for at, row in enumerate(rows):
        token = ids[at + 1]
        log_sum = max(row) + math.log(math.fsum(math.exp(one - max(row)) for one in row))
        assert lists["logprobs"][at] == pytest.approx(row[token] - log_sum, abs=1e-9)
        better = sum((one, -i) > (row[token], -token) for i, one in enumerate(row))
        assert lists["ranks"][at] == better + 1


@pytest.mark.parametrize("precision", ["exact", "bf16", "q8"])
def test_scores_are_those_of_every_prefix(client: Client, path: str, precision: str) -> None:
    ids = prompt_ids(4, 24)
    done, (lists,) = score(client, path, {"ids": ids}, precision=precision)
    check(lists, rows_after(client, path, ids, precision=precision), ids)
    told = done["texts"][0]
    assert (told["tokens"], told["context_tokens"]) == (23, 1)
    assert told["logprob"] == pytest.approx(math.fsum(lists["logprobs"]), abs=1e-9)
    assert told["perplexity"] == pytest.approx(math.exp(-told["logprob"] / 23))
    assert told["bits_per_byte"] == pytest.approx(-told["logprob"] / math.log(2) / told["bytes"])
    assert told["top1"] == lists["ranks"].count(1)
    assert done["trust"]["precision"] == precision and not done["trust"]["degraded"]


def test_long_texts_are_read_token_by_token_or_in_blocks(client: Client, path: str) -> None:
    """Past a block, and at its border."""
    ids = prompt_ids(5, 132)
    _, (by_token,) = score(client, path, {"ids": ids}, chunked_prefill=False, precision="exact")
    rows = rows_after(client, path, ids[:70], chunked_prefill=False, precision="exact")
    check({key: values[:69] for key, values in by_token.items()}, rows, ids[:70])
    _, (in_blocks,) = score(client, path, {"ids": ids}, precision="exact")
    assert in_blocks["ids"] == by_token["ids"]
    assert in_blocks["logprobs"] == pytest.approx(by_token["logprobs"], abs=1e-2)


def test_a_score_is_alone_what_it_is_in_a_crowd(client: Client, path: str) -> None:
    rng = random.Random(1)
    texts = [{"ids": prompt_ids(seed, rng.randrange(2, 200))} for seed in range(9)]
    alone = [score(client, path, text)[1][0] for text in texts]
    _, together = score(client, path, *texts)
    assert together == alone
    runs = [
        client.send("run", model=path, ids=prompt_ids(7, 9), raw=True, max_new=200)
        for _ in range(3)
    ]
    numbers = [client.send("score", model=path, texts=[text]) for text in texts]
    for number, want in zip(numbers, alone, strict=True):
        client.finish(number)
        got = [one["body"] for one in client.replies[number] if one["type"] == "chunk"]
        assert [value for one in got for value in one["logprobs"]] == want["logprobs"]
    for number in runs:
        client.finish(number)


def test_a_context_is_read_and_not_scored(client: Client, path: str) -> None:
    ids = prompt_ids(6, 30)
    _, (whole,) = score(client, path, {"ids": ids})
    done, (part,) = score(client, path, {"ids": ids[20:], "context_ids": ids[:20]})
    assert part["logprobs"] == whole["logprobs"][19:] and part["ids"] == ids[20:]
    assert done["texts"][0]["context_tokens"] == 20
    # Text is encoded with its context, behind what begins a text.
    told = client.call("tokenize", model=path, text="the old stone")["ids"]
    begun = len(told) - len(
        client.call("tokenize", model=path, text="the old stone", plain=True)["ids"]
    )
    done, (text,) = score(client, path, {"text": " stone", "context": "the old"})
    scored = told[len(told) - len(text["ids"]) :]
    assert text["ids"] == scored and done["texts"][0]["bytes"] == len(" stone")
    assert client.call("detokenize", model=path, ids=scored)["text"].endswith(" stone")
    bare, (plain,) = score(client, path, {"text": "the old stone"}, plain=True)
    first, (all_of_it,) = score(client, path, {"text": "the old stone"})
    assert len(all_of_it["ids"]) == len(told) - 1
    assert first["texts"][0]["context_tokens"] == 1
    assert len(plain["ids"]) == len(told) - begun - 1
    assert bare["texts"][0]["bytes"] <= first["texts"][0]["bytes"] <= len("the old stone")


def test_a_token_across_the_border_belongs_to_the_text(client: Client) -> None:
    """Wherever a text is cut, its own part begins with the token that reaches beyond the cut."""
    text = "the old stone and the river"
    ids = client.call("tokenize", model=STORY, text=text)["ids"]
    ends, pieces = [], [client.call("detokenize", model=STORY, ids=[one])["text"] for one in ids]
    for piece in pieces:
        ends.append((ends[-1] if ends else 0) + len(piece))
    assert "".join(pieces) == text
    for cut in range(1, len(text)):
        done, (part,) = score(client, STORY, {"text": text[cut:], "context": text[:cut]})
        first = max(1, sum(end <= cut for end in ends))
        assert part["ids"] == ids[first:], cut
        assert done["texts"][0]["bytes"] == len(text) - max(cut, ends[first - 1])


def test_a_text_of_one_token_has_nothing_to_score(client: Client) -> None:
    done, lists = score(client, model(), {"ids": [5]}, {"ids": [5, 6]}, {"ids": [9]})
    assert [one["tokens"] for one in done["texts"]] == [0, 1, 0]
    assert "perplexity" not in done["texts"][0] and lists[0]["ids"] == []
    done, _ = score(client, model(), {"ids": [5]})
    assert done["texts"][0]["logprob"] == 0
    done, (lists,) = score(client, model(), {"ids": [5, 6, 7]}, tokens=False)
    assert lists["ids"] == [] and done["texts"][0]["tokens"] == 2


def test_bad_requests_say_what_is_wrong(client: Client) -> None:
    for texts, words in (
        ([], "`texts` is empty"),
        ([{}], "needs one of `text` and `ids`"),
        ([{"text": "a"}, {"text": "a", "ids": [1]}], "`texts[1]` needs one of"),
        ([{"ids": []}], "has no ids"),
        ([{"ids": [1], "context": "a"}], "`context` stands before a `text`"),
        ([{"text": "a", "context_ids": [1]}], "`context_ids` stand before `ids`"),
        ([{"ids": [1, 999_999]}], "id 999999 at position 1 is outside the vocabulary"),
        ([{"text": ""}], "is empty"),
    ):
        error = error_of(client, "score", model=model(), texts=texts)
        assert error.code == "bad_request" and words in error.message, error.message
        assert error.hint
    error = error_of(client, "score", model="no-such-model", texts=[{"text": "a"}])
    assert error.code == "model_not_found"


def test_cancels_and_deadlines_end_a_score(client: Client) -> None:
    long = {"ids": prompt_ids(9, 400_000)}
    number = client.send("score", model=model(), texts=[long], tokens=False)
    wait_for(lambda: any(one["prompt_done"] > 0 for one in running(client)), what="for its start")
    (status,) = running(client)
    assert status["op"] == "score" and status["prompt_total"] == 399_999
    assert client.call("cancel", request=number)["found"]
    with pytest.raises(Exception, match="cancelled"):
        client.finish(number)
    error = error_of(client, "score", model=model(), texts=[long], tokens=False, timeout_ms=300)
    assert error.code == "timeout"
    wait_for(lambda: running(client) == [], what="for the requests to go")
    assert client.call("status")["memory"]["sequences"] == 0


# ---------------------------------------------------------------- mk score


class Mk:
    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon

    def start(self, *args: str) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        command = [str(BIN / "mk"), "score", "-m", model(), "--precision", "exact", *args]
        return subprocess.Popen(
            command, env=self.daemon.env(), stdin=pipe, stdout=pipe, stderr=pipe
        )

    def __call__(self, *args: str, stdin: str = "", code: int = 0) -> tuple[str, str]:
        process = self.start(*args)
        out, err = process.communicate(stdin.encode(), timeout=PATIENCE)
        assert process.returncode == code, (process.returncode, out[:500], err[:2000])
        return out.decode(), err.decode()

    def json(self, *args: str, stdin: str = "", code: int = 0) -> list[dict]:
        return [
            json.loads(line)
            for line in self("--json", *args, stdin=stdin, code=code)[0].splitlines()
        ]


@pytest.fixture
def mk(daemon: Daemon) -> Mk:
    return Mk(daemon)


LINES = ["the river", "a boat and a lamp", "x", "old stone left on the wind", "kettle"]


def test_texts_lines_and_objects_are_scored_alike(mk: Mk, client: Client) -> None:
    done, lists = score(client, model(), *({"text": text} for text in LINES), precision="exact")
    want = [{**told, **tokens} for told, tokens in zip(done["texts"], lists, strict=True)]
    objects = "".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(LINES))
    for args, stdin in (
        (LINES, ""),
        (["--lines"], "\n".join(LINES)),
        (["-0", "-j", "2"], "\0".join(LINES) + "\0"),
        (["--jsonl"], objects),
    ):
        *answers, total = mk.json(*args, stdin=stdin)
        assert [one["index"] for one in answers] == list(range(len(LINES)))
        for answer, told in zip(answers, want, strict=True):
            assert answer["status"] == "done" and told.items() <= answer.items()
        assert total["total"]["texts"] == len(LINES)
        for key in ("tokens", "bytes", "top1", "logprob"):
            assert total["total"][key] == pytest.approx(sum(one[key] for one in want))
        mean = -total["total"]["logprob"] / total["total"]["tokens"]
        assert total["total"]["perplexity"] == pytest.approx(math.exp(mean))


def test_rows_for_people(mk: Mk, tmp_path: Path) -> None:
    (answer, _) = mk.json("the river")
    out, _ = mk("the river")
    (row,) = out.splitlines()
    assert row.split()[:2] == [f"{answer['logprob']:.4f}", str(answer["tokens"])]
    assert row.endswith("the river")
    out, _ = mk("--tokens", "the river")
    *tokens, last = out.splitlines()
    assert last == row and len(tokens) == answer["tokens"]
    for line, one, rank in zip(tokens, answer["ids"], answer["ranks"], strict=True):
        assert line.split()[1] == str(one) and line.split()[-1] == str(rank)
    out, _ = mk(*LINES)
    assert len(out.splitlines()) == len(LINES) + 1 and "total of 5 texts" in out
    file = tmp_path / "text"
    file.write_text("the river\n")
    assert mk("-f", str(file))[0] == row + "\n" == mk(stdin="the river\n")[0]
    (with_context, _) = mk.json("--context", "the", " river")
    assert with_context["logprob"] == pytest.approx(
        math.fsum(answer["logprobs"][-len(with_context["ids"]) :])
    )


def test_what_fails_leaves_the_others_in_their_places(mk: Mk) -> None:
    stdin = '{"text": "a river"}\n{"text": 5}\n{"words": "a"}\n{"ids": [1, 2]}\n'
    first, second, third, fourth, total = mk.json("--jsonl", stdin=stdin, code=1)
    assert (first["status"], second["status"], third["status"]) == ("done", "failed", "failed")
    assert "wrong type" in second["error"]["message"] and "words" in third["error"]["message"]
    assert fourth["tokens"] == 1 and total["total"]["texts"] == 2
    out, err = mk("--lines", stdin="a river\n\na boat\n", code=1)
    assert out.splitlines()[1] == "" and "a boat" in out.splitlines()[2]
    assert "item 2: the text is empty" in err


def test_one_text_that_fails_has_its_own_code(mk: Mk) -> None:
    _, err = mk("--vocab", "/no/such.json", "a", code=7)
    assert err.startswith("mk: cannot open /no/such.json") and "item" not in err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--lines", "--jsonl"], "exclude each other"),
        (["--lines", "a", "b"], "exclude texts"),
        (["--ids", "1,2", "a"], "--ids excludes"),
        (["--tokens", "--json", "a"], "--tokens excludes --json"),
        (["--ids", "1,99999"], "outside the vocabulary"),
        (["--timeout", "0", "a"], "--timeout is 0"),
    ],
)
def test_what_does_not_fit_together_is_said(mk: Mk, args: list[str], words: str) -> None:
    assert words in mk(*args, code=2)[1]


def test_a_deadline_and_ctrl_c_end_it(mk: Mk, client: Client, tmp_path: Path) -> None:
    ids = tmp_path / "ids"
    ids.write_text(" ".join(map(str, prompt_ids(9, 400_000))))
    assert "time is up" in mk("--ids", f"@{ids}", "--timeout", "300ms", code=124)[1]
    process = mk.start("--ids", f"@{ids}")
    wait_for(lambda: any(one["prompt_done"] > 0 for one in running(client)), what="for its start")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    wait_for(lambda: running(client) == [], what="for the request to go")
