"""Grammar masks against llama.cpp, llguidance and xgrammar, on texts that the grammars describe.

    python benchmarks/bench_grammar.py [--turns 5] [--out FILE.md]

The grammars are those of tests/data/grammars, the vocabulary is Llama 3's of 128,256 tokens.  Each engine walks
the same tokens: for every step a mask, timed, then the text's token is accepted.  The engines take turns; in
each turn everything is new (the grammar compiled, nothing cached).  The fastest turn of each step counts, which
excludes other work on the machine; llama.cpp, which takes long, has one turn.  "again" is the same text once
more with the same object after a reset.  Our masks are cached by state, also within a text; the row "every
state new" is without that.  Masks are compared: ours and llama.cpp's must be equal.  llguidance gets the
grammar through its converter from GBNF, xgrammar as its EBNF; a refusal of the grammar or the text is reported.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import llama_cpp
import llguidance
import llguidance.gbnf_to_lark
import llguidance.numpy
import numpy as np
import torch
import xgrammar
from numpy.typing import NDArray

from aleator.grammar import compile_gbnf
from aleator.grammar.gbnf import token_trie
from aleator.text import Tokenizer, Vocabulary

sys.path.append(str(Path(__file__).parent.parent / "tools"))
from golden_grammar import Model, masked
from run_report import Report, command, machine, parser

ROOT = Path(__file__).parent.parent

JSON = (
    '{"id": 481, "name": "Grace O\'Malley", "tags": ["pirate", "queen"], "ships": [{"name": '
    '"Sea \\"Wolf\\"", "guns": 24, "length": 31.5e0, "crew": null}, {"name": "Caf\\u00e9 中文 😀", '
    '"guns": -3, "armed": false}], "notes": "She met the Queen at Greenwich in 1593; they spoke Latin.",'
    '\n  "matrix": [[1, 0, 0], [0, 1, 0], [0, 0, 1]], "empty": {}, "deep": {"a": {"b": {"c": [true]}}}}'
)
TEXTS = {
    "json": JSON,
    "list": "- Buy a dozen eggs and flour\n- Call the plumber, the tap drips\n1. Sleep before midnight ☃\n",
    "arithmetic": "(a + b) * 3.25 - alpha / 2 = 17\nx * (y - (z + 1)) = 0\n1 + 2 + 3 = 6\n",
    "c": "int main(int argc, char* argv) {\n  float x = 1.5f * (argc + 2);\n  // doubles x\n  while (x < 100)"
    " {\n"
    '    x = x + x;\n    printf("%\\n", x);\n  }\n  if (x >= 7) { return 0; } else { return f(x, 1); }\n}\n',
    "chess": "1. e4 e5\n2. Nf3 Nc6\n3. Bb5 a6\n4. Ba4 Nf6\n5. O-O Be7\n6. Re1 b5\n7. Bb3 O-O\n",
    "english": "The ship left the harbour at dawn. Nobody waved, nobody slept; it was cold. Why do we sail?",
    "japanese": "私は日本語の文章を読みます。カタカナも漢字も、ひらがなもあります！",
    "repetition": "v1.20.300-alpha-beta The release of the long winter\n中文éü",
}  # fmt: skip


# Functions that fill a mask, return it as words, accept a token, and reset.
Engine = tuple[Callable[..., Any], ...]


class Walk(NamedTuple):
    """Seconds, and the masks as words."""

    compile: float
    masks: list[float]
    accepts: list[float]
    again: list[float]
    words: list[NDArray[np.uint32]]


class Refused(Exception):
    """An engine refuses this grammar or text."""


def walk(engine: Callable[[], Engine], tokens: list[int]) -> Walk:
    """Walk tokens; ``engine`` compiles and returns the functions of an :data:`Engine`."""
    clock = time.perf_counter
    start = clock()
    fill, words, accept, reset = engine()
    compiled = clock() - start
    masks, accepts, again, found = [], [], [], []
    for token in tokens:
        start = clock()
        fill()
        masks.append(clock() - start)
        found.append(words().copy())
        if not found[-1][token // 32] >> np.uint32(token % 32) & 1:
            raise Refused(f"refuses token {len(found)} of the text")
        start = clock()
        accept(token)
        accepts.append(clock() - start)
    reset()
    for token in tokens:
        start = clock()
        fill()
        again.append(clock() - start)
        accept(token)
    return Walk(compiled, masks, accepts, again, found)


class Engines:
    """Engines, with what is made once per vocabulary."""

    def __init__(self, folder: str) -> None:
        self.model = Model("llama-bpe", folder)
        path = Path(folder) / "llama-bpe.gguf"
        self.vocabulary = Vocabulary.from_gguf(path)
        self.tokenizer = Tokenizer(self.vocabulary)
        start = time.perf_counter()
        self.trie = token_trie(self.vocabulary)
        self.seconds = {"aleator": time.perf_counter() - start}
        n = len(self.vocabulary)
        pieces = [self.vocabulary.token_bytes(t) for t in range(n)]
        ends = sorted(self.vocabulary.eog)
        start = time.perf_counter()
        self.xgrammar = xgrammar.GrammarCompiler(
            xgrammar.TokenizerInfo(pieces, xgrammar.VocabType.RAW, vocab_size=n, stop_token_ids=ends),
            max_threads=1, cache_enabled=False,
        )  # fmt: skip
        self.seconds["xgrammar"] = time.perf_counter() - start
        start = time.perf_counter()
        self.llguidance = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Tokens(pieces, self)))
        self.seconds["llguidance"] = time.perf_counter() - start

    def aleator(self, text: str) -> Engine:
        constraint = compile_gbnf(text, "root", self.vocabulary)
        return constraint.mask, constraint.mask, constraint.accept, constraint.reset

    def no_cache(self, text: str) -> Engine:
        pristine = compile_gbnf(text, "root", self.vocabulary)
        state = {"now": pristine.clone()}
        accepted: list[int] = []

        def begin() -> None:
            state["now"] = pristine.clone()
            for token in accepted:
                state["now"].accept(token)

        def accept(token: int) -> None:
            accepted.append(token)
            begin()

        def reset() -> None:
            accepted.clear()
            begin()

        return lambda: state["now"].mask(), lambda: state["now"].mask(), accept, reset

    def llama_cpp(self, text: str) -> Engine:
        grammar = llama_cpp.llama_sampler_init_grammar(self.model.vocab, text.encode(), b"root")
        if not grammar:
            raise Refused("refuses the grammar")
        row = self.model.candidates.copy()

        def fill() -> None:
            row["logit"] = 0
            masked(grammar, row)

        def words() -> NDArray[np.uint32]:
            return np.packbits(row["logit"] == 0, bitorder="little").view(np.uint32)

        return (
            fill, words, lambda token: llama_cpp.llama_sampler_accept(grammar, token),
            lambda: llama_cpp.llama_sampler_reset(grammar),
        )  # fmt: skip

    def llguidance_(self, text: str) -> Engine:
        try:
            lark = llguidance.gbnf_to_lark.any_to_lark(text)
        except Exception as error:
            raise Refused("its converter refuses the grammar") from error
        matcher = llguidance.LLMatcher(
            self.llguidance, llguidance.LLMatcher.grammar_from_lark(lark)
        )
        if matcher.is_error():
            raise Refused("refuses the grammar")
        mask = llguidance.numpy.allocate_token_bitmask(1, len(self.vocabulary))

        def accept(token: int) -> None:
            if not matcher.consume_token(token):
                raise Refused("refuses the text")

        return (
            lambda: llguidance.numpy.fill_next_token_bitmask(matcher, mask, 0),
            lambda: mask[0].view(np.uint32), accept, matcher.reset,
        )  # fmt: skip

    def xgrammar_(self, text: str) -> Engine:
        try:
            matcher = xgrammar.GrammarMatcher(self.xgrammar.compile_grammar(text))
        except Exception as error:
            raise Refused("refuses the grammar") from error
        mask = xgrammar.allocate_token_bitmask(1, len(self.vocabulary))
        words = mask.numpy().view(np.uint32)[0]

        def accept(token: int) -> None:
            if not matcher.accept_token(token):
                raise Refused("refuses the text")

        def fill() -> None:
            if not matcher.fill_next_token_bitmask(mask):
                mask.fill_(-1)  # everything is allowed

        return fill, lambda: words, accept, matcher.reset


class _Tokens:
    """A tokenizer in the form that llguidance needs."""

    def __init__(self, pieces: list[bytes], engines: Engines) -> None:
        self.tokens = pieces
        special = engines.vocabulary.special
        self.bos_token_id, self.eos_token_id = special.bos, special.eos
        self.special_token_ids = [t for t in range(len(pieces)) if engines.vocabulary.is_special(t)]
        self._encode = engines.tokenizer.encode

    def __call__(self, text: str | bytes) -> list[int]:
        text = text.decode(errors="replace") if isinstance(text, bytes) else text
        return self._encode(text, add_special=False)


def tables(report: Report, engines: Engines, turns: int) -> None:
    kinds = {
        "aleator": engines.aleator, "every state new": engines.no_cache, "llama.cpp": engines.llama_cpp,
        "llguidance": engines.llguidance_, "xgrammar": engines.xgrammar_,
    }  # fmt: skip
    report.table(
        "grammar", "tokens:", "engine", "compile ms:", "mask, median us:", "worst us:", "again us:",
        "accept us:", "ours takes, masks",
    )  # fmt: skip
    for name, text in TEXTS.items():
        grammar = (ROOT / f"tests/data/grammars/{name}.gbnf").read_text()
        tokens = engines.tokenizer.encode(text, add_special=False)
        walks: dict[str, list[Walk]] = {}
        refused: dict[str, str] = {}
        for turn in range(turns):
            for engine, make in kinds.items():
                if engine not in refused and (turn < 1 or engine != "llama.cpp"):
                    try:
                        done = walk(partial(make, grammar), tokens)
                    except Refused as error:
                        refused[engine] = str(error)
                    else:
                        walks.setdefault(engine, []).append(done)
        ours = walks["aleator"][0].words
        for a, b in zip(ours, walks["llama.cpp"][0].words, strict=True):
            if (a != b).any():
                raise SystemExit(f"{name}: masks differ from llama.cpp's")
        best = {}
        for engine in kinds:
            if engine in refused:
                report.row(name, len(tokens), engine, refused[engine], *[""] * 5)
                continue
            columns = [
                [
                    min(step) * 1e6
                    for step in zip(*(getattr(w, c) for w in walks[engine]), strict=True)
                ]
                for c in ("masks", "again", "accepts")
            ]
            masks, again, accepts = columns
            best[engine] = statistics.median(masks)
            compiled = min(w.compile for w in walks[engine]) * 1e3
            ratio = "" if len(best) < 3 else f"{best[engine] / best['aleator']:,.1f} x less"
            if len(best) >= 3:
                ratio += f" ({best[engine] / best['every state new']:,.1f} x with every state new)"
            same = sum((a == b).all() for a, b in zip(ours, walks[engine][0].words, strict=True))
            if same < len(tokens):
                ratio += f", {len(tokens) - same} masks differ"
            report.row(
                name, len(tokens), engine, f"{compiled:.1f}", f"{best[engine]:.1f}", f"{max(masks):.1f}",
                f"{statistics.median(again):.1f}", f"{statistics.median(accepts):.1f}", ratio,
            )  # fmt: skip


def main() -> None:
    asked = parser(__doc__, out="Markdown")
    asked.add_argument("--turns", type=int, default=5)
    options = asked.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        engines = Engines(folder)
        once = ", ".join(f"{name} {seconds:.2f}" for name, seconds in engines.seconds.items())
        report = Report(
            "Grammar masks against llama.cpp, llguidance and xgrammar",
            f"{machine('aleator', 'llama-cpp-python', 'llguidance', 'xgrammar')}; one thread, "
            f"V = {len(engines.vocabulary):,}",
            f"    {command(__file__)}",
            f"Once per vocabulary, seconds: {once}.  Of each step the fastest of {options.turns} turns "
            "counts; what a column means is at the top of the script.",
        )
        tables(report, engines, options.turns)
    report.write(options.out)


if __name__ == "__main__":
    main()
