"""What every sampler of a chain removed, moved and kept at one step: see :meth:`SamplerChain.explain`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from os import PathLike
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from aleator.core import host
from aleator.core.records import dataclass
from aleator.core.token_text import readable
from aleator.samplers.base import Sampler

if TYPE_CHECKING:
    from aleator.samplers.chain import SamplerChain

TRACED = 30
"""Tokens whose probability is followed through the chain, if no more are asked for."""
REMOVED = 5
"""Removed tokens that are named."""
ROUNDING = 1e-6
"""Differences between probabilities that float32 alone makes."""


@dataclass(frozen=True)
class Token:
    """A token: its id, its text (U+FFFD where it is no UTF-8), and its text in quotes or else its id."""

    id: int
    text: str | None
    label: str


Namer = Callable[[int], Token]


@dataclass(frozen=True)
class Shape:
    """What the candidates look like at one point of the chain.

    Args:
        candidates: How many there are.
        entropy: Of their distribution, in bits.
        top: Probability of the most likely one.
    """

    candidates: int
    entropy: float
    top: float

    @property
    def choices(self) -> float:
        """Effective number of choices: as many equally likely ones have the same entropy."""
        return float(2.0**self.entropy)


@dataclass(frozen=True)
class Removed:
    """A token that a sampler removed, and its probability before that."""

    token: Token
    probability: float


@dataclass(frozen=True)
class Stage:
    """What one sampler did.

    Args:
        name, label: The sampler's name, and the name with its parameters.
        neutral: Whether its parameters make it do nothing.
        before, after: The candidates.
        n_removed, mass_cut: How many tokens it removed, and their probability in all.
        removed: The most likely ones of them.
        moved: Probability that changed hands among the tokens that stay: half the sum of the differences to
            what a renormalisation alone would have given.
        state: What the sampler remembered before the step, and the pending temperature if it changed it, by
            name.
        microseconds: Time of this one application.
    """

    name: str
    label: str
    neutral: bool
    before: Shape
    after: Shape
    n_removed: int
    mass_cut: float
    removed: tuple[Removed, ...]
    moved: float
    state: dict[str, float]
    microseconds: float


@dataclass(frozen=True)
class Trace:
    """A token's probability from the logits through every sampler, and the index of the one that removed it."""

    token: Token
    probabilities: tuple[float, ...]
    removed_by: int | None

    @property
    def before(self) -> float:
        """Probability from the logits alone."""
        return self.probabilities[0]

    @property
    def after(self) -> float:
        """Probability at the end of the chain."""
        return self.probabilities[-1]


@dataclass(frozen=True)
class Draw:
    """The token that the chain chooses, its probability before and after it, and what the draw is keyed by."""

    token: Token
    before: float
    probability: float
    seed: int
    position: int
    completion: int


@dataclass(frozen=True)
class Explanation:
    """One step of a chain.

    Args:
        numerics: The chain's.
        n_vocab, history: Logits, and tokens accepted before this step.
        before: The candidates before the chain.
        stages: One per sampler, in order.
        traces: Tokens followed through the chain: the most likely before or after it, and the one drawn.
        top: How many of them the table and the picture show.
        draw: ``None`` if the chain selects nothing.
    """

    numerics: str
    n_vocab: int
    history: int
    before: Shape
    stages: tuple[Stage, ...]
    traces: tuple[Trace, ...]
    top: int
    draw: Draw | None

    @property
    def after(self) -> Shape:
        """The candidates after the chain."""
        return self.stages[-1].after if self.stages else self.before

    @property
    def active(self) -> tuple[Stage, ...]:
        """The samplers that are not neutral."""
        return tuple(stage for stage in self.stages if not stage.neutral)

    def shown(self, top: int | None = None) -> list[Trace]:
        """The most important traces, and that of the token drawn, by probability before the chain."""
        count = self.top if top is None else top
        drawn = None if self.draw is None else self.draw.token.id
        chosen = [t for i, t in enumerate(self.traces) if i < count or t.token.id == drawn]
        return sorted(chosen, key=lambda t: (-t.before, t.token.id))

    def __str__(self) -> str:
        return f"{self.table()}\n\n{self.bars()}"

    def table(self) -> str:
        """One line per sampler that does something; the names of the others; the draw."""
        from aleator.samplers.explain_text import table

        return table(self)

    def bars(self, width: int = 100, top: int | None = None) -> str:
        """A picture of ``width`` columns: a line per token, its bar, and the ghost of what it was before."""
        from aleator.samplers.explain_text import bars

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
        """Write a picture of the step as PNG (or as another format, by the name's ending).

        Raises:
            ImportError: matplotlib is not installed.
        """
        from aleator.samplers.explain_plot import plot_step

        plot_step(self, path)


