"""Phases: a chain for each part of a text, such as reasoning and answer, instead of one chain.

Keeps      what the chain of the current phase keeps, and draws what that draws.
Phases     a text begins in ``start``.  In ``answer`` the sampler looks for the marks that begin other phases,
           and in these for the marks that end them.  It searches the bytes of the drawn tokens, including the
           names of control tokens; a mark may also be a token's id.  The token with the last byte of a mark
           is drawn in the phase before the mark, the next token in the phase after it.  A prompt token returns
           to ``start``.
Draws      are keyed by seed, position and completion, and each chain counts its own samplers of a kind: after
           the same text a phase draws what its chain draws alone.
History    ``shared``: the chain of every phase accepts all tokens, so that penalties of the answer see the
           reasoning.  ``own``: all accept the prompt, and each only the tokens that it drew.
Device     the host looks for the marks: an automaton there would need all tokens' bytes, to save a wait or two
           in a reply.  Chains that adapt stay on the host, whose copy does not see what kernels draw.
State      the position of the text in the marks before each token, and the states of the chains.
Masked     as the chains do.
Elsewhere  llama.cpp, vLLM and transformers have one chain for a whole text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from typing import Any

import numpy as np

from aleator.core import host
from aleator.core.arrays import Int32s
from aleator.core.errors import ParameterError
from aleator.core.numerics import Row, Step
from aleator.core.records import dataclass
from aleator.grammar.spelling import once_each
from aleator.samplers.base import Place, Sampler
from aleator.samplers.chain import SamplerChain
from aleator.samplers.phase_table import ANSWER, Table, marks_of, with_marks

Mark = bytes | int
"""A mark to search for: its bytes, or the id of a token."""


@dataclass(frozen=True)
class Phases(Sampler):
    """The chains of a text's phases; ``SamplingParams(phases=...)`` makes it."""

    name = "phases"
    selects = True
    writes = True
    table: Table  # the checked ``phases``, with marks for each phase
    chains: Mapping[str, Sequence[Sampler]]  # The samplers of each phase, the answer first
    # A tokenizer or vocabulary; None if all marks are ids of tokens
    vocabulary: Any = field(default=None, repr=False, compare=False)
    names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    start: str = field(init=False, repr=False, compare=False)
    own: bool = field(init=False, repr=False, compare=False)
    seed: int | None = field(init=False, repr=False, compare=False)
    marks: tuple[tuple[int, Mark, int], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        table = with_marks(self.table, {}, "phases")
        marks = [mark for _, *pair in marks_of(table) for mark in pair if mark is not None]
        if self.vocabulary is None and not all(isinstance(mark, int) for mark in marks):
            raise ParameterError("phases needs the vocabulary: chain(vocab=...)")
        size = None if self.vocabulary is None else len(_vocab(self.vocabulary))
        for mark in marks:
            if isinstance(mark, int) and size is not None and mark >= size:
                raise ParameterError(
                    f"phases: mark {mark} is no token: the vocabulary has 0 to {size - 1}"
                )
        names, own = tuple(self.chains), dict(table)
        chains = {name: tuple(each) for name, each in self.chains.items()}
        members = [sampler for each in chains.values() for sampler in each]
        vars(self).update(
            chains=chains,
            names=names,
            start=own.get("start", ANSWER),
            own=own.get("histories") == "own",
            adapts=any(sampler.adapts for sampler in members),
            since=max(s.since for s in members if not s.neutral),
            seed=getattr(chains[ANSWER][-1], "seed", None),
            marks=_searched(table, names),
        )

    @property
    def flattened(self) -> tuple[Sampler, ...]:
        """The samplers of all phases."""
        return tuple(sampler for each in self.chains.values() for sampler in each)

    def acting(self, kernel: Any) -> tuple[str, tuple[Sampler, ...]]:
        """The phase that draws the next token, and its samplers."""
        phase = self.names[kernel.present]
        return phase, tuple(self.chains[phase])

    def phases_of(self, kernel: Any) -> list[str]:
        """The phase that drew each accepted token."""
        return [self.names[phase] for phase in kernel.before]

    def describe(self) -> str:
        parts = (
            f"{name}: {' -> '.join(s.describe() for s in samplers if not s.neutral)}"
            for name, samplers in self.chains.items()
        )
        return f"phases({'; '.join(parts)})"

    def configured(self, place: Place, numerics: str) -> tuple[Any, ...]:
        inner = {
            name: [
                s.configured(p, numerics) for s, p in _chain(samplers, place).samplers_with_places
            ]
            for name, samplers in self.chains.items()
        }
        return ("phases", inner, marks_of(self.table), self.start, self.own)

    def native(self, place: Place) -> host.Sampler:
        following, phase, tokens = tree(self.marks, len(self.names))
        texts = None if self.vocabulary is None else token_texts(_vocab(self.vocabulary))
        start = self.names.index(self.start)
        marks = host.PhaseMarks(following, phase, tokens, start, texts)
        chains = [_chain(each, place).kernels.samplers for each in self.chains.values()]
        return host.Phases(chains, marks, self.own)

    def reference(self, row: Row, step: Step, place: Place) -> None:
        """NumPy reference: divide the history at the marks, then run the references of the phase.

        Samplers that adapt to their own draws are refused, because their state does not follow from a history.
        """
        if self.adapts:
            raise ParameterError("phases", "a phase adapts to its own draws: it has no reference")
        phases, present = self._divided(step)
        heard = [
            not (self.own and generated) or phase == present
            for phase, generated in zip(phases, step.generated, strict=True)
        ]
        seen = Step(position=step.position, completion=step.completion, n_vocab=step.n_vocab)
        for name in ("history", "generated"):
            values = zip(getattr(step, name), heard, strict=True)
            setattr(seen, name, [value for value, is_heard in values if is_heard])
        for sampler, own in _chain(self.chains[present], place).samplers_with_places:
            if not sampler.neutral:
                sampler.reference(row, seen, own)

    def _divided(self, step: Step) -> tuple[list[str], str]:
        """The phase that drew each token of the history, and the phase after the last."""
        vocab, phases = _vocab(self.vocabulary), []
        start: str = self.start
        phase, text = start, b""
        for token, generated in zip(step.history, step.generated, strict=True):
            phases.append(phase)
            if not generated:
                phase, text = start, b""
                continue
            watched = self._watched(phase)
            if token in watched:
                phase, text = self.names[watched[token]], b""
                continue
            for byte in vocab.token_bytes(token) if vocab is not None else b"":
                text += bytes([byte])
                watched = self._watched(phase)
                found = [m for m in watched if isinstance(m, bytes) and text.endswith(m)]
                if found:
                    phase, text = self.names[watched[max(found, key=len)]], b""
        return phases, phase

    def _watched(self, phase: str) -> dict[Mark, int]:
        """The marks that end a phase, each with the phase that it leads to."""
        return {mark: to for at, mark, to in self.marks if self.names[at] == phase}


def _vocab(vocabulary: Any) -> Any:
    return getattr(vocabulary, "vocab", vocabulary)


def _chain(samplers: Sequence[Sampler], place: Place) -> SamplerChain:
    """A phase's chain alone; its samplers count their own kind."""
    return SamplerChain(samplers, seed=place.seed, completion=place.completion)


def _searched(table: Table, names: Sequence[str]) -> tuple[tuple[int, Mark, int], ...]:
    """The marks to search for: in which phase, the mark, and the phase that it leads to."""
    made: list[tuple[int, Mark, int]] = []
    for name, begin, end in marks_of(table):
        at = names.index(name)
        for where, mark, to in ((0, begin, at), (at, end, 0)):
            if mark is not None:
                made.append((where, mark.encode() if isinstance(mark, str) else mark, to))
    return tuple(made)


@lru_cache(64)  # requests often have the same marks
def tree(marks: tuple[tuple[int, Mark, int], ...], n_phases: int) -> tuple[Int32s, Int32s, Int32s]:
    """All marks as one table, after Aho and Corasick.

    Args:
        marks: In which phase, the mark, and the phase that it leads to.
        n_phases: The number of phases; the first nodes are their roots.

    Returns:
        The next node for each node and byte, [nodes, 256]; the phase of each node, [nodes]; and the marks that
        are tokens: phase, token and next node, [n, 3].
    """
    texts = [(phase, m, to) for phase, m, to in marks if isinstance(m, bytes)]
    tokens = [(phase, m, to) for phase, m, to in marks if isinstance(m, int)]
    begun = {(phase, m[:n]) for phase, m, _ in texts for n in range(1, len(m))}
    nodes = [(phase, b"") for phase in range(n_phases)]
    nodes += sorted(begun, key=lambda node: (len(node[1]), node))
    places = {node: at for at, node in enumerate(nodes)}
    following = np.zeros((len(nodes), 256), np.int32)
    for at, (phase, text) in enumerate(nodes):
        if text:  # bytes that do not continue it continue a shorter suffix of the same text
            ends = (text[n:] for n in range(1, len(text) + 1))
            following[at] = following[places[phase, next(e for e in ends if (phase, e) in places)]]
        else:
            following[at] = at
        for byte in {m[len(text)] for p, m, _ in texts if p == phase and m.startswith(text)}:
            longer = text + bytes([byte])
            complete = [(m, to) for p, m, to in texts if p == phase and longer.endswith(m)]
            following[at, byte] = (
                max(complete, key=lambda each: len(each[0]))[1]
                if complete
                else places[phase, longer]
            )
    return (
        following,
        np.array([phase for phase, _ in nodes], np.int32),
        np.array(tokens, np.int32).reshape(-1, 3),
    )


@once_each
def token_texts(vocab: Any) -> host.TokenTexts:
    """The texts of a vocabulary's tokens, made once."""
    pieces = [vocab.token_bytes(token) for token in range(len(vocab))]
    ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    return host.TokenTexts(b"".join(pieces), ends)
