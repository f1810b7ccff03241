"""Seeds from the system, for callers that give none."""

from __future__ import annotations

import os


def fresh_seed(below: int) -> int:
    """Return a random number in [0, below) from the system's source; the module ``secrets`` would load OpenSSL.

    With ``below`` at most 2^64, probabilities differ by at most 2^-64 of themselves.
    """
    return int.from_bytes(os.urandom(16), "little") % below
