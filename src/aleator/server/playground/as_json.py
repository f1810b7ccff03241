"""Steps, tokens, samplers, parameters and presets as JSON, and a chain in each of its spellings."""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from aleator.core.options import affects_text, declarations, described, in_words
from aleator.core.parameter import Parameter
from aleator.engine.prompts import GENERATION, SAMPLING
from aleator.generate.beam_options import BeamOptions
from aleator.generate.beams import Beam, Grown
from aleator.samplers import DEFAULT_PRESET, PRESETS, SAMPLERS, Sampler, SamplingParams
from aleator.samplers.explain import Explanation, Shape, Stage
from aleator.samplers.index import FIRST, ORDERED
from aleator.samplers.params import ALL
from aleator.samplers.phase_table import as_mapping
from aleator.server.playground.recording import Recording, Resampled
from aleator.text.vocabulary import Vocabulary

_ENDS: Mapping[tuple[float, float], str] = {
    (0, 1): "top_p min_p typical_p top_a top_h tfs_z xtc_probability xtc_threshold mirostat_eta",
    (0, 2): "temperature dynatemp_range smoothing_factor dry_multiplier",
    (0, 4): "dynatemp_exponent",
    (0, 8): "no_repeat_ngram_size",
    (0, 10): "mirostat_tau",
    (0, 16): "dry_allowed_length",
    (0, 20): "min_keep",
    (0, 200): "top_k min_tokens",
    (0, 512): "top_k_limit",
    (0, 0.1): "epsilon_cutoff eta_cutoff",
    (0, 0.99): "adaptive_decay",
    (1, 2): "repetition_penalty",
    (1, 8): "num_beams num_return_sequences",
    (1, 4): "smoothing_curve dry_base",
    (-1, 1): "adaptive_target",
    (-1, 2): "length_penalty",
    (-1, 4): "top_n_sigma",
    (-1, 10): "min_k_tau",
    (-1, 512): "penalty_last_n dry_penalty_last_n",
    (-2, 2): "presence_penalty frequency_penalty",
}
USUAL = {name: ends for ends, names in _ENDS.items() for name in names.split()}
"""Ends of sliders: values worth trying.  The whole declared range can be typed."""

SLIDER = 100
"""Upper end of a slider whose parameter has no upper bound."""


