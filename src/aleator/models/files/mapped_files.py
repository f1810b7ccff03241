"""The mapped files that a model's weights are in: what is written into one changes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aleator.core.errors import FileFormatError
from aleator.models.files.mapping import Mapped


class MappedFiles:
    """The files that some arrays lie in.

    Args:
        arrays: views of files that were mapped, and others.
    """

    def __init__(self, arrays: Iterable[NDArray[Any]]) -> None:
        found = [_file_of(each) for each in arrays]
        self._files = list({id(each): each for each in found if each is not None}.values())

    def guard(self) -> None:
        """See :meth:`Mapped.guard`; who computes calls :meth:`check` afterwards."""
        for each in self._files:
            each.guard()

    def changed(self) -> bool:
        """Whether one has been written to since it was mapped, or could not be read."""
        return any(each.changed() for each in self._files)

    def check(self) -> None:
        """Raise FileFormatError if one has been written to, or could not be read."""
        for each in self._files:
            if each.changed():
                raise FileFormatError(
                    each.path,
                    "it was written to, or can no longer be read, since the model was loaded: load it again",
                )


def _file_of(array: NDArray[Any]) -> Mapped | None:
    """The file that an array lies in; None: it is in memory of its own."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    owner = getattr(base, "obj", None)
    return owner if isinstance(owner, Mapped) else None
