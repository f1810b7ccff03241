"""What slots decode in a step: the tokens drawn last, and guesses of what follows."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from aleator.generate.context import Context
from aleator.generate.request_errors import RequestErrors
from aleator.generate.slot import Slot
from aleator.generate.speculation.draft_model import Draft, draft_together
from aleator.generate.speculation.speculation import Costs


class Guesses:
    """Asks grammars, drafters and draft models, each for as many tokens as pay.

    Args:
        context: What is wrong is taken back in.
        errors: Ends slots whose drafters fail.

    Attributes:
        costs: What steps have taken.
    """

    def __init__(self, context: Context, errors: RequestErrors) -> None:
        self._context, self._errors, self.costs = context, errors, Costs()

    def ahead(self, slots: Sequence[Slot]) -> list[tuple[Slot, list[int]]]:
        """The token that each slot has drawn last, and tokens that are likely to be drawn next.

        They are decoded together.

        Args:
            slots: Those that take part in the step; each has drawn a token.

        Returns:
            The slots whose drafters have not failed, each with its tokens.
        """
        rows = {slot: [slot.drawn] for slot in slots}
        drafts: list[tuple[Slot, Draft]] = []
        for slot in slots:
            slot.drafted = False
            nobody = slot.spell is None and slot.speculation is None
            if not nobody and slot.banned is None:  # what is held back may be taken back
                self._errors.alone(slot, self._guess, slot, rows, drafts)
        if drafts:
            self._draft(drafts, rows)
        return [(slot, tokens) for slot, tokens in rows.items() if not slot.completion.done]

    def _guess(
        self, slot: Slot, rows: dict[Slot, list[int]], drafts: list[tuple[Slot, Draft]]
    ) -> None:
        """Add guesses to a slot's tokens; those of a draft model are only asked for, since others ask too."""
        n_sequences = sum([1 if each.guidance is None else 2 for each in rows])
        room = min(slot.n_ctx - 1 - len(slot.tokens), self._context.rewindable(n_sequences))
        wanted = slot.request.options.max_tokens
        if wanted is not None:
            room = min(room, wanted - len(slot.completion.tokens) - 1)
        if slot.spell is not None:
            forced = slot.spell(slot.chain.jump_forward())[: max(0, min(room, slot.guess))]
            rows[slot] += forced
            if forced:
                return
        if slot.speculation is None:
            return
        n = slot.speculation.wanted(room, n_sequences, self.costs)
        if n < 1:
            return
        text = [*slot.tokens, slot.drawn]
        if slot.speculation.model is not None:
            drafts.append((slot, Draft(slot.speculation.model, text, n)))
        else:
            self._add(slot, slot.speculation.asked(text, n), rows)

    def _draft(self, drafts: Sequence[tuple[Slot, Draft]], rows: dict[Slot, list[int]]) -> None:
        """Have draft models guess for several slots at once; an error of the small model is all of theirs."""
        started = perf_counter()
        try:
            draft_together([draft for _, draft in drafts])
        except Exception as error:
            for slot, _ in drafts:
                self._errors.alone(slot, _raise, error)
            return
        seconds = (perf_counter() - started) / len(drafts)
        for slot, draft in drafts:
            if slot.speculation is not None:
                slot.speculation.took(len(draft.found), seconds)
            if draft.error is not None:
                self._errors.alone(slot, _raise, draft.error)
            self._add(slot, draft.found, rows)

    @staticmethod
    def _add(slot: Slot, guesses: Sequence[int], rows: dict[Slot, list[int]]) -> None:
        rows[slot] += guesses
        slot.drafted = bool(guesses)
        slot.stats.draft_n += len(guesses)
        slot.stats.drafts += bool(guesses)


def _raise(error: Exception) -> None:
    raise error
