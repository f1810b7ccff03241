"""Which adapters the tokens of a batch have: those of their sequences, where these agree."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from aleator.core.errors import InvalidBatch, ParameterError
from aleator.generate.sequence_adapters import SequenceAdapters
from aleator.models.adapters import Adapter, Adapters

A, B = (("a", 0.5, "1"),), (("a", 2.0, "1"), ("b", 1.0, "2"))


def made(*scales: float) -> SequenceAdapters:
    loaded = [
        Adapter(name, name, digest, {}, {}, False) for name, digest in (("a", "1"), ("b", "2"))
    ]
    return SequenceAdapters(Adapters(loaded, scales))


def told(adapters: SequenceAdapters, sequences: list[list[int]], tokens: Any = slice(None)) -> Any:
    positions = np.zeros(len(np.arange(len(sequences))[tokens]), np.int32)
    rows = adapters.of(sequences)(tokens, positions)
    return None if rows is None else [each.tolist() for each in rows]


def test_tokens_have_the_adapters_of_their_sequences() -> None:
    adapters = made(0.0, 0.25)
    adapters.set(1, A)
    adapters.set(2, B)
    adapters.set(3, ())
    usual = [[0, 1], [1], [0.25]]
    assert told(adapters, [[0]]) == told(adapters, [[]]) == usual
    assert told(adapters, [[0], [1], [2], [3], []]) == [
        [0, 1, 2, 4, 4, 5], [1, 0, 0, 1, 1], [0.25, 0.5, 2.0, 1.0, 0.25],
    ]  # fmt: skip
    assert told(adapters, [[3]]) is None
    for part in (np.array([1, 2]), slice(1, 3)):  # of a micro-batch
        assert told(adapters, [[0], [1], [2]], part) == [[0, 1, 3], [0, 0, 1], [0.5, 2.0, 1.0]]
    adapters.set(1, None)
    assert told(adapters, [[1]]) == usual


def test_sequences_that_share_a_token_have_the_same_adapters() -> None:
    adapters = made(0.5, 0.0)
    adapters.set(1, A)  # as those that hold for all
    adapters.set(2, B)
    assert told(adapters, [[0, 1]]) == [[0, 1], [0], [0.5]]
    with pytest.raises(InvalidBatch, match=re.escape("sequences [1, 2] share it")) as refused:
        adapters.of([[0], [1, 2]])
    assert refused.value.index == 1


def test_an_adapter_that_is_not_loaded_is_refused_and_changes_nothing() -> None:
    adapters = made(0.5, 0.0)
    adapters.set(1, B)
    with pytest.raises(ParameterError, match="there is no adapter 'c'"):
        adapters.set(1, (("c", 1.0, ""),))
    assert told(adapters, [[1]]) == [[0, 2], [0, 1], [2.0, 1.0]]
    none = SequenceAdapters(Adapters())
    assert none.of([[0], [1, 2]])(slice(None), np.zeros(2, np.int32)) is None
