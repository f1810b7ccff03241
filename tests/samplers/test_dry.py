from __future__ import annotations

import gc
import math
import random
import weakref
from typing import Any

import numpy as np
import pytest

from aleator import samplers as S
from aleator.core.errors import ParameterError
from aleator.samplers.dry import (
    MAX_BREAKER_BYTES,
    MAX_PREPARED,
    MAX_TAIL_TOKENS,
    _Pieces,
    prepare_breakers,
)
from tests.samplers.steps import INF, NAN, Texts, applied, f32, logits_after


@pytest.mark.parametrize(
    ("parameters", "history", "changed"),
    [
        ((1, 1.1, 2, 5, []), [0, 1, 2, 0, 1], {2: -1}),
        ((0.8, 1.75, 2, 64, []), [0, 1, 2, 3, 4, 0, 1, 2, 3], {4: -2.45}),
        ((1, 2, 2, 64, []), [5] * 6, {5: -8}),
        ((1, 1.1, 2, 5, [(2,)]), [0, 1, 2, 0, 1], {}),
        ((1, 1.1, 2, 4, []), [0, 1, 2, 0, 1], {}),
        ((1, 2, 2, 64, [(3, 0)]), [0, 1, 2, 3, 0, 1], {}),  # the breaker is the join itself
        ((1, 2, 0, 64, []), [0, 1, 0], {0: -1, 1: -2}),
    ],
)
def test_what_would_go_on_is_penalised(
    parameters: tuple[Any, ...], history: list[int], changed: dict[int, float]
) -> None:
    multiplier, base, allowed, window, breakers = parameters
    sampler = S.DRY(multiplier, base, allowed, window, breakers)
    after = logits_after(sampler, f32(*[0] * 6), history)
    np.testing.assert_allclose(after, [changed.get(i, 0) for i in range(6)], rtol=1e-6)


def test_the_penalty_stays_finite() -> None:
    for multiplier, base in ((1.0, 1.75), (1e6, 1e6), (-1.0, 1.75), (-1e6, 1e6)):
        sampler = S.DRY(multiplier, base, 2, -1, [])
        after = logits_after(sampler, f32(*[0.0] * 6), [5] * 300)
        assert after == [*[0.0] * 5, float(np.float32(math.copysign(3e38, -multiplier)))]


class Tokenizer:
    """Bytes as tokens, plus two that straddle a breaker."""

    pieces: tuple[bytes, ...] = (*(bytes([i]) for i in range(128)), b"x\n", b"-=")

    def __init__(self) -> None:
        self.vocab = Texts(self.pieces)

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        return list(text.encode())


def test_dry_breakers_from_text_cover_tokens_that_straddle_them() -> None:
    sampler = S.DRY(1.0, 2.0, 2, 64, ["\n", "=="], tokenizer=Tokenizer())
    assert set(sampler.breakers) == {(10,), (128,), (61, 61), (129, 61)}
    with pytest.raises(ParameterError, match="need a tokenizer"):
        S.DRY(dry_multiplier=1.0)
    assert S.DRY().breakers == ()  # off: nothing to prepare
    for bad in ("\n", [()], [(-1,)], [1.5], 7):
        with pytest.raises(ParameterError, match="dry_sequence_breakers"):
            S.DRY(dry_sequence_breakers=bad)


class Random(Tokenizer):
    """Short tokens of few letters, among which breakers are often split."""

    def __init__(self) -> None:
        rng = np.random.default_rng(5)
        self.pieces = tuple(
            bytes(rng.choice([*b"ab\n", 0xC3, 0xA9], rng.integers(0, 5))) for _ in range(400)
        )
        super().__init__()


