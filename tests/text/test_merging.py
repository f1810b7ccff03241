"""The native encoders against `tokenizers` and against merging as it is defined."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from aleator import _native
from aleator.text.gguf_vocabulary import native_texts
from aleator.text.special_tokens import BYTE_CHARACTERS, SPACE

BYTE_TEXTS = [BYTE_CHARACTERS[byte] for byte in range(256)]
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


def merged(pieces: list[str], best: dict[str, float]) -> list[str]:
    """Of neighbours whose join has a place in ``best``, the lowest is merged first, then the leftmost."""
    while True:
        joins = [a + b for a, b in pairwise(pieces)]
        known = [(best[join], i) for i, join in enumerate(joins) if join in best]
        if not known:
            return pieces
        i = min(known)[1]
        pieces = [*pieces[:i], joins[i], *pieces[i + 2 :]]


@pytest.mark.parametrize("case", range(30))
def test_byte_pairs_are_those_of_tokenizers(case: int) -> None:
    models = pytest.importorskip("tokenizers").models
    rng = random.Random(case)
    tokens, merges = list(BYTE_TEXTS), list[tuple[str, str]]()
    letters = [BYTE_CHARACTERS[byte] for byte in "abü ".encode()]
    parts = list(letters)
    for _ in range(rng.randrange(60)):
        pair = (rng.choice(parts), rng.choice(parts))
        if pair in merges:
            continue
        merges.append(pair)
        if "".join(pair) not in tokens:
            tokens.append("".join(pair))
            parts.append("".join(pair))
    rng.shuffle(merges)
    whole = case % 2 == 1
    ids = {text: i for i, text in enumerate(tokens)}
    expected = models.BPE(ids, merges, ignore_merges=whole)
    encoder = _native.BytePairEncoder(
        native_texts(tokens), native_texts([" ".join(pair) for pair in merges]), BYTE_TEXTS, whole
    )
    assert encoder.bad_merge == -1
    for _ in range(40):
        word = "".join(rng.choices("abü ", k=rng.randrange(1, 40)))
        characters = "".join(BYTE_CHARACTERS[byte] for byte in word.encode())
        assert encoder.encode([word]) == [token.id for token in expected.tokenize(characters)]
    assert encoder.encode(["ab", "ab"]) == encoder.encode(["ab"]) * 2
    assert encoder.encode([]) == encoder.encode([""]) == []


@pytest.mark.parametrize("case", range(30))
def test_best_scored_neighbours_are_merged_first(case: int) -> None:
    rng = random.Random(case)
    letters = ["a", "b", "é", SPACE]
    inner = [*letters, "c"] if case % 3 == 0 else ["a", "b", "é", "c"]  # words apart, or not
    made = {
        rng.choice(letters) + "".join(rng.choices(inner, k=rng.randrange(1, 4))) for _ in range(30)
    }
    tokens = ["<unk>", *BYTE_TOKENS, *letters, *sorted(made - set(letters))]
    # Few values, so that many are equal; both zeros.
    scores = [rng.choice([-2.5, -1.0, -0.0, 0.0, 1.5]) for _ in tokens]
    best = {text: -score for text, score in zip(tokens, scores, strict=True)}
    ids = {text: i for i, text in enumerate(tokens)}
    encoder = _native.SentencePieceEncoder(
        native_texts(tokens), np.array(scores, np.float32), BYTE_TOKENS, 0, SPACE
    )
    for _ in range(40):
        text = "".join(rng.choices(["a", "b", "c", "é", "€", SPACE], k=rng.randrange(40)))
        expected = list[int]()
        for piece in merged(list(text), best):
            of_bytes = [ids[BYTE_TOKENS[byte]] for byte in piece.encode()]
            expected += [ids[piece]] if piece in ids else of_bytes
        assert encoder.encode(text) == expected


def test_neighbours_without_tokens_are_one_unknown_token() -> None:
    scores = np.zeros(3, np.float32)
    encoder = _native.SentencePieceEncoder(
        native_texts(["<unk>", "a", SPACE]), scores, BYTE_TOKENS, 0, SPACE
    )
    assert encoder.encode(f"éxa{SPACE}xé{SPACE}é") == [0, 1, 2, 0, 2, 0]


def test_merges_that_are_none() -> None:
    tokens = native_texts(["a", "b", "ab", "c"])
    for merges, bad in (
        (["a b"], -1), (["a b", "a c"], 1), (["ab"], 0), (["a x"], 0), ([""], 0), (["a b", " "], 1),
    ):  # fmt: skip
        encoder = _native.BytePairEncoder(tokens, native_texts(merges), BYTE_TEXTS, False)
        assert encoder.bad_merge == bad


def test_a_byte_without_a_token_is_refused() -> None:
    encoder = _native.BytePairEncoder(native_texts(["a"]), native_texts([]), BYTE_TEXTS, False)
    assert encoder.encode(["aa"]) == [0, 0]
    with pytest.raises(ValueError, match="a byte without a token"):
        encoder.encode(["ab"])
