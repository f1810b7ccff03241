"""One chain in the three ways in which people write it: command line, JSON and Python."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from aleator.core.parameter import Parameter
from aleator.engine.prompts import SAMPLING


def spellings(sampling: Mapping[str, Any]) -> dict[str, str]:
    """How to write sampling parameters.

    Args:
        sampling: ``preset`` and parameters by their names, checked, ready for JSON.

    Returns:
        ``cli``: the flags of ``aleator generate``; ``json``: the fields of a request; ``python``: an
        expression.
    """
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
    """The words of one parameter; none where the command line has no flag or nothing is to be said."""
    if value is None:
        return []
    flags = {"grammar": "--grammar", "json_schema": "--json-schema", "regex": "--regex"}
    flag = flags.get(declared.name) or (declared.flags[-1] if declared.flags else "")
    if not flag:
        return []
    if isinstance(value, bool):
        return [flag] if value else []
    if declared.name == "samplers":
        return [flag, value if isinstance(value, str) else ";".join(value)]
    if declared.name == "logit_bias":
        pairs = value.items() if isinstance(value, Mapping) else value
        return [word for token, bias in pairs for word in (flag, _bias(token, bias))]
    if declared.type is tuple:
        return [word for each in _each(value) for word in (flag, str(each))]
    if isinstance(value, Mapping):
        return [flag, json.dumps(value)]
    return [flag, str(value)]


def _each(value: Any) -> Iterable[Any]:
    return [value] if isinstance(value, str) else value


def _bias(token: Any, bias: float) -> str:
    shown = token if isinstance(token, int) or str(token).isdigit() else json.dumps(token)
    return f"{shown}{bias:+g}"
