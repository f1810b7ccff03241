"""Grammars over bytes, and whether they take a text."""

from __future__ import annotations

from typing import ClassVar

from aleator.core import host


class Bytes:
    """A vocabulary of the bytes."""

    eog = frozenset({256})
    ids: ClassVar[dict[str, int]] = {}

    def __len__(self) -> int:
        return 257

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""


BYTES = Bytes()


def takes(grammar: host.Constraint, text: str) -> bool:
    grammar.reset()
    for byte in text.encode():
        if not grammar.allows(byte):
            return False
        grammar.accept(byte)
    return grammar.complete
