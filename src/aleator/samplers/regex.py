"""Regex: the whole text matches a regular expression.

Keeps      see :mod:`aleator.samplers.constrained`.
Syntax     that of Rust's ``regex`` crate, without look-around and back-references; the expression matches
           the whole text, so ``^`` and ``$`` at its ends are redundant and dropped.
Elsewhere  outlines-core has only this; llama.cpp has no regular expressions.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from aleator.core.records import dataclass
from aleator.grammar import llguidance
from aleator.samplers.constrained import LLGuidanceSampler


@dataclass(frozen=True)
class Regex(LLGuidanceSampler):
    """Keep the tokens that a regular expression allows next.

    Args:
        pattern: The expression.
        vocabulary: A tokenizer or a vocabulary; ``None`` until the model is known.

    Raises:
        GrammarError: The expression is wrong; names the column.
        ImportError: llguidance is not installed.
    """

    name = "regex"
    described = "the regular expression"
    pattern: str
    vocabulary: Any = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check_source(llguidance.regex_grammar(self.pattern))
