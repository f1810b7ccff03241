"""Records what llama.cpp does with grammars, so that tests need no llama.cpp: tests/golden/grammar.

    python tools/golden_grammar.py gbnf         masks: gbnf.json
    python tools/golden_grammar.py token_first  tokens of llama.cpp's common layer: token_first.json

Needs llama-cpp-python (the extra ``bench``).  Nothing here comes from Aleator.

gbnf: for each grammar of tests/data/grammars, some more, and each vocabulary of tests/data/vocab: walks of
tokens that llama.cpp allows, and for every step the number of tokens allowed and a digest of the mask (bit
id % 32 of word id // 32).  Lazy grammars record when the mask is no longer full.

token_first: llama.cpp's own samplers are driven as common_sampler_sample and common_sampler_accept
(llama.cpp/common/sampling.cpp) drive them: the chain chooses, and the grammar tests that token.  If it is
refused, the grammar masks all logits and the chain chooses again; then both accept.  Only the chain accepts
prompt tokens.  A case holds the tokens until the end of the generation or of the case, and how many first
choices were refused.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import lzma
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import llama_cpp as llama
import numpy as np
from golden_llama import CANDIDATE, MODEL, CandidateArray, Reference, _apply
from golden_rows import row
from llama_peer import VERSION, token_ids, vocabulary
from numpy.typing import NDArray
from run_report import parser

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "tests" / "golden" / "grammar"
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
    """A vocabulary of tests/data/vocab in llama.cpp, or the bundled model's."""

    def __init__(self, name: str, folder: str) -> None:
        path = MODEL if name == "bundled" else Path(folder) / f"{name}.gguf"
        if name != "bundled":
            packed = ROOT / f"tests/data/vocab/{name}.gguf.xz"
            path.write_bytes(lzma.decompress(packed.read_bytes()))
        self.vocab = vocabulary(path)
        self.n = llama.llama_vocab_n_tokens(self.vocab)
        self.candidates = np.zeros(self.n, CANDIDATE)
        self.candidates["id"] = np.arange(self.n)

    def mask(self, grammar: Any) -> NDArray[np.bool_]:
        row = self.candidates.copy()
        masked(grammar, row)
        allowed: NDArray[np.bool_] = row["logit"] == 0
        return allowed

    def is_end(self, token: int) -> bool:
        return bool(llama.llama_vocab_is_eog(self.vocab, token))


def masked(grammar: Any, entries: NDArray[Any]) -> None:
    """Mask candidates in place by a grammar."""
    array = CandidateArray(entries.ctypes.data, len(entries), -1, False)
    _apply(ctypes.cast(grammar, ctypes.c_void_p), ctypes.addressof(array))


def lazy_grammar(vocab: Any, text: str, root: str, patterns: list[str], tokens: list[int]) -> Any:
    """A grammar that waits for a pattern or a token."""
    return llama.llama_sampler_init_grammar_lazy_patterns(
        vocab, text.encode(), root.encode(),
        (ctypes.c_char_p * max(1, len(patterns)))(*[p.encode() for p in patterns]), len(patterns),
        (llama.llama_token * max(1, len(tokens)))(*tokens), len(tokens),
    )  # fmt: skip


