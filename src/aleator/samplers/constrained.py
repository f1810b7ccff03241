"""The common part of samplers that keep only the tokens that a grammar allows next.

Keeps      the tokens with which the generated text stays a prefix of a text that the grammar describes;
           end-of-generation tokens where the text may end.  Tokens past the end of the vocabulary are masked.
State      a parser, which follows ``accept(token, generated=True)``, ``rollback``, ``reset`` and ``clone``.
           Tokens of the prompt are not part of the constrained text.
Place      before everything else as ``SamplerChain(..., grammar=...)``; in the list, where it stands.  These
           samplers are not in the index: they take a grammar and a vocabulary, not declared parameters.
Masked     stay masked.  If nothing allowed is left, the step raises ``LogitsError``.
Errors     ``accept`` refuses a token that the grammar does not allow with ``ConstraintError``, and changes
           nothing.
Elsewhere  llama.cpp draws first and tests the drawn token; only if the grammar refuses it, llama.cpp masks the
           row and runs the chain again.  ``numerics="llama.cpp"`` does the same with ``grammar=``.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from aleator.core import host
from aleator.core.errors import ParameterError
from aleator.core.numerics import Row, Step
from aleator.grammar import llguidance
from aleator.samplers.base import Compiled, Place


class ConstraintSampler(Compiled):
    """A sampler with a constraint: ``Grammar``, ``JSONSchema``, ``Regex``, ``Lark`` or ``MatcherGrammar``.

    ``vocabulary`` is a tokenizer or a vocabulary, with ``len``, ``token_bytes(id)`` and ``eog``; ``None`` until
    the model is known.
    """

    vocabulary: Any
    _compiled: ClassVar[host.Constraint | None] = None  # each instance gets its own when needed

    @abstractmethod
    def compile(self) -> host.Constraint:
        """Make the constraint in its initial state; ``vocabulary`` is set."""

    @property
    def constraint(self) -> host.Constraint:
        """The constraint in its initial state, made once; use a ``clone()`` to advance it.

        Raises:
            ParameterError: There is no vocabulary.
        """
        if self.vocabulary is None:
            raise ParameterError(
                "vocabulary",
                f"{type(self).__name__} does not know the vocabulary: give vocabulary=model.tokenizer, or hand "
                "it to model.generate(..., grammar=...), which knows it",
            )
        made = self._compiled
        if made is None:
            made = self.compile()
            object.__setattr__(self, "_compiled", made)
        return made

    def bound(self, vocabulary: Any) -> ConstraintSampler:
        """The constraint with this tokenizer or vocabulary, unless it has one already."""
        if self.vocabulary is not None or vocabulary is None:
            return self
        return dataclasses.replace(self, vocabulary=vocabulary)  # type: ignore[type-var]

    def _check_vocabulary(self) -> None:
        """Compile now if there is a vocabulary, so that errors appear early."""
        if self.vocabulary is not None:
            _ = self.constraint

    def _ends(self) -> list[int]:
        return sorted(getattr(self.vocabulary, "vocab", self.vocabulary).eog)

    def describe(self) -> str:
        return self.name

    def state(self, kernel: Any, history: Sequence[int]) -> dict[str, float]:
        constrained = kernel.constrained
        if constrained.constraint.waiting:
            return {"waiting": 1.0}
        return {"allowed": float(constrained.count())}

    def native(self, place: Place) -> host.Sampler:
        return host.ConstraintSampler(self.constraint, self._ends())

    def native_llama(self, place: Place) -> host.LlamaConstraintSampler:
        return host.LlamaConstraintSampler(self.constraint, self._ends())

    def reference(self, row: Row, step: Step, place: Place) -> None:
        """NumPy reference: run the parser over all generated tokens, then mask."""
        parser = self.constraint.clone()
        for token, generated in zip(step.history, step.generated, strict=True):
            if generated:
                parser.accept(token)
        if not parser.waiting:
            row.keep_allowed(parser.mask())


class LLGuidanceSampler(ConstraintSampler):
    """A sampler whose constraint llguidance makes."""

    described: ClassVar[str]  # what its grammar is called in errors
    _source: ClassVar[str]  # the instance's grammar in llguidance's form

    def compile(self) -> host.Constraint:
        return llguidance.constraint(self._source, self.vocabulary, self.described)

    def _check_source(self, source: str) -> None:
        object.__setattr__(self, "_source", source)
        self._check_vocabulary()
