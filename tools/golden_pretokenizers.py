"""llama.cpp's ids for every way to cut text into words, over GPT-2's vocabulary.

    python tools/golden_pretokenizers.py                 writes tests/data/pretokenizers.npz
    python tools/golden_pretokenizers.py --fuzz 10000 [FILE.gguf ...]

A vocabulary's ids show where a text was cut.  Each name in tests/data/pretokenizers.npz is one way of
aleator.text.pretokenizers, and stands in GPT-2's vocabulary (tests/data/vocab) in place of "gpt-2".  ``--fuzz``
compares random strings live: with that vocabulary under every name, or with the files that are given.  Needs
llama-cpp-python (the extra ``bench``).
"""

from __future__ import annotations

import argparse
import ctypes
import lzma
import sys
import tempfile
from pathlib import Path

import llama_cpp
import numpy as np
import numpy.typing as npt
from pretokenizer_texts import OUT, VOCABULARY, distinct, named, strings

from aleator.text.tokenizer import Tokenizer
from aleator.text.vocabulary import Vocabulary


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator,unused-ignore]
def _quiet(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    pass


class LlamaCpp:
    """A vocabulary of llama.cpp."""

    def __init__(self, path: Path) -> None:
        llama_cpp.llama_log_set(_quiet, None)
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)

    def ids(self, text: str) -> list[int]:
        data = text.encode()
        out = (llama_cpp.llama_token * (len(data) + 8))()
        n = llama_cpp.llama_tokenize(self.vocab, data, len(data), out, len(out), False, False)
        return list(out[:n])

    def close(self) -> None:
        llama_cpp.llama_model_free(self.model)


def fuzz(path: Path, n: int, seed: int) -> int:
    """How many of ``n`` strings have other ids here."""
    llama, tokenizer = LlamaCpp(path), Tokenizer(Vocabulary.from_gguf(path))
    wrong = 0
    for text in strings(n, seed):
        expected, got = llama.ids(text), list(tokenizer.encode(text, add_special=False))
        if got != expected:
            wrong += 1
            if wrong <= 3:
                print(f"  {text!r}: {expected} {got}", file=sys.stderr)
    llama.close()
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--fuzz", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    data = lzma.decompress(VOCABULARY.read_bytes())
    arrays: dict[str, npt.NDArray[np.uint16]] = {}
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
            llama = LlamaCpp(path)
            found = [llama.ids(text) for text in strings(60, 5)]
            llama.close()
        arrays[name] = np.array([i for ids in found for i in [*ids, 65535]], np.uint16)
    if arrays:
        np.savez_compressed(OUT, allow_pickle=False, **arrays)
        print(f"{OUT}: {OUT.stat().st_size / 1024:.1f} KiB, {len(arrays)} ways")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
