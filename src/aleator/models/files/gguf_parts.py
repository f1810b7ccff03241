"""Models that are split into several GGUF files, as llama.cpp's ``gguf-split`` makes them.

The first file, ``NAME-00001-of-0000N.gguf``, has all metadata; each of them has a part of the tensors, and
says in ``split.no`` (from 0), ``split.count`` and ``split.tensors.count`` which part it is and of what.
"""

from __future__ import annotations

import re
from pathlib import Path

from aleator.models.files.gguf import GGUFFile

_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
MOST = 99_999
"""Parts that the digits in a name can count."""


def open_parts(path: Path) -> GGUFFile:
    """Open a GGUF file, with the tensors of the others of its model if it is the first of several."""
    first = GGUFFile(path)
    count = first.fields.integer("split.count", 0, MOST, default=0)
    if count <= 1:
        return first
    named = _NAME.fullmatch(path.name)
    if named is None or int(named[3]) != count:
        raise first.fields.error(
            "split.count",
            f"the model is split into {count} files, whose names must end in -00001-of-{count:05}.gguf "
            f"to -{count:05}-of-{count:05}.gguf",
        )
    number = first.fields.integer("split.no", 0, count - 1)
    if number != 0:
        raise first.fields.error(
            "split.no",
            f"this is part {number + 1} of {count}: give the first, {named[1]}-00001-of-{count:05}.gguf",
        )
    for part in range(2, count + 1):
        file = GGUFFile(path.with_name(f"{named[1]}-{part:05}-of-{count:05}.gguf"))
        _check_number(file, part, count)
        first.take(file)
    total = first.fields.integer("split.tensors.count", 0, 1 << 31, default=len(first.tensors))
    if total != len(first.tensors):
        raise first.fields.error(
            "split.tensors.count",
            f"the model has {total} tensors, its {count} files {len(first.tensors)}",
        )
    return first


def _check_number(file: GGUFFile, part: int, count: int) -> None:
    """Refuse a file that says that it is another part than its name says."""
    told = file.fields.integer("split.no", 0, MOST), file.fields.integer("split.count", 0, MOST)
    if told != (part - 1, count):
        raise file.fields.error(
            "split.no",
            f"the file says that it is part {told[0] + 1} of {told[1]}, its name that it is part {part} of "
            f"{count}",
        )
