"""Matcher: the tokens that another grammar engine allows, through its bitmask.

Keeps      see :mod:`aleator.samplers.constrained`.  The engine's object has the methods of xgrammar's
           ``GrammarMatcher`` (:class:`aleator.grammar.matcher.Matcher` lists them).
Elsewhere  xgrammar leaves tokens past the end of its mask unmasked; here they are masked.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from aleator.core import host
from aleator.core.records import dataclass
from aleator.grammar.matcher import MatcherConstraint
from aleator.samplers.constrained import ConstraintSampler


@dataclass(frozen=True)
class MatcherGrammar(ConstraintSampler):
    """Keep the tokens that a matcher of another library allows next.

    Args:
        matcher: In its initial state.  Each chain gets a copy; if it cannot be copied, it serves one chain.
        vocabulary: A tokenizer or a vocabulary; ``None`` until the model is known.

    Raises:
        ParameterError: The object lacks a method.
    """

    name = "matcher_grammar"
    matcher: Any
    vocabulary: Any = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        MatcherConstraint.check(self.matcher)
        self._check_vocabulary()

    def compile(self) -> host.Constraint:
        vocabulary = getattr(self.vocabulary, "vocab", self.vocabulary)
        return host.PyConstraint(MatcherConstraint(self.matcher, len(vocabulary)))