def explain(chain: SamplerChain, row: Any, vocab: Any, top: int) -> Explanation:
    """Apply a copy of the chain sampler by sampler to a row of logits, and note what happens."""
    from aleator.samplers.candidates import Candidates

    copy = chain.clone()
    candidates = Candidates(row)
    inner = candidates._native_for(chain.numerics)
    name = _namer(vocab)
    step = _Row(inner)
    rows, stages = [step], []
    state: dict[str, float]
    kernel = 0
    if chain.grammar is not None:
        copy, after, state, microseconds = _apply_grammar(chain, copy, row, inner, step)
        stages.append(_stage(chain.grammar, step, after, state, microseconds, name))
        rows.append(after)
        step = after
        kernel = int(chain.numerics == "portable")
    for sampler in copy._samplers:
        state, microseconds, after = {}, 0.0, step
        if not sampler.neutral:
            state, microseconds = _apply(copy, sampler, inner, kernel)
            after = _Row(inner)
        if not sampler.neutral or chain.numerics == "portable":
            kernel += 1  # llama.cpp's chains leave the neutral ones out
        stages.append(_stage(sampler, step, after, state, microseconds, name))
        rows.append(after)
        step = after
    token = candidates.selected
    draw = None
    if token is not None:
        chances = float(rows[0].p[token]), float(rows[-1].p[token])
        draw = Draw(name(token), *chances, chain.seed, chain.position, chain.completion)
    return Explanation(
        chain.numerics,
        inner.n_vocab,
        len(chain.history),
        rows[0].shape,
        tuple(stages),
        tuple(_traces(rows, top, token, name)),
        top,
        draw,
    )


class _Row:
    """The distribution over the whole vocabulary, shape ``[V]``, and which tokens are candidates."""

    def __init__(self, native: host.Candidates | host.LlamaCandidates) -> None:
        weights: NDArray[np.float64]
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
    chain: SamplerChain, copy: SamplerChain, row: Any, inner: Any, before: _Row
) -> tuple[SamplerChain, _Row, dict[str, float], float]:
    """Mask, or, with llama.cpp's numbers, see whether the first pass draws what the grammar refuses.

    Returns also the chain to go on with: one that has drawn already, if so.
    """
    from aleator.samplers.candidates import Candidates

    sampler, native = chain.grammar, copy._native
    assert sampler is not None  # noqa: S101
    if isinstance(native, host.Chain):
        state, microseconds = _apply(copy, sampler, inner, 0)
        return copy, _Row(inner), state, microseconds
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
        (copy, _Row(inner), state, microseconds)
        if rejected
        else (chain.clone(), before, state, microseconds)
    )


def _apply(
    chain: SamplerChain, sampler: Sampler, inner: Any, kernel: int
) -> tuple[dict[str, float], float]:
    """Apply one sampler; returns its state and the microseconds it took."""
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
    likely = gone[np.argsort(-before.p[gone], kind="stable")[:REMOVED]].tolist()
    return Stage(
        sampler.name,
        sampler.describe(),
        sampler.neutral,
        before.shape,
        after.shape,
        len(gone),
        cut,
        tuple(Removed(name(token), float(before.p[token])) for token in likely),
        moved if moved > ROUNDING else 0.0,
        state,
        microseconds,
    )


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
