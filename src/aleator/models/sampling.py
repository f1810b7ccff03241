"""The sampling parameters that a model's own files recommend.

Both readers name them by the keys of GGUF's ``general.sampling.*``, or, if GGUF has none, by the names of
:class:`~aleator.samplers.SamplingParams`, which checks their ranges.
"""

from __future__ import annotations

from typing import Any

from aleator.core.errors import ParameterError
from aleator.models.files.fields import Fields

_PREFIX = "general.sampling."
# Name in transformers' GenerationConfig -> key and type.
_HUGGING_FACE: dict[str, tuple[str, type[int] | type[float]]] = {
    "temperature": ("temp", float),
    "top_k": ("top_k", int),
    "top_p": ("top_p", float),
    "min_p": ("min_p", float),
    "typical_p": ("typical_p", float),
    "epsilon_cutoff": ("epsilon_cutoff", float),
    "eta_cutoff": ("eta_cutoff", float),
    "repetition_penalty": ("penalty_repeat", float),
    "no_repeat_ngram_size": ("no_repeat_ngram_size", int),
    "min_new_tokens": ("min_tokens", int),
}
# Settings there that change the tokens and are not supported here -> the value that changes nothing.
_REFUSED: dict[str, object] = {
    "num_beams": 1,
    "num_beam_groups": 1,
    "diversity_penalty": 0,
    "penalty_alpha": 0,
    "top_h": 0,
    "encoder_repetition_penalty": 1,
    "encoder_no_repeat_ngram_size": 0,
    "guidance_scale": 1,
    "min_length": 0,
    "bad_words_ids": [],
    "suppress_tokens": [],
    "begin_suppress_tokens": [],
    "sequence_bias": {},
    "exponential_decay_length_penalty": [],
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "watermarking_config": None,
}


def from_gguf(metadata: Fields) -> dict[str, Any]:
    """Read all of ``general.sampling.*`` of a GGUF file: values by the rest of their keys."""
    return {
        key.removeprefix(_PREFIX): metadata.values[key]
        for key in metadata.values
        if key.startswith(_PREFIX)
    }


def from_generation_config(fields: Fields) -> dict[str, Any]:
    """Read the ``generation_config.json`` of a Hugging Face model: the values that it has, by GGUF's keys.

    ``do_sample: false`` is a temperature of 0.  Repetition penalties see the whole text, as in transformers.
    Fields that do not affect the choice of tokens are skipped; an unsupported way to choose them raises
    ParameterError.
    """
    for name, neutral in _REFUSED.items():
        value = fields.values.get(name)
        if value is not None and value != neutral:
            raise ParameterError(
                name,
                f"{fields.path} asks for {name}={value!r:.60}, which is not supported: name a preset to use "
                "instead, such as llama.cpp",
            )
    values: dict[str, Any] = {}
    for name, (key, kind) in _HUGGING_FACE.items():
        value = fields.get(name, None, kind)
        if value is not None:
            values[key] = value
    if not fields.get("do_sample", True):
        values["temp"] = 0.0
    if values.get("penalty_repeat", 1.0) != 1.0:
        values["penalty_last_n"] = -1
    return values
