"""``aleator samplers``: all samplers, their parameters and ranges, from their declarations."""

from __future__ import annotations

import argparse
import inspect
import sys
from typing import Any

from aleator.cli.arguments import Parser, did_you_mean
from aleator.cli.terminal import write, write_json
from aleator.core.errors import ParameterError
from aleator.core.options import in_words
from aleator.core.parameter import Parameter
from aleator.samplers import DEFAULT_PRESET, PARAMETERS, PRESETS, SAMPLERS, Sampler
from aleator.samplers.explain_text import aligned
from aleator.samplers.params import OF_ALL

EXAMPLES = """\
examples:
  aleator samplers
  aleator samplers top_p
  aleator samplers --presets
  aleator samplers --json
"""


def add_arguments(parser: Parser) -> None:
    parser.positional("name", "show this sampler's contract: its name, letter or another spelling")
    group = parser.group("what to show")
    group.switch("--presets", "the presets: order and values")
    group.switch("--json", "write JSON")


def run(arguments: argparse.Namespace) -> None:
    if arguments.name is not None and arguments.presets:
        raise ParameterError("name", "a sampler and --presets are both given: choose one")
    cls = None if arguments.name is None else find(arguments.name)
    if arguments.json:
        write_json(everything() if cls is None else about(cls))
    elif cls is not None:
        write(contract(cls))
    else:
        write(presets() if arguments.presets else table())


def find(name: str) -> type[Sampler]:
    """The sampler with a name, letter or alias."""
    spellings = {
        spelling: cls
        for cls in SAMPLERS
        for spelling in (cls.name, *([cls.letter] if cls.letter else []), *cls.aliases)
    }
    wanted = name if name in spellings else name.lower()
    if wanted not in spellings:
        raise ParameterError(
            "name",
            f"there is no sampler {name!r}{did_you_mean(wanted, spellings)}; the names are "
            f"{', '.join(cls.name for cls in SAMPLERS)}",
        )
    return spellings[wanted]


def summary(cls: type[Sampler]) -> str:
    """What a sampler does, in one sentence."""
    return (inspect.getdoc(cls) or "").splitlines()[0].replace("``", "")


def table() -> str:
    below = {cls: [parameter_row(p) for p in cls.parameters()] for cls in SAMPLERS}
    chain = [parameter_row(p) for p in OF_ALL]
    head = ("parameter", "range", "off", "flags")
    rows = [head, *chain, *(row for rows in below.values() for row in rows)]
    line = (f"    {each}".rstrip() for each in aligned(rows, left=range(len(head))))
    lines = ["sampler (letter)", next(line), ""]
    of_all = [next(line) for _ in chain]
    for cls, own in below.items():
        letter = f" ({cls.letter})" if cls.letter else ""
        lines += [f"{cls.name}{letter}: {summary(cls)}", *(next(line) for _ in own)]
    lines += ["of the whole chain:", *of_all]
    return "\n".join(lines) + "\n"


def parameter_row(p: Parameter) -> tuple[str, ...]:
    return p.name, in_words(p), neutral(p), ", ".join(p.flags)


def neutral(p: Parameter) -> str:
    """The value with no effect."""
    if isinstance(p.neutral, tuple):
        return " ".join(map(repr, p.neutral)) or "none"
    return "none" if p.neutral is None else str(p.neutral)


def contract(cls: type[Sampler]) -> str:
    names = [cls.name, *cls.aliases]
    lines = [
        f"names: {', '.join(names)}{f'; letter: {cls.letter}' if cls.letter else ''}",
        f"class: aleator.samplers.{cls.__name__}",
        "",
        (inspect.getdoc(sys.modules[cls.__module__]) or "").replace("``", ""),
        "",
    ]
    for p in cls.parameters():
        lines += [
            ", ".join([p.name, *p.aliases]),
            f"    {p.help}",
            *([f"    range: {in_words(p)}"] if in_words(p) else []),
            f"    off: {neutral(p)}",
            *([f"    flags: {', '.join(p.flags)}"] if p.flags else []),
        ]
    return "\n".join(lines).rstrip() + "\n"


def presets() -> str:
    lines = []
    for name, values in PRESETS.items():
        order = values.get("samplers", PRESETS[DEFAULT_PRESET]["samplers"])
        rest = " ".join(f"{k}={v}" for k, v in values.items() if k != "samplers")
        lines += [
            f"{name}{' (the default)' if name == DEFAULT_PRESET else ''}",
            f"    order:  {', '.join(order)}",
            f"    values: {rest or 'all neutral'}",
        ]
    return "\n".join(lines) + "\n"


def everything() -> dict[str, Any]:
    return {
        "samplers": [about(cls) for cls in SAMPLERS],
        "parameters": [about_parameter(p) for p in PARAMETERS.values()],
        "presets": PRESETS,
        "default_preset": DEFAULT_PRESET,
    }


def about(cls: type[Sampler]) -> dict[str, Any]:
    return {
        "name": cls.name,
        "class": cls.__name__,
        "letter": cls.letter,
        "aliases": cls.aliases,
        "selects": cls.selects,
        "summary": summary(cls),
        "contract": inspect.getdoc(sys.modules[cls.__module__]),
        "parameters": [about_parameter(p) for p in cls.parameters()],
    }


def about_parameter(p: Parameter) -> dict[str, Any]:
    fields = ("neutral", "low", "high", "choices", "aliases", "flags", "help")
    about = {name: getattr(p, name) for name in fields}
    return {"name": p.name, "type": p.type.__name__, **about}
