"""Digests of bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import blake2b


def new_digest(size: int, data: bytes | bytearray | memoryview = b"") -> blake2b:
    """A BLAKE2b hash with a digest of 1 to 64 bytes, already fed with ``data``."""
    from hashlib import blake2b  # loads OpenSSL, which only digests need

    return blake2b(data, digest_size=size)
