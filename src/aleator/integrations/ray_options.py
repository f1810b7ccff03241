"""What is checked before any worker on another machine is started: the options it is given, and its cluster.

Nothing here imports Ray.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from typing import Any

from aleator.core.errors import ParameterError
from aleator.engine.options import EngineOptions
from aleator.generate.options import of_loading
from aleator.models.placement import checked_dtype

PATIENCE = 10.0
"""Seconds for a connection to be made."""


def check_load(load: object) -> dict[str, Any]:
    """See that :func:`aleator.load` takes these options, as far as this machine can know.

    How many threads there can be, and whether there is a GPU, only the worker knows.  ParameterError names
    one that is unknown or out of range.
    """
    given = mapped("load", load)
    chosen, _ = of_loading({k: v for k, v in given.items() if k != "progress"}, here=False)
    checked_dtype(chosen.dtype)
    return given


def check_engine(engine: object, **defaults: Any) -> dict[str, Any]:
    """The options of an engine, over defaults; ParameterError if :class:`aleator.Engine` does not take them."""
    return EngineOptions.of({**defaults, **mapped("engine", engine)}).values()


def mapped(name: str, given: object) -> dict[str, Any]:
    """Options that were given by name; ParameterError if they were given in another way."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ParameterError(
            name, f"{name}={given!r:.80}: give a mapping of options and their values"
        )
    return dict(given)


def require_listener(address: str) -> None:
    """OSError if nothing listens at a cluster's "host:port" or "ray://host:port"; others are left to Ray."""
    found = re.fullmatch(r"(?:ray://)?\[?([^\[\]/]+?)\]?:(\d{1,5})", address)
    if found is not None:
        with socket.create_connection((found[1], int(found[2])), timeout=PATIENCE):
            pass
