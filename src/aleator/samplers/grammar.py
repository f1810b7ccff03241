"""Grammar: the text follows a grammar in GBNF, llama.cpp's notation.

Keeps      see :mod:`aleator.samplers.constrained`; exactly the tokens that llama.cpp's grammar sampler keeps.
Lazy       with triggers everything is allowed until a trigger token is accepted, or a trigger pattern is found
           in the text; the grammar begins there (docs/grammar.md).
Elsewhere  llama.cpp aborts when it accepts a token that the grammar does not allow; here ``accept`` refuses it.
           A text that begins with ``%llguidance`` is a Lark grammar, as in llama.cpp built with llguidance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

from aleator.core import host
from aleator.core.errors import ParameterError
from aleator.core.parameter import check_unicode
from aleator.core.records import dataclass
from aleator.grammar import compile_gbnf, llguidance
from aleator.samplers.constrained import LLGuidanceSampler
from aleator.samplers.token_arguments import check_ids

LLGUIDANCE = "%llguidance"


@dataclass(frozen=True)
class Grammar(LLGuidanceSampler):
    """Keep the tokens that a GBNF grammar allows next.

    Args:
        grammar: GBNF.
        root: The start rule.
        vocabulary: A tokenizer or a vocabulary; ``None`` until the model is known.
        trigger_patterns: Regular expressions; with these or trigger tokens the grammar is lazy.
        trigger_tokens: Token ids.

    Raises:
        GrammarError: The grammar is wrong; names line, column and reason.
    """

    name = "grammar"
    described = "the Lark grammar"
    grammar: str
    root: str = "root"
    vocabulary: Any = field(default=None, repr=False, compare=False)
    trigger_patterns: Sequence[str] = ()
    trigger_tokens: Sequence[int] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.grammar, str):
            raise ParameterError(f"grammar={self.grammar!r:.60} is not GBNF text")
        if not isinstance(self.root, str):
            raise ParameterError("grammar", f"root={self.root!r:.60} is not the name of a rule")
        check_unicode("grammar", self.root)
        object.__setattr__(self, "trigger_patterns", tuple(self.trigger_patterns))
        object.__setattr__(self, "trigger_tokens", tuple(self.trigger_tokens))
        for pattern in self.trigger_patterns:
            if not isinstance(pattern, str):
                raise ParameterError("grammar", f"trigger_patterns has {pattern!r:.60}: give texts")
            check_unicode("grammar", pattern)
        check_ids("grammar", self.trigger_tokens)
        if self.grammar.startswith(LLGUIDANCE):
            if self.trigger_patterns or self.trigger_tokens:
                raise ParameterError("trigger_patterns", "a Lark grammar cannot have triggers")
            object.__setattr__(self, "_source", llguidance.lark_grammar(self.grammar))
        self._check_vocabulary()

    def compile(self) -> host.Constraint:
        if self.grammar.startswith(LLGUIDANCE):
            return super().compile()
        return compile_gbnf(
            self.grammar, self.root, self.vocabulary, self.trigger_patterns, self.trigger_tokens
        )
