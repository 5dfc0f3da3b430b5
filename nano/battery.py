"""Forty fixed prompts and explicit checks of what a model makes of them.

The checks are meant to find a model that has come apart, not to grade style.  A continuation
fails on a *loop* (a phrase or sentence more than three times) or on a *grammar collapse*: words
that the corpus does not know, doubled words, function words that cannot follow each other, or
sentences without end.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

PROMPTS = (
    "Once upon a time, there was a little girl named Lily.",
    "Tom was a small boy who loved to play outside.",
    "One day, a cat named Whiskers found a shiny red ball.",
    "The sun was hot, so the dog ran to the",
    "Once upon a time, a brave knight went to",
    "Once upon a time, there was a big bear who lived in the forest.",
    "Sara and Ben were best friends. They liked to",
    "One day, Timmy went to the park with his mom.",
    "There was a little bird who could not fly.",
    "Lucy had a red balloon.",
    "Max was a happy dog. He loved to run.",
    "One morning, Anna woke up and looked out of the window.",
    "Once there was a rabbit who was always hungry.",
    "The little boy was sad because he lost his toy.",
    "Mia wanted to bake a cake with her grandma.",
    "It was raining and the children had to stay inside.",
    "Jack found an old box in the garden.",
    "A small fish lived in a big pond.",
    "Once upon a time, in a small town, there lived a kind old man.",
    "Sam was afraid of the dark.",
    "\"Can I have a cookie?\" asked Lily.",
    "\"Look, mommy!\" said the boy. \"There is a",
    "\"Do not be scared,\" said the owl.",
    "The boy asked his dad, \"Why is the sky blue?\"",
    "\"I want to help you,\" said the mouse.",
    "Amy said to her brother, \"Let's build a",
    "Tim had a blue truck. It was his favorite toy.",
    "Daisy found a magic wand under her bed.",
    "The girl put on her new yellow boots and",
    "Ben saw a big slide at the playground.",
    "Grandpa gave Molly a small wooden boat.",
    "The farmer had a cow, a pig and a",
    "Every night, the moon smiled at the little star.",
    "The frog jumped out of the water and said hello to",
    "One sunny day, two friends went for a walk in the woods.",
    "Joe did not want to share his crayons.",
    "Mom made some hot soup for dinner.",
    "The little train was very slow.",
    "Emma was playing in the snow when she saw a",
    "A spider was making a web near the door.",
)

MAX_REPEATS = 3
MAX_PHRASE = 20  # words of a repeated phrase
MAX_UNKNOWN_SHARE = 0.03
MAX_CLASHES = 2
MAX_CLASH_SHARE = 0.02
MAX_SENTENCE = 60  # words

_WORD = re.compile(r"[a-z]+(?:'[a-z]+)*")
_SENTENCE = re.compile(r"[^.!?]+[.!?]*")

# Words that cannot follow each other inside a sentence.
_DETERMINERS = frozenset("a an the my your our their".split())
_NOT_AFTER_DETERMINER = frozenset(
    "a an the my your our their and but or is was were are am of to at with from he she they it i "
    "we had has have did do does because when if that than then him them us".split()
)
_NOT_AFTER_TO = frozenset("is was were are am had has did and but or said went came ran of".split())
_AUXILIARIES = frozenset("is was were are am".split())
_CONJUNCTIONS = frozenset("and but or because".split())
_DOUBLES_ALLOWED = frozenset("very so really had that no ha bye far long many big far hop".split())


def words_of(text: str) -> list[str]:
    return _WORD.findall(text.lower().replace("’", "'"))


def sentences_of(text: str) -> list[list[str]]:
    return [words for s in _SENTENCE.findall(text) if (words := words_of(s))]


def longest_loop(text: str) -> int:
    """Most repeats in a row of one phrase, or of one sentence of three words or more anywhere."""
    words = words_of(text)
    best = 1
    for size in range(1, MAX_PHRASE + 1):
        run = 1
        for i in range(size, len(words) - size + 1):
            # Runs are counted on the grid of the phrase that starts at i - size.
            if words[i : i + size] == words[i - size : i]:
                run = 2
                at = i + size
                while words[at : at + size] == words[i : i + size]:
                    run, at = run + 1, at + size
                best = max(best, run)
    counts = Counter(" ".join(s) for s in sentences_of(text) if len(s) >= 3)
    return max([best, *counts.values()])


def clashes(text: str) -> list[str]:
    """Neighbouring words that no English sentence has."""
    out = []
    for sentence in re.split(r"[.!?,;:\"\n]+", text):
        words = words_of(sentence)
        for a, b in itertools.pairwise(words):
            doubled = a == b and a not in _DOUBLES_ALLOWED
            wrong = (
                (a in _DETERMINERS and b in _NOT_AFTER_DETERMINER)
                or (a == "to" and b in _NOT_AFTER_TO)
                or (a in _AUXILIARIES and b in _AUXILIARIES)
                or (a in _CONJUNCTIONS and b in _CONJUNCTIONS and (a, b) != ("and", "because"))
            )
            if doubled or wrong:
                out.append(f"{a} {b}")
    return out


@dataclass
class Verdict:
    """What the checks found in one continuation."""

    words: int
    repeats: int
    unknown: list[str] = field(default_factory=list)
    clashes: list[str] = field(default_factory=list)
    longest_sentence: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


def judge(prompt: str, text: str, known: set[str] | None) -> Verdict:
    """Checks a continuation; `known` is the corpus vocabulary in lower case, if at hand."""
    words = words_of(text)
    sentences = sentences_of(text)
    v = Verdict(len(words), longest_loop(text))
    if known is not None:
        own = set(words_of(prompt))
        v.unknown = [w for w in words if w not in known and w not in own]
    v.clashes = clashes(prompt + text)
    v.longest_sentence = max((len(s) for s in sentences), default=0)
    if not words:
        v.problems.append("nothing written")
    if v.repeats > MAX_REPEATS:
        v.problems.append(f"loop: {v.repeats} repeats")
    if len(v.unknown) > max(1, MAX_UNKNOWN_SHARE * len(words)):
        v.problems.append(f"unknown words: {', '.join(v.unknown[:5])}")
    if len(v.clashes) > max(MAX_CLASHES, MAX_CLASH_SHARE * len(words)):
        v.problems.append(f"word clashes: {', '.join(v.clashes[:5])}")
    if v.longest_sentence > MAX_SENTENCE:
        v.problems.append(f"a sentence of {v.longest_sentence} words")
    return v


def repeated_ngrams(ids: list[int], n: int = 4) -> float:
    """Share of n-grams that occurred before in the same text."""
    grams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0
