"""The address of a Ray cluster: whether anybody listens there."""

from __future__ import annotations

import re
import socket

PATIENCE = 10.0
"""Seconds for a connection to be made."""


def require_listener(address: str) -> None:
    """See that something listens where a cluster should be.

    Args:
        address: "host:port" or "ray://host:port"; others ("auto", "local") are left to Ray.

    Raises:
        OSError: Nothing listens there.
    """
    found = re.fullmatch(r"(?:ray://)?\[?([^\[\]/]+?)\]?:(\d{1,5})", address)
    if found is not None:
        with socket.create_connection((found[1], int(found[2])), timeout=PATIENCE):
            pass
