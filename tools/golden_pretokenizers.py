"""llama.cpp's ids for every way to cut text into words, over GPT-2's vocabulary.

    python tools/golden_pretokenizers.py                 writes tests/data/pretokenizers.npz
    python tools/golden_pretokenizers.py --fuzz 10000 [FILE.gguf ...]

A vocabulary's ids show where a text was cut.  Each name in tests/data/pretokenizers.npz is one way of
aleator.text.pretokenizers, and replaces "gpt-2" in GPT-2's vocabulary (tests/data/vocab).  ``--fuzz``
compares random strings live: with that vocabulary under every name, or with the files that are given.  Needs
llama-cpp-python (the extra ``bench``).
"""

from __future__ import annotations

import argparse
import lzma
import random
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aleator.text.pretokenizers import PRE_TOKENIZERS
from aleator.text.tokenizer import Tokenizer
from aleator.text.vocabulary import Vocabulary

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


def fuzz(path: Path, n: int, seed: int) -> int:
    """How many of ``n`` strings have different ids here."""
    from llama_peer import token_ids, vocabulary

    vocab, tokenizer = vocabulary(path), Tokenizer(Vocabulary.from_gguf(path))
    wrong = 0
    for text in strings(n, seed):
        expected, got = token_ids(vocab, text), list(tokenizer.encode(text, add_special=False))
        if got != expected:
            wrong += 1
            if wrong <= 3:
                print(f"  {text!r}: {expected} {got}", file=sys.stderr)
    return wrong


def main() -> int:
    from llama_peer import save, token_ids, vocabulary

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--fuzz", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    data = lzma.decompress(VOCABULARY.read_bytes())
    arrays: dict[str, npt.NDArray[Any]] = {}
    failed = 0
    for file in args.files:
        wrong = fuzz(file, args.fuzz, args.seed)
        failed += wrong
        print(f"{file.name:32} {args.fuzz} strings, {wrong} differ", flush=True)
    for name in [] if args.files else distinct():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "vocab.gguf"
            path.write_bytes(named(data, name))
            if args.fuzz:
                wrong = fuzz(path, args.fuzz, args.seed)
                failed += wrong
                print(f"{name:32} {args.fuzz} strings, {wrong} differ", flush=True)
                continue
            vocab = vocabulary(path)
            found = [token_ids(vocab, text) for text in strings(60, 5)]
        arrays[name] = np.array([i for ids in found for i in [*ids, 65535]], np.uint16)
    if arrays:
        save(OUT, arrays)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
