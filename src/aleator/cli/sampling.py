"""Sampling options, made from the declarations of the parameters."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from aleator.cli.arguments import Parser
from aleator.cli.declared import add_declared, given
from aleator.cli.options import read_file
from aleator.cli.terminal import note
from aleator.core.errors import GrammarError, ParameterError
from aleator.language_model import LanguageModel
from aleator.samplers import DEFAULT_PRESET, PARAMETERS, PRESETS, SamplerChain, SamplingParams
from aleator.samplers.params import CHAIN_OPTIONS, SAMPLER_SEQ

DEFAULTS = PRESETS[DEFAULT_PRESET]
CHAIN = tuple(p for p in (*CHAIN_OPTIONS.values(), SAMPLER_SEQ) if p.flags)


def add_sampling_options(parser: Parser, grammars: bool = True) -> None:
    """Declare a flag for every sampling parameter and, with ``grammars``, for constraints on the text."""
    group = parser.group("sampling")
    group.option(
        "--preset NAME",
        f"named set of parameters: {', '.join(PRESETS)} (default: what the model file says, on top "
        f"of {DEFAULT_PRESET})",
        offered=tuple(PRESETS),
    )
    add_declared(group, CHAIN)
    add_declared(group, PARAMETERS.values(), DEFAULTS, names=True)
    if not grammars:
        return
    group = parser.group("what the text must obey (docs/grammar.md)")
    group.option("--grammar GBNF", "a grammar in llama.cpp's notation, whose first rule is root")
    group.option("--grammar-file FILE", "the same in a file; -: standard input")
    group.option("-j, --json-schema JSON", "JSON that a schema describes, such as {} for any JSON")
    group.option("-jf, --json-schema-file FILE", "the same in a file; -: standard input")
    group.option("--regex REGEX", "text that a regular expression matches as a whole")


GRAMMAR_OPTIONS = ("grammar", "grammar_file", "json_schema", "json_schema_file", "regex")


def grammar_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    """The given grammar as a keyword argument of ``generate``; errors name the file it came from."""
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
        value = read_file(value)
    try:
        return {name: getattr(SamplingParams(**{name: value}), name)}
    except GrammarError as error:
        if not source:
            raise
        raise GrammarError(f"{source}: {error}", error.line, error.column) from None


def sampling_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    """The given sampling options, as keyword arguments of ``LanguageModel.generate``."""
    values = given(arguments, (*CHAIN, *PARAMETERS.values()), arguments.no_escape)
    if arguments.preset is not None:
        values["preset"] = arguments.preset
    if hasattr(arguments, "grammar"):
        values |= grammar_arguments(arguments)
    return values


def sampling_of(words: str, option: str, no_escape: bool = False) -> dict[str, Any]:
    """The sampling options in a word that is the value of another option."""
    parser = Parser("generate", alone=False)
    add_sampling_options(parser)
    try:
        own = parser.parse(shlex.split(words))
    except ValueError as error:
        raise ParameterError(option, f"--{option} {words!r}: {error}") from None
    assert own is not None  # noqa: S101  # without --help
    own.no_escape = no_escape
    return sampling_arguments(own)


def announce(params: SamplingParams, model: LanguageModel, preset: str | None) -> None:
    """Print the seed, and each phase's effective samplers and parameters, on standard error.

    The recommendations of the model's files are printed too, unless a ``preset`` replaces them.
    """
    recommended = {} if preset is not None else model.weights.recommended_sampling()
    if recommended:
        settings = " ".join(f"{name}={value}" for name, value in recommended.items())
        note(f"the model recommends: {settings} (--preset {DEFAULT_PRESET} leaves that out)")
    for phase, own in (params.by_phase() or {"": params}).items():
        if phase:
            note(f"phase: {phase}")
        _announce(own, own.chain(model.tokenizer))


def _announce(params: SamplingParams, chain: SamplerChain) -> None:
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
