"""One step of completions over one context: decode their tokens, draw the next ones, take back wrong guesses.

Which completions take part, and when, is their caller's matter: :class:`aleator.engine.core.Core`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from time import perf_counter

import numpy as np
import numpy.typing as npt

from aleator.generate.banned_strings import BannedStrings
from aleator.generate.batch import Batch
from aleator.generate.choices import Choices
from aleator.generate.chunks import Chunk, add_chunks
from aleator.generate.context import Context
from aleator.generate.drawing import Drawing, Drawn, Logits, Turn, host_rows
from aleator.generate.guesses import Guesses
from aleator.generate.logprobs import LogprobsOf
from aleator.generate.prefixes import Prefixes
from aleator.generate.request_errors import Failed, RequestErrors
from aleator.generate.slot import Slot

MOST_GUESSED = 64
"""Forced tokens that are decoded together at most."""

_shifts = count(1)


class Advance:
    """Moves slots forward, each in its own sequence of the context.

    Args:
        context: Has an own sequence for each slot, empty when the slot enters.
        drawing: Draws the tokens.
        n_tokens: Tokens of the vocabulary; the output matrix may have more rows.
        prefixes: Prompts are computed only from where they diverge from one of these.
        failed: Told of an error while a token of one slot is guessed, drawn or turned into text, which has
            ended that slot's completion; the others go on.
        keep_pieces: Others of the same context may go on from a part of a prompt.
        choices: Choose the tokens that take long; None: each is chosen at once.

    Attributes:
        choices: A slot that is among them sits steps out: :meth:`choose` goes on with it.
        context: Where it is computed.
        drawing: Draws the tokens.
        errors: Ends slots that fail.
        guesses: Says what slots decode in a step.
    """

    def __init__(
        self,
        context: Context,
        drawing: Drawing,
        n_tokens: int,
        prefixes: Prefixes,
        failed: Failed | None = None,
        *,
        keep_pieces: bool = False,
        choices: Choices | None = None,
    ) -> None:
        self.context, self.drawing = context, drawing
        self.choices = choices or Choices()
        self._prefixes, self._n_tokens = prefixes, n_tokens
        self._keep_pieces = keep_pieces
        self.errors = RequestErrors(self.choices, failed)
        self.guesses = Guesses(context, self.errors)

    def enter(self, slot: Slot, reuse: bool = True) -> int:
        """Give a slot's empty sequences what is cached of its prompts.

        Args:
            slot: What begins.
            reuse: Look for a cached prefix.

        Returns:
            Tokens of the prompt that need not be computed.
        """
        prompt, where = slot.request.remaining, slot.request.where
        reuses = reuse and not slot.wants_prompt  # nobody has kept the logits
        held = self._prefixes.reuse(slot.seq, prompt, where) if reuses else 0
        slot.tokens = list(prompt[:held])
        slot.stats.reused_tokens += held
        guidance = slot.guidance
        if guidance is not None and reuse:
            guidance.computed = self._prefixes.reuse(guidance.seq, guidance.prompt, where)
            slot.stats.reused_tokens += guidance.computed
        if slot.to_prefill == len(prompt) - 1:  # of a session: a context shift makes room for it
            slot.drawn = prompt[-1]
        return held

    def empty(self, slot: Slot) -> None:
        """Empty a slot's sequences."""
        self.context.cache.seq_rm(slot.seq, -1, -1)
        slot.tokens = []
        if slot.guidance is not None:
            self.context.cache.seq_rm(slot.guidance.seq, -1, -1)
            slot.guidance.computed = 0

    def logits(self, batch: Batch) -> Logits:
        """Logits [n, V] of the wanted tokens; rows of the output matrix that are no tokens are left out."""
        rows: Logits = self.context.decode(batch)[:, : self._n_tokens]
        return rows

    def step(self, rows: Sequence[tuple[Slot, list[int]]], chunks: Sequence[Chunk] = ()) -> None:
        """Decode one batch, and draw from it.

        Args:
            rows: Slots with the tokens that each decodes: the one drawn last, and guesses of what follows
                (:meth:`Guesses.ahead`).
            chunks: Pieces of prompts; after the last of a prompt its first token is drawn.
        """
        batch = Batch()
        width = 0
        for slot, tokens in rows:
            for pos, token in enumerate(tokens, len(slot.tokens)):
                batch.add(token, pos, [slot.seq], logits=True)
            width += 1
            if slot.guidance is not None:
                width += 1
                for pos, token in enumerate(tokens, slot.beside):
                    batch.add(token, pos, [slot.guidance.seq], logits=True)
        n_rows = len(batch)
        ends = add_chunks(batch, chunks, n_rows)
        started = perf_counter()
        logits = self.logits(batch)
        if not chunks:
            self.guesses.costs.observe(width, n_rows - width, perf_counter() - started)
        for chunk, (_, _, of_prompt) in zip(chunks, ends, strict=True):
            self._computed(chunk)
            if of_prompt:
                self.errors.alone(chunk.slot, self._feed_prompt, chunk.slot, of_prompt, logits)
        self._draw_after(rows, logits)
        self._draw_first(chunks, ends, logits)

    def _feed_prompt(self, slot: Slot, of_prompt: range, logits: Logits) -> None:
        rows = host_rows(logits[of_prompt.start : of_prompt.stop])
        for row in rows:
            slot.completion.feed_prompt(row)

    def _computed(self, chunk: Chunk) -> None:
        """A piece of a prompt is in the cache."""
        slot, n = chunk.slot, chunk.n
        where, guidance = slot.request.where, slot.guidance
        slot.stats.prompt_tokens += n
        if guidance is not None and guidance.computed < len(guidance.prompt):
            more = min(n, len(guidance.prompt) - guidance.computed)
            guidance.computed += more
            n -= more
            if guidance.computed == len(guidance.prompt):
                self._prefixes.keep(guidance.seq, guidance.prompt, where)
        slot.tokens += slot.request.remaining[len(slot.tokens) : len(slot.tokens) + n]
        whole = len(slot.tokens) == slot.to_prefill
        if whole or (self._keep_pieces and not slot.request.options.context_shift):
            self._prefixes.keep(slot.seq, slot.tokens, where)
        if not whole:
            return
        for follower in chunk.followers:
            self.context.cache.seq_cp(slot.seq, follower.seq, 0, -1)
            follower.tokens = list(slot.tokens)
            if follower.stats is not slot.stats:
                follower.stats.reused_tokens += len(slot.tokens)

    def _draw_first(
        self, chunks: Sequence[Chunk], ends: Sequence[tuple[int, int, range]], logits: Logits
    ) -> None:
        """Draw the first token after each prompt that is complete."""
        turns: list[tuple[Slot, int, int]] = []
        for chunk, (guided, own, _) in zip(chunks, ends, strict=True):
            if guided >= 0 and chunk.slot.guidance is not None:
                chunk.slot.guidance.first = np.array(logits[guided])
            if own >= 0:
                turns += [(slot, own, -1) for slot in (chunk.slot, *chunk.followers)]
        self.draw(turns, logits)

    def _draw_after(self, active: Sequence[tuple[Slot, list[int]]], logits: Logits) -> None:
        """Draw after each token that was decoded, for as long as what is drawn is what was decoded next.

        So the tokens are those that would have been drawn one by one.
        """
        first, depth = 0, 0
        left = []
        for slot, tokens in active:
            beside = -1
            if slot.guidance is not None:
                beside = first + len(tokens)
            left.append((slot, tokens, first, beside))
            first += len(tokens) if beside < 0 else 2 * len(tokens)
        while left:
            for slot, tokens, _, _ in left:
                slot.tokens.append(tokens[depth])
                slot.stats.decode_tokens += 1
            self.draw(
                [
                    (slot, start + depth, beside if beside < 0 else beside + depth)
                    for slot, _, start, beside in left
                ],
                logits,
            )
            depth += 1
            left = [each for each in left if self._goes_on(each[0], each[1], depth)]

    def _goes_on(self, slot: Slot, tokens: list[int], done: int) -> bool:
        """Whether the token that was drawn after ``done`` of those decoded is the next of them."""
        open_choice = slot in self.choices
        right = (
            not (slot.completion.done or open_choice)
            and done < len(tokens)
            and slot.drawn == tokens[done]
        )
        if right:
            if slot.drafted:
                slot.stats.draft_n_accepted += 1
            else:
                slot.stats.forced_tokens += 1
            return True
        if open_choice:  # nothing is known of the guesses
            pass
        elif slot.drafted and slot.speculation is not None:
            slot.speculation.learn(len(tokens) - 1, done - 1)
        elif done == len(tokens) > 1:
            slot.guess = min(MOST_GUESSED, 2 * slot.guess)
        elif done < len(tokens) and not slot.completion.done:
            slot.guess = max(1, slot.guess // 2)
        if done < len(tokens):
            self._cut(slot)
        return False

    def _cut(self, slot: Slot) -> None:
        """Take what was decoded after a slot's tokens out of the cache."""
        self.context.cache.seq_rm(slot.seq, len(slot.tokens), -1)
        if slot.guidance is not None:
            self.context.cache.seq_rm(slot.guidance.seq, slot.beside, -1)

    def make_room(self, slot: Slot) -> bool:
        """See to it that the slot has a position left; without one its completion ends here."""
        if len(slot.tokens) < slot.n_ctx:
            return True
        if not slot.request.options.context_shift:
            self._flush(slot)
            if not slot.completion.done:
                slot.completion.out_of_context()
            return False
        keep, used = slot.request.n_keep, len(slot.tokens)
        forget = (used - keep) // 2
        # What an interrupt leaves is kept as a cached prefix: nothing may be named there that moves just now.
        slot.exact = keep if slot.exact is None else min(keep, slot.exact)
        left, slot.tokens = slot.tokens[keep + forget :], slot.tokens[:keep]
        self.context.cache.seq_rm(slot.seq, keep, keep + forget)
        self.context.cache.seq_add(slot.seq, keep + forget, used, -forget)
        slot.tokens += left
        # Equal tokens after other shifts have other rows, so each has a namespace to itself.
        slot.completion.forget(keep, forget, f"context shift {next(_shifts)}")
        slot.stats.context_shifts += 1
        return True

    def draw(self, given: Iterable[tuple[Slot, int, int]], logits: Logits) -> None:
        """Draw a token each for some slots.

        Args:
            given: Slots, each with its row of the logits, and that of its second prompt: -1 without one, or
                where that is :attr:`Guidance.first`.
            logits: Rows [n, V].
        """
        turns = [
            Turn(slot, row, slot.limits()[0], beside)
            for slot, row, beside in given
            if not slot.completion.done
        ]
        if not turns:
            return
        started = perf_counter()
        if self.drawing.together:
            for turn, drawn in zip(turns, self.drawing.draw(turns, logits), strict=True):
                self.errors.alone(turn.slot, self._take, turn.slot, drawn)
        else:
            rows = self.drawing.rows(logits)
            for turn in self.drawing.sampled(turns, rows):
                self.errors.alone(turn.slot, self._draw_one, turn, rows)
        turns[0].slot.stats.sampler_seconds += perf_counter() - started

    def _draw_one(self, turn: Turn, rows: Logits) -> None:
        (drawn,) = self.drawing.draw([turn], rows)
        made = self.choices.begin(turn.slot, drawn)
        if made is not None:
            self._take(turn.slot, made)

    def choose(self, slot: Slot) -> None:
        """Go on choosing the token that a slot has drawn."""
        made = self.choices.go_on(slot)
        if made is not None:
            self._take(slot, made)

    def _take(self, slot: Slot, drawn: Drawn) -> None:
        """Go on with what was drawn for a slot."""
        if drawn.token is None:
            slot.completion.grammar_over(slot.limits()[1])
        elif slot.banned is not None and drawn.row is not None:
            self._hold(slot, slot.banned, drawn.token, drawn.logprobs, drawn.row)
        else:
            self.feed(slot, drawn.token, drawn.logprobs)

    def _hold(
        self,
        slot: Slot,
        banned: BannedStrings,
        token: int,
        logprobs: LogprobsOf,
        row: npt.NDArray[np.float32],
    ) -> None:
        """Hold a token back while a banned string may begin in it; where one is complete, draw anew."""
        slot.stats.sampled_tokens += 1
        n = banned.take(token, row.copy(), logprobs)
        while n:
            gone, left = banned.back(n)
            slot.chain.rollback(n)
            del slot.tokens[len(slot.tokens) - (n - 1) :]  # the one drawn last was not decoded
            self._cut(slot)
            token = slot.chain.sample(left)
            n = banned.take(token, gone.row, gone.logprobs)
        slot.drawn = token
        over = slot.completion.ends_with(token) or slot.limits()[0] == 0
        for held in banned.ready(over):
            if not slot.completion.done:
                slot.completion.feed(held.token, held.logprobs)
        self._end_grammar(slot)

    def feed(self, slot: Slot, token: int, logprobs: LogprobsOf) -> None:
        """Give a slot the token that was drawn for it."""
        slot.drawn = token
        slot.stats.sampled_tokens += 1
        slot.completion.feed(token, logprobs)
        if slot.budget is not None:
            slot.budget.take(token, slot.completion.bytes_of(token))
        self._end_grammar(slot)

    def _end_grammar(self, slot: Slot) -> None:
        """End a completion whose constrained text is complete, with nothing that can follow."""
        if not slot.completion.done and slot.constrained and slot.chain.finished:
            self._flush(slot)
            slot.completion.grammar_over("grammar")

    @staticmethod
    def _flush(slot: Slot) -> None:
        """Give out what is held back of a text that ends."""
        for held in [] if slot.banned is None else slot.banned.ready(True):
            if not slot.completion.done:
                slot.completion.feed(held.token, held.logprobs)

    def release(self, slot: Slot) -> None:
        """Give up the sequences of an ended completion; the prompt cache keeps what they held."""
        slot.released = True
        self.choices.drop(slot)
        slot.end_speculation()
        slot.chain.free_scratch()  # whoever keeps the text has the chain, and will hardly draw with it
        if slot.completion.namespace:  # for a session; the beginning is of more use
            self._prefixes.keep(slot.seq, slot.tokens, slot.completion.namespace)
        exact = slot.tokens[: slot.exact]
        self._prefixes.keep(slot.seq, exact, slot.request.options.namespace)
        self.context.cache.seq_rm(slot.seq, -1, -1)
        if slot.guidance is not None:
            self.context.cache.seq_rm(slot.guidance.seq, -1, -1)
