"""Adapters in requests: by the name of a model, as in vLLM, and by llama-server's field ``lora``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aleator.core.errors import ParameterError
from aleator.models.adapters import Adapters, Chosen, checked_scale
from aleator.server.fields import Body, Field, is_whole, known_keys, listing, mapping


def scales_of(name: str, value: Any) -> dict[int, float]:
    """llama-server's list of ids and scales."""
    made: dict[int, float] = {}
    for i, each in enumerate(listing(name, value)):
        where = f"{name}[{i}]"
        known_keys(where, mapping(where, each), ("id", "scale"))
        number = each.get("id")
        if not is_whole(number) or number in made or "scale" not in each:
            raise ParameterError(name, f'{where}: give {{"id": N, "scale": X}}, each id once')
        try:
            made[number] = checked_scale(each["scale"])
        except ParameterError as error:
            raise ParameterError(name, f"{where}: {error}") from None
    return made


LORA = Field("lora", scales_of)
"""llama-server's adapters by their numbers; those that it does not name have scale 0; []: as if not given."""


def by_name(scales: Mapping[int, float], adapters: Adapters) -> dict[str, float]:
    """Scales by the names of adapters."""
    names = adapters.names
    for number in scales:
        if not 0 <= number < len(names):
            there = f"0 to {len(names) - 1}" if names else "none: start it with --lora FILE"
            raise ParameterError(f"lora: there is no adapter {number}; this server has {there}")
    return {names[number]: scale for number, scale in scales.items()}


def choose(body: Body, adapters: Adapters) -> None:
    """Make the option ``adapters`` of a body's model and of its ``lora``; ParameterError for two of these."""
    model, lora = body.own.get("model"), body.own.get("lora")
    if model in adapters.names:
        body.force("model", {"adapters": {model: 1.0}})
    if lora:
        body.force("lora", {"adapters": by_name(lora, adapters)})


def numbered(chosen: Chosen | None, adapters: Adapters) -> list[dict[str, Any]]:
    """The adapters of a text as llama-server tells them."""
    return [{"id": adapters.names.index(n), "scale": scale} for n, scale, _ in chosen or ()]
