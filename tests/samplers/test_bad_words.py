from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aleator import samplers as S
from aleator.core.errors import LogitsError, ParameterError
from aleator.samplers.bad_words import spelled
from tests.samplers.steps import applied

ROW = np.zeros(10, np.float32)


def left(history: list[int], *words: Any) -> list[int]:
    ids: list[int] = applied(ROW, S.BadWords(words), history=history).ids.tolist()
    return ids


def test_one_token_is_masked_always_and_more_after_their_beginning() -> None:
    assert left([], [7], [3, 5]) == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    assert left([3], [7], [3, 5]) == [0, 1, 2, 3, 4, 6, 8, 9]
    assert left([3, 1], [3, 5]) == [*range(10)]
    assert left([1, 2, 3], [1, 2, 3, 4], [2, 3, 5], [9, 9, 9, 9, 6]) == [0, 1, 2, 3, 6, 7, 8, 9]
    assert left([1], [1, 1]) == [0, 2, 3, 4, 5, 6, 7, 8, 9]


class Letters:
    """A tokenizer of letters and spaces, with " b" as one token."""

    vocab = None

    def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        assert not add_special
        assert not parse_special
        return [1 if part == " b" else ord(part[-1]) - ord("a") + 2 for part in self._parts(text)]

    @staticmethod
    def _parts(text: str) -> list[str]:
        return [" b", *text[2:]] if text.startswith(" b") else list(text.replace(" ", "z"))


def test_text_is_spelled_at_the_beginning_and_inside_a_sentence() -> None:
    assert spelled("b", Letters()) == [(3,), (1,)]
    assert spelled("bc", Letters()) == [(3, 4), (1, 4)]
    assert spelled("c", Letters()) == [(4,)]  # a space before it is a token of its own
    assert S.BadWords(["bc", [9]], tokenizer=Letters()).sequences == ((3, 4), (1, 4), (9,))


def test_text_with_the_bundled_tokenizer(model: Any) -> None:
    plain = model.generate("ROMEO:", max_tokens=40, temperature=0).text
    word = next(w for w in plain.split() if w.isalpha() and len(w) > 2)
    params = S.SamplingParams(bad_words=[word], temperature=0)
    (bad_words,) = (s for s in params.list(model.tokenizer) if isinstance(s, S.BadWords))
    sequences = bad_words.sequences
    tokens = model.generate("ROMEO:", max_tokens=40, params=params).tokens
    assert model.generate("ROMEO:", max_tokens=40, params=params).text != plain
    for sequence in sequences:
        runs = zip(*(tokens[i:] for i in range(len(sequence))), strict=False)
        assert sequence not in set(runs)


def test_what_cannot_be_is_refused() -> None:
    assert S.BadWords().neutral
    wrong: tuple[Any, ...] = (
        "word",
        [[]],
        [[-1]],
        [""],
        [3],
        [[1.5, "a"]],
        5,
        [[1.5]],
        [[True]],
        [np.int64(3)],
    )
    for bad in wrong:
        with pytest.raises(ParameterError, match="bad_words"):
            S.BadWords(bad)
    with pytest.raises(ParameterError, match="needs a tokenizer"):
        S.SamplingParams(bad_words=["word"]).chain()
    for apply in (S.SamplerChain([S.BadWords([[10]]), S.Greedy()]).sample,
                  S.ReferenceChain(S.SamplerChain([S.BadWords([[10]])])).apply):  # fmt: skip
        with pytest.raises(ParameterError, match="token 10"):
            apply(ROW)
    with pytest.raises(LogitsError):
        S.SamplerChain([S.BadWords([[0], [1]]), S.Greedy()]).sample(np.zeros(2, np.float32))
