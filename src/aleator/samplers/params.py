"""All sampling parameters, from which the fields of ``SamplingParams`` are made, and its methods."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from aleator.core.errors import ParameterError
from aleator.core.options import described, filled
from aleator.core.parameter import (
    ENGINES,
    NUMERICS,
    Parameter,
    nearest,
    read_number,
    translated,
    unique,
    warn,
)
from aleator.samplers.adaptive_p import AdaptiveP
from aleator.samplers.base import Sampler
from aleator.samplers.chain import SamplerChain
from aleator.samplers.constrained import ConstraintSampler
from aleator.samplers.dist import Dist
from aleator.samplers.grammar import Grammar
from aleator.samplers.index import BY_LETTER, FIRST, ORDERED, SAMPLERS
from aleator.samplers.json_schema import JSONSchema
from aleator.samplers.mirostat import Mirostat
from aleator.samplers.mirostat_v2 import MirostatV2
from aleator.samplers.order import completed, missing, parse_letters, parse_names
from aleator.samplers.phase_table import OF_TEXTS, PRESET, checked_phases, params_of, read_words
from aleator.samplers.phases import Phases
from aleator.samplers.presets import DEFAULT_PRESET, PRESETS, check_preset
from aleator.samplers.regex import Regex
from aleator.samplers.temperature import Temperature
from aleator.samplers.token_arguments import check_ids
from aleator.samplers.token_mask import TokenMask
from aleator.samplers.watermark import KEY_FILE, KEYED, WatermarkKey

MIROSTAT = Parameter(
    "mirostat", int, 0, "choose tokens by mirostat 1 or 2 in place of the plain draw; 0 is off",
    low=0, high=2, flags=("--mirostat",), metadata="mirostat",
)  # fmt: skip
REPETITION_UNDER_GRAMMAR = Parameter(
    "repetition_under_grammar", str, "apply",
    "whether the repetition penalty applies where a grammar constrains the text: apply, or none as Akunu does",
    choices=("apply", "none"), flags=("--repetition-under-grammar",),
)  # fmt: skip


def _allowed(value: Any) -> tuple[int, ...]:
    ids = check_ids("allowed_token_ids", value)
    if not ids:
        raise ParameterError("allowed_token_ids is empty: name one token at least, or None for all")
    return ids


def _constraint(name: str, value: Any) -> ConstraintSampler:
    """The constraint sampler of a text; a sampler is returned unchanged."""
    if isinstance(value, ConstraintSampler):
        return value
    if name == "grammar" and not isinstance(value, str):
        raise ParameterError(
            f"grammar={value!r:.60} is neither GBNF text nor a sampler with a constraint"
        )
    return CONSTRAINTS[name](value)


ALLOWED_TOKEN_IDS = Parameter(
    "allowed_token_ids", tuple, None, "draw only these tokens; may be repeated", optional=True,
    flags=("--allowed-token-id",), checker=_allowed, metavar="ID",
    reader=lambda words: [read_number("allowed_token_ids", int, word) for word in words],
    annotation="Iterable[int] | None", schema={"type": ["array", "null"], "items": {"type": "integer"}},
)  # fmt: skip
STOP_TOKEN_IDS = Parameter(
    "stop_token_ids", tuple, (), "tokens that end a generation, beside the vocabulary's; may be repeated",
    flags=("--stop-token-id",), checker=lambda value: check_ids("stop_token_ids", value), metavar="ID",
    reader=lambda words: [read_number("stop_token_ids", int, word) for word in words],
    annotation="Iterable[int]", schema={"type": "array", "items": {"type": "integer"}},
)  # fmt: skip
OF_ALL = (MIROSTAT, REPETITION_UNDER_GRAMMAR, ALLOWED_TOKEN_IDS, STOP_TOKEN_IDS)
"""Parameters of the whole chain instead of one sampler."""

# Every parameter of every sampler, by name.  Flags, tables and tests are made from these.
PARAMETERS: dict[str, Parameter] = unique(
    [*OF_ALL, *(p for cls in SAMPLERS if cls is not TokenMask for p in cls.parameters())]
)
# What mirostat does in another way: it overrides a preset's values of these.
_TRUNCATION = (
    "top_k", "top_k_limit", "top_p", "min_p", "mass", "typical_p", "top_n_sigma", "tfs_z", "top_a", "draw",
)  # fmt: skip

_CONSTRAINT = "str | ConstraintSampler | None"
# Parameters of the whole chain: its order, its numerics, and the constraint of the text.
CHAIN_OPTIONS: dict[str, Parameter] = unique(
    [
        Parameter(
            "samplers", tuple, PRESETS[DEFAULT_PRESET]["samplers"],
            f'samplers in order, separated by ";" (default: {";".join(PRESETS[DEFAULT_PRESET]["samplers"])})',
            flags=("--samplers",), checker=parse_names,
            annotation="str | Iterable[str]", metavar="NAMES", schema={"type": ["string", "array"]},
        ),
        Parameter(
            "ignore_eos", bool, False, "never draw a token that ends the text", flags=("--ignore-eos",)
        ),
        Parameter(
            "numerics", str, "portable",
            "portable: the same token on every machine; llama.cpp: llama.cpp's own tokens",
            choices=NUMERICS, flags=("--numerics",),
        ),
        Parameter(
            "grammar", object, None, "a grammar that the text obeys: GBNF text, or a sampler such as Lark",
            optional=True, checker=partial(_constraint, "grammar"), annotation=_CONSTRAINT,
            schema={"type": ["string", "null"]},
        ),
        Parameter(
            "json_schema", object, None, "a JSON schema that the text obeys: mapping or JSON text",
            optional=True, checker=partial(_constraint, "json_schema"),
            annotation="Mapping[str, Any] | bool | " + _CONSTRAINT, schema={},
        ),
        Parameter(
            "regex", object, None, "a regular expression that the whole text matches",
            optional=True, checker=partial(_constraint, "regex"), annotation=_CONSTRAINT,
            schema={"type": ["string", "null"]},
        ),
        Parameter(
            "phases", tuple, (),
            "sampling parameters of a part of the text, as in thinking:temperature=0.6, or a preset, as in "
            "thinking=greedy; parts are thinking, answer, tool, and those with marks of their own; may be "
            "repeated (docs/samplers.md)",
            flags=("--phase",), checker=lambda value: checked_phases(value, _checked, ALL),
            reader=lambda words: read_words(words, ALL), metavar="PHASE:NAME=VALUE",
            annotation="Mapping[str, Any] | Iterable[tuple[str, Any]]", schema={"type": "object"},
        ),
    ]
)  # fmt: skip
SAMPLER_SEQ = Parameter(
    "sampler_seq", str, "",
    f"samplers in order, one letter each: {', '.join(f'{k} {v}' for k, v in BY_LETTER.items())}",
    flags=("--sampler-seq", "--sampling-seq"), metavar="LETTERS",
)  # fmt: skip
"""Another way to write ``samplers``."""
ALL: dict[str, Parameter] = {**PARAMETERS, **CHAIN_OPTIONS}
_NEUTRAL = {name: p.neutral for name, p in ALL.items()}
_ALIASES = {alias: p.name for p in PARAMETERS.values() for alias in p.aliases}
CONSTRAINTS: dict[str, type[Grammar | JSONSchema | Regex]] = {
    "grammar": Grammar, "json_schema": JSONSchema, "regex": Regex,
}  # fmt: skip


class Methods:
    """The methods of ``SamplingParams``, whose fields are made from the declarations."""

    def __init__(self, **values: Any) -> None:
        self._settle(values, {})

    def _settle(self, given: Mapping[str, Any], base: Mapping[str, Any]) -> None:
        """Set each field to its given value, else to that of ``base``, already checked, else to neutral.

        Given values take effect: a sampler that they ask for is inserted into the order.  If the order is given
        too, it must name that sampler.
        """
        checked = _checked(given)
        values = {**_NEUTRAL, **base, **checked}
        order = values["samplers"]
        if "samplers" in checked:
            for name in missing(order, {**_NEUTRAL, **checked}):
                raise _without_effect(name, order, checked)
            for name in missing(order, values):
                kept = {*checked, "seed"}  # which others draw with
                values |= {
                    p.name: p.neutral for p in ORDERED[name].parameters() if p.name not in kept
                }
        else:
            values["samplers"] = completed(order, missing(order, values))
        adaptive = "adaptive_target" if AdaptiveP.name in values["samplers"] else ""
        draws = "mirostat" if values["mirostat"] else adaptive
        if draws and values["draw"] != "inverse":
            if "draw" in checked:
                raise ParameterError(
                    f"draw={values['draw']!r} would have no effect: {draws}={values[draws]!r} draws the token "
                    "in its own way; leave one of them out"
                )
            values["draw"] = "inverse"
        phases = params_of(values["phases"]) if values["phases"] else {}
        if values["draw"] in KEYED:
            values[KEY_FILE] = values[KEY_FILE] or WatermarkKey.from_environment()
        elif not any(own.get("draw") in KEYED for own in phases.values()):
            if checked.get(KEY_FILE) is not None:
                raise ParameterError(
                    f"{KEY_FILE} would have no effect: draw={values['draw']!r} uses no key: give draw as "
                    f"{' or '.join(KEYED)}, or leave the key out"
                )
            values[KEY_FILE] = None
        constraints = [name for name in CONSTRAINTS if values[name] is not None]
        if len(constraints) > 1:
            both = " and ".join(constraints)
            raise ParameterError(constraints[1], f"{both} are both given: choose one")
        if values["phases"] and values["numerics"] != "portable":
            raise ParameterError(
                f"phases and numerics={values['numerics']!r} are both given, and draws go on from one chain to "
                "another with portable numbers only: choose numerics='portable', or leave phases out"
            )
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self.by_phase()

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Any:
        """Return the named preset, with changes."""
        return cls.resolve(changes, preset=check_preset(name))

    @classmethod
    def resolve(
        cls,
        explicit: Mapping[str, Any],
        preset: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Any:
        """Combine sources: explicit values, then the named preset or else a file's metadata.

        Args:
            explicit: What the user gave.
            preset: Name of a preset; parameters that it does not set are neutral.
            metadata: Values of a model file by their key after ``general.sampling.``.  They apply on top of the
                default preset if ``preset`` is not given.
        """
        made = cls(**PRESETS[DEFAULT_PRESET if preset is None else check_preset(preset)])
        if preset is None and metadata:
            made = made.replace(**_from_metadata(metadata))
        if explicit.get("mirostat"):
            made = made.replace(**{name: _NEUTRAL[name] for name in _TRUNCATION})
        return made.replace(**explicit)

    def replace(self, **changes: Any) -> Any:
        """Return a copy with other values.

        If the order changes, parameters of samplers that it leaves out become neutral.
        """
        made = object.__new__(type(self))
        made._settle(changes, self.values())
        return made

    def values(self) -> dict[str, Any]:
        """All parameters by name."""
        return dict(vars(self))

    def by_phase(self) -> dict[str, Any]:
        """The parameters of each phase by its name; empty without phases."""
        made: dict[str, Any] = {}
        table = vars(self)["phases"]
        of_texts = {name: vars(self)[name] for name in OF_TEXTS if name != "phases"}
        for name, own in (params_of(table) if table else {}).items():
            preset = own.pop(PRESET, None)
            try:
                if preset is None:
                    made[name] = self.replace(phases={}, **own)
                else:
                    key = {KEY_FILE: vars(self)[KEY_FILE]} if own.get("draw") in KEYED else {}
                    made[name] = self.resolve({**of_texts, **key, **own}, preset)
            except ParameterError as error:
                raise ParameterError(f"phases: in {name!r}: {error}") from None
        return made

    @property
    def constraint(self) -> ConstraintSampler | None:
        """The sampler of ``grammar``, ``json_schema`` or ``regex``, if one is given."""
        return next((c for n in CONSTRAINTS if (c := getattr(self, n)) is not None), None)

    def list(self, vocab: Any = None) -> list[Sampler]:
        """Return the samplers in order: masks and biases first, the one that chooses the token last.

        Args:
            vocab: As for :meth:`chain`.
        """
        phases = {name: params.list(vocab) for name, params in self.by_phase().items()}
        if phases:
            return [Phases(vars(self)["phases"], phases, vocab)]
        values = {**self.values(), "tokenizer": vocab if hasattr(vocab, "vocab") else None}
        if self.constraint and values["repetition_under_grammar"] == "none":
            values["repetition_penalty"] = 1.0
        if values["ignore_eos"]:
            biases = dict(values["logit_bias"]) | dict.fromkeys(
                _ends("ignore_eos", vocab), -math.inf
            )
            values["logit_bias"] = tuple(biases.items())
        if values["min_tokens"]:
            values["end_tokens"] = (*_ends("min_tokens", vocab), *values["stop_token_ids"])
        values["allowed"] = values["allowed_token_ids"]
        if vocab is not None:
            _check_inside(values, getattr(vocab, "vocab", vocab))
        adaptive = AdaptiveP.name in values["samplers"]
        if adaptive and values["mirostat"]:
            raise ParameterError("mirostat and adaptive_p both choose the token: give one")
        kinds = [cls for cls in FIRST if cls.asked_for(values)]
        kinds += [ORDERED[name] for name in values["samplers"] if name != AdaptiveP.name]
        chain = [cls.from_values(values) for cls in kinds]
        if values["mirostat"] and values["numerics"] == "llama.cpp":
            chain = _before_llama_mirostat(chain, values)
        last = (Dist, Mirostat, MirostatV2)[values["mirostat"]] if not adaptive else AdaptiveP
        return [*chain, last.from_values(values)]

    def chain(self, vocab: Any = None, completion: int = 0) -> SamplerChain:
        """Build the chain.

        Args:
            vocab: A tokenizer or a vocabulary.  ``ignore_eos``, ``min_tokens`` and grammars need one of them;
                DRY's breakers, ``bad_words`` and ``logit_bias`` given as text need a tokenizer.
            completion: Index among completions of one prompt.
        """
        return SamplerChain(
            self.list(vocab),
            self.values()["numerics"],
            completion=completion,
            grammar=self.constraint and self.constraint.bound(vocab),
        )


def _ends(parameter: str, vocab: Any) -> tuple[int, ...]:
    """The tokens that end a generation."""
    if vocab is None:
        raise ParameterError(f"{parameter} needs the vocabulary: chain(vocab=...)")
    return tuple(sorted(getattr(vocab, "vocab", vocab).eog))


def _check_inside(values: Mapping[str, Any], vocab: Any) -> None:
    """Refuse tokens outside the vocabulary; lists of ids are ascending."""
    for name in ("allowed_token_ids", "stop_token_ids"):
        ids = values[name]
        if ids and ids[-1] >= len(vocab):
            raise ParameterError(
                f"{name} names token {ids[-1]}: the vocabulary has 0 to {len(vocab) - 1}"
            )


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given values under our names, each one checked."""
    values, checked = dict(given), dict[str, Any]()
    if "sampler_seq" in values:
        if "samplers" in values:
            raise ParameterError("sampler_seq", "give samplers or sampler_seq, not both")
        values["samplers"] = parse_letters(values.pop("sampler_seq"))
    for spelling, value in values.items():
        name = _ALIASES.get(spelling, spelling)
        if name not in _NEUTRAL:
            known = nearest(spelling, [*ALL, SAMPLER_SEQ.name, *_ALIASES])
            raise ParameterError(spelling, f"there is no sampling parameter {spelling!r}: {known}")
        if name in checked:
            raise ParameterError(f"{name} is given twice, once as {spelling}")
        checked[name] = ALL[name].check(value)
    return checked


