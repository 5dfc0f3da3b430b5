"""The story corpus as token streams: one augmented shard per epoch, and the held-out stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nano.documents import read_documents
from nano.files import sha256_of, write_json
from nano.prepare import dsv4_vocabulary, encode_split, own_vocabulary, write_frequencies
from nano.story.corpus import augmented_epoch, clean, collect_names

VOCAB_TOKENS = 2040
EPOCHS = 8
VOCABULARY = {"k3": "story.vocab.json", "dsv4": "story.tokenizer.json"}
MARKS = 8  # special ids of either kind of vocabulary


def build_streams(
    corpus: Path, valid: Path, out: Path, seed: int = 1, vocab: int = VOCAB_TOKENS,
    epochs: int = EPOCHS, arch: str = "k3",
) -> dict[str, Any]:
    """Writes `train-000..`, `valid`, `freq.txt` and the vocabulary.

    That is `story.tiktoken` and `story.vocab.json`, or `story.tokenizer.json` for dsv4.  Of both
    kinds `vocab` counts the tokens without the eight marks.
    """
    out.mkdir(parents=True, exist_ok=True)
    raw, held_out = list(read_documents(corpus)), list(read_documents(valid))
    names = collect_names(raw)
    cleaned = clean(raw, held_out, set(names))
    if arch == "dsv4":
        vocabulary = dsv4_vocabulary(cleaned.stories, vocab + MARKS, out, "story")
    else:
        vocabulary = own_vocabulary(cleaned.stories, vocab, out, "story")
    extra = {"corpus_sha256": sha256_of(corpus), "valid_sha256": sha256_of(valid)}
    for epoch in range(epochs):
        texts = augmented_epoch(cleaned.stories, names, seed, epoch)
        counts = encode_split(
            vocabulary, texts, out / f"train-{epoch:03d}", "train", None, extra
        )
        if epoch == 0:
            write_frequencies(out / "freq.txt", counts)
            tokens = sum(counts.values())
    encode_split(vocabulary, held_out, out / "valid", "valid", None, extra)
    report = {
        "stories_read": len(raw), "stories_kept": len(cleaned.stories),
        "dropped": dict(cleaned.dropped), "names": len(names), "tokens_per_epoch": tokens,
        "epochs": epochs, "vocab_size": vocabulary.vocab_size, **extra,
    }
    write_json(out / "corpus.json", report)
    return report
