"""Errors go from one process to another as they are."""

from __future__ import annotations

import pickle

import pytest

from aleator.core import errors


class NoMemoryForImages(errors.DeviceOutOfMemory):
    """An error of a user's."""


SOME = [
    errors.ParameterError("top_k", "top_k=-3: too small"),
    errors.GrammarError("no rule", 3, 4),
    errors.FileFormatError("x.gguf", "damaged", field="magic", offset=8),
    errors.ModelNotFound("x.gguf"),
    errors.CacheFull(3, 2),
    errors.DeviceOutOfMemory("cuda", 3, "no memory"),
    NoMemoryForImages("cuda", 3, "no memory"),
    errors.CannotRewind("too far", 7),
    errors.Incompatible("n_embd", 1, 2),
    errors.LogitsError("nothing finite"),
    errors.NoLogits("row", 3, [0, 2]),
]


@pytest.mark.parametrize("error", SOME, ids=lambda error: type(error).__name__)
def test_pickled(error: errors.AleatorError) -> None:
    received = pickle.loads(pickle.dumps(error))
    assert type(received) is type(error)
    assert (str(received), received.args, vars(received)) == (str(error), error.args, vars(error))


@pytest.mark.parametrize(
    "message", ["top_k=-3: too small", "top_k: too small", "top_k is too small", "top_k[0]=-3"]
)
def test_a_message_alone_begins_with_the_parameter(message: str) -> None:
    error = errors.ParameterError(message)
    assert (error.parameter, str(error)) == ("top_k", message)
    received = pickle.loads(pickle.dumps(error))
    assert (received.parameter, str(received)) == ("top_k", message)
