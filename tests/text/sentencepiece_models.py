"""Small models of SentencePiece, and maps of characters, as bytes."""

from __future__ import annotations

import struct
from typing import Any

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


def entry(number: int, value: int | float | str | bytes) -> bytes:
    """A field of a protocol buffer."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def piece(text: str, score: float = 0.0, kind: int = NORMAL) -> bytes:
    """A piece; the usual kind is left out, as SentencePiece does."""
    told = entry(1, text) + entry(2, score)
    return entry(1, told if kind == NORMAL else told + entry(3, kind))


SPECIAL = piece("<unk>", kind=UNKNOWN) + piece("<s>", kind=CONTROL) + piece("</s>", kind=CONTROL)


def model(pieces: bytes, trainer: dict[int, Any] | None = None, normaliser: Any = None) -> bytes:
    """A model with the three usual special tokens, and fields by their numbers."""
    parts = [SPECIAL + pieces]
    for number, part in ((2, trainer or {}), (3, normaliser or {})):
        parts.append(entry(number, b"".join(entry(key, value) for key, value in part.items())))
    return b"".join(parts)


BPE = {3: 2}, {3: 1, 4: 0}
"""What trainer and normaliser of Llama 2's kind say."""
BYTES = b"".join(piece(f"<0x{byte:02X}>", kind=BYTE) for byte in range(256))
MERGED = "".join(["▁", "a", "b"]), [("ab", -1.0), ("▁a", -2.0), ("▁ab", -3.0)]


def llama() -> bytes:
    """A model that merges by scores, and spells unknown characters."""
    plain = b"".join(piece(text, -9.0) for text in MERGED[0])
    merged = b"".join(piece(text, score) for text, score in MERGED[1])
    return model(BYTES + plain + merged, *BPE)


UNIGRAM = [
    ("▁", -3.0),
    ("▁the", -2.0),
    ("a", -4.0),
    ("b", -4.5),
    ("ab", -6.0),
    ("▁a", -3.5),
    ("x", -4.0),
]


def unigram(charsmap: bytes = b"") -> bytes:
    """A model that takes the best sum of scores."""
    pieces = b"".join(piece(text, score) for text, score in UNIGRAM)
    return model(pieces, {3: 1}, {2: charsmap} if charsmap else {})


def character_map(replacements: dict[str, str]) -> bytes:
    """A map of characters; each node has 256 entries of its own for its children."""
    texts, offsets = bytearray(), dict[bytes, int]()
    for key, value in replacements.items():
        offsets[key.encode()] = len(texts)
        texts += value.encode() + b"\0"
    nodes = sorted({key[:n] for key in offsets for n in range(len(key) + 1)})
    blocks = {node: 256 * (i + 1) for i, node in enumerate(nodes)}
    table = [0] * (256 * (len(nodes) + 1))
    for node, block in blocks.items():
        at = 0 if not node else blocks[node[:-1]] ^ node[-1]
        label = node[-1] if node else 0
        table[at] = (block ^ at) << 10 | (node in offsets) << 8 | label
        if node in offsets:
            table[block] = 1 << 31 | offsets[node]
    data = struct.pack(f"<{len(table)}I", *table)
    return struct.pack("<I", len(data)) + data + texts
