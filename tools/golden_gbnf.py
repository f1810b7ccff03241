"""Write tests/golden/grammar/gbnf.json: llama.cpp's grammar masks, through llama-cpp-python.

    python tools/golden_gbnf.py

For each grammar of tests/data/grammars, some more, and each vocabulary of tests/data/vocab: walks of tokens
that llama.cpp allows, and for every step the number of tokens allowed and a digest of the mask (bit
id % 32 of word id // 32).  Lazy grammars record when the mask is no longer full.  Nothing here comes from
Aleator.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import json
import lzma
import random
import tempfile
from pathlib import Path
from typing import Any

import llama_cpp as llama
import numpy as np
from golden_llama import CANDIDATE, CandidateArray, _apply
from numpy.typing import NDArray

ROOT = Path(__file__).parent.parent
OUT = ROOT / "tests" / "golden" / "grammar" / "gbnf.json"
STEPS = 10
# Token terminals, whose ids depend on the vocabulary.  After "halfway"'s first token the mask also lets through
# tokens that begin in a character and end in the terminal, on which llama.cpp's accept then ends the process.
TOKENS = {
    "llama-bpe": {
        "tokens": '<|begin_of_text|> !<|eot_id|> ("x" <[128006]>)+ !<[15]>{2} <[13]>',
        "halfway": "<|begin_of_text|> [a-z] !<[13]>",
    },
    "llama-spm": {
        "tokens": "<s> (<[259]> [a-z] <[13]> | !<[13]> !<[259]>)+",
        "halfway": '<s> "h" [a-z] (<[7251]> | <[263]>)',
    },
}
# name -> vocabulary, patterns, tokens, grammar, tokens of the text
LAZY: dict[str, tuple[str, list[str], list[int], str, str]] = {
    "group": (
        "llama-bpe", [r"(?:<think>[\s\S]*?</think>\s*)?(\{[\s\S]*)"], [],
        'root ::= "{" [a-z ]* "}" [0-9]*', "<think>so b it is</think> {abc def}12",
    ),
    "whole match": (
        "llama-bpe", [r"<tool>([\s\S]*)"], [], 'root ::= "<tool>" [a-z]+', "call <tool>abc",
    ),
    "full": ("llama-spm", [r"^[\s\S]*?(\[[\s\S]*)$"], [], 'root ::= "[" [0-9,]* "]"', "so: [1,2]"),
    "token": ("llama-spm", [], [29912], 'root ::= "{" [a-z ]* "}"', "hello{abc}"),
    "words": ("llama-spm", [r"\bfoo\b", r"ba+r$"], [], "root ::= [a-z ]+", "a food of foo and baar"),
}  # fmt: skip


class Model:
    """A vocabulary in llama.cpp."""

    def __init__(self, name: str, folder: str) -> None:
        path = Path(folder) / f"{name}.gguf"
        path.write_bytes(lzma.decompress((ROOT / f"tests/data/vocab/{name}.gguf.xz").read_bytes()))
        parameters = llama.llama_model_default_params()
        parameters.vocab_only = True
        self.model = llama.llama_model_load_from_file(str(path).encode(), parameters)
        self.vocab = llama.llama_model_get_vocab(self.model)
        self.n = llama.llama_vocab_n_tokens(self.vocab)
        self.candidates = np.zeros(self.n, CANDIDATE)
        self.candidates["id"] = np.arange(self.n)

    def tokenize(self, text: str) -> list[int]:
        tokens = (ctypes.c_int32 * 256)()
        raw = text.encode()
        n = llama.llama_tokenize(self.vocab, raw, len(raw), tokens, 256, False, True)
        return list(tokens[:n])

    def mask(self, grammar: Any) -> NDArray[np.bool_]:
        row = self.candidates.copy()
        _apply(grammar, ctypes.byref(CandidateArray(row.ctypes.data, self.n, -1, False)))
        allowed: NDArray[np.bool_] = row["logit"] == 0
        return allowed

    def is_end(self, token: int) -> bool:
        return bool(llama.llama_vocab_is_eog(self.vocab, token))


def record(mask: NDArray[np.bool_]) -> list[Any]:
    padded = np.zeros(-(-len(mask) // 32) * 32, bool)
    padded[: len(mask)] = mask
    words = np.packbits(padded, bitorder="little").tobytes()
    return [int(mask.sum()), hashlib.blake2b(words, digest_size=8).hexdigest()]


def walk(model: Model, grammar: Any, rng: random.Random, steps: int) -> dict[str, Any]:
    """Tokens and, before each and after the last, the mask.  Half of the steps prefer long tokens."""
    tokens: list[int] = []
    masks = []
    for _ in range(steps):
        mask = model.mask(grammar)
        masks.append(record(mask))
        ids = [t for t in np.flatnonzero(mask).tolist() if not model.is_end(t)]
        if not ids:
            break
        token = rng.choice(ids)
        if rng.random() < 0.5:
            few = rng.sample(ids, min(len(ids), 12))
            token = max(few, key=lambda t: len(llama.llama_vocab_get_text(model.vocab, t)))
        tokens.append(token)
        llama.llama_sampler_accept(grammar, token)
    masks.append(record(model.mask(grammar)))
    return {"tokens": tokens, "masks": masks}


def lazy(model: Model, case: tuple[str, list[str], list[int], str, str]) -> dict[str, Any]:
    name, patterns, triggers, text, sentence = case
    grammar = llama.llama_sampler_init_grammar_lazy_patterns(
        model.vocab, text.encode(), b"root",
        (ctypes.c_char_p * len(patterns))(*[p.encode() for p in patterns]), len(patterns),
        (ctypes.c_int32 * len(triggers))(*triggers), len(triggers),
    )  # fmt: skip
    masks = [record(model.mask(grammar))]
    tokens = model.tokenize(sentence)
    for token in tokens:
        llama.llama_sampler_accept(grammar, token)
        masks.append(record(model.mask(grammar)))
    return {
        "vocabulary": name, "grammar": text, "trigger_patterns": patterns,
        "trigger_tokens": triggers, "tokens": tokens, "masks": masks,
    }  # fmt: skip


def main() -> None:
    llama.llama_log_set(_quiet, None)
    grammars = {
        p.stem: p.read_text() for p in sorted((ROOT / "tests/data/grammars").glob("*.gbnf"))
    }
    cases: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        models = {n: Model(n, folder) for n in ("llama-bpe", "llama-spm", "qwen2", "gpt-2")}
        for vocabulary, model in models.items():
            texts = dict(grammars)
            for name, text in TOKENS.get(vocabulary, {}).items():
                texts[name] = f"root ::= {text}"
            for name, text in texts.items():
                for seed in range(2):
                    grammar = llama.llama_sampler_init_grammar(model.vocab, text.encode(), b"root")
                    if not grammar:
                        raise SystemExit(f"llama.cpp refuses {name} with {vocabulary}")
                    rng = random.Random(f"{name} {vocabulary} {seed}")
                    steps = walk(model, grammar, rng, 1 if name == "halfway" else STEPS)
                    where = {} if name in grammars else {"text": text}
                    cases.append({"vocabulary": vocabulary, "grammar": name, **where, **steps})
                    llama.llama_sampler_free(grammar)
        lazies = {name: lazy(models[case[0]], case) for name, case in LAZY.items()}
    OUT.parent.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    slow = ",\n".join(f"{json.dumps(n)}: {json.dumps(c)}" for n, c in lazies.items())
    version = importlib.metadata.version("llama-cpp-python")
    head = f'"generator": "tools/golden_gbnf.py, llama-cpp-python {version} (llama.cpp 0.5.0)"'
    OUT.write_text(f'{{{head},\n"walks": [\n{lines}\n],\n"lazy": {{\n{slow}\n}}}}\n')
    print(len(cases), "walks,", sum(len(c["masks"]) for c in cases), "masks")


@llama.llama_log_callback  # type: ignore[untyped-decorator]
def _quiet(level: int, text: bytes, data: Any) -> None:
    """Says nothing."""


if __name__ == "__main__":
    main()
