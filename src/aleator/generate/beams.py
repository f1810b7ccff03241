"""Beam search: the most probable texts, or texts drawn without replacement, as forks of one sequence.

Beams share the cells of what they have in common.  A step decodes the last token of each in one batch; a fork
is ``seq_cp``, which copies no cells.  Scores are float64; equal ones are ordered by beam, then token id.

When a search ends, what ``length_penalty`` and ``early_stopping`` mean, and which texts count as complete is as
in transformers (its documentation of ``GenerationConfig``, and what its ``generate`` does).  Stochastic beams
are algorithm 1 of Kool, van Hoof and Welling, "Stochastic Beams and Where to Find Them" (2019,
arXiv:1903.06059), and their noise the stable form of appendix B.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from heapq import merge
from itertools import chain as joined
from itertools import islice
from typing import Any

import numpy as np

from aleator.cache.cache import Cache
from aleator.core.arrays import Doubles
from aleator.core.contract import Purpose
from aleator.core.digests import new_digest
from aleator.core.errors import ParameterError
from aleator.core.philox import stream, uniform64
from aleator.core.records import dataclass
from aleator.generate.beam_chain import check_chain, distribution, ranked
from aleator.generate.beam_options import BeamOptions
from aleator.generate.complete_grammar import Work, finish
from aleator.generate.completion import Completion, Request, too_long
from aleator.generate.context import Batch, Context, Prefixes
from aleator.generate.logprobs import top_logprobs
from aleator.samplers import SamplerChain

NewCompletion = Callable[[SamplerChain], Completion]
"""Makes an empty completion, whose chain has accepted the tokens that it will be given."""


@dataclass(frozen=True)
class Beam:
    """A text that a search of beams found.

    Attributes:
        text: Without what ends it.
        tokens: Of the text, with the token that ended it.
        logprobs: Natural-log probability of each token among those that the samplers left, float64.
        logprob: Their sum, added from the first to the last.
        score: What beams are ordered by: ``logprob / len(tokens) ** length_penalty``, or of stochastic beams
            ``logprob`` plus the Gumbel noise of the text.
        stop_reason: As of a generation: "eog", "grammar", "stop", "stop_token", "length" or "context".
        complete: Whether it is all that its grammar asks for; None without one.
        seed: With which stochastic beams give the same again; None of others.
    """

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    logprob: float
    score: float
    stop_reason: str
    complete: bool | None
    seed: int | None


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """A text under way or complete."""

    tokens: tuple[int, ...]  # Those after the prompt
    logprobs: tuple[float, ...]  # Theirs
    logprob: float  # Their sum
    # What it is compared by: as ``Beam.score`` once it is complete, until then without the penalty
    order: float
    chain: SamplerChain  # Has accepted the tokens
    seq: int  # The sequence that holds all but the last token; of a new one, its parent's
    key: int  # 64 bits of the seed and the tokens, which key the draws of what may follow
    done: bool = False  # Whether it is complete


@dataclass(frozen=True)
class Grown:
    """A beam that a step left; those that go on come first."""

    parent: int  # Place of the beam that it goes on from, among those of the step before
    token: int
    logprob: float  # That token's natural-log probability
    order: float  # As ``Hypothesis.order``
    done: bool  # Whether it is complete


Way = tuple[float, Hypothesis, int, float]
"""How a beam may go on: the order of what comes of it, the beam, a token, and its log-probability."""


class BeamSearch:
    """One search, in sequences of a context that are empty and that nobody else uses.

    :meth:`run` makes all of it.  Who makes the steps of others too calls :meth:`begin`, computes the prompt in
    the first sequence, and in turns lets the search choose (:meth:`choose`) and decodes ``ends``
    (:meth:`add_to`), until it is ``done``.

    Raises:
        ParameterError: Sampling that has no meaning for beams, or too few sequences.
        ContextFull: A prompt longer than ``n_ctx``.
    """

    def __init__(
        self,
        n_seq_max: int,  # Sequences of the context, which has the cells of ``cells_of_beams``
        request: Request,  # The prompt, and the options of a text
        chain: SamplerChain,  # Of the request; it has accepted the prompt
        options: BeamOptions,  # Of the search
        new_completion: NewCompletion,  # Makes completions
        n_ctx: int,  # Positions that a text may use, the prompt's included
        n_tokens: int,  # Tokens of the vocabulary
    ) -> None:
        check_chain(chain, request.params.temperature)
        n = options.num_beams
        if n > n_seq_max:
            raise ParameterError(
                f"num_beams={n}: the context has {n_seq_max} sequences: give at most so many, or a context "
                "(engine, server) with a larger n_seq_max"
            )
        self._most = longest(request, n_ctx)
        self._prompt, self._options = request.remaining, options
        self._request, self._new_completion, self._n_tokens = request, new_completion, n_tokens
        self._ends_with = new_completion(chain).ends_with
        key = follower(chain.seed)
        # The whole tree's noise: that of its largest leaf.
        order = float(gumbel(key, [0], position=1)[0]) if options.stochastic else 0.0
        self._running = [Hypothesis((), (), 0.0, order, chain.clone(), 0, key)]
        self._finished: list[Hypothesis] = []
        self._cache: Any = None  # while it has sequences
        self._seqs: Sequence[int] = ()
        # The texts, the best first, as completions that have ended; none before the search is done
        self.found: list[Completion] = []
        self.beams: list[Beam] = []  # The same with their scores
        self.noted = False  # Whether ``steps`` are noted
        self.steps: list[list[Grown]] = []  # The beams of each step so far, the best first

    def run(self, context: Context, prefixes: Prefixes) -> list[Beam]:
        """Search in the first sequences; whatever is raised, they are empty again afterwards."""
        cache, prompt, n = context.cache, self._prompt, self._options.num_beams
        used = next((seq for seq in range(n) if cache.seq_pos_max(seq) >= 0), None)
        if used is not None:
            raise ParameterError(
                f"context: sequence {used} holds tokens, and beams need 0 to {n - 1} empty: remove them, or "
                "give a context of its own"
            )
        for seq in range(n):
            context.adapters.set(seq, self._request.options.adapters)
        self.begin(cache, range(n))
        try:
            held = prefixes.reuse(0, prompt, self._request.cache_namespace)
            rows = context.decode(Batch.one(list(prompt[held:]), held))
            if not self._request.forgotten:
                prefixes.keep(0, prompt, self._request.options.namespace)
            finish(self.choose(rows))
            while not self.done:
                batch = Batch()
                self.add_to(batch)
                finish(self.choose(context.decode(batch)))
        finally:
            self.end()
        return self.beams

    @property
    def num_beams(self) -> int:
        """Beams, each of which has a sequence."""
        return self._options.num_beams

    @property
    def done(self) -> bool:
        """Whether it has come to its end."""
        return not self._running

    @property
    def ends(self) -> list[int]:
        """The last token of each beam, which is to be decoded next."""
        return [beam.tokens[-1] for beam in self._running]

    def begin(self, cache: Cache, seqs: Sequence[int]) -> None:
        """Take ``num_beams`` sequences; the prompt is computed in the first."""
        self._cache, self._seqs, (whole,) = cache, seqs, self._running
        self._running = [replace(whole, seq=seqs[0])]

    def end(self) -> None:
        """Empty the sequences, and give them back."""
        for seq in self._seqs:
            self._cache.seq_rm(seq)
        self.forget()

    def forget(self) -> None:
        """Give the sequences back as they are: whoever keeps the texts does not keep the context."""
        self._cache, self._seqs = None, ()

    def add_to(self, batch: Batch) -> None:
        """Add ``ends`` to a batch, with their logits."""
        for beam in self._running:
            at = len(self._prompt) + len(beam.tokens) - 1
            batch.add(beam.tokens[-1], at, [beam.seq], logits=True)

    def choose(self, rows: Any) -> Work[None]:
        """Go on by a token from the logits [beams, V] after the prompt or ``ends``, a beam in each piece."""
        ways: list[Iterator[Way]] = []
        before = self._running
        for beam, row in zip(before, np.array(rows[:, : self._n_tokens]), strict=True):
            if ways:
                yield
            ways.append(self._ways(beam, row))
        children = (self._child(*way) for way in merge(*ways, key=lambda way: -way[0]))
        going = self._drawn(children) if self._options.stochastic else self._best(children)
        if self.noted:
            self.steps.append(self._grown(before))
        if going:
            self._fork()
            return
        self._running = []
        for each in self._finished[: self._options.num_return_sequences]:
            made = self._new_completion(each.chain)
            self._write(made, each)
            self.found.append(made)
            self.beams.append(self._beam(made, each))

    def show(self, completion: Completion) -> None:
        """Let a completion that has no tokens be the best text, once that is known."""
        if self.found:
            completion.chain = self._finished[0].chain
            self._write(completion, self._finished[0])

    def _ways(self, beam: Hypothesis, row: Any) -> Iterator[Way]:
        """How a beam may go on from its logits [V], the best first; the best are found now."""
        ids, logprobs = distribution(beam.chain, row)
        orders = beam.logprob + logprobs
        if self._options.stochastic:
            orders = with_maximum(orders + gumbel(beam.key, ids), beam.order)
        places = ranked(orders, 2 * self._options.num_beams)
        best = [*islice(places, 1)]
        return (
            (float(orders[at]), beam, int(ids[at]), float(logprobs[at]))
            for at in joined(best, places)
        )

    def _best(self, children: Iterator[Hypothesis]) -> bool:
        """Take the best children; a complete one counts if it is among the first ``num_beams`` of all."""
        options, finished, running = self._options, self._finished, list[Hypothesis]()
        for rank, child in enumerate(children):
            if child.done and rank < options.num_beams:
                score = child.logprob / len(child.tokens) ** options.length_penalty
                finished.append(replace(child, order=score))
            elif not child.done:
                running.append(child)
            enough = len(running) >= options.num_beams or len(child.tokens) >= self._most
            if rank + 1 >= options.num_beams and enough:
                break
        self._finished = sorted(finished, key=lambda each: -each.order)[: options.num_beams]
        self._running = running[: options.num_beams]
        if not running or len(self._finished) < options.num_beams:
            return bool(running)
        far = options.early_stopping == "never" and options.length_penalty > 0
        length = self._most if far else len(running[0].tokens)
        hoped = running[0].logprob / length**options.length_penalty
        return options.early_stopping is not True and hoped > self._finished[-1].order

    def _drawn(self, children: Iterator[Hypothesis]) -> bool:
        """Take those with the largest noisy log-probabilities, of the complete ones and the children."""
        n = self._options.num_beams
        pool = [*self._finished, *islice(children, n)]
        pool = sorted(pool, key=lambda each: -each.order)[:n]
        self._finished = [each for each in pool if each.done]
        self._running = [each for each in pool if not each.done]
        return bool(self._running)

    def _child(self, order: float, beam: Hypothesis, token: int, logprob: float) -> Hypothesis:
        chain, tokens = beam.chain.clone(), (*beam.tokens, token)
        chain.accept(token, generated=True)
        done = self._ends_with(token) or len(tokens) >= self._most
        done = done or (chain.grammar is not None and chain.finished)
        if not done and self._request.options.stop:
            done = fed(self._new_completion(chain), tokens).done
        logprobs = (*beam.logprobs, logprob)
        key = follower(beam.key, token)
        return Hypothesis(
            tokens, logprobs, beam.logprob + logprob, order, chain, beam.seq, key, done
        )

    def _grown(self, before: Sequence[Hypothesis]) -> list[Grown]:
        """What a step has left of the beams before it."""
        places = {beam.tokens: place for place, beam in enumerate(before)}
        return [
            Grown(place, each.tokens[-1], each.logprobs[-1], each.order, each.done)
            for each in (*self._running, *self._finished)
            if (place := places.get(each.tokens[:-1])) is not None
        ]

    def _fork(self) -> None:
        """Give every beam a sequence: the first child has its parent's, others a fork of it."""
        taken = set[int]()
        parents = {beam.seq for beam in self._running}
        free = [seq for seq in self._seqs if seq not in parents]
        for seq in free:
            self._cache.seq_rm(seq)
        running = []
        for beam in self._running:
            seq = beam.seq
            if seq in taken:
                seq = free.pop()
                self._cache.seq_cp(beam.seq, seq)
            taken.add(seq)
            running.append(replace(beam, seq=seq))
        self._running = running

    @staticmethod
    def _write(made: Completion, found: Hypothesis) -> None:
        """Bring an empty completion to the end of a text."""
        if not fed(made, found.tokens).done:
            full = found.chain.grammar is None or not found.chain.finished
            made.end("context" if full else "grammar")

    def _beam(self, made: Completion, found: Hypothesis) -> Beam:
        return Beam(
            text="".join(made.pieces),
            tokens=found.tokens,
            logprobs=found.logprobs,
            logprob=found.logprob,
            score=found.order,
            stop_reason=made.stop_reason or "context",
            complete=made.complete,
            seed=found.chain.seed if self._options.stochastic else None,
        )


