"""SentencePiece's replacements of characters, such as NFKC's: at each place the longest key is replaced.

A map has the bytes of a table of 32-bit numbers in four bytes, the table, and the replacements, each with a
zero byte at its end.  The table is a double array (Aoe 1989, as Darts-clone has it): a node is an entry, whose
child by the byte c is the entry at its offset XOR c, if that entry is labelled c.
"""

from __future__ import annotations

import re
from functools import cached_property, lru_cache

import numpy as np

from aleator.core.arrays import Int64s
from aleator.core.errors import TokenizerError

PARTS = 1 << 14
"""Parts of texts whose replacements are remembered."""
REMEMBERED = 64
"""Most characters of such a part."""
MOST_BYTES = 256
"""Most bytes of a key or a replacement; NFKC's longest replacement has 33."""
_LABEL, _VALUE, _HAS_VALUE, _WIDE = 1 << 31 | 255, (1 << 31) - 1, 1 << 8, 1 << 9
# ASCII text, and other text with the last ASCII character before it, which a key may join to it.
_PARTS = re.compile(r"[\0-\x7f]+(?![^\0-\x7f])|.[^\0-\x7f]*", re.DOTALL)


class CharacterMap:
    """Replacements of characters."""

    def __init__(self, data: bytes) -> None:
        """Take the bytes of a map whose table ends within them."""
        end = 4 + int.from_bytes(data[:4], "little")
        self._table = np.frombuffer(data[4:end], "<u4").tolist()
        self._texts = data[end:]
        self._remembered = lru_cache(PARTS)(self._replaced)

    def replace(self, text: str) -> str:
        """The text with its replacements.

        Raises:
            TokenizerError: the map leads outside itself, or a key or a replacement is too long.
        """
        made = []
        for part in _PARTS.findall(text) if self._of_ascii else (text,):
            if self._of_ascii and part.isascii():
                made.append(part.translate(self._of_ascii))
            else:
                known = len(part) <= REMEMBERED
                made.append(self._remembered(part) if known else self._replaced(part))
        return "".join(made)

    @cached_property
    def _of_ascii(self) -> dict[int, str]:
        """The replacements of ASCII characters; empty if a key has one after its first, or is too long."""
        table = np.array(self._table, np.int64)
        below = np.arange(len(table)) ^ (table >> 10 << np.where(table & _WIDE, 8, 0))
        labels, seen, nodes = (
            table & _LABEL,
            np.zeros(len(table), bool),
            np.arange(min(1, len(table))),
        )
        depth = 0
        while len(nodes):
            children = [self._children(labels, below[nodes], byte) for byte in range(1, 256)]
            if depth > MOST_BYTES or (depth and any(map(len, children[:127]))):
                return {}
            depth += 1
            nodes = np.unique(np.concatenate(children))
            nodes = nodes[~seen[nodes]]
            seen[nodes] = True
        try:
            return {i: self._replaced(chr(i)) for i in range(128)}
        except TokenizerError:
            return {}

    @staticmethod
    def _children(labels: Int64s, below: Int64s, byte: int) -> Int64s:
        """The children by a byte of the nodes whose children are ``below``."""
        found = below ^ byte
        found = found[found < len(labels)]
        made: Int64s = found[labels[found] == byte]
        return made

    def _replaced(self, part: str) -> str:
        data, made, at = part.encode(), bytearray(), 0
        while at < len(data):
            end, found, node = at, -1, 0
            for i in range(at, len(data)):
                node = self._child(node, data[i])
                if not node:
                    break
                if i - at == MOST_BYTES:
                    raise _damaged(f"has a key of more than {MOST_BYTES} bytes")
                if self._table[node] & _HAS_VALUE:
                    end, found = i + 1, self._entry(self._below(node)) & _VALUE
            if found >= 0:
                stop = self._texts.find(0, found, found + MOST_BYTES + 1)
                if stop < 0:
                    raise _damaged(f"has no replacement of at most {MOST_BYTES} bytes at {found}")
                made += self._texts[found:stop]
                at = end
                continue
            made.append(data[at])
            at += 1
        return made.decode(errors="replace")

    def _child(self, node: int, byte: int) -> int:
        """The child of a node by a byte; 0, the root, if there is none."""
        if not byte:
            return 0
        child = self._below(node) ^ byte
        return child if self._entry(child) & _LABEL == byte else 0

    def _below(self, node: int) -> int:
        """Where the children of a node are, but for their bytes."""
        entry = self._entry(node)
        return node ^ (entry >> 10) << (8 if entry & _WIDE else 0)

    def _entry(self, index: int) -> int:
        if index >= len(self._table):
            raise _damaged(f"leads to {index}, which is outside it")
        entry: int = self._table[index]
        return entry


def _damaged(what: str) -> TokenizerError:
    return TokenizerError(
        f"the text cannot be encoded: the model's table of characters (precompiled_charsmap) {what}"
    )
