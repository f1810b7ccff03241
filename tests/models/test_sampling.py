"""What a model's own files say of sampling, and which of all sources wins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aleator.core.errors import FileFormatError, ParameterError
from aleator.models import open_weights
from aleator.models.files.fields import Fields
from aleator.models.sampling import from_generation_config
from aleator.samplers import SamplingParams
from tests.models.builders import model_metadata, write_directory, write_gguf


def read(**values: Any) -> dict[str, Any]:
    return from_generation_config(Fields("generation_config.json", values))


def test_of_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    assert open_weights(write_gguf(path)).recommended_sampling() == {}
    keys = {"sequence": "kpt", "top_k": 20, "temp": 0.5, "penalty_last_n": -1, "mirostat": 0}
    named = {f"general.sampling.{key}": value for key, value in keys.items()}
    weights = open_weights(write_gguf(path, model_metadata() | named))
    assert weights.recommended_sampling() == keys


def test_of_a_directory(tmp_path: Path) -> None:
    weights = open_weights(write_directory(tmp_path / "m"))
    assert weights.recommended_sampling() == {}
    own = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "eos_token_id": 2, "_from": "x"}
    (tmp_path / "m" / "generation_config.json").write_text(json.dumps(own))
    assert weights.recommended_sampling() == {"temp": 0.6, "top_p": 0.9}
    (tmp_path / "m" / "generation_config.json").write_text("[]")
    with pytest.raises(FileFormatError, match="generation_config"):
        weights.recommended_sampling()


def test_every_value_arrives_under_our_name() -> None:
    own = {
        "temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.8,
        "epsilon_cutoff": 0.001, "eta_cutoff": 0.002, "repetition_penalty": 1.1,
        "no_repeat_ngram_size": 3,
    }  # fmt: skip
    chosen = SamplingParams.resolve({}, metadata=read(**own, min_new_tokens=4))
    assert {name: getattr(chosen, name) for name in own} == own
    assert chosen.min_tokens == 4
    assert chosen.penalty_last_n == -1  # transformers penalises the whole text
    assert SamplingParams.resolve({}, metadata=read(repetition_penalty=1)).penalty_last_n == 64


def test_what_is_given_wins_over_the_file_and_the_file_over_the_default_preset() -> None:
    own = read(temperature=0.6, top_k=20)
    assert SamplingParams.resolve({}).top_k == 40
    chosen = SamplingParams.resolve({"temp": 0.3}, metadata=own)
    assert (chosen.temperature, chosen.top_k, chosen.top_p) == (0.3, 20, 0.95)
    named = SamplingParams.resolve({"top_p": 0.5}, "transformers", metadata=own)
    plain = SamplingParams.resolve({"top_p": 0.5}, "transformers")
    assert named == plain


def test_greedy_where_the_file_says_so() -> None:
    assert read(do_sample=False, temperature=0.7, repetition_penalty=1.2) == {
        "temp": 0.0,
        "penalty_repeat": 1.2,
        "penalty_last_n": -1,
    }
    assert read(do_sample=None, temperature=None) == {}


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", "warm"), ("top_k", 2.5), ("top_p", True), ("do_sample", 1)]
)
def test_types_are_checked(name: str, value: Any) -> None:
    with pytest.raises(FileFormatError) as caught:
        read(**{name: value})
    assert caught.value.field == name


@pytest.mark.parametrize(
    ("name", "neutral", "value"),
    [
        ("num_beams", 1, 4),
        ("suppress_tokens", [], [1, 2]),
        ("guidance_scale", 1.0, 1.5),
        ("forced_eos_token_id", None, 2),
    ],
)
def test_what_cannot_be_honoured_is_refused(name: str, neutral: Any, value: Any) -> None:
    assert read(**{name: neutral}) == {}
    with pytest.raises(ParameterError, match=f"asks for {name}=.*name a preset") as caught:
        read(**{name: value})
    assert caught.value.parameter == name
