"""The checks of the battery find what they are for, and leave good English alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nano.battery import PROMPTS, clashes, judge, longest_loop, repeated_ngrams
from nano.decode import Sampler, philox4x32
from nano.overlap import TrainingIndex
from nano.stream import open_stream, write_stream

GOOD = (
    " She wanted to play with her mom. They went to the park and saw a big, red ball. \"Can I have "
    "it?\" asked Lily. \"Yes, you can,\" said her mom. Lily was very, very happy. She ran and ran "
    "until it was time to go home. That night, she had a lot of good dreams. The end."
)


def test_there_are_forty_different_prompts() -> None:
    assert len(PROMPTS) == len(set(PROMPTS)) == 40


def test_good_text_passes() -> None:
    verdict = judge(PROMPTS[0], GOOD, None)
    assert verdict.ok, verdict.problems
    assert verdict.repeats <= 2


@pytest.mark.parametrize(
    "text,repeats",
    [("the dog ran and ran and ran and ran and ran", 4), ("no no no no", 4),
     ("a cat sat. a dog ran. a cat sat. a bird flew. a cat sat. it was a cat. a cat sat.", 4),
     ("one two three four", 1), ("go up and down, up and down.", 2)],
)
def test_loops_are_counted(text: str, repeats: int) -> None:
    assert longest_loop(text) == repeats


def test_more_than_three_repeats_fail() -> None:
    three, four = " He was sad and he cried." * 3, " He was sad and he cried." * 4
    assert judge("Tom.", three, None).ok
    assert "loop" in judge("Tom.", four, None).problems[0]


def test_clashing_words_are_found() -> None:
    assert clashes("He saw the a dog and and is was to was.") == [
        "the a", "and and", "is was", "to was"
    ]
    assert clashes(GOOD) == []
    bad = " The the was a and he to is the of. She a had." + GOOD
    assert "word clashes" in judge("Tom.", bad, None).problems[0]


def test_unknown_words_and_endless_sentences_are_found() -> None:
    known = set(GOOD.lower().replace(",", "").replace(".", "").replace('"', "").split())
    assert any("unknown" in p for p in judge("Tom.", " blorf gnarp zilk wug", known).problems)
    endless = " and then " + ", ".join(f"he saw {a}{b}" for a in "abcdefgh" for b in "xyz")
    assert any("sentence" in p for p in judge("Tom.", endless, None).problems)
    assert judge("Tom.", "", None).problems == ["nothing written"]


def test_repeated_ngrams_are_a_share() -> None:
    assert repeated_ngrams([1, 2, 3, 4, 5]) == 0.0
    assert repeated_ngrams([1, 1, 1, 1, 1, 1]) == pytest.approx(2 / 3)


def test_greedy_takes_the_lowest_id_of_equals() -> None:
    assert Sampler().pick(torch.tensor([0.0, 2.0, 2.0]), []) == 1


def test_sampling_follows_the_distribution_and_top_p() -> None:
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    sampler = Sampler(1.0, 1.0, seed=5)
    draws = [sampler.pick(logits, [0] * i) for i in range(4000)]
    shares = [draws.count(i) / 4000 for i in range(4)]
    assert shares == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.03)
    narrow = Sampler(1.0, 0.75, seed=5)
    assert {narrow.pick(logits, [0] * i) for i in range(300)} == {0, 1}


def test_generator_is_the_published_philox() -> None:
    # Known answers of Random123 for philox4x32-10: all zeros, all ones.
    assert philox4x32([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = 0xFFFFFFFF
    assert philox4x32([ones] * 4, [ones] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


def test_anti_repetition_lowers_what_would_continue_a_loop() -> None:
    sampler = Sampler(anti_repeat=5.0)
    logits = torch.tensor([0.0, 0.0, 0.0, 1.0])
    assert sampler.pick(logits, [1, 2, 3, 1, 2]) != 3
    assert sampler.pick(logits, [1, 2, 0, 2, 1]) == 3


def test_copies_of_the_training_text_are_measured(tmp_path: Path) -> None:
    meta = {"bos": 98, "eos": 99, "vocab_size": 100, "specials": {}, "bytes": 1}
    write_stream(tmp_path / "s", [[98, *range(40), 99], [98, *range(40, 60), 99]], meta)
    index = TrainingIndex(open_stream(tmp_path / "s"))
    copied = [70, 71, *range(5, 25), 72]
    assert index.longest_copy(copied) == 20
    assert index.copied_share(copied) == pytest.approx(9 / 12)
    assert index.longest_copy(list(range(11))) == 0 and index.copied_share([1, 2]) == 0.0


def test_samples_hold_prompt_and_raw_text(tmp_path: Path) -> None:
    from nano.evaluate import Story, samples_text, summarise

    stories = [Story("Tom.", GOOD, [1, 2, 3], True, judge("Tom.", GOOD, None))]
    summary = summarise(stories, Sampler(0.7, 0.9), 64)
    assert summary["passed"] == 1 and summary["ended"] == 1
    assert f"Tom.[|]{GOOD}" in samples_text([(summary, stories)])
