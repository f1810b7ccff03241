"""Lark: the text follows a context-free grammar in Lark's notation, as llguidance reads it.

Keeps      see :mod:`aleator.samplers.constrained`.
Syntax     llguidance's (docs/syntax.md there): rules in lower case, terminals in upper case, regular
           expressions, ``%json {...}`` for a JSON schema within.
Elsewhere  llama.cpp built with llguidance takes the same text if it begins with ``%llguidance``, and so does
           ``Grammar`` here.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from aleator.core.records import dataclass
from aleator.grammar import llguidance
from aleator.samplers.constrained import LLGuidanceSampler


@dataclass(frozen=True)
class Lark(LLGuidanceSampler):
    """Keep the tokens that a Lark grammar allows next.

    Args:
        grammar: The grammar; its first rule is ``start``.
        vocabulary: A tokenizer or a vocabulary; ``None`` until the model is known.

    Raises:
        GrammarError: The grammar is wrong; names line, column and reason.
        ImportError: llguidance is not installed.
    """

    name = "lark"
    described = "the Lark grammar"
    grammar: str
    vocabulary: Any = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check_source(llguidance.lark_grammar(self.grammar))
