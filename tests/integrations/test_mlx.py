"""The contract with mlx-lm, as recorded from version 0.32.2; it is not needed here.

tests/integrations/in_mlx.py runs the package.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aleator import ParameterError, SamplerChain, SamplingParams
from tests.integrations.stand_ins import MLX, MlxArray, adapter, install

GIVEN = {"preset": "llama.cpp", "repetition_penalty": 1.4, "temperature": 1.3, "seed": 2}
ROWS = np.random.default_rng(3).normal(size=(12, 1, 300)).astype(np.float32) * 3


@pytest.fixture
def mlx(monkeypatch: pytest.MonkeyPatch) -> Any:
    install(monkeypatch, MLX, "0.32.2")
    return adapter(monkeypatch, "mlx")


def chain(prompt: list[int], given: dict[str, Any] = GIVEN) -> SamplerChain:
    values = {**given}
    made = SamplingParams.preset(str(values.pop("preset")), **values).chain()
    made.accept_many(prompt)
    return made


def test_a_processor_follows_the_text(mlx: Any) -> None:
    own, one, text = mlx.AleatorLogitsProcessor(GIVEN), chain([5, 6, 5]), [5, 6, 5]
    for i, row in enumerate(ROWS[:8]):
        if i == 4:  # a guess that is taken back
            own(MlxArray([*text, 7]), MlxArray(ROWS[9]))
        left = np.array(own(MlxArray(text), MlxArray(row)))
        token = one.sample(row[0])
        assert left.shape == row.shape
        assert left[0, token] == 0
        assert np.isinf(np.delete(left[0], token)).all()
        text.append(token)
    with pytest.raises(ParameterError, match="for each sequence"):
        own(MlxArray([1, 2, 3, 4]), MlxArray(ROWS[0]))


def test_a_prompt_that_is_not_said(mlx: Any) -> None:
    own, one = mlx.AleatorLogitsProcessor(GIVEN, [5, 6, 5]), chain([5, 6, 5])
    token = one.sample(ROWS[0][0])
    assert np.array(own(MlxArray([5]), MlxArray(ROWS[0])))[0, token] == 0
    left = np.array(own(MlxArray([5, token]), MlxArray(ROWS[1])))
    assert left[0, one.sample(ROWS[1][0])] == 0
    wrong = mlx.AleatorLogitsProcessor(GIVEN, [5, 6, 5])
    with pytest.raises(ParameterError, match="prompt ends in"):
        wrong(MlxArray([4]), MlxArray(ROWS[0]))


def test_a_sampler_draws_from_log_probabilities(mlx: Any) -> None:
    given = GIVEN | {"repetition_penalty": 1.0, "frequency_penalty": 0.5}
    own, one = mlx.AleatorSampler(given, [5, 6]), chain([5, 6], given)
    for row in ROWS[:6]:
        assert np.array(own(MlxArray(row))).tolist() == [one.sample(row[0])]


def test_rows_of_others_are_refused(mlx: Any) -> None:
    two = MlxArray(ROWS[:2, 0])
    with pytest.raises(ParameterError, match="repetition_penalty"):
        mlx.AleatorSampler(GIVEN)
    for own in (mlx.AleatorSampler({}), lambda x: mlx.AleatorLogitsProcessor(GIVEN)([1], x)):
        with pytest.raises(ParameterError, match="an object of its own"):
            own(two)
