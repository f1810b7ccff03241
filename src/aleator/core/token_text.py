"""Tokens in readable form."""

from __future__ import annotations


def readable(piece: bytes) -> str:
    """A token's bytes in quotes: as text if they are UTF-8, else as hexadecimal escapes."""
    try:
        return repr(piece.decode("utf-8"))
    except UnicodeDecodeError:
        return repr(piece)
