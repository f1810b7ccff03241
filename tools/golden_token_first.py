"""Write tests/golden/grammar/token_first.json: how llama.cpp's common layer samples with a grammar.

python tools/golden_token_first.py [folder]

llama.cpp's own samplers are driven, through llama-cpp-python, as common_sampler_sample and
common_sampler_accept (llama.cpp/common/sampling.cpp) drive them: the chain chooses, the grammar tests that
one token, and where it is refused the grammar masks all logits and the chain chooses again; then both accept.
Prompt tokens go to the chain alone.  A case holds the tokens until the end of the generation or of the case,
and how many first choices were refused.  Nothing here comes from Aleator.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import lzma
import sys
import tempfile
from pathlib import Path
from typing import Any

import llama_cpp as llama
import numpy as np
from golden_llama import CANDIDATE, CandidateArray, Reference, _apply
from golden_rows import row

ROOT = Path(__file__).parent.parent
BUNDLED = ROOT / "src" / "aleator" / "data" / "shakespeare.gguf"
FILE = ROOT / "tests" / "golden" / "grammar" / "token_first.json"

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


def vocabularies(folder: Path) -> dict[str, Path]:
    """The bundled model, and vocabularies of 32,000 and 128,256 tokens."""
    files = {"bundled": BUNDLED}
    for name in ("llama-spm", "llama-bpe"):
        files[name] = folder / f"{name}.gguf"
        packed = ROOT / "tests" / "data" / "vocab" / f"{name}.gguf.xz"
        files[name].write_bytes(lzma.decompress(packed.read_bytes()))
    return files


class CommonSampler:
    """A chain and a grammar, driven as llama.cpp's common layer does."""

    def __init__(
        self, chain: Any, grammar: dict[str, Any], trigger: int, n: int, vocab: Any
    ) -> None:
        self.chain = Reference(chain, n, vocab)
        text, root = grammar["grammar"].encode(), grammar.get("root", "root").encode()
        patterns = [p.encode() for p in grammar.get("trigger_patterns", ())]
        tokens = [trigger] if "trigger_tokens" in grammar else []
        if patterns or tokens:
            self.grammar = llama.llama_sampler_init_grammar_lazy_patterns(
                vocab, text, root,
                (ctypes.c_char_p * max(1, len(patterns)))(*patterns), len(patterns),
                (llama.llama_token * max(1, len(tokens)))(*tokens), len(tokens),
            )  # fmt: skip
        else:
            self.grammar = llama.llama_sampler_init_grammar(vocab, text, root)
        if not self.grammar:
            raise ValueError(f"llama.cpp refuses {grammar}")
        self.refused = 0

    def _masked(self, entries: Any) -> None:
        array = CandidateArray(entries.ctypes.data, len(entries), -1, False)
        _apply(ctypes.cast(self.grammar, ctypes.c_void_p), ctypes.addressof(array))

    def sample(self, logits: Any) -> int:
        entries, place, _ = self.chain.apply(logits)
        token = int(entries["id"][place])
        single = np.array([(token, 1.0, 0.0)], CANDIDATE)
        self._masked(single)
        if single["logit"][0] == -np.inf:
            self.refused += 1
            masked = np.zeros(len(logits), CANDIDATE)
            masked["id"] = np.arange(len(logits))
            masked["logit"] = logits
            self._masked(masked)
            entries, place, _ = self.chain.apply(masked["logit"].copy())
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
    """The row of a step."""
    logits = row("spread", n, 4, step)
    if step == BOOSTED:
        logits[trigger] = 60
    return logits


def main() -> None:
    """Run every chain with every grammar over every vocabulary."""
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        for name, path in vocabularies(Path(folder)).items():
            parameters = llama.llama_model_default_params()
            parameters.vocab_only = True
            model = llama.llama_model_load_from_file(str(path).encode(), parameters)
            vocab = llama.llama_model_get_vocab(model)
            n = llama.llama_vocab_n_tokens(vocab)
            for title, grammar in GRAMMARS.items():
                for index, chain in enumerate(CHAINS):
                    if name == "llama-bpe" and index not in (0, 4):
                        continue
                    trigger = full_stop(vocab, n)
                    sampler = CommonSampler(chain, grammar, trigger, n, vocab)
                    for token in PROMPT:
                        sampler.chain.accept(token)
                    tokens: list[int] = []
                    length = 40 if name == "bundled" else 20
                    while len(tokens) < length:
                        tokens.append(sampler.sample(logits_of(n, len(tokens), trigger)))
                        if llama.llama_vocab_is_eog(vocab, tokens[-1]):
                            break
                    given = {k: v for k, v in grammar.items() if k != "trigger_tokens"}
                    if "trigger_tokens" in grammar:
                        given["trigger_tokens"] = [trigger]
                    cases.append({
                        "vocabulary": name, "boosted": [BOOSTED, trigger], "grammar": given, "chain": chain,
                        "tokens": tokens, "refused": sampler.refused,
                    })  # fmt: skip
                    print(name, title, index, len(tokens), sampler.refused, file=sys.stderr)
    made = {
        "generator": "tools/golden_token_first.py",
        "llama_cpp_python": importlib.metadata.version("llama-cpp-python"),
        "prompt": PROMPT,
        "cases": cases,
    }
    target = Path(sys.argv[1]) / FILE.name if sys.argv[1:] else FILE
    target.parent.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(case) for case in cases)
    head = json.dumps({k: v for k, v in made.items() if k != "cases"})[:-1]
    target.write_text(f'{head}, "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
