"""Sampling options, made from the declarations of the parameters."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from aleator.cli.arguments import Parser
from aleator.cli.options import decode, unescape
from aleator.cli.terminal import note
from aleator.core.errors import GrammarError, ParameterError
from aleator.core.parameter import Parameter
from aleator.samplers import (
    DEFAULT_PRESET,
    PARAMETERS,
    PRESETS,
    SamplerChain,
    SamplingParams,
    parse_bias,
)
from aleator.samplers.candidates import NUMERICS
from aleator.samplers.index import BY_LETTER

DEFAULTS = PRESETS[DEFAULT_PRESET]
_UNBOUNDED = 1e9


def add_sampling_options(parser: Parser) -> None:
    """Declare a flag for every sampling parameter, and those that choose and order samplers."""
    group = parser.group("sampling")
    group.option(
        "--preset",
        metavar="NAME",
        help=f"named set of parameters: {', '.join(PRESETS)} (default: what the model file says, on top "
        f"of {DEFAULT_PRESET})",
    )
    group.option(
        "--samplers",
        metavar="NAMES",
        help=f'samplers in order, separated by ";" (default: {";".join(DEFAULTS["samplers"])})',
    )
    group.option(
        "--sampler-seq",
        "--sampling-seq",
        dest="sampler_seq",
        metavar="LETTERS",
        help=f"the same, one letter each: {', '.join(f'{k} {v}' for k, v in BY_LETTER.items())}",
    )
    group.option(
        "--numerics",
        choices=NUMERICS,
        help="portable: the same token on every machine; llama.cpp: llama.cpp's own tokens (default: "
        "portable)",
    )
    group.option("--ignore-eos", action="store_true", help="never draw a token that ends the text")
    for parameter in PARAMETERS.values():
        own = f"--{parameter.name.replace('_', '-')}"
        group.option(
            *parameter.flags,
            *([] if own in parameter.flags else [own]),
            dest=parameter.name,
            action="append" if parameter.type is tuple else "store",
            metavar=_metavar(parameter),
            help=_help(parameter).replace("%", "%%"),
        )


def add_grammar_options(parser: Parser) -> None:
    """Declare what the text must obey; at most one of these is given."""
    group = parser.group("what the text must obey (docs/grammar.md)")
    group.option(
        "--grammar",
        metavar="GBNF",
        help="a grammar in llama.cpp's notation, whose first rule is root",
    )
    group.option("--grammar-file", metavar="FILE", help="the same in a file; -: standard input")
    group.option(
        "-j",
        "--json-schema",
        metavar="JSON",
        help="JSON that a schema describes, such as {} for any JSON",
    )
    group.option(
        "-jf", "--json-schema-file", metavar="FILE", help="the same in a file; -: standard input"
    )
    group.option(
        "--regex", metavar="REGEX", help="text that a regular expression matches as a whole"
    )


GRAMMAR_OPTIONS = ("grammar", "grammar_file", "json_schema", "json_schema_file", "regex")


def grammar_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    """The grammar that was given, as a keyword argument of ``LanguageModel.generate``.

    Raises:
        GrammarError: it is wrong; names the file if it came from one.
        ParameterError: more than one was given.
    """
    given = [name for name in GRAMMAR_OPTIONS if getattr(arguments, name) is not None]
    if len(given) > 1:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ParameterError(given[1], f"{flags} are both given: choose one")
    if not given:
        return {}
    name, value = given[0].removesuffix("_file"), getattr(arguments, given[0])
    source = ""
    if given[0].endswith("_file"):
        source = "standard input" if value == "-" else value
        data = sys.stdin.buffer.read() if value == "-" else Path(value).read_bytes()
        value = decode(data, source)
    try:
        return {name: getattr(SamplingParams(**{name: value}), name)}
    except GrammarError as error:
        if not source:
            raise
        raise GrammarError(f"{source}: {error}", error.line, error.column) from None


def sampling_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    """What was given, as keyword arguments of ``LanguageModel.generate``."""
    given: dict[str, Any] = {}
    if arguments.ignore_eos:
        given["ignore_eos"] = True
    for name in ("preset", "samplers", "sampler_seq", "numerics", *PARAMETERS):
        value = getattr(arguments, name)
        if name == "dry_sequence_breakers" and value is not None:
            given[name] = _breakers(value, arguments.no_escape)
        elif value is not None:
            given[name] = _convert(name, value)
    if hasattr(arguments, "grammar"):
        given |= grammar_arguments(arguments)
    return given


def announce(params: SamplingParams, chain: SamplerChain) -> None:
    """Print the seed, and the samplers and parameters that do something, on standard error."""
    first = [] if chain.grammar is None else [chain.grammar]
    active = first + [sampler for sampler in chain if not sampler.neutral]
    used = {"mirostat", *(p.name for sampler in active for p in sampler.parameters())}
    values = params.values()
    shown = [
        f"{name}={value}"
        for name, parameter in PARAMETERS.items()
        if name in used and name != "seed" and (value := values[name]) != parameter.neutral
    ]
    shown += ["ignore_eos"] * params.ignore_eos
    shown += [f"numerics={params.numerics}"] * (params.numerics != "portable")
    note(
        f"seed: {chain.seed}\nparameters: {' '.join(shown) or 'none'} (the others are neutral)\n"
        f"chain: {' -> '.join(['logits', *(sampler.name for sampler in active)])}\n"
    )


def range_in_words(parameter: Parameter) -> str:
    """The range or the choices; bounds that nobody reaches go without saying."""
    if parameter.choices:
        return " or ".join(parameter.choices)
    low, high = (
        None if bound is None or abs(bound) >= _UNBOUNDED else f"{bound:.10g}"
        for bound in (parameter.low, parameter.high)
    )
    if low is None:
        return "" if high is None else f"up to {high}"
    return f"{low} or more" if high is None else f"{low} to {high}"


def _metavar(parameter: Parameter) -> str:
    if parameter.choices:
        return "NAME"
    return {
        "logit_bias": "ID+BIAS",
        "dry_sequence_breakers": "TEXT",
    }.get(parameter.name, "X" if parameter.type is float else "N")


def _help(parameter: Parameter) -> str:
    if parameter.type not in (int, float):
        return parameter.help
    default = DEFAULTS.get(parameter.name, parameter.neutral)
    bounds = range_in_words(parameter)
    return f"{parameter.help} ({bounds}{'; ' if bounds else ''}default: {default})"


def _breakers(given: list[str], no_escape: bool) -> list[str]:
    """The values of ``--dry-sequence-breaker``: "none" forgets those before it."""
    breakers: list[str] = []
    for text in given:
        if text == "none":
            breakers.clear()
        else:
            breakers.append(text if no_escape else unescape(text))
    return breakers


def _convert(name: str, value: Any) -> Any:
    if name == "logit_bias":
        return [parse_bias(each) for each in value]
    parameter = PARAMETERS.get(name)
    kind = int if name == "seed" else parameter.type if parameter else str
    try:
        return kind(value)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise ParameterError(name, f"{name}={value!r} is not {wanted}") from None