def record(mask: NDArray[np.bool_]) -> list[Any]:
    padded = np.zeros(-(-len(mask) // 32) * 32, bool)
    padded[: len(mask)] = mask
    words = np.packbits(padded, bitorder="little").tobytes()
    return [int(mask.sum()), hashlib.blake2b(words, digest_size=8).hexdigest()]


def walk(model: Model, grammar: Any, rng: random.Random, steps: int) -> dict[str, Any]:
    """Tokens, and the masks before each and after the last.  Half of the steps prefer long tokens."""
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
    grammar = lazy_grammar(model.vocab, text, "root", patterns, triggers)
    masks = [record(model.mask(grammar))]
    tokens = token_ids(model.vocab, sentence, special=True)
    for token in tokens:
        llama.llama_sampler_accept(grammar, token)
        masks.append(record(model.mask(grammar)))
    return {
        "vocabulary": name, "grammar": text, "trigger_patterns": patterns,
        "trigger_tokens": triggers, "tokens": tokens, "masks": masks,
    }  # fmt: skip


def gbnf(out: Path) -> None:
    """Walk through every grammar over every vocabulary."""
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
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    slow = ",\n".join(f"{json.dumps(n)}: {json.dumps(c)}" for n, c in lazies.items())
    head = f'"generator": "tools/golden_grammar.py, {VERSION} (llama.cpp 0.5.0)"'
    out.write_text(f'{{{head},\n"walks": [\n{lines}\n],\n"lazy": {{\n{slow}\n}}}}\n')
    print(len(cases), "walks,", sum(len(c["masks"]) for c in cases), "masks")


GRAMMARS: dict[str, dict[str, Any]] = {
    "words": {"grammar": 'root ::= [A-Z] [a-z]+ (" " [a-z]+){0,30} "."'},
    "string": {"grammar": r'root ::= "\"" [^"\\\x00-\x1F]{0,400} "\"" [ \n]'},
    "list": {
        "grammar": 'root ::= "[" item (", " item){0,12} "]"\nitem ::= [0-9]+ | "\\"" [a-zA-Z ]+ "\\"" | root'
    },
    "free": {"grammar": "start ::= [^q]*", "root": "start"},
    "after a full stop": {
        "grammar": 'root ::= "." [a-f \\n]*', "trigger_patterns": [r"[\s\S]*?(\.[\s\S]*)"],
    },
    "after a token": {"grammar": 'root ::= "." [a-z ]*', "trigger_tokens": True},
}  # fmt: skip
DEFAULT: list[tuple[str, dict[str, Any]]] = [
    ("penalties", {"penalty_last_n": 64, "repetition_penalty": 1.1}), ("top_k", {"top_k": 40}),
    ("top_p", {"top_p": 0.95}), ("min_p", {"min_p": 0.05}), ("temperature", {"temperature": 0.8}),
]  # fmt: skip
CHAINS: list[list[tuple[str, dict[str, Any]]]] = [
    [*DEFAULT, ("dist", {"seed": 5})],
    [("temperature", {"temperature": 1.5}), ("dist", {"seed": 6})],
    [("xtc", {"xtc_probability": 0.5, "xtc_threshold": 0.02, "seed": 3}), ("dist", {"seed": 3})],
    [
        ("temperature", {"temperature": 1.0}),
        ("mirostat", {"mirostat_tau": 3.0, "mirostat_eta": 0.1, "seed": 8}),
    ],
    [("mirostat_v2", {"mirostat_tau": 4.0, "mirostat_eta": 0.2, "seed": 9})],
    [("penalties", {"penalty_last_n": 8, "frequency_penalty": 3.0}), ("greedy", {})],
    [
        ("top_k", {"top_k": 100}),
        ("adaptive_p", {"adaptive_target": 0.3, "adaptive_decay": 0.9, "seed": 4}),
    ],
]
PROMPT = (5, 17, 5, 300)


class CommonSampler:
    """A chain and a grammar, driven as in llama.cpp's common layer."""

    def __init__(
        self, chain: Any, grammar: dict[str, Any], trigger: int, n: int, vocab: Any
    ) -> None:
        self.chain = Reference(chain, n, vocab)
        text, root = grammar["grammar"], grammar.get("root", "root")
        patterns = list(grammar.get("trigger_patterns", ()))
        tokens = [trigger] if "trigger_tokens" in grammar else []
        if patterns or tokens:
            self.grammar = lazy_grammar(vocab, text, root, patterns, tokens)
        else:
            self.grammar = llama.llama_sampler_init_grammar(vocab, text.encode(), root.encode())
        if not self.grammar:
            raise ValueError(f"llama.cpp refuses {grammar}")
        self.refused = 0

    def sample(self, logits: Any) -> int:
        entries, place, _ = self.chain.apply(logits)
        token = int(entries["id"][place])
        single = np.array([(token, 1.0, 0.0)], CANDIDATE)
        masked(self.grammar, single)
        if single["logit"][0] == -np.inf:
            self.refused += 1
            every = np.zeros(len(logits), CANDIDATE)
            every["id"] = np.arange(len(logits))
            every["logit"] = logits
            masked(self.grammar, every)
            entries, place, _ = self.chain.apply(every["logit"].copy())
            token = int(entries["id"][place])
        llama.llama_sampler_accept(self.grammar, token)
        self.chain.accept(token)
        return token


BOOSTED = 4
"""The step at which the token that triggers a lazy grammar is likely."""


def full_stop(vocab: Any, n: int) -> int:
    """The token that is a full stop."""
    return next(i for i in range(n) if llama.llama_vocab_get_text(vocab, i) == b".")


def logits_of(n: int, step: int, trigger: int) -> Any:
    """The row of logits of a step."""
    logits = row("spread", n, 4, step)
    if step == BOOSTED:
        logits[trigger] = 60
    return logits


def token_first(out: Path) -> None:
    """Run every chain with every grammar over every vocabulary."""
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("bundled", "llama-spm", "llama-bpe"):
            model = Model(name, folder)
            trigger = full_stop(model.vocab, model.n)
            for title, grammar in GRAMMARS.items():
                for index, chain in enumerate(CHAINS):
                    if name == "llama-bpe" and index not in (0, 4):
                        continue
                    sampler = CommonSampler(chain, grammar, trigger, model.n, model.vocab)
                    for token in PROMPT:
                        sampler.chain.accept(token)
                    tokens: list[int] = []
                    length = 40 if name == "bundled" else 20
                    while len(tokens) < length and not (tokens and model.is_end(tokens[-1])):
                        tokens.append(sampler.sample(logits_of(model.n, len(tokens), trigger)))
                    given = {k: v for k, v in grammar.items() if k != "trigger_tokens"}
                    if "trigger_tokens" in grammar:
                        given["trigger_tokens"] = [trigger]
                    cases.append({
                        "vocabulary": name, "boosted": [BOOSTED, trigger], "grammar": given, "chain": chain,
                        "tokens": tokens, "refused": sampler.refused,
                    })  # fmt: skip
                    print(name, title, index, len(tokens), sampler.refused, file=sys.stderr)
    made = {
        "generator": "tools/golden_grammar.py",
        "llama_cpp_python": llama.__version__,
        "prompt": PROMPT,
    }
    lines = ",\n".join(json.dumps(case) for case in cases)
    out.write_text(f'{json.dumps(made)[:-1]}, "cases": [\n{lines}\n]}}\n')


def main() -> None:
    asked = parser(__doc__)
    asked.add_argument("subject", choices=["gbnf", "token_first"])
    asked.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    args = asked.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    write = {"gbnf": gbnf, "token_first": token_first}[args.subject]
    write(args.folder / f"{args.subject}.json")


if __name__ == "__main__":
    main()
