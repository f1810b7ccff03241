"""``SamplingParams``: all sampling parameters in one frozen object, and the chain they stand for."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from aleator.core.errors import ParameterError
from aleator.core.parameter import Parameter, check_seed, unique
from aleator.samplers.base import Sampler
from aleator.samplers.chain import SamplerChain
from aleator.samplers.dist import Dist
from aleator.samplers.index import BY_LETTER, BY_NAME, ORDERED, SAMPLERS
from aleator.samplers.logit_bias import LogitBias, check_biases
from aleator.samplers.presets import DEFAULT_PRESET, LLAMA_CPP_ORDER, PRESETS


class SupportsEndOfGeneration(Protocol):
    """What ``ignore_eos`` needs: a vocabulary with its end-of-generation tokens."""

    @property
    def eog(self) -> frozenset[int]:
        """Ids of the tokens that end generation."""
        ...


# Every parameter of every sampler, by name.  Flags, tables and tests are made from these.
PARAMETERS: dict[str, Parameter] = unique(p for cls in SAMPLERS for p in cls.parameters())

_ALIASES = {alias: p.name for p in PARAMETERS.values() for alias in p.aliases}
_OPTIONS: dict[str, Any] = {
    "samplers": LLAMA_CPP_ORDER,
    "ignore_eos": False,
    "numerics": "portable",
}


def parse_names(names: str | Iterable[str]) -> tuple[str, ...]:
    """Read sampler names, as ``"top_k;top_p;temperature"`` or as a sequence, in any spelling."""
    given = names.split(";") if isinstance(names, str) else list(names)
    order = []
    for name in given:
        key = str(name).strip().lower()
        if not key:
            continue
        if key not in BY_NAME:
            raise ParameterError(
                "samplers",
                f"samplers: there is no sampler {name!r}; the names are {', '.join(ORDERED)}",
            )
        order.append(BY_NAME[key])
    return tuple(order)


def parse_letters(letters: str) -> tuple[str, ...]:
    """Read llama.cpp's ``--sampler-seq``, such as ``"edskypmxt"``."""
    for letter in letters:
        if letter not in BY_LETTER:
            known = ", ".join(f"{k} {v}" for k, v in BY_LETTER.items())
            raise ParameterError(
                "sampler_seq", f"sampler_seq: there is no sampler {letter!r}; known are {known}"
            )
    return tuple(BY_LETTER[letter] for letter in letters)


def _check(name: str, value: Any) -> Any:
    if name == "samplers":
        return parse_names(value)
    if name == "ignore_eos":
        if not isinstance(value, bool):
            raise ParameterError(name, f"ignore_eos={value!r} must be True or False")
        return value
    if name == "numerics":
        return value
    if name == "seed":
        return check_seed(value)
    if name == "logit_bias":
        return check_biases(value)
    return PARAMETERS[name].check(value)


