"""Digests of bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import blake2b


def new_digest(size: int, data: bytes | bytearray | memoryview = b"") -> blake2b:
    """A BLAKE2b hash whose digest has 1 to 64 bytes, and that begins with some data."""
    from hashlib import blake2b  # loads OpenSSL, which a process that needs no digest spares

    return blake2b(data, digest_size=size)
