"""Whether the files of a model's weights are still as they were when it was loaded.

Weights are mapped: what is written into a file changes them, and to read what was cut off ends the process.  A
file that was deleted, or that another took the place of, stays what it was for whoever has mapped it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from aleator.models.files.gguf import PART

State = tuple[int, int, int, int]


class MappedFiles:
    """The files with the weights of a model.

    Args:
        path: a GGUF file, the first of a split model, or a Hugging Face directory.
    """

    def __init__(self, path: Path) -> None:
        states = {each: _state(each) for each in _files_of(path)}
        self._states = {each: state for each, state in states.items() if state is not None}

    def changed(self) -> bool:
        """Whether one has been written to since this object was made."""
        return any(_written(was, _state(path)) for path, was in self._states.items())


def _written(was: State, now: State | None) -> bool:
    return now is not None and was[:2] == now[:2] and was != now


def _state(path: Path) -> State | None:
    """Which file it is, and when and how it was last written to; None: it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _files_of(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(path.glob("*.safetensors"))
    named = re.fullmatch(PART, path.name)
    if named is None:
        return [path]
    return [
        path.with_name(f"{named[1]}-{n:05}-of-{named[3]}.gguf") for n in range(1, int(named[3]) + 1)
    ]