@pytest.mark.parametrize("breaker", ["a", "ab", "abab", "\n\n", "é", "aé\n", "b" * 50])
def test_breakers_are_found_in_every_token_and_at_every_end(breaker: str) -> None:
    tokenizer, text = Random(), breaker.encode()[:40]
    expected = set()
    for token, piece in enumerate(tokenizer.pieces):
        if text in piece:
            expected.add((token,))
            continue
        for length in range(1, len(text)):
            tail = text[length:].decode(errors="ignore").encode()[:20]
            if piece.endswith(text[:length]) and tail:
                expected.add((token, *tail))
    found = prepare_breakers([breaker], tokenizer)
    assert set(found) == expected
    assert len(found) == len(expected)
    both = prepare_breakers([breaker, "a", ""], tokenizer)
    assert set(both) == expected | set(prepare_breakers(["a"], tokenizer))


@pytest.mark.parametrize("text", [b"ab", b"aab", b"aba", b"b"])
def test_tokens_that_contain_or_end_with_a_text(text: bytes) -> None:
    words = [b"ab", b"ba", b"", b"aab", b"a", b"b", b"abab", b"baa", b"aba", b"xaby", b"bb"]
    pieces = _Pieces(Texts(words))
    assert pieces.containing(text).tolist() == [i for i, w in enumerate(words) if text in w]
    assert pieces.ending(text).tolist() == [i for i, w in enumerate(words) if w.endswith(text)]


def test_breakers_are_prepared_once_per_tokenizer() -> None:
    first, second = Tokenizer(), Tokenizer()
    found = prepare_breakers(["\n"], first)
    assert prepare_breakers(["\n"], first) is found
    assert prepare_breakers(["\n"], second) == found
    assert prepare_breakers(["=="], first) != found
    gone = weakref.ref(first)
    del first
    gc.collect()
    assert gone() is None


def test_few_lists_of_breakers_are_kept() -> None:
    tokenizer = Tokenizer()
    lists = [[chr(0x21 + i)] for i in range(MAX_PREPARED + 1)]
    first = prepare_breakers(lists[0], tokenizer)
    for each in lists[:-1]:
        prepare_breakers(each, tokenizer)
    assert prepare_breakers(lists[0], tokenizer) is first
    prepare_breakers(lists[-1], tokenizer)
    again = prepare_breakers(lists[0], tokenizer)
    assert again == first
    assert again is not first  # all were forgotten at once


def test_a_vocabulary_that_grew_is_read_again() -> None:
    tokenizer = Tokenizer()
    before = prepare_breakers(["\n"], tokenizer)
    tokenizer.vocab.texts = (*tokenizer.pieces, b"\n!")
    assert prepare_breakers(["\n"], tokenizer) == (*before, (len(tokenizer.pieces),))


def test_a_tokenizer_that_cannot_be_remembered_works() -> None:
    class Slotted:
        __slots__ = ("encode", "vocab")

    plain, slotted = Tokenizer(), Slotted()
    slotted.vocab, slotted.encode = plain.vocab, plain.encode  # type: ignore[attr-defined]
    assert prepare_breakers(["\n"], slotted) == prepare_breakers(["\n"], plain)  # type: ignore[arg-type]


def test_the_longest_run_counts() -> None:
    # 7 8 9 -> 1, and later only 8 9 -> 1: three tokens match, not two.
    history = [7, 8, 9, 1, 5, 8, 9, 1, 7, 8, 9]
    after = logits_after(S.DRY(1.0, 2.0, 2, 64, []), f32(*[0] * 10), history)
    assert {i: z for i, z in enumerate(after) if z} == {1: -2}


def test_a_negative_multiplier_rewards() -> None:
    after = logits_after(S.DRY(-1.5, 2.0, 2, 64, []), f32(*[0] * 4), [0, 1, 2, 0, 1])
    assert after == [0, 0, 1.5, 0]