def everything() -> dict[str, Any]:
    """Samplers, their parameters, the options of a generation and of beams, and the presets."""
    return {
        "samplers": [_sampler(cls) for cls in SAMPLERS],
        "parameters": {name: _parameter(p) for name, p in ALL.items()},
        "options": {name: _parameter(p) for name, p in GENERATION.items() if affects_text(p)},
        "beams": {name: _parameter(p) for name, p in declarations(BeamOptions).items()},
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
    made: dict[str, Any] = {
        "name": p.name,
        "type": p.type.__name__,
        "default": list(p.neutral) if isinstance(p.neutral, tuple) else p.neutral,
        "optional": p.optional,
        "help": p.help,
        "described": described(p),
        "range": in_words(p),
        "choices": [*(p.choices or (p.schema or {}).get("enum", ()))],
        "flags": list(p.flags),
        "schema": p.as_json_schema(),
    }
    if p.type in (int, float) and not p.choices:
        low, high = USUAL.get(p.name, (p.low or 0, SLIDER))
        if p.name not in USUAL and p.high is not None and p.high <= SLIDER:
            high = p.high
        step = 1.0 if p.type is int else 0.01 if high - low >= 0.5 else 0.001
        made["slider"] = {"low": low, "high": high, "step": step}
    return made


def spellings(sampling: Mapping[str, Any]) -> dict[str, str]:
    """The spellings of checked sampling parameters on the command line, in JSON and in Python."""
    words: list[str] = []
    for name, value in sampling.items():
        words += ["--preset", str(value)] if name == "preset" else _flags(SAMPLING[name], value)
    arguments = [f"{name}={value!r}" for name, value in sampling.items() if name != "preset"]
    made = "aleator.SamplingParams"
    if "preset" in sampling:
        made, arguments = f"{made}.preset", [repr(sampling["preset"]), *arguments]
    return {
        "cli": " ".join(["aleator generate", *map(_quoted, words)]),
        "json": json.dumps(sampling, ensure_ascii=False, indent=1),
        "python": f"{made}({', '.join(arguments)})",
    }


def _quoted(word: str) -> str:
    return (
        word if word.startswith("-") and word[1:].replace(".", "").isdigit() else shlex.quote(word)
    )


def _flags(declared: Parameter, value: Any) -> list[str]:
    """The words of one parameter; empty if the command line has no flag for it or needs none."""
    flags = {"grammar": "--grammar", "json_schema": "--json-schema", "regex": "--regex"}
    flag = flags.get(declared.name) or (declared.flags[-1] if declared.flags else "")
    if value is None or not flag:
        return []
    if isinstance(value, bool):
        return [flag] if value else []
    if declared.name == "samplers":
        return [flag, value if isinstance(value, str) else ";".join(value)]
    if declared.name == "logit_bias":
        pairs = value.items() if isinstance(value, Mapping) else value
        return [word for token, bias in pairs for word in (flag, _bias(token, bias))]
    if declared.name == "phases":
        return [flag, json.dumps(value if isinstance(value, Mapping) else as_mapping(value))]
    if declared.type is tuple:
        several = [value] if isinstance(value, str) else value
        return [word for each in several for word in (flag, str(each))]
    if isinstance(value, Mapping):
        return [flag, json.dumps(value)]
    return [flag, str(value)]


def _bias(token: Any, bias: float) -> str:
    shown = token if isinstance(token, int) or str(token).isdigit() else json.dumps(token)
    return f"{shown}{bias:+g}"


MOST_TEXT = 2000
"""Most characters of a token that are sent; the bundled page shows fewer."""


class StepFormatter:
    """Tokens and steps of one vocabulary as JSON."""

    def __init__(self, vocab: Vocabulary) -> None:
        self._vocab = vocab

    def token(self, token: int) -> dict[str, Any]:
        """A token: its id, and its text or, if that is not UTF-8, its bytes in hexadecimal.

        ``special`` marks control tokens; ``length`` is the number of characters if the text is cut.
        """
        made: dict[str, Any] = {"id": token, "text": None}
        if not self._vocab.has_text:
            return made
        piece = self._vocab.token_bytes(token)
        try:
            text = piece.decode("utf-8")
        except UnicodeDecodeError:
            made["bytes"] = piece[:MOST_TEXT].hex()
        else:
            made["text"] = text[:MOST_TEXT]
            if len(text) > MOST_TEXT:
                made["length"] = len(text)
        if self._vocab.is_special(token):
            made["special"] = True
            if not piece:
                made["text"] = self._vocab.tokens[token][:MOST_TEXT]
        return made

    def tokens(self, tokens: Sequence[int]) -> list[dict[str, Any]]:
        """A sequence of tokens."""
        return [self.token(token) for token in tokens]

    def step(self, recording: Recording, step: int, found: Explanation, top: int) -> dict[str, Any]:
        """A short form of a step, for the stream."""
        made = self._written(recording, step, found)
        made["entropy"], made["entropy_after"] = found.before.entropy, found.after.entropy
        made["left"] = found.after.candidates
        made["stages"] = [
            {
                "name": s.name,
                "left": s.after.candidates,
                "removed": s.n_removed,
                "cut": s.mass_cut,
                "moved": s.moved,
                "entropy": s.after.entropy,
            }
            for s in found.active
        ]
        made["top"] = [
            {"token": self.token(t.token.id), "before": t.before, "after": t.after}
            for t in found.traces[:top]
        ]
        return made

    def forgotten(self, recording: Recording, step: int) -> dict[str, Any]:
        """A short form of a step whose logits are no longer kept, so that only the token is known."""
        known = {"step": step, "token": self.token(recording.drawn[step]), "picked": False}
        unknown = ("before", "after", "entropy", "entropy_after", "left")
        return {**known, **dict.fromkeys(unknown), "stages": [], "top": [], "forgotten": True}

    def full_step(self, recording: Recording, step: int, found: Explanation) -> dict[str, Any]:
        """All about a step: the stages with what they removed, and tokens through all of them."""
        draw = found.draw
        return {
            **self._written(recording, step, found),
            "numerics": found.numerics,
            "n_vocab": found.n_vocab,
            "history": found.history,
            "logits": _shape(found.before),
            "stages": [self._stage(s) for s in found.stages],
            "traces": [
                {
                    "token": self.token(t.token.id),
                    "probabilities": t.probabilities,
                    "removed_by": t.removed_by,
                }
                for t in found.traces
            ],
            "draw": draw
            and {
                "token": self.token(draw.token.id),
                "before": draw.before,
                "after": draw.probability,
                "seed": draw.seed,
                "position": draw.position,
                "completion": draw.completion,
                "mark": str(draw.mark) if draw.mark else None,
            },
        }

    def grown(self, beams: Sequence[Grown]) -> list[dict[str, Any]]:
        """The beams that a step of a search kept."""
        return [asdict(each) | {"token": self.token(each.token)} for each in beams]

    def beam(self, found: Beam) -> dict[str, Any]:
        """A text that a search found."""
        return asdict(found) | {"tokens": self.tokens(found.tokens)}

    def draws(self, found: Explanation, counts: Mapping[int, int], n: int) -> dict[str, Any]:
        """Counts of draws, with the exact probabilities."""
        exact = {trace.token.id: trace.after for trace in found.traces}
        order = sorted(
            {*counts, *(token for token, p in exact.items() if p > 0)},
            key=lambda token: (-exact.get(token, 0.0), -counts.get(token, 0), token),
        )
        tokens = [
            {"token": self.token(t), "count": counts.get(t, 0), "exact": exact.get(t)}
            for t in order
        ]
        return {"n": n, "tokens": tokens}

    def resampled(self, found: Resampled) -> dict[str, Any]:
        """What another chain would have drawn."""
        changed = {str(step): self.token(token) for step, token in found.changed.items()}
        return {**asdict(found), "changed": changed}

    def _written(self, recording: Recording, step: int, found: Explanation) -> dict[str, Any]:
        drawn = recording.drawn
        written = drawn[step] if step < len(drawn) else None
        made: dict[str, Any] = {
            "step": step,
            "token": None if written is None else self.token(written),
            "picked": written is not None
            and (found.draw is None or found.draw.token.id != written),
        }
        if written is None:
            return made
        trace = next((t for t in found.traces if t.token.id == written), None)
        if trace is not None:
            made["before"], made["after"] = trace.before, trace.after
        else:
            logits = np.asarray(recording.logits(step), np.float64)
            weights = np.exp(logits - logits.max())
            made["before"], made["after"] = float(weights[written] / weights.sum()), None
        return made

    def _stage(self, stage: Stage) -> dict[str, Any]:
        return {
            "name": stage.name,
            "label": stage.label,
            "neutral": stage.neutral,
            "before": _shape(stage.before),
            "after": _shape(stage.after),
            "removed": stage.n_removed,
            "cut": stage.mass_cut,
            "likely_removed": [
                {"token": self.token(r.token.id), "probability": r.probability}
                for r in stage.removed
            ],
            "moved": stage.moved,
            "state": stage.state,
            "microseconds": stage.microseconds,
        }


def _shape(shape: Shape) -> dict[str, float]:
    return {**asdict(shape), "choices": shape.choices}
