"""An interpolated Kneser-Ney 5-gram over a token stream: the baseline that a model must beat."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

from nano.stream import TokenStream

ORDER = 5
DISCOUNT = 0.75


class KneserNey:
    """p(w | h) = (max(c(h w) - D, 0) + D n(h) p(w | shorter h)) / c(h).

    The highest order uses counts, lower orders use the number of distinct left neighbours, and
    the lowest backs off to 1/vocab.
    """

    def __init__(self, vocab: int, order: int = ORDER, discount: float = DISCOUNT) -> None:
        self.vocab, self.order, self.discount = vocab, order, discount
        self._counts: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(order)]
        self._totals: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(order)]
        self._kinds: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(order)]

    def train(self, stream: TokenStream) -> None:
        top = self.order - 1
        lefts: list[defaultdict[tuple[int, ...], set[int]]] = [
            defaultdict(set) for _ in range(top)
        ]
        for i in range(stream.docs):
            ids = stream.document(i).tolist()
            for end in range(1, len(ids)):
                for n in range(min(self.order, end + 1)):
                    gram = tuple(ids[end - n : end + 1])
                    if n == top or end - n == 0:  # nothing stands left of a document's start
                        self._counts[n][gram] += 1
                    else:
                        lefts[n][gram].add(ids[end - n - 1])
        for n, table in enumerate(lefts):
            for gram, neighbours in table.items():
                self._counts[n][gram] += len(neighbours)
        for n, counts in enumerate(self._counts):
            for gram, count in counts.items():
                self._totals[n][gram[:-1]] += count
                self._kinds[n][gram[:-1]] += 1

    def probability(self, context: tuple[int, ...], token: int) -> float:
        p = 1.0 / self.vocab
        for n in range(min(self.order, len(context) + 1)):
            tail = context[len(context) - n :]
            total = self._totals[n][tail]
            if total == 0:
                break
            held = max(self._counts[n][(*tail, token)] - self.discount, 0.0)
            p = (held + self.discount * self._kinds[n][tail] * p) / total
        return p


def five_gram(train: TokenStream, valid: TokenStream) -> dict[str, float]:
    """Held-out nats per token and bits per byte of the baseline."""
    model = KneserNey(int(train.meta["vocab_size"]))
    model.train(train)
    nats, targets = 0.0, 0
    for i in range(valid.docs):
        ids = valid.document(i).tolist()
        for end in range(1, len(ids)):
            context = tuple(ids[max(0, end - ORDER + 1) : end])
            nats -= math.log(model.probability(context, ids[end]))
            targets += 1
    return {"nats_per_token": nats / targets,
            "bits_per_byte": nats / math.log(2) / int(valid.meta["bytes"])}