def in_range(
    values: Mapping[str, Any], engines: Iterable[str], tell: Callable[[str], None] = warn
) -> dict[str, Any]:
    """Read what users of other engines give, under our names or other spellings: see :func:`translated`."""
    known = {word: ALL.get(_ALIASES.get(word, word)) for word in values}
    return {
        word: value if (p := known[word]) is None else translated(p, value, engines, tell, word)
        for word, value in values.items()
    }


def _without_effect(
    name: str, order: tuple[str, ...], checked: Mapping[str, Any]
) -> ParameterError:
    """The error for a parameter without effect: the one that asks for the sampler, not, say, its ``seed``."""
    own = [p for p in ORDERED[name].parameters() if checked.get(p.name, p.neutral) != p.neutral]
    needed = [  # the parameters without which no other would ask for the sampler
        p for p in own if not ORDERED[name].asked_for({**_NEUTRAL, **checked, p.name: p.neutral})
    ]
    asking = (needed or own)[0].name
    return ParameterError(
        f"{asking}={checked[asking]!r} would have no effect: samplers={';'.join(order)!r} leaves {name} out; "
        f"name it there, or leave {asking} out"
    )


def _before_llama_mirostat(chain: list[Sampler], values: Mapping[str, Any]) -> list[Sampler]:
    """llama.cpp's samplers before mirostat: biases and a plain temperature; refuse what it would drop."""
    # Of these llama.cpp has biases only; the chain refuses the others.
    kept = [s for s in chain if isinstance(s, FIRST)]
    lost = [s.name for s in chain if not s.neutral and not isinstance(s, (*FIRST, Temperature))]
    if values["dynatemp_range"]:
        lost.append("dynatemp_range")
    if lost:
        raise ParameterError(
            "mirostat",
            f"llama.cpp drops {', '.join(lost)} when mirostat={values['mirostat']}: leave them out, or choose "
            "numerics='portable'",
        )
    return [*kept, Temperature(values["temperature"])]


def _from_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of ``general.sampling.*`` under our names; refuse an unknown key."""
    by_key = {p.metadata or p.name: p for p in PARAMETERS.values()}
    values: dict[str, Any] = {}
    for key, value in metadata.items():
        if key == "sequence":
            values["samplers"] = parse_letters(value)
        elif key in by_key:
            p = by_key[key]  # the file may be for another engine
            values[p.name] = translated(p, value, ENGINES, word=f"{key} of the model's file,")
        else:
            raise ParameterError(
                key,
                f"the model file asks for general.sampling.{key}={value!r}, which is not known: name a preset "
                "to use instead, such as llama.cpp",
            )
    return values


def document() -> str:
    """The docstring of ``SamplingParams``."""
    listed = "\n".join(filled(f"{p.name}: {described(p)}.", " " * 4, " " * 8) for p in ALL.values())
    return f"""All sampling parameters; without arguments each is neutral, and presets hold opinions.

Of ``grammar``, ``json_schema`` and ``regex`` (docs/grammar.md) one may be given.

Attributes:
{listed}

Raises:
    ParameterError: A name that is not known, a value out of range, or a contradiction."""
