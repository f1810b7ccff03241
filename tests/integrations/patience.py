"""Ray's nodes on a busy machine."""

from __future__ import annotations

import time
from typing import Any

from ray._private import services

PATIENCE = 600.0
"""Seconds that a node may take to come up."""


def wait_for_nodes_longer() -> None:
    """Wait ``PATIENCE`` seconds for each node that is started in this process.

    Ray gives a node 30 s, which no setting changes: with other programs on both cores it is not always enough.
    """
    plain = services.get_node

    def patient(*given: Any) -> Any:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return plain(*given)
            except RuntimeError:
                if time.monotonic() > end:
                    raise
                time.sleep(1)

    services.get_node = patient
