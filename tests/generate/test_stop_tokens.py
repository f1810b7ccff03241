"""``stop_token_ids``: tokens that end a generation beside the vocabulary's."""

from __future__ import annotations

from typing import Any

import pytest

from aleator.core.errors import ParameterError
from aleator.language_model import LanguageModel

AT = 4  # of the token that is to end the text


@pytest.fixture(scope="module")
def plain(model: LanguageModel) -> list[int]:
    tokens = model.generate("ROMEO:", max_tokens=30, seed=3, temperature=0.8).tokens
    assert tokens.index(tokens[AT]) == AT
    return tokens


@pytest.mark.parametrize(
    "options", [{}, {"sampling_device": "device", "multi_step": 4}], ids=["host", "multi"]
)
def test_a_stop_token_ends_the_text_without_its_own(
    model: LanguageModel, plain: list[int], options: dict[str, Any]
) -> None:
    made = model.generate(
        "ROMEO:", max_tokens=30, seed=3, temperature=0.8, stop_token_ids=[plain[AT], 7], **options
    )
    assert made.tokens == plain[: AT + 1]
    assert made.stop_reason == "stop_token"
    assert made.text == b"".join(map(model.vocab.token_bytes, plain[:AT])).decode()


def test_min_tokens_masks_them_and_ignore_eos_does_not(
    model: LanguageModel, plain: list[int]
) -> None:
    given: dict[str, Any] = {
        "max_tokens": 30,
        "seed": 3,
        "temperature": 0.8,
        "stop_token_ids": [plain[AT]],
    }
    later = model.generate("ROMEO:", min_tokens=AT + 3, **given)
    assert len(later.tokens) >= AT + 3
    assert plain[AT] not in later.tokens[: AT + 3]
    ignoring = model.generate("ROMEO:", ignore_eos=True, **given)
    assert ignoring.tokens == plain[: AT + 1]


def test_sessions_leave_the_token_out(
    model: LanguageModel, plain: list[int], tmp_path: Any
) -> None:
    made = model.generate(
        "ROMEO:", max_tokens=30, seed=3, temperature=0.8, stop_token_ids=[plain[AT]]
    )
    model.save_session(tmp_path / "s", made)
    assert [*model.load_session(tmp_path / "s").tokens][-1] == made.tokens[-2]


@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids"])
def test_tokens_that_the_vocabulary_has_not(model: LanguageModel, name: str) -> None:
    last = len(model.vocab) - 1

    def generate(ids: list[int]) -> int:
        given: dict[str, Any] = {name: ids}
        return len(model.generate("ROMEO:", max_tokens=1, seed=3, **given).tokens)

    assert generate([5, last]) == 1
    with pytest.raises(ParameterError, match=f"{name} names token {last + 1}: .* 0 to {last}"):
        generate([5, last + 1])
    with pytest.raises(ParameterError, match=f"{name} names token {10**9}: ids run from 0 to"):
        generate([5, 10**9])
