"""Flags made from the declarations of options and sampling parameters, and the values given for them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping
from typing import Any

from aleator.cli.arguments import Group
from aleator.core.errors import ParameterError
from aleator.core.options import Option, described
from aleator.core.parameter import Parameter, translated


def add_declared(
    group: Group,
    parameters: Iterable[Parameter],
    defaults: Mapping[str, Any] | None = None,
    names: bool = False,
) -> None:
    """Add the flags of parameters; those without flags are for Python only.

    ``defaults`` replace the parameters' own; ``names``: a parameter's name is a flag too.
    """
    for each in parameters:
        help = described(each, (defaults or {}).get(each.name, each.neutral)).replace("%", "%%")
        own = f"--{each.name.replace('_', '-')}"
        flags = ", ".join([*each.flags, *([own] if names and own not in each.flags else [])])
        if each.flags and each.type is bool and not (isinstance(each, Option) and each.valued):
            group.option(flags, help, dest=each.name, action="store_true", default=None)
        elif each.flags:
            action = "append" if each.type is tuple and each.name != "samplers" else "store"
            words = ("on", "off") if each.type is bool else each.choices
            group.option(f"{flags} {metavar(each)}", help, words, dest=each.name, action=action)
        if isinstance(each, Option) and each.off_flags:
            off, why = ", ".join(each.off_flags), each.off_help.replace("%", "%%")
            group.option(off, why, dest=each.name, action="store_false", default=None)


def given(
    arguments: argparse.Namespace, parameters: Iterable[Parameter], no_escape: bool = False
) -> dict[str, Any]:
    r"""The values given for parameters, by their names; ParameterError names the flag of a wrong value.

    ``no_escape``: escapes such as ``\n`` are taken literally.
    """
    values: dict[str, Any] = {}
    for each in parameters:
        value = getattr(arguments, each.name, None)
        if value is None or isinstance(value, bool):
            if value is not None:
                values[each.name] = each.type(value)  # 0 if the flag switches a number off
            continue
        if each.escapes and not no_escape:
            several = isinstance(value, list)
            value = [unescape(word) for word in value] if several else unescape(value)
        try:
            # Flags have llama.cpp's names, and accept its values.
            values[each.name] = each.check(translated(each, each.read(value), ("llama.cpp",)))
        except ParameterError as error:
            if not isinstance(each, Option):
                raise
            raise ParameterError(each.name, f"{each.flags[0]}: {error}") from None
    return values


def metavar(parameter: Parameter) -> str:
    """Placeholder of the value in --help."""
    if parameter.metavar:
        return parameter.metavar
    if parameter.choices or parameter.type is bool:
        return "NAME" if parameter.type is not bool else "on|off"
    return "X" if parameter.type is float else "N"


def unescape(text: str) -> str:
    r"""Replace ``\n``, ``\t``, ``\r`` and ``\\`` by the characters they stand for."""
    marks = {r"\n": "\n", r"\t": "\t", r"\r": "\r", r"\\": "\\"}
    return re.sub(r"\\[ntr\\]", lambda mark: marks[mark[0]], text)
