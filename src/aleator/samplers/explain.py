"""What each sampler of a chain removed, moved and kept in one step: see :meth:`SamplerChain.explain`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from copy import copy
from os import PathLike
from time import perf_counter_ns
from typing import Any

import numpy as np

from aleator.core import host
from aleator.core.arrays import Doubles
from aleator.core.records import dataclass
from aleator.core.token_text import readable
from aleator.samplers.base import Sampler
from aleator.samplers.candidates import Candidates
from aleator.samplers.chain_members import ChainMembers
from aleator.samplers.dist import Dist
from aleator.samplers.explain_text import bars, table
from aleator.samplers.explained import Draw, Explained, Mark, Removed, Shape, Stage, Token, Trace
from aleator.samplers.watermark import KEYED, new_context

__all__ = ["Draw", "Explanation", "Mark", "Removed", "Shape", "Stage", "Token", "Trace", "explain"]

TRACED = 30
"""Default number of tokens whose probability is followed through the chain."""
REMOVED = 5
"""Number of removed tokens that are named."""
ROUNDING = 1e-6
"""Largest difference between probabilities that float32 rounding explains."""


Namer = Callable[[int], Token]


@dataclass(frozen=True)
class Explanation(Explained):
    """One step of a chain, to print, to draw, or to write as JSON."""

    def __str__(self) -> str:
        return f"{self.table()}\n\n{self.bars()}"

    def table(self) -> str:
        """One line per sampler that does something, the names of the others, and the draw."""
        return table(self)

    def bars(self, width: int = 100, top: int | None = None) -> str:
        """A picture of ``width`` columns: per token a bar of its probability, over that before the chain."""
        return bars(self, width, top)

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        made = dataclasses.asdict(self)
        made["traces"] = [dataclasses.asdict(trace) for trace in self.shown()]
        shapes = [(made["before"], self.before)]
        for written, stage in zip(made["stages"], self.stages, strict=True):
            shapes += [(written["before"], stage.before), (written["after"], stage.after)]
        for written, shape in shapes:
            written["choices"] = shape.choices
        return made

    def plot(self, path: str | PathLike[str]) -> None:
        """Write a picture of the step as PNG, or in the format that the file name ends with.

        Raises:
            ImportError: matplotlib is not installed.
        """
        from aleator.samplers.explain_plot import plot_step

        plot_step(self, path)


def explain(
    chain: ChainMembers, row: Any, vocab: Any, top: int, history: int, phase: str
) -> Explanation:
    """Apply a copy of the chain sampler by sampler to a row of logits, and record what happens.

    ``history`` is the number of accepted tokens; ``phase`` is the phase whose chain this is, "" without phases.
    """
    copied = copy(chain)
    candidates = Candidates(row)
    inner = candidates._native_for(chain.numerics)
    name = _namer(vocab)
    rows, stages, kernel = [_Row(inner)], [], 0
    state: dict[str, float]
    if chain.grammar is not None:
        copied, after, state, microseconds = _apply_grammar(chain, copied, row, inner, rows[0])
        stages.append(_stage(chain.grammar, rows[0], after, state, microseconds, name))
        rows.append(after)
        kernel = int(chain.numerics == "portable")
    for sampler in copied._samplers:
        state, microseconds, after = {}, 0.0, rows[-1]
        if not sampler.neutral:
            state, microseconds = _apply(copied, sampler, inner, kernel)
            after = _Row(inner)
        if not sampler.neutral or chain.numerics == "portable":
            kernel += 1  # llama.cpp's chains leave the neutral ones out
        stages.append(_stage(sampler, rows[-1], after, state, microseconds, name))
        rows.append(after)
    token = candidates.selected
    draw = None
    if token is not None:
        chances = float(rows[0].p[token]), float(rows[-1].p[token])
        position = chain._native.position
        mark = _mark(copied._samplers, token, chain.history, position, name)
        draw = Draw(name(token), *chances, chain.seed, position, chain.completion, mark)
    traces = tuple(_traces(rows, top, token, name))
    before = chain.numerics, inner.n_vocab, history, rows[0].shape
    return Explanation(*before, tuple(stages), traces, top, draw, phase)


def _mark(
    samplers: Sequence[Sampler], token: int, history: Sequence[int], position: int, name: Namer
) -> Mark | None:
    keyed = next((s for s in samplers if isinstance(s, Dist) and s.draw in KEYED), None)
    if keyed is None:
        return None
    context = new_context(history, position, keyed.watermark_ngram)
    if context is None:
        return Mark(keyed.draw, (), None)
    return Mark(keyed.draw, tuple(map(name, context)), keyed.watermark_score(token, context))


class _Row:
    """The distribution over the whole vocabulary, shape ``[V]``, and which tokens are candidates."""

    def __init__(self, native: host.Candidates | host.LlamaCandidates) -> None:
        weights: Doubles
        if isinstance(native, host.LlamaCandidates):
            weights = native.probs.astype(np.float64)
            kept = native.logits > -np.inf
            ids, weights = native.ids[kept], weights[kept]
        else:
            ids, weights = native.ids, native.weights.astype(np.float64)
        self.p = np.zeros(native.n_vocab)
        self.p[ids] = weights / weights.sum()
        self.member = np.zeros(native.n_vocab, np.bool_)
        self.member[ids] = True
        p = self.p[self.p > 0]
        entropy = max(0.0, -float(p @ np.log2(p)))
        self.shape = Shape(len(ids), entropy, float(self.p.max()))


def _apply_grammar(
    chain: ChainMembers, copied: ChainMembers, row: Any, inner: Any, before: _Row
) -> tuple[ChainMembers, _Row, dict[str, float], float]:
    """Mask; with llama.cpp's numbers, do so only if the first pass draws a token that the grammar refuses.

    Returns also the chain to continue with: the one that has already drawn, in that case.
    """
    sampler, native = chain.grammar, copied._native
    assert sampler is not None  # noqa: S101
    if isinstance(native, host.Chain):
        state, microseconds = _apply(copied, sampler, inner, 0)
        return copied, _Row(inner), state, microseconds
    state = sampler.state(native.grammar, chain.history)
    began = perf_counter_ns()
    trial = Candidates(row)._native_for(chain.numerics)
    native.apply(trial)
    rejected = native.rejects(trial)
    if rejected:
        native.apply_grammar(inner)
    microseconds = (perf_counter_ns() - began) / 1000
    state |= {"first draw refused": float(rejected)}
    return (
        (copied, _Row(inner), state, microseconds)
        if rejected
        else (copy(chain), before, state, microseconds)
    )


def _apply(
    chain: ChainMembers, sampler: Sampler, inner: Any, kernel: int
) -> tuple[dict[str, float], float]:
    """Apply one sampler; return its state and the microseconds it took."""
    native: Any = chain._native
    state = sampler.state(native.samplers[kernel], chain.history)
    pending = getattr(inner, "temperature", 1.0)  # llama.cpp divides at once
    began = perf_counter_ns()
    native.apply_one(inner, kernel)
    microseconds = (perf_counter_ns() - began) / 1000
    temperature = getattr(inner, "temperature", 1.0)
    if temperature not in (pending, 1):
        state = state | {"pending temperature": temperature}
    return state, microseconds


def _stage(
    sampler: Sampler,
    before: _Row,
    after: _Row,
    state: dict[str, float],
    microseconds: float,
    name: Namer,
) -> Stage:
    gone = np.flatnonzero(before.member & ~after.member)
    cut = float(before.p[gone].sum())
    stayed = before.p * after.member
    moved = 0.5 * float(np.abs(after.p - stayed / (stayed.sum() or 1.0)).sum())
    moved = moved if moved > ROUNDING else 0.0
    likely = gone[np.argsort(-before.p[gone], kind="stable")[:REMOVED]].tolist()
    removed = tuple(Removed(name(token), float(before.p[token])) for token in likely)
    what = sampler.name, sampler.describe(), sampler.neutral, before.shape, after.shape
    return Stage(*what, len(gone), cut, removed, moved, state, microseconds)


def _traces(rows: Sequence[_Row], top: int, drawn: int | None, name: Namer) -> list[Trace]:
    weight = np.maximum(rows[0].p, rows[-1].p)
    count = min(max(top, TRACED), len(weight))
    first = np.argpartition(-weight, count - 1)[:count]
    chosen = first[np.lexsort((first, -weight[first]))].tolist()
    if drawn is not None and drawn not in chosen:
        chosen.append(drawn)
    traces = []
    for token in chosen:
        member = [bool(row.member[token]) for row in rows]
        removed_by = member.index(False) - 1 if member[0] and not all(member) else None
        traces.append(Trace(name(token), tuple(float(row.p[token]) for row in rows), removed_by))
    return traces


def _namer(vocab: Any) -> Namer:
    """A function from ids to tokens; ``vocab`` is a tokenizer, a vocabulary or ``None``."""
    vocab = getattr(vocab, "vocab", vocab)

    def name(token: int) -> Token:
        if vocab is None or token >= len(vocab):
            return Token(token, None, f"[{token}]")
        piece = vocab.token_bytes(token)
        return Token(token, piece.decode("utf-8", "replace"), readable(piece))

    return name
