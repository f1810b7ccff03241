"""Records of the texts of a response: what makes each of them again (docs/reproducibility.md)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aleator.core.errors import ParameterError
from aleator.core.version import __version__
from aleator.generate.generation import Generation
from aleator.replay import Record
from aleator.server.caller import current_caller
from aleator.server.service import Service


def replay_header(service: Service) -> str | None:
    """The header ``x-aleator-replay`` of a response: for its first text; the others have other ``completion``.

    Returns:
        One line of ASCII; None where there is no text, or none that can be made again.
    """
    begun = current_caller().begun
    if not begun:
        return None
    try:
        return Record.of(begun[0], service.model, __version__).header()
    except ParameterError:
        return None


def replay_field(service: Service, made: Iterable[Generation]) -> list[dict[str, Any]]:
    """The field ``aleator_replay`` of a response: the records of its texts, in their order.

    Raises:
        ParameterError: One cannot be made again; says why.
    """
    return [Record.of(each, service.model, __version__).as_json() for each in made]