def fed(made: Completion, tokens: Sequence[int]) -> Completion:
    """A completion, after it was given tokens."""
    for token in tokens:
        made.feed(token, partial(top_logprobs, []))  # nobody asks for them
    return made


def cells_of_beams(request: Request, num_beams: int, n_ctx: int, shared: bool = True) -> int:
    """Cells of a search: one of each token of the prompt, and of each beam but for its last.

    A text may use ``n_ctx`` positions; ``shared``: sequences can share cells.
    """
    prompts = 1 if shared else num_beams
    return len(request.remaining) * prompts + num_beams * (longest(request, n_ctx) - 1)


def longest(request: Request, n_ctx: int) -> int:
    """Tokens that a beam has at most; the last one needs no position."""
    prompt, wanted = len(request.remaining), request.options.max_tokens
    if prompt > n_ctx:
        raise too_long(prompt, n_ctx)
    if wanted == 0:
        raise ParameterError("max_tokens=0: beams have at least 1 token: give 1 or more")
    room = n_ctx - prompt + 1
    return room if wanted is None else min(wanted, room)


# The noise of stochastic beams


def follower(key: int, token: int = 0) -> int:
    """The key of a text extended by one token."""
    data = key.to_bytes(8, "little") + token.to_bytes(8, "little")
    return int.from_bytes(new_digest(8, data).digest(), "little")


