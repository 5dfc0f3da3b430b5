"""How much of a generated text stands in the training stream word for word."""

from __future__ import annotations

from dataclasses import dataclass, field

from nano.stream import TokenStream

NGRAM = 12


@dataclass
class TrainingIndex:
    """Every NGRAM-token window of a stream, with its places."""

    stream: TokenStream
    places: dict[tuple[int, ...], list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tokens = self.stream.tokens.tolist()
        for i in range(len(self.tokens) - NGRAM + 1):
            self.places.setdefault(tuple(self.tokens[i : i + NGRAM]), []).append(i)

    def copied_share(self, ids: list[int]) -> float:
        """Share of the text's windows that occur in the stream."""
        windows = [tuple(ids[i : i + NGRAM]) for i in range(len(ids) - NGRAM + 1)]
        return sum(w in self.places for w in windows) / len(windows) if windows else 0.0

    def longest_copy(self, ids: list[int]) -> int:
        """Tokens of the longest run shared with the stream; 0 below NGRAM."""
        best = 0
        for i in range(len(ids) - NGRAM + 1):
            for place in self.places.get(tuple(ids[i : i + NGRAM]), ()):
                size = NGRAM
                while (i + size < len(ids) and place + size < len(self.tokens)
                       and ids[i + size] == self.tokens[place + size]):
                    size += 1
                best = max(best, size)
        return best
