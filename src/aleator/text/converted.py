"""Opens a Hugging Face directory as the GGUF file that it would be."""

from __future__ import annotations

import os
from pathlib import Path

from aleator.models.conversion.convert import ConvertedDirectory
from aleator.models.directory import Directory
from aleator.models.score_head import ANSWERS
from aleator.text.gguf_fields import vocabulary_fields
from aleator.text.vocabulary import Vocabulary


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
    vocab = Vocabulary.from_directory(path)
    n_vocab = directory.config.n_vocab
    fields, left_out = vocabulary_fields(vocab, path, directory.architecture.name, n_vocab)
    answers = [vocab.ids.get(each, n_vocab) for each in ANSWERS]
    ranks = vocab.rerank_template is not None and max(answers) < n_vocab
    made = ConvertedDirectory(directory, fields, answers if ranks else ())
    made.left_out += left_out
    return made
