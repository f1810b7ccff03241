"""Seeds from the system, where none is given."""

from __future__ import annotations

import os


def fresh_seed(below: int) -> int:
    """A random number in [0, below) from the system's source; the module ``secrets`` would load OpenSSL.

    With ``below`` at most 2^64 no number is likelier than another by more than 2^-64 of its probability.
    """
    return int.from_bytes(os.urandom(16), "little") % below
