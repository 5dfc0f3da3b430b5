"""Biases, bans, penalties and log-probabilities: every token that a daemon picks is picked again
here, from the rows of logits that it sends and by the words of docs/sampling.md."""

from __future__ import annotations

import json
import math
import subprocess
from array import array
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from daemon_harness import BIN, PATIENCE, ROOT, Client, Daemon, error_of, model, prompt_ids

Options = dict[str, Any]
# Short of a tie: f32 on the other side.
CLOSE = 1e-4
STORY = str(ROOT / "models" / "story-k3.bin")


@pytest.fixture(params=["k3", "dsv4"])
def path(request: pytest.FixtureRequest, client: Client, tmp_path: Path) -> str:
    if request.param == "k3":
        return STORY
    made = str(tmp_path / "tiny.bin")
    client.call("build", arch="dsv4", preset="tiny", out=made)
    return made


def run(client: Client, path: str, **options: Any) -> tuple[dict, list[dict], list[list[float]]]:
    """The answer, its tokens, and a row of logits before each of them and after the last."""
    number = client.send("run", model=path, raw=True, want_logits=True, **options)
    done = client.finish(number)
    bodies = [one["body"] for one in client.replies[number] if one["type"] == "chunk"]
    rows = []
    for body in bodies:
        if body["kind"] == "logits":
            row = array("f")
            row.frombytes(body["data"])
            rows.append(row.tolist())
    return done, [body for body in bodies if body["kind"] == "token"], rows


def texts_of(client: Client, path: str, vocab: int) -> list[str]:
    return [client.call("detokenize", model=path, ids=[one])["text"] for one in range(vocab)]


def dry_lengths(tokens: list[int], breaks: set[int]) -> dict[int, int]:
    """The longest repeat that each token would go on, compared token by token."""
    lengths: dict[int, int] = {}
    for end in range(len(tokens) - 1):
        length = 0
        while length <= end and tokens[end - length] == tokens[-1 - length]:
            if tokens[end - length] in breaks:
                break
            length += 1
        following = tokens[end + 1]
        if length and following not in breaks:
            lengths[following] = max(lengths.get(following, 0), length)
    return lengths


def compat(emitted: list[int], strength: float) -> Counter[int]:
    window, taken = emitted[-64:], Counter[int]()
    for n in range(3, min(8, len(window)) + 1):
        suffix = window[-(n - 1) :]
        for i in range(len(window) - (n - 1)):
            if window[i : i + n - 1] == suffix:
                distance = len(window) - (n - 1) - i
                taken[window[i + n - 1]] += strength * 0.9**distance
    return taken


def processed(
    row: list[float], prompt: list[int], emitted: list[int], o: Options, breaks: set[int]
) -> list[float]:
    row = list(row)
    for entry in o.get("logit_bias", []):
        row[entry["id"]] += entry["bias"]
    for one in o.get("ban", []):
        row[one] = -math.inf
    if multiplier := o.get("dry_multiplier", 0):
        seen = (prompt if o.get("dry_prompt", True) else []) + emitted
        seen = seen[-o.get("dry_range", 1024) :]
        least = o.get("dry_allowed_length", 2)
        for one, length in dry_lengths(seen, breaks).items() if seen else ():
            if length >= least:
                row[one] -= multiplier * o.get("dry_base", 1.75) ** (length - least)
    for one, taken in compat(emitted, o.get("dry_compat", 0)).items():
        row[one] -= taken
    seen = (prompt if o.get("penalty_prompt") else []) + emitted
    window = o.get("penalty_window", 0)
    for one, count in Counter(seen[-window:] if window else seen).items():
        factor = o.get("repetition_penalty", 1)
        row[one] = row[one] / factor if row[one] > 0 else row[one] * factor
        row[one] -= o.get("frequency_penalty", 0) * count + o.get("presence_penalty", 0)
    return row


