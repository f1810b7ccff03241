"""Samplers, parameters and presets as JSON, from their declarations."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from aleator.core.options import Option, described, in_words
from aleator.core.parameter import Parameter
from aleator.engine.prompts import GENERATION
from aleator.samplers import DEFAULT_PRESET, PRESETS, SAMPLERS, Sampler, SamplingParams
from aleator.samplers.index import FIRST, ORDERED
from aleator.samplers.params import ALL

USUAL: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "dynatemp_range": (0, 2),
    "dynatemp_exponent": (0, 4),
    "smoothing_factor": (0, 2),
    "smoothing_curve": (1, 4),
    "top_k": (0, 200),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "typical_p": (0, 1),
    "top_a": (0, 1),
    "tfs_z": (0, 1),
    "epsilon_cutoff": (0, 0.1),
    "eta_cutoff": (0, 0.1),
    "xtc_probability": (0, 1),
    "xtc_threshold": (0, 1),
    "adaptive_target": (-1, 1),
    "adaptive_decay": (0, 0.99),
    "top_k_limit": (0, 512),
    "top_n_sigma": (-1, 4),
    "min_keep": (0, 20),
    "min_tokens": (0, 200),
    "repetition_penalty": (1, 2),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "penalty_last_n": (-1, 512),
    "dry_multiplier": (0, 2),
    "dry_base": (1, 4),
    "dry_allowed_length": (0, 16),
    "dry_penalty_last_n": (-1, 512),
    "no_repeat_ngram_size": (0, 8),
    "mirostat_tau": (0, 10),
    "mirostat_eta": (0, 1),
}
"""Where a slider begins and ends: values that are worth trying.  The whole declared range can be typed."""

SLIDER = 100
"""Where a slider ends whose parameter has no upper bound."""


def everything() -> dict[str, Any]:
    """Samplers, their parameters, the options of a generation, and the presets."""
    return {
        "samplers": [_sampler(cls) for cls in SAMPLERS],
        "parameters": {name: _parameter(p) for name, p in ALL.items()},
        "options": {
            name: _parameter(p)
            for name, p in GENERATION.items()
            if isinstance(p, Option) and p.portable
        },
        "presets": {name: preset_values(name) for name in PRESETS},
        "default_preset": DEFAULT_PRESET,
    }


def preset_values(name: str) -> dict[str, Any]:
    """All values of a preset that are not neutral, and its order."""
    values = SamplingParams.preset(name).values()
    return {
        key: value
        for key, value in values.items()
        if key == "samplers" or (key in ALL and value != ALL[key].neutral)
    }


def _sampler(cls: type[Sampler]) -> dict[str, Any]:
    return {
        "name": cls.name,
        "letter": cls.letter,
        "summary": (inspect.getdoc(cls) or "").splitlines()[0].replace("``", ""),
        "selects": cls.selects,
        "first": cls in FIRST,
        "ordered": cls.name in ORDERED,
        "parameters": [p.name for p in cls.parameters()],
    }


def _parameter(p: Parameter) -> dict[str, Any]:
    told: dict[str, Any] = {
        "name": p.name,
        "type": p.type.__name__,
        "default": list(p.neutral) if isinstance(p.neutral, tuple) else p.neutral,
        "optional": p.optional,
        "help": p.help,
        "described": described(p),
        "range": in_words(p),
        "choices": list(p.choices),
        "flags": list(p.flags),
        "schema": p.as_json_schema(),
    }
    if p.type in (int, float) and not p.choices:
        low, high = USUAL.get(p.name, (p.low or 0, SLIDER))
        if p.name not in USUAL and p.high is not None and p.high <= SLIDER:
            high = p.high
        step = 1.0 if p.type is int else 0.01 if high - low >= 0.5 else 0.001
        told["slider"] = {"low": low, "high": high, "step": step}
    return told
