from __future__ import annotations

import lzma
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from aleator.text import Tokenizer, Vocabulary

DATA = Path(__file__).parents[1] / "data" / "vocab"
VOCABULARIES = ("llama-spm", "llama-bpe", "qwen2", "gpt-2")


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tokenizer]:
    """name -> the tokenizer of that llama.cpp vocabulary."""
    directory = tmp_path_factory.mktemp("vocab")

    @cache
    def load(name: str) -> Tokenizer:
        path = directory / f"{name}.gguf"
        path.write_bytes(lzma.decompress((DATA / f"{name}.gguf.xz").read_bytes()))
        return Tokenizer(Vocabulary.from_gguf(path))

    return load