def test_masked_tokens_stay_masked_and_tokens_past_the_row_do_no_harm() -> None:
    history = [0, 1, 2, 0, 1]
    left = applied(f32(1, NAN, -INF, 0), S.DRY(1.0, 2.0, 2, 64, []), history=history)
    assert (left.ids.tolist(), left.logits.tolist()) == ([0, 3], [1, 0])
    assert logits_after(S.DRY(1.0, 2.0, 2, 64, []), f32(1, 1), history) == [1, 1]


def test_a_pending_temperature_is_applied_first() -> None:
    dry = S.DRY(1.0, 2.0, 2, 64, [])
    left = applied(f32(0, 0, 3), S.Temperature(temperature=0.5), dry, history=[0, 1, 2, 0, 1])
    assert left.logits.tolist() == [0, 0, 5]


def test_a_whole_history_is_searched_as_a_window_is() -> None:
    """What is remembered between steps gives what looking through a window gives, there and back."""
    rng = random.Random(5)
    for _ in range(60):
        n, allowed = rng.randint(1, 6), rng.randint(0, 4)
        breakers = [
            tuple(rng.choices(range(n), k=rng.randint(1, 3))) for _ in range(rng.randint(0, 2))
        ]
        windows = [S.DRY(1.0, 1.5, allowed, last, breakers) for last in (-1, 600, 512)]
        for numerics in ("portable", "llama.cpp"):
            chains = [S.SamplerChain([dry], numerics) for dry in windows]
            for _ in range(40):
                history = chains[0].history
                back = rng.randint(0, min(6, len(history))) if rng.random() < 0.3 else 0
                new = (
                    history[-5:-2]
                    if rng.random() < 0.3
                    else rng.choices(range(n), k=rng.randint(0, 3))
                )
                for i, chain in enumerate(chains):
                    chain.rollback(back)
                    chain.accept_many(new)
                    chains[i] = chain.clone() if rng.random() < 0.1 else chain
                found = []
                for chain in chains:
                    candidates = S.Candidates(np.zeros(n, np.float32))
                    chain.apply(candidates)
                    found.append((candidates.ids.tolist(), candidates.logits.tobytes()))
                assert found[0] == found[1] == found[2], (allowed, breakers, chains[0].history)
            chains[0].reset()
            assert logits_after(windows[0], f32(*[0] * n), []) == [0] * n


def test_a_breaker_far_back_still_ends_a_repetition() -> None:
    breaker = (1, 2, 3)
    text = [7, 8, 9, 1, 2, 3, *[4, 5] * 300]
    for at in (0, 50, 599):
        history = [*text[: 6 + at], 1, 2]
        chain = S.SamplerChain([S.DRY(1.0, 1.1, 2, -1, [breaker])])
        reference = S.ReferenceChain(chain)
        chain.accept_many(history)
        for token in history:
            reference.accept(token)
        candidates = S.Candidates(np.zeros(10, np.float32))
        chain.apply(candidates)
        assert (candidates.logits == reference.apply(np.zeros(10, np.float32)).logits).all()


@pytest.mark.parametrize("length", [MAX_BREAKER_BYTES - 1, MAX_BREAKER_BYTES, 60])
def test_long_breakers_are_cut_as_llama_cpp_cuts_them(length: int) -> None:
    words = [b"b", b"a" * 39, b"a" * 40, b"a" * 41, b"b" * 39 + b"a"]

    class Letters:
        """One token for each letter: b has the id 0, and every other the id 5."""

        vocab = Texts(words)

        def encode(
            self, text: str, add_special: bool = True, parse_special: bool = True
        ) -> list[int]:
            return [0 if letter == "b" else 5 for letter in text]

    assert (MAX_BREAKER_BYTES, MAX_TAIL_TOKENS) == (40, 20)
    found = prepare_breakers(["a" * length], Letters())
    whole = {39: [1, 2, 3], 40: [2, 3], 60: [2, 3]}[length]
    assert [each for each in found if len(each) == 1] == [(token,) for token in whole]
    assert max(map(len, found)) == 1 + MAX_TAIL_TOKENS
    assert (4, *[5] * 20) in found
