"""``draw="gumbel"`` wherever a text is made: batches, sessions, presets, several steps, explanations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy.typing as npt
import pytest

from aleator import LanguageModel, SamplerChain, SamplingParams
from aleator.samplers import PRESETS

OPTIONS: dict[str, Any] = {"temperature": 1.0, "seed": 11, "draw": "gumbel"}


def test_alone_in_a_batch_and_after_a_session(model: LanguageModel, tmp_path: Path) -> None:
    whole = model.generate("ROMEO:", max_tokens=24, **OPTIONS)
    assert whole.text != model.generate("ROMEO:", max_tokens=24, temperature=1.0, seed=11).text
    batch = model.generate_batch(["ROMEO:", "JULIET:"], max_tokens=24, **OPTIONS)
    assert batch[0].text == whole.text
    first = model.generate("ROMEO:", max_tokens=9, **OPTIONS)
    model.save_session(tmp_path / "s", first)
    rest = model.generate(model.load_session(tmp_path / "s"), max_tokens=15, **OPTIONS)
    assert [*first.tokens, *rest.tokens] == whole.tokens


@pytest.mark.parametrize("preset", [name for name in PRESETS if "greedy" not in name])
def test_every_preset_takes_it(model: LanguageModel, preset: str) -> None:
    params = SamplingParams.preset(preset, draw="gumbel", seed=3)
    assert params.draw == "gumbel"
    assert "draw='gumbel'" in repr(params.chain())
    text = model.generate("ROMEO:", max_tokens=3, params=params).text
    assert text == model.generate("ROMEO:", max_tokens=3, preset=preset, draw="gumbel", seed=3).text


def test_explanations_draw_what_is_drawn(model: LanguageModel) -> None:
    drawn: list[int] = []

    def look(chain: SamplerChain, logits: npt.ArrayLike) -> None:
        draw = chain.explain(logits).draw
        assert draw is not None
        drawn.append(draw.token.id)

    made = model.generate("ROMEO:", max_tokens=5, on_logits=look, **OPTIONS)
    assert drawn == made.tokens
