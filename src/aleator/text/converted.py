"""Opens a Hugging Face directory as the GGUF file that it would be."""

from __future__ import annotations

import os
from pathlib import Path

from aleator.models.conversion.convert import ConvertedDirectory
from aleator.models.directory import Directory
from aleator.text.gguf_fields import vocabulary_fields


def open_converted(path: str | os.PathLike[str]) -> ConvertedDirectory:
    """Open a directory; ``Quantisation(open_converted(path), None).write(out)`` writes the GGUF file.

    Tensors are read and converted when they are asked for, one after the other.

    Args:
        path: the directory: config.json, tokenizer.json, and safetensors.

    Raises:
        ModelNotFound, FileFormatError: a file is missing or damaged, or a tensor is missing or of another shape
            than config.json asks for.
        UnsupportedModel: an architecture, a tokenizer or a feature that is not supported, here or in GGUF
            files.
    """
    path = Path(path)
    directory = Directory(path)
    fields, left_out = vocabulary_fields(
        path, directory.architecture.name, directory.config.n_vocab
    )
    made = ConvertedDirectory(path, fields)
    made.left_out += left_out
    return made
