"""Write or check the type stubs that are generated.

    python tools/stubs.py            writes them
    python tools/stubs.py --check    fails if one is stale

- src/aleator/_native.pyi: the native module's.
- src/aleator/samplers/sampling_params.pyi: ``SamplingParams``, whose fields are made from the declarations.
- src/aleator/keywords.pyi: the keyword arguments of functions with ``**options``, from their declarations.
  They are TypedDicts, since a stub beside a module would hide the module from mypy.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

from aleator.core.options import declarations, described
from aleator.core.parameter import Parameter
from aleator.engine.options import EngineOptions, SubmitOptions
from aleator.generate.beam_options import OF_BEAMS, BeamOptions
from aleator.generate.options import (
    LOADED,
    ContextOptions,
    GenerateOptions,
    ModelOptions,
)
from aleator.samplers.params import ALL, SAMPLER_SEQ

SAMPLING = [*ALL.values(), SAMPLER_SEQ]
PACKAGE = Path(__file__).parent.parent / "src" / "aleator"

HEAD = '''\
"""Keyword arguments of functions with ``**options``; made by tools/stubs.py from the declarations."""

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, TypedDict

import torch

from aleator.samplers import ConstraintSampler
'''


def native() -> str:
    """Types of the native module, by nanobind."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "_native.pyi"
        subprocess.run(
            [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "aleator._native", "-o", made],
            check=True,
        )
        return made.read_text()


def keywords() -> str:
    """A TypedDict for each set of options; what two sets share stands in a base."""
    model = {**declarations(ModelOptions), **{each.name: each for each in LOADED}}
    context = declarations(ContextOptions)
    generate = declarations(GenerateOptions)
    beams = {**{each.name: each for each in OF_BEAMS}, **declarations(BeamOptions)}
    of_cache, of_texts = shared(context, model), shared(generate, beams)
    submit = declarations(SubmitOptions)
    parts = [
        HEAD,
        group("SamplingKeywords", "Sampling parameters, under all their names.", SAMPLING),
        group("TextKeywords", "Those of all texts.", of_texts.values(), "SamplingKeywords"),
        group(
            "GenerateKeywords", "Those of ``generate``.", beside(generate, of_texts), "TextKeywords"
        ),
        several("BatchKeywords", [*generate.values(), *SAMPLING]),
        group("BeamKeywords", "Those of ``beams``.", beside(beams, of_texts), "TextKeywords"),
        group("CacheKeywords", "Those of ``load`` and ``Context``.", of_cache.values()),
        group(
            "ContextKeywords", "Those of ``Context``.", beside(context, of_cache), "CacheKeywords"
        ),
        group("LoadKeywords", "Those of ``load``.", beside(model, of_cache), "CacheKeywords"),
        group("EngineKeywords", "Those of ``Engine``.", declarations(EngineOptions).values()),
        group("RequestKeywords", "Those of an engine's requests.", submit.values()),
        group(
            "SubmitKeywords", "Those of ``Engine.submit``.", (), "GenerateKeywords, RequestKeywords"
        ),
        group(
            "SubmitBeamKeywords", "Those of ``Engine.beams``.", (), "BeamKeywords, RequestKeywords"
        ),
    ]
    return "\n".join(parts)


