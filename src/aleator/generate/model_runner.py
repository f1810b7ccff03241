"""Runs the model for one step: decodes tokens of requests, samples the next ones, takes back wrong guesses.

Its caller, :class:`aleator.engine.engine_core.EngineCore`, decides which requests take part in a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from aleator.core.arrays import Floats
from aleator.generate.bans import Bans
from aleator.generate.completion import ONCE, OWN
from aleator.generate.context import Batch, Context, Prefixes
from aleator.generate.logprobs import LogprobsOf, noted, top_logprobs
from aleator.generate.prefix_reuse import PrefixReuse
from aleator.generate.prompt_chunks import Chunk, add_chunks
from aleator.generate.request_state import Failed, Proposal, Proposer, RequestErrors, RequestState
from aleator.generate.token_sampler import (
    Logits,
    PendingTokens,
    SampledToken,
    SampleTask,
    TokenSampler,
    host_rows,
)
from aleator.models.step import Draw

if TYPE_CHECKING:
    from aleator.generate.prefix_load import Wake  # loads SQLite


MOST_GUESSED = 64
"""At most this many forced tokens are decoded together."""

_shifts = count(1)


class ModelRunner:
    """Runs the model for requests, each in its own sequence of the context, empty when the request enters.

    Attributes:
        prefix_reuse: What the prompt cache has of requests, and keeps of them.
        pending: A request in it takes no part in steps; :meth:`choose` goes on with it.
        errors: Ends requests that fail.
        proposer: Says which tokens requests decode in a step.
    """

    def __init__(
        self,
        context: Context,
        sampler: TokenSampler,
        n_tokens: int,  # Tokens of the vocabulary; the output matrix may have more rows
        # Cached prompts.  A prompt is computed from where it diverges from all of them.
        prefixes: Prefixes,
        # Called with each error of one request alone: while its token is guessed, sampled or turned into text.
        # The error has ended its completion then; the others go on.
        failed: Failed | None = None,
        *,
        # Keep parts of prompts as cached prefixes, too, as is done wherever there are tiers
        keep_pieces: bool = False,
        # Chooses tokens that take long; None: each is chosen at once
        pending: PendingTokens | None = None,
        # Prefixes that must be read are read beside the steps, and this is called, in any thread, when
        # ``PrefixReuse.take_arrived`` has something to do; None: ``enter`` reads them
        wake: Wake | None = None,
    ) -> None:
        self.context, self.sampler = context, sampler
        self.pending = pending or PendingTokens()
        self.prefix_reuse, self._n_tokens = PrefixReuse(prefixes, wake), n_tokens
        self._keep_pieces = keep_pieces or self.prefix_reuse.tiered
        self.errors = RequestErrors(self.pending.drop, failed)
        self.proposer = Proposer(context, self.errors)

    def enter(self, state: RequestState, reuse: bool = True) -> int:
        """Copy what is cached of a request's prompts into its empty sequences, if that is to be reused.

        Returns:
            How many tokens of the prompt are cached and need not be computed.  More may come from a tier of
            the prompt cache (``state.prefix_loads``, :meth:`PrefixReuse.take_arrived`).
        """
        prompt = state.request.remaining
        reuses = reuse and not state.wants_prompt  # nobody has kept the logits
        held = self.prefix_reuse.begin(state, state.seq, prompt) if reuses else 0
        state.tokens = list(prompt[:held])
        state.stats.reused_tokens += held
        guidance = state.guidance
        if guidance is not None and reuse:
            guidance.computed = self.prefix_reuse.begin(state, guidance.seq, guidance.prompt)
            state.stats.reused_tokens += guidance.computed
        if state.to_prefill == len(prompt) - 1:  # of a session: a context shift makes room for it
            state.drawn = prompt[-1]
        return held

    def empty(self, state: RequestState) -> None:
        """Empty a request's sequences."""
        self.prefix_reuse.stop(state)
        self.sampler.leave(state)
        state.tokens = []
        if state.guidance is not None:
            state.guidance.computed = 0
        self._cut(state)

    def logits(self, batch: Batch, draw: Draw | None = None) -> Logits:
        """Logits [n, V] of the wanted tokens, without rows of the output matrix that stand for no token."""
        decode = self.context.decode
        rows: Logits = decode(batch) if draw is None else decode(batch, draw)
        return rows[:, : self._n_tokens]

    def step(self, rows: Sequence[Proposal], chunks: Sequence[Chunk] = ()) -> None:
        """Decode one batch, and sample from its logits.

        Args:
            rows: Requests with the tokens that each decodes: the one drawn last, and guesses of what follows
                (:meth:`Proposer.propose`); at the end searches of beams, with the last token of each beam.
            chunks: Pieces of prompts.  After the last piece of a prompt its first token is sampled.
        """
        batch = Batch()
        width, searches = 0, list[tuple[RequestState, range]]()
        places = []
        for state, tokens in rows:
            places.append((state, len(state.tokens), len(batch)))
            if state.search is not None:
                searches.append((state, range(len(batch), len(batch) + len(tokens))))
                state.search.add_to(batch)
                width += len(tokens)
                continue
            batch.add_run(tokens, len(state.tokens), state.seq)
            width += 1
            if state.guidance is not None:
                width += 1
                batch.add_run(tokens, state.second_positions, state.guidance.seq)
        n_rows = len(batch)
        ends = add_chunks(batch, chunks, n_rows)
        started = perf_counter()
        logits = self.logits(batch, self.sampler.draw(() if chunks else rows))
        if not rows:
            self.prefix_reuse.computed(len(batch), perf_counter() - started)
        if not chunks:
            self.proposer.costs.observe(width, n_rows - width, perf_counter() - started)
        at = n_rows
        for chunk, (_, _, of_prompt) in zip(chunks, ends, strict=True):
            pos, at = len(chunk.state.tokens), at + chunk.n
            self._computed(chunk)
            end = len(chunk.state.tokens)
            for state in (chunk.state, *chunk.followers):
                self._show(state, pos, at - (end - pos), end)
            if of_prompt:
                self.errors.run_for(chunk.state, self._feed_prompt, chunk.state, of_prompt, logits)
        self._sample_after(rows[: len(rows) - len(searches)], logits)
        for state, pos, at in places:
            self._show(state, pos, at, len(state.tokens))
        for state, of_beams in searches:
            state.stats.decode_tokens += len(of_beams)
            self.errors.run_for(state, self._choose_beams, state, of_beams, logits)
        self._sample_first(chunks, ends, logits)

    def _show(self, state: RequestState, pos: int, at: int, end: int) -> None:
        """Show a draft head the hidden states of tokens ``pos`` to ``end``, the batch's from ``at`` on."""
        if state.speculation is not None and self.context.hidden is not None:
            state.speculation.add_hidden(pos, self.context.hidden[at : at + end - pos])

    def _feed_prompt(self, state: RequestState, of_prompt: range, logits: Logits) -> None:
        for row in host_rows(logits[of_prompt.start : of_prompt.stop]):
            state.completion.feed_prompt(row)

    def _computed(self, chunk: Chunk) -> None:
        """Note that a piece of a prompt is in the cache."""
        state, n = chunk.state, chunk.n
        namespace, guidance = state.request.cache_namespace, state.guidance
        state.stats.prompt_tokens += n
        if guidance is not None and guidance.computed < len(guidance.prompt):
            more = min(n, len(guidance.prompt) - guidance.computed)
            guidance.computed += more
            n -= more
            if guidance.computed == len(guidance.prompt):
                self.prefix_reuse.keep(guidance.seq, guidance.prompt, namespace)
        state.tokens += state.request.remaining[len(state.tokens) : len(state.tokens) + n]
        whole = len(state.tokens) == state.to_prefill
        if whole or (self._keep_pieces and not state.request.options.context_shift):
            self.prefix_reuse.keep_prompt(state)
        if not whole:
            return
        for follower in chunk.followers:
            self.context.cache.seq_cp(state.seq, follower.seq)
            follower.tokens = list(state.tokens)
            if follower.stats is not state.stats:
                follower.stats.reused_tokens += len(state.tokens)

    def _sample_first(
        self, chunks: Sequence[Chunk], ends: Sequence[tuple[int, int, range]], logits: Logits
    ) -> None:
        """Sample the first token after each prompt that is complete."""
        tasks: list[tuple[RequestState, int, int]] = []
        for chunk, (guided, own, _) in zip(chunks, ends, strict=True):
            if guided >= 0 and chunk.state.guidance is not None:
                chunk.state.guidance.first = np.array(logits[guided])
            if own >= 0 and chunk.state.search is not None:
                self.errors.run_for(
                    chunk.state, self._choose_beams, chunk.state, range(own, own + 1), logits
                )
            elif own >= 0:
                tasks += [(state, own, -1) for state in (chunk.state, *chunk.followers)]
        self.sample(tasks, logits)

    def _sample_after(self, active: Sequence[Proposal], logits: Logits) -> None:
        """Sample after each decoded token, for as long as the token is the one that was decoded next.

        So the tokens are the same as when they are sampled one by one.
        """
        if len(active) == 1 and self._is_simple(active[0][0]):
            self._sample_alone(*active[0], host_rows(logits))
            return
        first, depth = 0, 0
        left = []
        for state, tokens in active:
            beside = -1
            if state.guidance is not None:
                beside = first + len(tokens)
            left.append((state, tokens, first, beside))
            first += len(tokens) if beside < 0 else 2 * len(tokens)
        while left:
            for state, tokens, _, _ in left:
                state.tokens.append(tokens[depth])
                state.stats.decode_tokens += 1
            self.sample(
                [
                    (state, start + depth, beside if beside < 0 else beside + depth)
                    for state, _, start, beside in left
                ],
                logits,
            )
            depth += 1
            left = [each for each in left if self._goes_on(each[0], each[1], depth)]

    def _is_simple(self, state: RequestState) -> bool:
        """Whether nothing but a request's chain decides on its tokens, on the host, and none is held back."""
        return state.draws_alone and state.banned is None and not self.sampler.draws_for(state)

    def _sample_alone(self, state: RequestState, tokens: list[int], rows: Floats) -> None:
        """See :meth:`_sample_after`, without what only other requests need: less time for each token."""
        started = perf_counter()
        for done, token in enumerate(tokens, 1):
            state.tokens.append(token)
            state.stats.decode_tokens += 1
            self.errors.run_for(state, self._draw, state, rows[done - 1])
            if not self._goes_on(state, tokens, done):
                break
        state.stats.sampler_seconds += perf_counter() - started

    def _draw(self, state: RequestState, row: Floats) -> None:
        self.feed(state, state.chain.sample(row), partial(top_logprobs, row))

    def _goes_on(self, state: RequestState, tokens: list[int], done: int) -> bool:
        """Whether the token sampled after the first ``done`` decoded tokens is the next decoded one."""
        is_pending = state in self.pending
        right = (
            not (state.completion.done or is_pending)
            and done < len(tokens)
            and state.drawn == tokens[done]
        )
        if right:
            if state.drafted:
                state.stats.draft_n_accepted += 1
            else:
                state.stats.forced_tokens += 1
            return True
        if is_pending:  # nothing is known of the guesses
            pass
        elif state.drafted and state.speculation is not None:
            state.speculation.learn(len(tokens) - 1, done - 1)
        elif done == len(tokens) > 1:
            state.n_ahead = min(MOST_GUESSED, 2 * state.n_ahead)
        elif done < len(tokens) and not state.completion.done:
            state.n_ahead = max(1, state.n_ahead // 2)
        if done < len(tokens):
            self._cut(state)
        return False

    def _cut(self, state: RequestState) -> None:
        """Remove what was decoded after a request's tokens from the cache."""
        self.context.cache.seq_rm(state.seq, len(state.tokens))
        if state.guidance is not None:
            self.context.cache.seq_rm(state.guidance.seq, state.second_positions)

    def make_room(self, state: RequestState) -> bool:
        """Make sure that a request has a position left, or end its completion; returns whether it goes on."""
        if len(state.tokens) < state.n_ctx:
            return True
        if not state.request.options.context_shift:
            self._release_held(state, True)
            if not state.completion.done:
                state.completion.end("context")
            return False
        keep, used = state.request.n_keep, len(state.tokens)
        forget = (used - keep) // 2
        # What an interrupt leaves is kept as a cached prefix: nothing may be named there that moves just now.
        state.exact = keep if state.exact is None else min(keep, state.exact)
        left, state.tokens = state.tokens[keep + forget :], state.tokens[:keep]
        self.context.cache.seq_rm(state.seq, keep, keep + forget)
        self.context.cache.seq_add(state.seq, keep + forget, used, -forget)
        state.tokens += left
        # Equal tokens after other shifts have other rows, so each has a namespace to itself.
        own = ONCE if state.request.cache_namespace.startswith(ONCE) else OWN
        state.completion.forget(keep, forget, f"{own}context shift {next(_shifts)}")
        state.stats.context_shifts += 1
        return True

    def sample(self, given: Iterable[tuple[RequestState, int, int]], logits: Logits) -> None:
        """Sample a token for each of some requests that have not ended, from logits [n, V].

        Each comes with the index of its row of logits and of the row of its second prompt; -1: there is none,
        or it is :attr:`Guidance.first`.
        """
        tasks = [
            SampleTask(state, row, state.limits()[0], beside)
            for state, row, beside in given
            if not state.completion.done
        ]
        if not tasks:
            return
        started = perf_counter()
        there, here = list[SampleTask](), list[SampleTask]()
        for task in tasks:
            (there if self.sampler.draws_for(task.state) else here).append(task)
        if there:
            for task, drawn in zip(there, self.sampler.sample(there, logits), strict=True):
                self.errors.run_for(task.state, self._take, task.state, drawn)
        if here:
            rows = host_rows(logits)
            for task in self.sampler.host.sample_together(here, rows):
                self.errors.run_for(task.state, self._sample_one, task, rows)
        tasks[0].state.stats.sampler_seconds += perf_counter() - started

    def _sample_one(self, task: SampleTask, rows: Floats) -> None:
        (drawn,) = self.sampler.host.sample([task], rows)
        self._take(task.state, self.pending.begin(task.state, drawn))

    def choose(self, state: RequestState) -> None:
        """Go on choosing a request's token; see :class:`PendingTokens`."""
        self._take(state, self.pending.go_on(state))

    def _choose_beams(self, state: RequestState, of_beams: range, logits: Logits) -> None:
        """Begin to choose how a search goes on."""
        if state.search is not None:
            work = state.search.choose(host_rows(logits[of_beams.start : of_beams.stop]))
            state.stats.sampled_tokens += len(of_beams)
            chosen = SampledToken(None, partial(top_logprobs, []), pending=work)
            self._take(state, self.pending.begin(state, chosen))

    def _take(self, state: RequestState, drawn: SampledToken | None) -> None:
        """Take a request's token in, or raise why there is none; None: it is still being chosen."""
        if drawn is None:
            return
        if drawn.error is not None:
            raise drawn.error
        if state.search is not None:
            state.search.show(state.completion)
        elif drawn.token is None:
            state.completion.end(state.limits()[1])
        elif state.banned is not None and drawn.row is not None:
            self._hold(state, state.banned, drawn.token, drawn.logprobs, drawn.row)
        else:
            self.feed(state, drawn.token, drawn.logprobs)

    def _hold(
        self, state: RequestState, banned: Bans, token: int, logprobs: LogprobsOf, row: Floats
    ) -> None:
        """Hold a token back while something banned may begin in it; where that is complete, sample again.

        Where its logits are not kept any more, the next step decodes the token before it again.
        """
        state.stats.sampled_tokens += 1
        top, of = state.request.options.logprobs, state.completion.token_bytes
        over = state.ends_with(token)
        while n := banned.take(token, noted(logprobs, token, top, of), over, (row, logprobs)):
            gone = banned.back(n)
            state.chain.rollback(n)
            del state.tokens[len(state.tokens) - (n - 1) :]  # the one drawn last was not decoded
            if gone.row is None:
                state.drawn = state.tokens.pop()
                self._cut(state)
                return
            self._cut(state)
            row, logprobs = gone.row
            token = state.chain.sample(banned.masked(row))
            over = state.ends_with(token)
        state.drawn = token
        self._release_held(state, over)
        self._end_grammar(state)

    def feed(self, state: RequestState, token: int, logprobs: LogprobsOf) -> None:
        """Append a token to a request's text."""
        state.drawn = token
        state.stats.sampled_tokens += 1
        state.completion.feed(token, logprobs)
        if state.budget is not None:
            state.budget.take(token, state.completion.token_bytes(token))
        self._end_grammar(state)

    def _end_grammar(self, state: RequestState) -> None:
        """End a completion if its constrained text is complete and nothing can follow."""
        chain = state.chain
        if not state.completion.done and chain.grammar is not None and chain.finished:
            self._release_held(state, True)
            state.completion.end("grammar")

    @staticmethod
    def _release_held(state: RequestState, over: bool) -> None:
        """Release the tokens in which nothing banned can begin; of a text that is ``over`` all."""
        for held in [] if state.banned is None else state.banned.ready(over):
            if not state.completion.done:
                state.completion.feed(held.token, held.logprobs)

    def release(self, state: RequestState) -> None:
        """Free the sequences of a completion that has ended; the prompt cache keeps what they held."""
        state.released = True
        self.prefix_reuse.stop(state)
        self.sampler.leave(state)
        self.pending.drop(state)
        if state.search is not None:
            state.search.end()  # its prompt was kept when it was computed
            return
        state.end_speculation()
        state.chain.free_scratch()  # whoever keeps the text has the chain, and will hardly draw with it
        if state.completion.namespace:  # for a session; the beginning is of more use
            self.prefix_reuse.keep(state.seq, state.tokens, state.completion.namespace)
        exact = state.tokens[: state.exact]
        self.prefix_reuse.keep(state.seq, exact, state.request.options.namespace)
        self.context.cache.seq_rm(state.seq)
        if state.guidance is not None:
            self.context.cache.seq_rm(state.guidance.seq)
