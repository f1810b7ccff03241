"""Flags of samplers and presets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aleator import LanguageModel
from aleator.core.parameter import NUMERICS
from aleator.samplers import PARAMETERS, PRESETS, SamplingParams
from tests.cli.conftest import Command
from tests.cli.test_generate import ROMEO
from tests.cli.test_generate import text as text

KEY_FILE = Path(__file__).parents[1] / "golden" / "watermark_key.txt"


# A value for the flag of every parameter with which the text differs, and what else that takes.
VALUES: dict[str, tuple[Any, str]] = {
    "mirostat": (1, ""),
    "repetition_under_grammar": ("none", "--repeat-penalty 1000 --regex [a-z]+"),
    "allowed_token_ids": ([40, 50, 199], ""),
    "stop_token_ids": ([199], ""),
    "min_tokens": (3, "--logit-bias 0+1000"),
    "bad_words": (["GRUMIO"], ""),
    "no_repeat_ngram_size": (1, ""),
    "logit_bias": ([(199, -np.inf)], ""),
    "penalty_last_n": (2, "--repeat-penalty 1000"),
    "repetition_penalty": (1000.0, ""),
    "frequency_penalty": (100.0, ""),
    "presence_penalty": (100.0, ""),
    "penalty_scope": ("generated", "--repeat-penalty 1000"),
    "repetition_per": ("occurrence", "--repeat-penalty 3 --repeat-last-n -1 --preset neutral"),
    "dry_multiplier": (1000.0, "--dry-allowed-length 1 --dry-sequence-breaker none"),
    "dry_base": (1e6, "--dry-allowed-length 0 --dry-multiplier 0.001 --dry-sequence-breaker none"),
    "dry_allowed_length": (0, "--dry-multiplier 1000"),
    "dry_penalty_last_n": (
        3, "--dry-allowed-length 1 --dry-multiplier 1000 --dry-sequence-breaker none"
    ),
    "dry_sequence_breakers": (["e", "a", "o"], "--dry-allowed-length 0 --dry-multiplier 1000"),
    "top_n_sigma": (0.1, ""),
    "top_k": (1, ""),
    "top_k_limit": (1, "--top-k -1"),
    "typical_p": (0.1, ""),
    "min_keep": (30, "--top-p 0.1"),
    "top_p": (0.1, ""),
    "mass": ("full", "--preset akunu-creative --top-k 3 --top-p 0.4 --mass current"),
    "min_p": (0.9, ""),
    "epsilon_cutoff": (1.0, "--samplers epsilon_cutoff;temperature"),
    "eta_cutoff": (1.0, "--samplers eta_cutoff;temperature"),
    "p_less": ("on", "--samplers p_less;temperature"),
    "top_h": (0.1, "--samplers top_h;temperature"),
    "min_k_tau": (0.0, "--samplers min_k;temperature"),
    "smoothing_factor": (9.0, "--temp 2 --samplers temperature;smoothing"),
    "smoothing_curve": (3.0, "--temp 2 --samplers temperature;smoothing --smoothing-factor 0.05"),
    "seed": (8, ""),
    "xtc_probability": (1.0, "--xtc-threshold 0.02"),
    "xtc_threshold": (0.01, "--xtc-probability 1"),
    "temperature": (3.0, ""),
    "dynatemp_range": (5.0, ""),
    "dynatemp_exponent": (4.0, "--dynatemp-range 3"),
    "tfs_z": (0.1, "--samplers tfs;temperature"),
    "top_a": (0.9, "--samplers top_a;temperature"),
    "mirostat_tau": (1.0, "--mirostat 2"),
    "mirostat_eta": (0.9, "--mirostat 2"),
    "mirostat_m": (2, "--mirostat 1"),
    "adaptive_target": (0.05, "--samplers top_k;adaptive_p"),
    "adaptive_decay": (0.0, "--samplers top_k;adaptive_p --adaptive-target 0.3"),
    "draw": ("gumbel", ""),
    "watermark_key_file": (KEY_FILE, "--draw watermark"),
    "watermark_ngram": (2, "--draw watermark"),
}  # fmt: skip


def spelled(name: str, value: Any) -> list[str]:
    flag = PARAMETERS[name].flags[-1]
    if name == "logit_bias":
        return [word for token, bias in value for word in (flag, f"{token}{bias:+}")]
    if PARAMETERS[name].type is tuple:
        return [word for each in value for word in (flag, str(each).replace("\n", "\\n"))]
    return [flag, str(value)]


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_sampling_flag(
    aleator: Command, model: LanguageModel, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, others = VALUES[name]
    monkeypatch.setenv("ALEATOR_WATERMARK_KEY", "another key, of the environment")
    words = ["generate", "-t", "1", "-p", "To be, or not to be", "-n", "30", "--seed", "7"]
    words += ["--json", *others.split()]
    without = json.loads(aleator(*words).out)
    flagged = json.loads(aleator(*words, *spelled(name, value)).out)
    changed = {k for k, v in flagged["params"].items() if v != without["params"][k]}
    assert changed == {name} | ({"top_k", "top_p", "min_p"} if name == "mirostat" else set())
    grammar = {"regex": "[a-z]+"} if "--regex" in others else {}  # told by its kind, not its text
    params = SamplingParams(**{**flagged["params"], **grammar, name: value})
    generation = model.generate("To be, or not to be", params=params, max_tokens=30)
    assert flagged["completions"][0]["text"] == generation.text
    assert generation.text != without["completions"][0]["text"]


def test_breakers(aleator: Command) -> None:
    def breakers(*words: str) -> Any:
        made = json.loads(aleator(*ROMEO, "-n", "1", "--json", "--dry-multiplier", "1", *words).out)
        return made["params"]["dry_sequence_breakers"]

    flag = "--dry-sequence-breaker"
    assert breakers() == ["\n", ":", '"', "*"]
    assert breakers(flag, "none") == []
    assert breakers(flag, "a", flag, "none", flag, r"\n", flag, "b") == ["\n", "b"]
    assert breakers(flag, r"\n", "--no-escape") == [r"\n"]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("numerics", NUMERICS)
def test_every_preset(aleator: Command, model: LanguageModel, preset: str, numerics: str) -> None:
    words = (*ROMEO, "-n", "12", "--preset", preset, "--numerics", numerics)
    if numerics == "llama.cpp" and preset.startswith("akunu"):
        result = aleator(*words)
        assert (result.code, result.out) == (2, "")
        assert "has no counterpart in llama.cpp" in result.err
        return
    expected = model.generate("ROMEO:", max_tokens=12, seed=7, preset=preset, numerics=numerics)
    result = aleator(*words)
    assert (result.code, result.out) == (0, expected.text)