def shared(one: Mapping[str, Parameter], other: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """The options that two sets declare alike."""
    return {name: each for name, each in one.items() if other.get(name) == each}


def beside(all_of: Mapping[str, Parameter], base: Mapping[str, Parameter]) -> list[Parameter]:
    """The options of a set that are not in its base."""
    return [each for name, each in all_of.items() if name not in base]


def group(name: str, what: str, parameters: Iterable[Parameter], base: str = "TypedDict") -> str:
    """One TypedDict, none of whose keys is required; an alias refers to the name."""
    lines = [f"class {name}({base}, total=False):", f'    """{what}"""', ""]
    for each in parameters:
        lines += [f"    {each.name}: {each.typing}", *comment(described(each))]
        for alias in each.aliases:
            lines += [f"    {alias}: {each.typing}", *comment(f"another name of {each.name}")]
    return "\n".join(lines) + "\n"


def several(name: str, parameters: Iterable[Parameter]) -> str:
    """One TypedDict in which a single value may be a list of values, one for each prompt."""
    lines = [
        f"class {name}(TypedDict, total=False):",
        '    """Those of ``generate_batch``: as in GenerateKeywords, or a list, with one for each prompt."""',
        "",
    ]
    for each in parameters:
        more = f" | Sequence[{each.typing}]" if each.single else ""
        lines += [f"    {spelling}: {each.typing}{more}" for spelling in (each.name, *each.aliases)]
    return "\n".join(lines) + "\n"


def comment(text: str) -> list[str]:
    """A docstring below a field."""
    text = text.replace("\\", "\\\\").replace('"""', "'''")
    text = f'"""{text[0].upper()}{text[1:]}.'
    lines = textwrap.wrap(text, 100, initial_indent="    ", subsequent_indent="    ")
    return [*lines[:-1], f'{lines[-1]}"""', ""]


PARAMS_HEAD = '''\
"""``SamplingParams`` as its declarations make it; made by tools/stubs.py."""

import builtins
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Unpack

from aleator.keywords import SamplingKeywords
from aleator.samplers.base import Sampler
from aleator.samplers.chain import SamplerChain
from aleator.samplers.constrained import ConstraintSampler
from aleator.samplers.watermark import WatermarkKey

@dataclass(frozen=True, init=False)
class SamplingParams:
    """All sampling parameters: SamplingKeywords says what each is.

    Without arguments everything is neutral: presets hold opinions.
    """

'''
PARAMS_METHODS = """\
    def __init__(self, **values: Unpack[SamplingKeywords]) -> None: ...
    @classmethod
    def preset(cls, name: str, **changes: Unpack[SamplingKeywords]) -> SamplingParams: ...
    @classmethod
    def resolve(
        cls,
        explicit: Mapping[str, Any],
        preset: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> SamplingParams: ...
    def replace(self, **changes: Unpack[SamplingKeywords]) -> SamplingParams: ...
    def values(self) -> dict[str, Any]: ...
    def by_phase(self) -> dict[str, SamplingParams]: ...
    @property
    def constraint(self) -> ConstraintSampler | None: ...
    def list(self, vocab: Any = None) -> builtins.list[Sampler]: ...
    def chain(self, vocab: Any = None, completion: int = 0) -> SamplerChain: ...

def preset(name: str, **changes: Unpack[SamplingKeywords]) -> SamplingParams: ...
"""
# The types of parameters that are not numbers, words or switches.
KEPT = {
    "samplers": "tuple[str, ...]",
    "logit_bias": "tuple[tuple[int | str, float], ...]",
    "dry_sequence_breakers": "tuple[str | tuple[int, ...], ...]",
    "bad_words": "tuple[str | tuple[int, ...], ...]",
    "allowed_token_ids": "tuple[int, ...] | None",
    "stop_token_ids": "tuple[int, ...]",
    "phases": "tuple[tuple[str, Any], ...]",
    "seed": "int | None",
    "watermark_key_file": "WatermarkKey | None",
    "grammar": "ConstraintSampler | None",
    "json_schema": "ConstraintSampler | None",
    "regex": "ConstraintSampler | None",
}


def sampling_params() -> str:
    """The class of sampling parameters, with the types that its fields keep."""
    lines = []
    for each in ALL.values():
        kept = KEPT[each.name] if each.type in (object, tuple) else each.type.__name__
        lines.append(f"    {each.name}: {kept}")
    return PARAMS_HEAD + "\n".join(lines) + "\n" + PARAMS_METHODS


STUBS = {
    "_native.pyi": native,
    "keywords.pyi": keywords,
    "samplers/sampling_params.pyi": sampling_params,
}


def main() -> int:
    """Write or compare every stub."""
    stale = []
    for name, make in STUBS.items():
        path, text = PACKAGE / name, make()
        if "--check" not in sys.argv[1:]:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(name)
    if stale:
        print(f"stale: {', '.join(stale)}: run 'make stubs'", file=sys.stderr)
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())
