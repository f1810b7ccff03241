"""What can be neither copied nor pickled says what to do instead."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import aleator
from aleator import samplers as S
from aleator.core.errors import NotCopyable


def refused(thing: Any) -> str:
    """The one message with which all ways to copy it are refused."""
    messages = set()
    for call in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(NotCopyable) as caught:
            call(thing)
        messages.add(str(caught.value))
    (message,) = messages
    return message


def test_a_model(model: aleator.LanguageModel) -> None:
    assert "aleator.load(path)" in refused(model)


def test_texts(model: aleator.LanguageModel) -> None:
    generation = model.generate("a", max_tokens=1)
    assert "take its text" in refused(generation)
    assert pickle.loads(pickle.dumps(generation.tokens)) == generation.tokens
    talk = aleator.Conversation(model, chat_template="{{ messages[0].content }}", max_tokens=1)
    assert "branch()" in refused(talk)
    assert "take its message" in refused(talk.say("a"))


def test_an_engine(model: aleator.LanguageModel) -> None:
    with aleator.Engine(model) as engine:
        assert refused(engine).startswith("an Engine can be neither")


@pytest.mark.parametrize("numerics", [None, "portable", "llama.cpp"])
def test_candidates(numerics: str | None) -> None:
    assert "Candidates(logits)" in refused(S.Candidates(np.zeros(3, np.float32), numerics))
