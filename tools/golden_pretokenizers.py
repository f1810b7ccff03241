"""llama.cpp's ids for every way to cut text into words, and tiktoken's, over GPT-2's vocabulary.

    python tools/golden_pretokenizers.py        writes tests/data/pretokenizers.npz

A vocabulary's ids show where a text was cut.  Each name in tests/data/pretokenizers.npz is one way of
aleator.text.pretokenizers, and replaces "gpt-2" in GPT-2's vocabulary (tests/data/vocab).  Needs
llama-cpp-python (the extra ``bench``) and tiktoken.
"""

from __future__ import annotations

import lzma
import random
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aleator.text.pretokenizers import PRE_TOKENIZERS
from aleator.text.vocabulary import Vocabulary

MOONSHOT = "|".join((
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
))  # fmt: skip
"""The expression of tokenization_kimi.py."""
CASES = "fooBarBAZ'LLx ÉCOLEécole ǅungla 中Aa文b' I'\u017f x\u0301Y\u0301y ªA ʰB 中's \u00a0\u3000中 ½² Ⅻa"
"""Where letters with cases, Han characters and marks meet."""
VOCABULARY = Path("tests/data/vocab/gpt-2.gguf.xz")
OUT = Path("tests/data/pretokenizers.npz")
PIECES = (
    "a", "B", "the", "Hello", "HTTPServer", "don't", "I'LL", "we've", "it's", " ", "  ", "\t", "\n", "\r\n",
    "\n\n", "1", "12", "123", "1234567", "3.14", "x=1", "()", "{}", "//", "...", "!?", "--", "'", '"', "_",
    "ß", "é", "Ünï", "ΑΒγ", "Привет", "мир", "你好", "世界", "日本語", "カタカナ", "ひらがな",
    "한국어", "नमस्ते", "ไทย", "العربية",
    "שלום", "😀", "👍🏽", "e\u0301", "\u00a0", "\u3000", 
    "½", "²", "٣", "Ⅻ", "€", "™", "·", "。", "，", "|", "`", "$", "~",
)  # fmt: skip


def named(data: bytes, name: str) -> bytes:
    """A GGUF file of a vocabulary with another pre-tokenizer; it must have no tensors."""
    key = b"tokenizer.ggml.pre" + struct.pack("<I", 8)
    at = data.index(key) + len(key)
    (size,) = struct.unpack_from("<Q", data, at)
    value = struct.pack("<Q", len(name)) + name.encode()
    return data[:at] + value + data[at + 8 + size :]


def strings(n: int, seed: int) -> Iterator[str]:
    """Texts of words, numbers, marks and spaces of many scripts."""
    chosen = random.Random(seed)
    for _ in range(n):
        yield "".join(chosen.choice(PIECES) for _ in range(chosen.randint(1, 12)))


def distinct() -> list[str]:
    """One name for every way."""
    ways: dict[object, str] = {}
    for name, way in PRE_TOKENIZERS.items():
        ways.setdefault(way, name)
    return list(ways.values())


def ranked(vocab: Vocabulary) -> dict[bytes, int]:
    """The ids of a byte-level vocabulary's tokens, in order, but for control tokens."""
    return {vocab.token_bytes(i): i for i in range(len(vocab)) if not vocab.is_special(i)}


def by_tiktoken(vocab: Vocabulary) -> list[list[int]]:
    """tiktoken's ids, with Moonshot's expression."""
    import tiktoken

    made = tiktoken.Encoding("", pat_str=MOONSHOT, mergeable_ranks=ranked(vocab), special_tokens={})
    return [made.encode_ordinary(text) for text in (CASES, *strings(60, 8))]


def main() -> None:
    from llama_peer import save, token_ids, vocabulary

    data = lzma.decompress(VOCABULARY.read_bytes())
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name in distinct():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "vocab.gguf"
            path.write_bytes(named(data, name))
            vocab = vocabulary(path)
            found = [token_ids(vocab, text) for text in strings(60, 5)]
            own = Vocabulary.from_gguf(path)
        arrays[name] = np.array([i for ids in found for i in [*ids, 65535]], np.uint16)
    arrays["tiktoken"] = np.array([i for ids in by_tiktoken(own) for i in [*ids, 65535]], np.uint16)
    save(OUT, arrays)


if __name__ == "__main__":
    main()