class _Methods:
    """What ``SamplingParams`` can do; its fields are made from the declarations."""

    def __init__(self, **values: Any) -> None:
        checked: dict[str, Any] = {}
        if "sampler_seq" in values:
            if "samplers" in values:
                raise ParameterError("sampler_seq", "give samplers or sampler_seq, not both")
            values["samplers"] = parse_letters(values.pop("sampler_seq"))
        for given, value in values.items():
            name = _ALIASES.get(given, given)
            if name not in PARAMETERS and name not in _OPTIONS:
                raise _unknown(given)
            if name in checked:
                raise ParameterError(name, f"{name} is given twice, once as {given}")
            checked[name] = _check(name, value)
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            object.__setattr__(self, field.name, checked.get(field.name, field.default))

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Any:
        """The named preset, with changes."""
        return cls.resolve(changes, preset=name)

    @classmethod
    def resolve(
        cls,
        explicit: Mapping[str, Any],
        preset: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Any:
        """Combine sources: explicit values, then the named preset or else a file's metadata.

        Parameters
        ----------
        explicit
            What the user gave.
        preset
            Name of a preset; what it does not set is neutral.
        metadata
            Values of a model file by their key after ``general.sampling.``, which apply on top of the
            default preset if none was named.

        """
        if preset is not None and preset not in PRESETS:
            raise ParameterError(
                "preset", f"there is no preset {preset!r}; the names are {', '.join(PRESETS)}"
            )
        values = dict(PRESETS[preset or DEFAULT_PRESET])
        if preset is None and metadata:
            values.update(_from_metadata(metadata))
        if "sampler_seq" in explicit:
            values.pop("samplers", None)
        for given in explicit:
            values.pop(_ALIASES.get(given, given), None)
        return cls(**values, **explicit)

    def replace(self, **changes: Any) -> Any:
        """A copy with other values."""
        changed = {_ALIASES.get(name, name) for name in changes}
        if "sampler_seq" in changes:
            changed.add("samplers")
        kept = {k: v for k, v in self.values().items() if k not in changed}
        return type(self)(**kept, **changes)

    def values(self) -> dict[str, Any]:
        """All parameters by name."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}  # type: ignore[arg-type]

    def list(self) -> list[Sampler]:
        """The samplers, in order: biases first, the draw last."""
        values = self.values()
        chain: list[Sampler] = [
            SAMPLERS_BY_NAME[name].from_values(values)
            for name in values["samplers"]
            if name in SAMPLERS_BY_NAME
        ]
        if values["logit_bias"]:
            chain.insert(0, LogitBias(values["logit_bias"]))
        return [*chain, Dist(values["seed"])]

    def chain(
        self, vocab: SupportsEndOfGeneration | None = None, completion: int = 0
    ) -> SamplerChain:
        """Build the chain.

        Parameters
        ----------
        vocab
            Needed with ``ignore_eos``, whose tokens it knows.
        completion
            Index among completions of one prompt.

        """
        values = self.values()
        params: Any = self
        if values["ignore_eos"]:
            if vocab is None:
                raise ParameterError(
                    "ignore_eos", "ignore_eos needs the vocabulary: chain(vocab=...)"
                )
            biases = {**dict(values["logit_bias"]), **dict.fromkeys(vocab.eog, float("-inf"))}
            params = self.replace(logit_bias=biases, ignore_eos=False)
        return SamplerChain(params.list(), values["numerics"], completion=completion)


SAMPLERS_BY_NAME = {cls.name: cls for cls in SAMPLERS}


def _unknown(name: str) -> ParameterError:
    known = [*PARAMETERS, *_OPTIONS, "sampler_seq"]
    close = difflib.get_close_matches(name, [*known, *_ALIASES], n=3)
    remedy = f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(known)}"
    return ParameterError(name, f"there is no sampling parameter {name!r}: {remedy}")


def _from_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Values of ``general.sampling.*``; what cannot be honoured and is not neutral is refused."""
    by_key = {p.metadata: p.name for p in PARAMETERS.values() if p.metadata}
    neutral = {"mirostat": 0, "xtc_probability": 0}
    idle = {"mirostat_tau", "mirostat_eta", "xtc_threshold"}  # matter only with those
    values: dict[str, Any] = {}
    for key, value in metadata.items():
        if key in by_key:
            values[by_key[key]] = value
        elif key == "sequence":
            values["samplers"] = parse_letters(value)
        elif key not in idle and neutral.get(key) != value:
            raise ParameterError(
                key,
                f"the model file asks for general.sampling.{key}={value!r}, which this version does not "
                "have: name a preset to use instead, such as llama.cpp",
            )
    return values


def _fields() -> list[tuple[str, Any, Any]]:
    fields = [(p.name, p.type, dataclasses.field(default=p.neutral)) for p in PARAMETERS.values()]
    fields += [(n, type(v), dataclasses.field(default=v)) for n, v in _OPTIONS.items()]
    return fields


def _document() -> str:
    lines = [
        "All sampling parameters.  Without arguments everything is neutral: presets hold opinions.",
        "",
        "Parameters",
        "----------",
    ]
    for p in PARAMETERS.values():
        lines += [f"{p.name} : {p.type.__name__}, default {p.neutral!r}", f"    {p.help}."]
    lines += [
        "samplers : names, or one string with semicolons",
        "    The order of the chain; a sampler that is not named is left out.",
        "ignore_eos : bool",
        "    Mask the end-of-generation tokens.",
        "numerics : str",
        "    'portable'.",
        "",
        "Raises",
        "------",
        "ParameterError",
        "    For a name that is not known, a value out of range, or a contradiction.",
    ]
    return "\n".join(lines)


SamplingParams: Any = dataclasses.make_dataclass(
    "SamplingParams", _fields(), bases=(_Methods,), init=False, frozen=True,
    namespace={"__doc__": _document(), "__module__": __name__},
)  # fmt: skip