CASES: dict[str, Options] = {
    "bias and ban": {"logit_bias": [{"id": 7, "bias": 3.5}], "ban": [1, 2, 3]},
    "repetition": {"repetition_penalty": 1.4, "penalty_prompt": True},
    "frequency": {"frequency_penalty": 0.8, "presence_penalty": 0.5, "penalty_window": 12},
    "rewards": {"frequency_penalty": -0.5, "repetition_penalty": 0.8},
    "dry": {"dry_multiplier": 2.0, "dry_base": 1.5, "dry_range": 40, "dry_breakers": []},
    "dry with breakers": {"dry_multiplier": 3.0, "dry_allowed_length": 1, "dry_breakers": ["e"]},
    "dry of the answer": {"dry_multiplier": 2.0, "dry_prompt": False},
    "dry of the reference": {"dry_compat": 1.5},
    "all": {
        "logit_bias": [{"id": 9, "bias": -2}], "ban": [4], "dry_multiplier": 1.0,
        "repetition_penalty": 1.2, "frequency_penalty": 0.3, "penalty_window": 30,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_greedy_tokens_are_the_best_after_all_penalties(
    client: Client, path: str, name: str
) -> None:
    options = CASES[name]
    # What goes round in circles is gone on with as it is.
    prompt = prompt_ids(3, 9) * 3
    if path == STORY:
        prompt = client.call("tokenize", model=path, text="a boat, a lamp and")["ids"] * 3
    if "ban" in options:
        best = client.call("run", model=path, raw=True, ids=prompt, max_new=1)["ids"]
        options = {**options, "ban": options["ban"] + best}
    done, tokens, rows = run(client, path, ids=prompt, max_new=60, **options)
    texts = texts_of(client, path, len(rows[0]))
    breakers = options.get("dry_breakers", ["\n", ":", '"', "*"])
    breaks = {
        one for one, text in enumerate(texts) if not text or any(mark in text for mark in breakers)
    }
    emitted: list[int] = []
    changed = 0
    for token, row in zip(tokens, rows, strict=False):
        best = processed(row, prompt, emitted, options, breaks)
        assert best[token["id"]] >= max(best) - CLOSE, len(emitted)
        changed += row.index(max(row)) != token["id"]
        emitted.append(token["id"])
    assert changed > 0, "the options changed nothing"
    assert len(emitted) == 60 == len(done["ids"])
    for key, value in options.items():
        assert done["options"][key] == value


@pytest.mark.parametrize("precision", ["exact", "bf16", "q8"])
def test_sampled_runs_with_penalties_are_alone_what_they_are_in_a_crowd(
    client: Client, path: str, precision: str
) -> None:
    options = {
        "model": path, "raw": True, "max_new": 40, "temperature": 0.9, "typical_p": 0.9,
        "precision": precision, **CASES["all"],
    }  # fmt: skip
    prompts = [prompt_ids(seed, 12) for seed in range(6)]
    alone = [client.call("run", ids=ids, seed=5, **options)["ids"] for ids in prompts]
    crowd = [client.send("run", ids=ids, seed=5, **options) for ids in prompts]
    assert [client.finish(number)["ids"] for number in crowd] == alone


@pytest.mark.parametrize("alternatives", [0, 1, 7])
def test_log_probabilities_are_those_of_the_whole_row(
    client: Client, path: str, alternatives: int
) -> None:
    _, tokens, rows = run(
        client, path, ids=prompt_ids(1, 9), max_new=12, temperature=1.5, top_k=40, seed=3,
        repetition_penalty=1.5, logprobs=alternatives,
    )  # fmt: skip
    for token, row in zip(tokens, rows, strict=False):
        log_sum = max(row) + math.log(math.fsum(math.exp(one - max(row)) for one in row))
        assert token["logprob"] == pytest.approx(row[token["id"]] - log_sum, abs=1e-9)
        order = sorted(range(len(row)), key=lambda one: (-row[one], one))[:alternatives]
        if alternatives == 0:
            assert "top" not in token
            continue
        assert [one["id"] for one in token["top"]] == order
        for one in token["top"]:
            assert one["logprob"] == pytest.approx(row[one["id"]] - log_sum, abs=1e-9)
            spelled = client.call("detokenize", model=path, ids=[one["id"]])["text"]
            assert one["text"] == spelled or not spelled


def test_a_text_is_banned_when_it_is_one_token(client: Client) -> None:
    plain = client.call("run", model=model(), ids=[5, 6], raw=True, max_new=3)
    first = plain["ids"][0]
    text = client.call("detokenize", model=model(), ids=[first])["text"]
    told = client.call("tokenize", model=model(), text=text, plain=True)["ids"]
    if told == [first]:
        done = client.call(
            "run", model=model(), ids=[5, 6], raw=True, max_new=30, ban_text=[text], ban=[7]
        )
        assert first not in done["ids"] and done["options"]["ban"] == [7, first]
    error = error_of(
        client, "run", model=model(), ids=[5], raw=True, ban_text=["certainly many tokens"]
    )
    assert error.code == "bad_request" and "not one token" in error.message and error.hint
    assert error.details == {"field": "ban_text"}


def test_options_that_do_not_fit_are_named(client: Client) -> None:
    vocab = len(run(client, model(), ids=[1], max_new=1)[2][0])
    for options, words in (
        ({"ban": [vocab]}, f"outside the model's vocabulary of {vocab}"),
        ({"logit_bias": [{"id": vocab, "bias": 1}]}, f"token {vocab}"),
        ({"ban": list(range(vocab))}, "every token"),
        ({"repetition_penalty": 0}, "`repetition_penalty` must be 0.1 to 10"),
        ({"frequency_penalty": math.nan}, "`frequency_penalty` must be a finite number"),
        ({"dry_multiplier": math.inf}, "`dry_multiplier` must be a finite number"),
        ({"logprobs": 21}, "`logprobs` must be 0 to 20"),
        ({"logprobs": True}, "`logprobs` must be an integer"),
        ({"logit_bias": [{"id": 1}]}, "`logit_bias[0].bias` is missing"),
    ):
        error = error_of(client, "run", model=model(), ids=[1], raw=True, **options)
        assert error.code == "bad_request" and words in error.message, (options, error.message)
        assert error.hint, options


def mk(daemon: Daemon, *args: str, code: int = 0) -> tuple[str, str]:
    done = subprocess.run(
        [str(BIN / "mk"), *args], env=daemon.env(), capture_output=True, timeout=PATIENCE
    )
    assert done.returncode == code, (done.returncode, done.stdout[:500], done.stderr[:2000])
    return done.stdout.decode(), done.stderr.decode()


RUN = ["run", "-m", model(), "--precision", "exact", "-n", "8"]


def test_mk_run_takes_every_option_and_tells_it(daemon: Daemon) -> None:
    out, _ = mk(
        daemon, *RUN, "hi", "--json", "--logit-bias", "5=-1.5", "--logit-bias", "6=2", "--ban",
        "7", "--repetition-penalty", "1.2", "--frequency-penalty", "-0.5", "--presence-penalty",
        "0.25", "--penalty-window", "64", "--penalty-prompt", "--dry-multiplier", "0.8",
        "--dry-base", "1.5", "--dry-allowed-length", "3", "--dry-range", "99", "--no-dry-prompt",
        "--dry-breaker", "x", "--dry-breaker", "y", "--dry-compat", "0.1", "--typical-p", "0.9",
        "--temp", "0.5", "--logprobs", "2",
    )  # fmt: skip
    told = json.loads(out)
    options = told["options"]
    assert options["logit_bias"] == [{"id": 5, "bias": -1.5}, {"id": 6, "bias": 2.0}]
    assert options["ban"] == [7] and options["dry_breakers"] == ["x", "y"]
    for key, value in (
        ("repetition_penalty", 1.2), ("frequency_penalty", -0.5), ("presence_penalty", 0.25),
        ("penalty_window", 64), ("penalty_prompt", True), ("dry_multiplier", 0.8),
        ("dry_base", 1.5), ("dry_allowed_length", 3), ("dry_range", 99), ("dry_prompt", False),
        ("dry_compat", 0.1), ("typical_p", 0.9),
    ):  # fmt: skip
        assert options[key] == value, key
    assert [one["id"] for one in told["logprobs"]] == told["ids"]
    assert all(len(one["top"]) == 2 and one["logprob"] < 0 for one in told["logprobs"])


def test_mk_run_shows_a_line_for_each_token(daemon: Daemon) -> None:
    out, _ = mk(daemon, *RUN, "hi", "--logprobs", "3")
    lines = out.splitlines()
    assert len(lines) == 8
    for line in lines:
        # Greedy: the token is the likeliest of the three.
        assert line.count(" %") == 4 and (line.startswith("'") or line.startswith("#"))
    bare, _ = mk(daemon, *RUN, "hi", "--logprobs", "0")
    assert len(bare.splitlines()) == 8 and all(one.count(" %") == 1 for one in bare.splitlines())


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--logit-bias", "5"], "is not ID=BIAS"),
        (["--logit-bias", "x=1"], "is no token id"),
        (["--logit-bias", "5=101"], "is not a number from -100 to 100"),
        (["--logit-bias", "5=nan"], "is not a number from -100 to 100"),
        (["--ban", "-1"], "is no token id"),
        (["--ban", "99999"], "outside the model's vocabulary"),
        (["--ban-text", "certainly many tokens"], "not one token"),
        (["--repetition-penalty", "0"], '--repetition-penalty: "0"'),
        (["--frequency-penalty", "3"], '--frequency-penalty: "3"'),
        (["--dry-range", "0"], '--dry-range: "0"'),
        (["--typical-p", "0"], '--typical-p: "0"'),
        (["--logprobs", "21"], '--logprobs: "21"'),
        (["--no-dry-breakers", "--dry-breaker", "x"], "--no-dry-breakers excludes"),
    ],
)
def test_mk_run_says_what_is_wrong(daemon: Daemon, args: list[str], words: str) -> None:
    _, err = mk(daemon, *RUN, "hi", *args, code=2)
    assert words in err


def test_mk_map_and_chat_take_them_too(daemon: Daemon) -> None:
    done = subprocess.run(
        [str(BIN / "mk"), "map", *RUN[1:], "--jsonl"], env=daemon.env(), capture_output=True,
        timeout=PATIENCE, input=b'{"prompt": "hi", "repetition_penalty": 1.5, "ban": [3]}\n',
    )  # fmt: skip
    told = json.loads(done.stdout)
    assert told["options"]["repetition_penalty"] == 1.5 and told["options"]["ban"] == [3]
    done = subprocess.run(
        [str(BIN / "mk"), "chat", "-m", model(), "--raw", "--commands"], env=daemon.env(),
        capture_output=True, timeout=PATIENCE,
        input=b"/set repetition-penalty 1.5\n/set repetition-penalty\n"
        b"/set repetition-penalty default\n/set repetition-penalty\n/set presence-penalty 5\n",
    )  # fmt: skip
    assert done.stdout.decode().splitlines()[:2] == ["1.5", "1.0"]
    assert "`presence_penalty` must be -2 to 2" in done.stderr.decode()
