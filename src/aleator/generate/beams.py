"""Beam search: the most probable texts, or texts drawn without replacement, as forks of one sequence.

Beams share the cells of what they have in common.  A step decodes the last token of each in one batch; a fork
is ``seq_cp``, which copies no cells.  Scores are float64; equal ones are ordered by beam, then token id.

When a search ends, what ``length_penalty`` and ``early_stopping`` mean, and which texts count as complete is as
in transformers (its documentation of ``GenerationConfig``, and what its ``generate`` does).  Stochastic beams
are Kool, van Hoof and Welling, "Stochastic Beams and Where to Find Them" (2019, arXiv:1903.06059), algorithm 1
with the stable form of its appendix B.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from aleator.core.arrays import Doubles, Int32s
from aleator.core.contract import Purpose
from aleator.core.digests import new_digest
from aleator.core.errors import ContextFull, ParameterError
from aleator.core.philox import stream, uniform64
from aleator.core.records import dataclass
from aleator.generate.beam_options import BeamOptions
from aleator.generate.completion import Completion, Request
from aleator.generate.context import Batch, Context, Prefixes
from aleator.generate.logprobs import log_softmax
from aleator.samplers import SamplerChain
from aleator.samplers.candidates import Candidates

COLDEST = 1e-5
"""A temperature up to this leaves one token."""
DRAWING = {
    "xtc": "xtc_probability",
    "mirostat": "mirostat",
    "mirostat_v2": "mirostat",
    "adaptive_p": "adaptive_target",
}
"""Samplers that draw, or adapt to what was drawn, and the parameter that turns each on."""

CompletionOf = Callable[[Sequence[int], SamplerChain], Completion]
"""The completion that some tokens make, whose chain has accepted them."""


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
    """A text under way or complete.

    Attributes:
        tokens: Those after the prompt.
        logprobs: Theirs.
        logprob: Their sum.
        order: What it is compared by: as ``Beam.score`` once it is complete, until then without the penalty.
        chain: Has accepted the tokens.
        seq: The sequence that holds all but the last token; of a new one, its parent's.
        key: 64 bits of the seed and the tokens, which key the draws of what may follow.
        done: Whether it is complete.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    logprob: float
    order: float
    chain: SamplerChain
    seq: int
    key: int
    done: bool = False


def check_chain(chain: SamplerChain, temperature: float) -> None:
    """Refuse a chain with samplers that draw, and what leaves beams nothing to choose from."""
    if chain.numerics != "portable":
        raise ParameterError(
            "numerics",
            f"numerics={chain.numerics!r} draws whenever it is applied, and beams need probabilities: give "
            "'portable'",
        )
    for sampler in chain.members:
        if sampler.name in DRAWING and not sampler.neutral:
            raise ParameterError(
                DRAWING[sampler.name],
                f"{DRAWING[sampler.name]}: {sampler.name} draws, or adapts to what was drawn, so beams have no "
                "probabilities under it: leave it out",
            )
    if temperature <= COLDEST:
        raise ParameterError(
            "temperature",
            f"temperature={temperature:g} leaves one token, and beams nothing to choose from: leave it out, or "
            f"give more than {COLDEST:g} (default: 1)",
        )


def distribution(chain: SamplerChain, row: Any) -> tuple[Int32s, Doubles]:
    """The ids that a chain leaves of logits [V], ascending, and their natural-log probabilities."""
    candidates = Candidates(row)
    chain.apply(candidates)
    return candidates.ids, log_softmax(candidates.logits)


def ranked(scores: Doubles, first: int) -> Iterator[int]:
    """The places of scores [n] above -inf, best first, equal ones in order; ``first`` are found at once."""
    bound, n = math.inf, first
    while n:
        n = min(n, len(scores))
        least = float(np.partition(scores, len(scores) - n)[len(scores) - n])
        places = np.flatnonzero((scores >= least) & (scores < bound) & (scores > -math.inf))
        yield from places[np.argsort(-scores[places], kind="stable")].tolist()
        if n == len(scores):
            return
        bound, n = least, 4 * n


