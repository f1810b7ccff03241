"""The texts of a vocabulary where its file has them: Python objects are made of those that are asked for."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import overload

import numpy as np

import aleator._native as _native


class StoredTexts(Sequence[str]):
    """Strings of a GGUF file, by number; ``stored`` is their native form."""

    __slots__ = ("stored",)

    def __init__(self, stored: _native.StringArray) -> None:
        self.stored = stored

    def __len__(self) -> int:
        return len(self.stored)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self.stored[i] for i in range(len(self))[index]]
        return self.stored[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __reduce__(self) -> tuple[type[list[str]], tuple[list[str]]]:
        return list, (list(self),)  # another process need not have the file


def native_texts(texts: Sequence[str]) -> _native.StringArray:
    """Texts as native code reads them, from their file or a copy: those before the first lone surrogate."""
    if isinstance(texts, StoredTexts):
        return texts.stored
    data = bytearray()
    for text in texts:
        raw = text.encode("utf-8", "surrogatepass")
        data += len(raw).to_bytes(8, "little") + raw
    return _native.StringArray(np.frombuffer(data, np.uint8), 0, len(texts))


class TextNumbers(Mapping[str, int]):
    """The number of each of some strings that all differ."""

    __slots__ = ("_texts",)

    def __init__(self, texts: StoredTexts) -> None:
        self._texts = texts

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __contains__(self, text: object) -> bool:
        return self._find(text) >= 0

    def __getitem__(self, text: str) -> int:
        found = self._find(text)
        if found < 0:
            raise KeyError(text)
        return found

    def _find(self, text: object) -> int:
        return self._texts.stored.find(text) if isinstance(text, str) else -1

    def __reduce__(self) -> tuple[type[dict[str, int]], tuple[dict[str, int]]]:
        return dict, ({text: i for i, text in enumerate(self)},)