def gumbel(key: int, ids: Any, position: int = 0) -> Doubles:
    """Standard Gumbel noise of token ids, float64: -ln(-ln u), u the middle of one of 2^52 parts of (0, 1)."""
    # Computed for whole rows, with the same arithmetic on the words.
    word = stream(Purpose.GUMBEL)
    bits: Any = uniform64(key, np.asarray(ids).astype(np.uint64), position, word)  # type: ignore[arg-type]
    noise: Doubles = -np.log(-np.log(((bits >> 12).astype(np.float64) + 0.5) * 2.0**-52))
    return noise


def with_maximum(perturbed: Doubles, largest: float) -> Doubles:
    """Gumbel variables [n], conditioned on their maximum being ``largest``.

    Kool et al., appendix B.3: with v = T - g + log1mexp(g - Z), g becomes T - max(0, v) - log1p(exp(-|v|)),
    where Z is the maximum of g and T is ``largest``.
    """
    below = perturbed - perturbed.max()
    with np.errstate(divide="ignore"):
        near = np.log(-np.expm1(np.maximum(below, -1.0)))
        v = largest - perturbed + np.where(below > -1.0, near, np.log1p(-np.exp(below)))
    made: Doubles = largest - np.maximum(0.0, v) - np.log1p(np.exp(-np.abs(v)))
    return made