def follower(key: int, token: int = 0) -> int:
    """The key of a text with one token more."""
    data = key.to_bytes(8, "little") + token.to_bytes(8, "little")
    return int.from_bytes(new_digest(8, data).digest(), "little")


def gumbel(key: int, ids: Any, position: int = 0) -> Doubles:
    """Standard Gumbel noise of token ids, float64: -ln(-ln u), u the middle of one of 2^52 parts of (0, 1)."""
    # The arithmetic of the words is the same for whole rows.
    word = stream(Purpose.GUMBEL)
    bits: Any = uniform64(key, np.asarray(ids).astype(np.uint64), position, word)  # type: ignore[arg-type]
    noise: Doubles = -np.log(-np.log(((bits >> 12).astype(np.float64) + 0.5) * 2.0**-52))
    return noise


def with_maximum(perturbed: Doubles, largest: float) -> Doubles:
    """Gumbel variables [n] as they are where their maximum is ``largest``.

    Kool et al., appendix B.3: with v = T - g + log1mexp(g - Z), g becomes T - max(0, v) - log1p(exp(-|v|)), Z
    the maximum of g and T the wanted one.
    """
    below = perturbed - perturbed.max()
    with np.errstate(divide="ignore"):
        near = np.log(-np.expm1(np.maximum(below, -1.0)))
        v = largest - perturbed + np.where(below > -1.0, near, np.log1p(-np.exp(below)))
    made: Doubles = largest - np.maximum(0.0, v) - np.log1p(np.exp(-np.abs(v)))
    return made


