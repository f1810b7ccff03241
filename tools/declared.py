"""Lists every declared default, bound and spelling, one per line, for tests/golden/declared.txt.

A change of a declaration shows as a change of that file, which tools/docs.py writes and checks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import declared_code

from aleator import samplers as S
from aleator.cache import PrefixConfig
from aleator.cache.options import CacheOptions
from aleator.core.options import Option, Options, declarations
from aleator.core.parameter import Parameter
from aleator.generate.beam_options import BeamOptions
from aleator.generate.options import ContextOptions, GenerateOptions, ModelOptions
from aleator.samplers.constrained import ConstraintSampler
from aleator.samplers.user import UserSampler

FILE = Path(__file__).parent.parent / "tests" / "golden" / "declared.txt"


def spelled(place: str, p: Parameter) -> str:
    """A parameter: its default, bounds, choices and other names."""
    marks = [f"{place}.{p.name}: {p.typing} = {p.neutral!r}"]
    if p.type in (int, float):
        marks.append(f"in {'(' if p.open_low else '['}{p.low!r}, {p.high!r}]")
    marks += [f"or {p.beyond!r}"] if p.beyond is not None else []
    marks += [f"{o.where} is {o.value!r} in {', '.join(o.engines)}" for o in p.off]
    marks += [f"one of {p.choices}"] if p.choices else []
    marks += [f"also {p.aliases}"] if p.aliases else []
    marks += [f"flags {p.flags}"] if p.flags else []
    marks += [f"in GGUF {p.metadata}"] if p.metadata else []
    marks += [name for name in ("optional", "escapes") if getattr(p, name)]
    marks += [f"schema {dict(p.schema)}"] if p.schema else []
    if isinstance(p, Option):
        marks += [f"off by {p.off_flags}"] if p.off_flags else []
        marks += [name for name in ("valued", "portable") if getattr(p, name)]
    return "; ".join(marks)


def samplers() -> Iterator[str]:
    """Samplers with their declarations and parameters, the parameters of none, and presets."""
    of_samplers: list[Parameter] = []
    classes: tuple[Any, ...] = (*S.SAMPLERS, ConstraintSampler, UserSampler)
    for cls in classes:
        names = {name: getattr(cls, name, None) for name in ("name", "letter", "aliases", "reads")}
        marks = [name for name in ("writes", "selects", "adapts") if getattr(cls, name) is True]
        yield f"{cls.__name__}: {names} {' '.join(marks)}".rstrip()
        if hasattr(cls, "__dataclass_fields__"):
            of_samplers += cls.parameters()
            yield from (spelled(cls.__name__, p) for p in cls.parameters())
    yield f"SamplingParams: {' '.join(S.PARAMETERS)}"
    own = (p for p in S.PARAMETERS.values() if p not in of_samplers)
    yield from (spelled("SamplingParams", p) for p in own)
    yield from (f"preset {name}: {values}" for name, values in S.PRESETS.items())


def options(*classes: type[Options]) -> Iterator[str]:
    """The options of classes."""
    for cls in classes:
        yield from (spelled(cls.__name__, p) for p in declarations(cls).values())


def cache() -> Iterator[str]:
    """The options of a cache."""
    yield from options(CacheOptions)
    yield from (f"PrefixConfig.{f.name} = {f.default!r}" for f in dataclasses.fields(PrefixConfig))


def generate() -> Iterator[str]:
    """Options of models, contexts and generations."""
    yield from options(ModelOptions, ContextOptions, GenerateOptions, BeamOptions)


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "samplers": samplers,
    "cache": cache,
    "generate": generate,
    **{
        f"code of {folder}": partial(declared_code.lines, folder)
        for folder in declared_code.FOLDERS
    },
}


def text() -> str:
    """The text of the file."""
    return "".join(
        f"[{name}]\n" + "".join(f"{x}\n" for x in made()) for name, made in PARTS.items()
    )


def recorded(part: str) -> list[str]:
    """The file's lines about a part."""
    return FILE.read_text().partition(f"[{part}]\n")[2].partition("\n[")[0].splitlines()
