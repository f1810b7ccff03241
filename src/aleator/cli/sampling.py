"""Sampling options, made from the declarations of the parameters."""

from __future__ import annotations

import argparse
from typing import Any

from aleator.cli.arguments import Parser
from aleator.cli.terminal import note
from aleator.core.errors import ParameterError
from aleator.core.parameter import Parameter
from aleator.samplers import (
    DEFAULT_PRESET,
    PARAMETERS,
    PRESETS,
    SamplerChain,
    SamplingParams,
    parse_bias,
)

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
        help="the same, one letter each: e penalties, d dry, s top_n_sigma, k top_k, y typ_p, p top_p, "
        "m min_p, x xtc, t temperature",
    )
    group.option("--ignore-eos", action="store_true", help="never draw a token that ends the text")
    for parameter in PARAMETERS.values():
        own = f"--{parameter.name.replace('_', '-')}"
        group.option(
            *parameter.flags,
            *([] if own in parameter.flags else [own]),
            dest=parameter.name,
            action="append" if parameter.name == "logit_bias" else "store",
            metavar={int: "N", float: "X", tuple: "ID+BIAS"}.get(parameter.type, "N"),
            help=_help(parameter).replace("%", "%%"),
        )


def sampling_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    """What was given, as keyword arguments of ``LanguageModel.generate``."""
    given: dict[str, Any] = {}
    if arguments.ignore_eos:
        given["ignore_eos"] = True
    for name in ("preset", "samplers", "sampler_seq", *PARAMETERS):
        value = getattr(arguments, name)
        if value is not None:
            given[name] = _convert(name, value)
    return given


def announce(params: SamplingParams, chain: SamplerChain) -> None:
    """Print the seed, the parameters and the chain on standard error."""
    values = params.values()
    shown = [
        f"{name}={values[name]}"
        for name, parameter in PARAMETERS.items()
        if name != "seed" and values[name] != parameter.neutral
    ]
    if params.ignore_eos:
        shown.append("ignore_eos")
    note(
        f"seed: {chain.seed}\nparameters: {' '.join(shown) or 'none'} (the others are neutral)\n"
        f"chain: {chain.describe()}\n"
    )


def _help(parameter: Parameter) -> str:
    if parameter.type not in (int, float):
        return parameter.help
    default = DEFAULTS.get(parameter.name, parameter.neutral)
    return f"{parameter.help} ({_range(parameter)}default: {default})"


def _range(parameter: Parameter) -> str:
    """The range in words; bounds that nobody reaches go without saying."""
    low, high = (
        None if bound is None or abs(bound) >= _UNBOUNDED else f"{bound:g}"
        for bound in (parameter.low, parameter.high)
    )
    if low is None:
        return "" if high is None else f"up to {high}; "
    return f"{low} or more; " if high is None else f"{low} to {high}; "


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
