"""One step of completions over one context: decode their tokens, draw the next ones, take back wrong guesses.

Which completions take part, and when, is their caller's matter: :class:`aleator.generate.loop.Run` has a batch
that was made at once, :class:`aleator.engine.Engine` one that anybody joins at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from time import perf_counter

import numpy as np
import numpy.typing as npt

from aleator.core.errors import ParameterError
from aleator.generate.banned_strings import BannedStrings
from aleator.generate.batch import Batch
from aleator.generate.context import Context
from aleator.generate.drawing import Drawing, Logits, Turn
from aleator.generate.logprobs import LogprobsOf
from aleator.generate.prefixes import Prefixes
from aleator.generate.slot import Slot
from aleator.generate.speculation.speculation import Costs

MOST_GUESSED = 64
"""Forced tokens that are decoded together at most."""

_shifts = count(1)

Failed = Callable[[Slot, BaseException], None]
"""Told of an error that one completion alone has; ends it."""


class Advance:
    """Moves slots forward, each in its own sequence of the context.

    Args:
        context: has an own sequence for each slot, empty when the slot enters.
        drawing: draws the tokens.
        n_tokens: tokens of the vocabulary; the output matrix may have more rows.
        prefixes: prompts are computed only from where they diverge from one of these.
        failed: told of an error while a token of one slot is guessed, drawn or turned into text; the others
            go on.  None: such an error is raised.
    """

    def __init__(
        self,
        context: Context,
        drawing: Drawing,
        n_tokens: int,
        prefixes: Prefixes,
        failed: Failed | None = None,
    ) -> None:
        self.drawing = drawing
        self._context, self._prefixes, self._n_tokens = context, prefixes, n_tokens
        self._failed, self._costs = failed, Costs()

    def enter(self, slot: Slot, reuse: bool = True) -> int:
        """Give a slot's empty sequence what is cached of its prompt.

        Args:
            slot: what begins.
            reuse: look for a cached prefix.

        Returns:
            Tokens of the prompt that need not be computed.
        """
        prompt = slot.request.remaining
        held = self._prefixes.reuse(slot.seq, prompt, slot.request.where) if reuse else 0
        slot.tokens = list(prompt[:held])
        slot.stats.reused_tokens += held
        if slot.to_prefill == len(prompt) - 1:  # of a session: a context shift makes room for it
            slot.drawn = prompt[-1]
        return held

    def logits(self, batch: Batch) -> Logits:
        """Logits [n, V] of the wanted tokens; rows of the output matrix that are no tokens are left out."""
        rows: Logits = self._context.decode(batch)[:, : self._n_tokens]
        return rows

    def step(
        self, rows: Sequence[tuple[Slot, list[int]]], chunks: Sequence[tuple[Slot, int]] = ()
    ) -> None:
        """Decode one batch, and draw from it.

        Args:
            rows: slots with the tokens that each decodes: the one drawn last, and guesses of what follows
                (:meth:`ahead`).
            chunks: slots with how many more tokens of their prompts to compute; after the last of a prompt
                its first token is drawn.
        """
        batch = Batch()
        for slot, tokens in rows:
            for pos, token in enumerate(tokens, len(slot.tokens)):
                batch.add(token, pos, [slot.seq], logits=True)
        first = len(batch)
        ending: list[tuple[Slot, int]] = []
        for slot, n in chunks:
            prompt, start = slot.request.remaining, len(slot.tokens)
            for pos in range(start, start + n):
                batch.add(prompt[pos], pos, [slot.seq], logits=pos == len(prompt) - 1)
            if start + n == len(prompt):
                ending.append((slot, first + len(ending)))
        started = perf_counter()
        logits = self.logits(batch)
        if not chunks:
            self._costs.observe(len(rows), first - len(rows), perf_counter() - started)
        for slot, n in chunks:
            slot.tokens += slot.request.remaining[len(slot.tokens) : len(slot.tokens) + n]
            slot.stats.prompt_tokens += n
            if not slot.request.options.context_shift or len(slot.tokens) == slot.to_prefill:
                self._prefixes.keep(slot.seq, slot.tokens, slot.request.where)
        self._draw_after(rows, logits)
        self.draw(ending, logits)

    def ahead(self, slot: Slot, n_sequences: int) -> list[int]:
        """The token drawn last, and tokens that are likely to be drawn next, which are decoded with it.

        Args:
            slot: has drawn a token.
            n_sequences: how many sequences take part in the step.
        """
        slot.drafted = False
        nobody = slot.spell is None and slot.speculation is None
        if nobody or slot.banned is not None:  # what is held back may be taken back
            return [slot.drawn]
        room = min(slot.n_ctx - 1 - len(slot.tokens), self._context.rewindable(n_sequences))
        wanted = slot.request.options.max_tokens
        if wanted is not None:
            room = min(room, wanted - len(slot.completion.tokens) - 1)
        guesses: list[int] = []
        if slot.spell is not None:
            guesses = slot.spell(slot.chain.jump_forward())[: max(0, min(room, slot.guess))]
        if not guesses and slot.speculation is not None:
            text = [*slot.tokens, slot.drawn]
            guesses = slot.speculation.guess(text, room, n_sequences, self._costs)
            slot.drafted = bool(guesses)
            slot.stats.draft_n += len(guesses)
        return [slot.drawn, *guesses]

    def _draw_after(self, active: Sequence[tuple[Slot, list[int]]], logits: Logits) -> None:
        """Draw after each token that was decoded, for as long as what is drawn is what was decoded next.

        So the tokens are those that would have been drawn one by one.
        """
        first, depth = 0, 0
        left = []
        for slot, tokens in active:
            left.append((slot, tokens, first))
            first += len(tokens)
        while left:
            for slot, tokens, _ in left:
                slot.tokens.append(tokens[depth])
                slot.stats.decode_tokens += 1
            self.draw([(slot, start + depth) for slot, _, start in left], logits)
            depth += 1
            left = [each for each in left if self._goes_on(each[0], each[1], depth)]

    def _goes_on(self, slot: Slot, tokens: list[int], done: int) -> bool:
        """Whether the token that was drawn after ``done`` of those decoded is the next of them."""
        right = not slot.completion.done and done < len(tokens) and slot.drawn == tokens[done]
        if right:
            if slot.drafted:
                slot.stats.draft_n_accepted += 1
            else:
                slot.stats.forced_tokens += 1
            return True
        if slot.drafted and slot.speculation is not None:
            slot.speculation.learn(len(tokens) - 1, done - 1)
        elif done == len(tokens) > 1:
            slot.guess = min(MOST_GUESSED, 2 * slot.guess)
        elif done < len(tokens) and not slot.completion.done:
            slot.guess = max(1, slot.guess // 2)
        if done < len(tokens):
            self._context.cache.seq_rm(slot.seq, len(slot.tokens), -1)
        return False

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
        self._context.cache.seq_rm(slot.seq, keep, keep + forget)
        self._context.cache.seq_add(slot.seq, keep + forget, used, -forget)
        del slot.tokens[keep : keep + forget]
        slot.exact = keep if slot.exact is None else min(keep, slot.exact)
        # Equal tokens after other shifts have other rows, so each has a namespace to itself.
        slot.completion.forget(keep, forget, f"context shift {next(_shifts)}")
        slot.stats.context_shifts += 1
        return True

    def draw(self, pairs: Iterable[tuple[Slot, int]], logits: Logits) -> None:
        """Draw a token each for some slots, from the given rows of the logits."""
        turns = [
            Turn(slot, row, slot.limits()[0]) for slot, row in pairs if not slot.completion.done
        ]
        if self._failed is None:
            self._draw(turns, logits)
            return
        for turn in turns:
            self.alone(turn.slot, self._draw, [turn], logits)

    def alone(self, slot: Slot, action: Callable[..., object], *given: object) -> None:
        """Do something for one slot; an error is that slot's alone, where somebody is told of it.

        So is a SystemExit of its callback; KeyboardInterrupt is nobody's own, and is raised.
        """
        try:
            action(*given)
        except BaseException as error:
            if self._failed is None or isinstance(error, KeyboardInterrupt):
                raise
            self._failed(slot, error)

    def _draw(self, turns: Sequence[Turn], logits: Logits) -> None:
        if not turns:
            return
        started = perf_counter()
        found = self.drawing.draw(turns, logits)
        turns[0].slot.stats.sampler_seconds += perf_counter() - started
        for turn, drawn in zip(turns, found, strict=True):
            if drawn.token is None:
                turn.slot.completion.grammar_over(turn.slot.limits()[1])
            elif turn.slot.banned is not None and drawn.row is not None:
                self._hold(turn.slot, turn.slot.banned, drawn.token, drawn.logprobs, drawn.row)
            else:
                self.feed(turn.slot, drawn.token, drawn.logprobs)

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
            kept = len(slot.tokens) - (n - 1)  # the one drawn last was not decoded
            self._context.cache.seq_rm(slot.seq, kept, -1)
            del slot.tokens[kept:]
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
        """Give up the sequence of an ended completion; the prompt cache keeps what it held."""
        slot.released = True
        slot.speculation = None  # or who holds the generation would hold the draft model's context
        if slot.completion.namespace:  # for a session; the beginning is of more use
            self._prefixes.keep(slot.seq, slot.tokens, slot.completion.namespace)
        exact = slot.tokens[: slot.exact]
        self._prefixes.keep(slot.seq, exact, slot.request.options.namespace)
        self._context.cache.seq_rm(slot.seq, -1, -1)


def check_rewinds(slot: Slot, context: Context) -> None:
    """Refuse guesses and banned strings that could not be taken back.

    Raises:
        ParameterError: a slot with speculation, and a model whose states cannot be rewound; a banned string
            with more tokens than they can be rewound by.
    """
    if slot.speculation is not None and context.rewindable(1) < 1:
        raise ParameterError(
            "n_rollback",
            f"speculation takes guesses back, which {context.decoder.config.architecture} cannot without "
            "states to go back to: load the model with n_rollback=8, or leave spec_type and drafter out",
        )
    if slot.banned is not None and slot.banned.longest > context.rewindable(1) + 1:
        raise ParameterError(
            "banned_strings",
            f"banned_strings: one has {slot.banned.longest} bytes, and this model's states can be taken "
            f"back by {context.rewindable(1)} tokens: load the model with a larger n_rollback",
        )