class BeamSearch:
    """One search, in the first ``num_beams`` sequences of a context, which must be empty.

    Args:
        context: Has a cell for the prompt and for each token of each beam.
        request: The prompt, and the options of a text.
        chain: Of the request; it has accepted the prompt.
        options: Of the search.
        completion_of: Makes completions.
        n_ctx: Positions that a text may use, the prompt's included.
        n_tokens: Tokens of the vocabulary.

    Raises:
        ParameterError: Sampling that has no meaning for beams, or too few sequences.
        ContextFull: A prompt longer than ``n_ctx``.
    """

    def __init__(
        self,
        context: Context,
        request: Request,
        chain: SamplerChain,
        options: BeamOptions,
        completion_of: CompletionOf,
        n_ctx: int,
        n_tokens: int,
    ) -> None:
        check_chain(chain, request.params.temperature)
        prompt, n = request.remaining, options.num_beams
        if n > context.n_seq_max:
            raise ParameterError(
                "num_beams",
                f"num_beams={n}: the context has {context.n_seq_max} sequences: give at most so many, or a "
                "context with a larger n_seq_max",
            )
        used = next((seq for seq in range(n) if context.cache.seq_pos_max(seq) >= 0), None)
        if used is not None:
            raise ParameterError(
                "context",
                f"context: sequence {used} holds tokens, and beams need 0 to {n - 1} empty: remove them, or "
                "give a context of its own",
            )
        self._most = longest(request, n_ctx)
        self._context, self._prompt, self._options = context, prompt, options
        self._request, self._completion_of, self._n_tokens = request, completion_of, n_tokens
        self._ends_with = completion_of((), chain).ends_with
        key = follower(chain.seed)
        # The whole tree's noise: that of its largest leaf.
        order = float(gumbel(key, [0], position=1)[0]) if options.stochastic else 0.0
        self._running = [Hypothesis((), (), 0.0, order, chain.clone(), 0, key)]
        self._finished: list[Hypothesis] = []

    def run(self, prefixes: Prefixes) -> list[Beam]:
        """Search; whatever is raised, the sequences are empty again afterwards."""
        cache, prompt = self._context.cache, self._prompt
        try:
            held = prefixes.reuse(0, prompt, self._request.where)
            rows = self._context.decode(Batch.one(list(prompt[held:]), held))
            if not self._request.forgotten:
                prefixes.keep(0, prompt, self._request.options.namespace)
            while self._step(rows):
                self._fork()
                batch = Batch()
                for beam in self._running:
                    at = len(prompt) + len(beam.tokens) - 1
                    batch.add(beam.tokens[-1], at, [beam.seq], logits=True)
                rows = self._context.decode(batch)
        finally:
            for seq in range(self._options.num_beams):
                cache.seq_rm(seq, -1, -1)
        return [self._beam(each) for each in self._finished[: self._options.num_return_sequences]]

    def _step(self, rows: Any) -> bool:
        """Go on by a token from logits [beams, V]; returns whether the search goes on."""
        parts = [
            distribution(beam.chain, np.ascontiguousarray(row[: self._n_tokens]))
            for beam, row in zip(self._running, rows, strict=True)
        ]
        sums = [beam.logprob + part[1] for beam, part in zip(self._running, parts, strict=True)]
        orders = sums
        if self._options.stochastic:
            orders = [
                with_maximum(total + gumbel(beam.key, part[0]), beam.order)
                for beam, part, total in zip(self._running, parts, sums, strict=True)
            ]
        starts = np.cumsum([0, *map(len, sums)])
        flat = np.concatenate(orders)

        def children() -> Iterator[Hypothesis]:
            for place in ranked(flat, 2 * self._options.num_beams):
                i = int(np.searchsorted(starts, place, side="right")) - 1
                at = place - int(starts[i])
                token, logprob = int(parts[i][0][at]), float(parts[i][1][at])
                yield self._child(self._running[i], token, logprob, float(flat[place]))

        return self._drawn(children()) if self._options.stochastic else self._best(children())

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
        pool = [*self._finished, *(child for child, _ in zip(children, range(n), strict=False))]
        pool = sorted(pool, key=lambda each: -each.order)[:n]
        self._finished = [each for each in pool if each.done]
        self._running = [each for each in pool if not each.done]
        return bool(self._running)

    def _child(self, beam: Hypothesis, token: int, logprob: float, order: float) -> Hypothesis:
        chain, tokens = beam.chain.clone(), (*beam.tokens, token)
        chain.accept(token, generated=True)
        done = self._ends_with(token) or len(tokens) >= self._most
        done = done or (chain.grammar is not None and chain.finished)
        if not done and self._request.options.stop:
            done = self._completion_of(tokens, chain).done
        logprobs = (*beam.logprobs, logprob)
        key = follower(beam.key, token)
        return Hypothesis(
            tokens, logprobs, beam.logprob + logprob, order, chain, beam.seq, key, done
        )

    def _fork(self) -> None:
        """Give every beam a sequence: the first child has its parent's, others a fork of it."""
        cache, taken = self._context.cache, set[int]()
        parents = {beam.seq for beam in self._running}
        free = [seq for seq in range(self._options.num_beams) if seq not in parents]
        for seq in free:
            cache.seq_rm(seq, -1, -1)
        placed = []
        for beam in self._running:
            seq = beam.seq
            if seq in taken:
                seq = free.pop()
                cache.seq_cp(beam.seq, seq)
            taken.add(seq)
            placed.append(replace(beam, seq=seq))
        self._running = placed

    def _beam(self, found: Hypothesis) -> Beam:
        made = self._completion_of(found.tokens, found.chain)
        if not made.done:
            full = found.chain.grammar is None or not found.chain.finished
            made.end("context" if full else "grammar")
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


def longest(request: Request, n_ctx: int) -> int:
    """Tokens that a beam has at most; the last one needs no position."""
    prompt, wanted = len(request.remaining), request.options.max_tokens
    if prompt > n_ctx:
        raise ContextFull(
            f"the prompt has {prompt} tokens and the context {n_ctx} positions: shorten the prompt, or load "
            "the model with a larger n_ctx (command line: -c)"
        )
    if wanted == 0:
        raise ParameterError(
            "max_tokens", "max_tokens=0: beams have at least 1 token: give 1 or more"
        )
    room = n_ctx - prompt + 1
    return room if wanted is None else min(wanted, room)
