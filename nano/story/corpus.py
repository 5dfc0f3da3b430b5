"""Cleaning a corpus of short stories and multiplying it by exchanging names.

All functions are pure: the same texts and seed give the same result.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np

MIN_BYTES, MAX_BYTES = 120, 2500
MAX_ODD_SHARE = 0.08  # characters that are neither letters, spaces nor common punctuation
ENDINGS = '.!?"'
QUOTES = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'", "–": "-", "—": "-", "…": "."})
JACCARD_LIMIT = 0.8
SHINGLE = 5  # words
SKETCH = 8  # smallest shingle hashes that two near duplicates are expected to share one of

ANIMALS = (
    "dog puppy cat kitten kitty bird bear bunny rabbit fish duck mouse frog fox lion tiger owl "
    "pig cow horse pony sheep goat bee ant bug butterfly turtle snail squirrel monkey elephant "
    "dinosaur dragon whale dolphin shark crab chick hen parrot hamster spider worm caterpillar"
).split()
_PEOPLE = {"girl": "girl", "woman": "girl", "lady": "girl", "princess": "girl", "sister": "girl",
           "daughter": "girl", "boy": "boy", "man": "boy", "prince": "boy", "brother": "boy",
           "son": "boy", **dict.fromkeys(ANIMALS, "animal")}
_INTRODUCED = re.compile(
    r"\b([a-z]+),? (?:was |is )?(?:named|called|name is|name was) ([A-Z][a-z]+)\b"
)
_NAMED = re.compile(r"\b(?:named|called) ([A-Z][a-z]+)\b")
_WORD = re.compile(r"[A-Za-z']+")
_CAPITALISED = re.compile(r"\b[A-Z][a-z]+\b")
# A paragraph that begins so refers back: no new story starts here.
_CONTINUES = re.compile(r'(?:They|He|She|It|The|His|Her|Then|But|So|And)\b|"')
_NOT_NAMES = frozenset("Mrs Mr Miss Mom Mommy Mum Mummy Dad Daddy Mama Papa Granny Grandma Big "
                       "Little Blue Red Will The God Santa Aunt Uncle".split())


@dataclass
class Cleaned:
    stories: list[str]
    dropped: Counter[str] = field(default_factory=Counter)


def clean(stories: list[str], held_out: list[str], names: set[str]) -> Cleaned:
    """Normalised, separated and de-duplicated stories, in order.

    `names`: known character names, see `collect_names`; used to part stories whose boundary was
    lost.  Stories close to one in `held_out` are dropped as well.
    """
    out = Cleaned([])
    kept: list[str] = []
    for raw in stories:
        for story in part_merged(normalise(raw), names):
            why = reject_reason(story)
            if why is None:
                kept.append(story)
            else:
                out.dropped[why] += 1
    duplicates = near_duplicates(kept, [normalise(h) for h in held_out])
    out.dropped["near duplicate"] = len(duplicates)
    out.stories = [s for i, s in enumerate(kept) if i not in duplicates]
    return out


def normalise(story: str) -> str:
    """Plain quotes, no trailing spaces, paragraphs separated by one empty line."""
    lines = [" ".join(line.split()) for line in story.translate(QUOTES).splitlines()]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def reject_reason(story: str) -> str | None:
    size = len(story.encode("utf-8"))
    if size < MIN_BYTES:
        return "short"
    if size > MAX_BYTES:
        return "long"
    if story[-1] not in ENDINGS:
        return "no end"
    odd = sum(not (c.isalpha() or c.isspace() or c in ".,!?'\"-") for c in story)
    return "odd characters" if odd > MAX_ODD_SHARE * len(story) else None


def part_merged(story: str, names: set[str], size: int = 250, mentions: int = 3) -> list[str]:
    """Cuts a text where one cast of names ends for good and another begins.

    Both sides must be at least `size` characters long and mention names `mentions` times.
    """
    paragraphs = story.split("\n\n")
    found = [[w for w in _CAPITALISED.findall(p) if w in names] for p in paragraphs]
    for cut in range(1, len(paragraphs)):
        before = [n for part in found[:cut] for n in part]
        after = [n for part in found[cut:] for n in part]
        left, right = "\n\n".join(paragraphs[:cut]), "\n\n".join(paragraphs[cut:])
        big_enough = min(len(left), len(right)) >= size
        if not big_enough or min(len(before), len(after)) < mentions:
            continue
        opens = not _CONTINUES.match(paragraphs[cut])
        if not set(before) & set(after) and found[cut] and opens:
            return [left, *part_merged(right, names, size, mentions)]
    return [story]


def near_duplicates(stories: list[str], held_out: list[str]) -> set[int]:
    """Indices of stories whose word 5-grams overlap an earlier story or a held-out one by 80 %."""
    shingles = [_shingles(s) for s in [*held_out, *stories]]
    buckets: defaultdict[int, list[int]] = defaultdict(list)
    out: set[int] = set()
    for index, mine in enumerate(shingles):
        candidates = {c for h in sorted(mine)[:SKETCH] for c in buckets[h]}
        close = any(_jaccard(mine, shingles[c]) > JACCARD_LIMIT for c in sorted(candidates))
        if close and index >= len(held_out):
            out.add(index - len(held_out))
            continue
        for h in sorted(mine)[:SKETCH]:
            buckets[h].append(index)
    return out


def _shingles(story: str) -> set[int]:
    words = [w.lower() for w in _WORD.findall(story)]
    grams = (" ".join(words[i : i + SHINGLE]) for i in range(max(1, len(words) - SHINGLE + 1)))
    return {zlib.crc32(g.encode()) for g in grams}


def _jaccard(a: set[int], b: set[int]) -> float:
    return len(a & b) / max(1, len(a | b))


# -- names ---------------------------------------------------------------------------------------


def collect_names(stories: list[str]) -> dict[str, str]:
    """Character names that the corpus introduces, each as "girl", "boy" or "animal".

    Introductions (`a boy named Tim`) vote first; a name without a clear noun takes the gender of
    the pronouns in the stories where it leads.
    """
    votes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    named: Counter[str] = Counter()
    for story in stories:
        named.update(set(_NAMED.findall(story)))
        for noun, name in _INTRODUCED.findall(story):
            if noun in _PEOPLE:
                votes[name][_PEOPLE[noun]] += 3
        lead = Counter(w for w in _CAPITALISED.findall(story)).most_common(6)
        pronouns = _pronouns(story)
        for name, count in lead:
            if count >= 3 and pronouns:
                votes[name][pronouns] += 1
                break
    out: dict[str, str] = {}
    for name, count in sorted(named.items()):
        if name in _NOT_NAMES or count < 2 or not votes[name]:
            continue
        kind, top = min(votes[name].items(), key=lambda kv: (-kv[1], kv[0]))
        if top >= 0.7 * sum(votes[name].values()):
            out[name] = kind
    return out


def _pronouns(story: str) -> str | None:
    words = Counter(w.lower() for w in _WORD.findall(story))
    she, he = words["she"] + words["her"], words["he"] + words["his"] + words["him"]
    if she > 3 * he and she >= 3:
        return "girl"
    if he > 3 * she and he >= 3:
        return "boy"
    return None


def swap_names(
    story: str, names: dict[str, str], pools: dict[str, list[str]], rng: np.random.Generator
) -> str:
    """Replaces each known name in the story by another of its kind, consistently."""
    present = sorted(set(_CAPITALISED.findall(story)))
    chosen: dict[str, str] = {}
    for name in present:
        if name not in names:
            continue
        free = [n for n in pools[names[name]] if n not in present and n not in chosen.values()]
        if free:
            chosen[name] = free[int(rng.integers(len(free)))]
    return _CAPITALISED.sub(lambda m: chosen.get(m.group(), m.group()), story)


def name_pools(stories: list[str], names: dict[str, str], size: int = 60) -> dict[str, list[str]]:
    """The most frequent names of each kind, most frequent first."""
    counts = Counter(w for s in stories for w in set(_CAPITALISED.findall(s)) if w in names)
    ranked = sorted(names, key=lambda n: (-counts[n], n))
    return {kind: [n for n in ranked if names[n] == kind][:size]
            for kind in ("girl", "boy", "animal")}


def augmented_epoch(
    stories: list[str], names: dict[str, str], seed: int, epoch: int, share: float = 0.5
) -> list[str]:
    """The corpus of one epoch: epoch 0 as it is, later ones with names exchanged in a share."""
    if epoch == 0:
        return list(stories)
    pools = name_pools(stories, names)
    rng = np.random.Generator(np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)))
    return [swap_names(s, names, pools, rng) if rng.random() < share else s for s in stories]
