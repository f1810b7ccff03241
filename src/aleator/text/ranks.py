"""Vocabularies of tiktoken: the bytes of each token in base64, and its rank, which is its id, a line each."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path

from aleator.core.errors import FileFormatError
from aleator.models.files.mapping import map_file

MOST_BYTES = 1 << 26  # of a file; one with 163,584 tokens has 3 MB
MOST_OF_TOKEN = 128  # bytes
MOST_CUTS = 8  # of a token into two others, on average; published ones have 2 to 3


def read(path: Path) -> tuple[list[bytes], list[tuple[bytes, bytes]]]:
    """The tokens by id, and the merges that make them, best first; FileFormatError for a damaged file.

    tiktoken merges whatever makes the token of the lowest rank, leftmost first.
    """
    data = map_file(path)
    if data.size > MOST_BYTES:
        raise FileFormatError(path, f"{data.size} bytes; at most {MOST_BYTES} are read")
    ranks: dict[bytes, int] = {}
    for i, line in enumerate(bytes(data).split(b"\n")):
        if not line.strip():
            continue
        try:
            text, number = line.split()
            token, rank = base64.b64decode(text, validate=True), int(number)
        except (ValueError, binascii.Error):
            token, rank = b"", -1
        if not 0 < len(token) <= MOST_OF_TOKEN or rank != len(ranks) or token in ranks:
            raise FileFormatError(
                path,
                f"line {i + 1}, {line!r:.60}, is not a new token of 1 to {MOST_OF_TOKEN} bytes in base64 with "
                f"the rank {len(ranks)}",
            )
        ranks[token] = rank
    return [*ranks], _merges(path, ranks)


def _merges(path: Path, ranks: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Each two tokens that make a third one, in the order of these."""
    made: list[tuple[bytes, bytes]] = []
    for token in ranks:
        cuts = ((token[:at], token[at:]) for at in range(1, len(token)))
        made += [(left, right) for left, right in cuts if left in ranks and right in ranks]
        if len(made) > MOST_CUTS * len(ranks):
            raise FileFormatError(
                path, f"more than {MOST_CUTS} pairs of tokens for each that they make"
            )
    return made
