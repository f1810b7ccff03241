"""Proposes the tokens that requests decode in a step: the token drawn last, and guesses of what follows."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from aleator.generate.context import Context
from aleator.generate.request_state import RequestErrors, RequestState
from aleator.generate.speculative import Costs, Draft, draft_together


class Proposer:
    """Asks grammars, drafters and draft models for tokens, for as many as are likely to save time.

    ``costs`` says how long steps have taken.
    """

    def __init__(self, context: Context, errors: RequestErrors) -> None:
        self._context, self._errors, self.costs = context, errors, Costs()

    def propose(self, states: Sequence[RequestState]) -> list[tuple[RequestState, list[int]]]:
        """Give the token that each request has drawn last, and tokens that are likely to follow.

        A step decodes them together.  Requests whose drafters have failed are left out.
        """
        rows = {state: [state.drawn] for state in states}
        drafts: list[tuple[RequestState, Draft]] = []
        for state in states:
            state.drafted = False
            nobody = state.spell is None and state.speculation is None
            if not nobody and state.banned is None:  # what is held back may be taken back
                self._errors.alone(state, self._guess, state, rows, drafts)
        if drafts:
            self._draft(drafts, rows)
        return [(state, tokens) for state, tokens in rows.items() if not state.completion.done]

    def _guess(
        self,
        state: RequestState,
        rows: dict[RequestState, list[int]],
        drafts: list[tuple[RequestState, Draft]],
    ) -> None:
        """Add guesses to a request's tokens; a draft model is asked later, for all requests at once."""
        n_sequences = sum([1 if each.guidance is None else 2 for each in rows])
        room = min(state.n_ctx - 1 - len(state.tokens), self._context.rewindable(n_sequences))
        wanted = state.request.options.max_tokens
        if wanted is not None:
            room = min(room, wanted - len(state.completion.tokens) - 1)
        if state.spell is not None:
            forced = state.spell(state.chain.jump_forward())[: max(0, min(room, state.n_ahead))]
            rows[state] += forced
            if forced:
                return
        if state.speculation is None:
            return
        n = state.speculation.wanted(room, n_sequences, self.costs)
        if n < 1:
            return
        text = [*state.tokens, state.drawn]
        if state.speculation.model is not None:
            drafts.append((state, Draft(state.speculation.model, text, n)))
        else:
            self._add(state, state.speculation.asked(text, n), rows)

    def _draft(
        self, drafts: Sequence[tuple[RequestState, Draft]], rows: dict[RequestState, list[int]]
    ) -> None:
        """Have draft models guess for several requests at once; an error of the model ends all of them."""
        started = perf_counter()
        try:
            draft_together([draft for _, draft in drafts])
        except Exception as error:
            for state, _ in drafts:
                self._errors.fail(state, error)
            return
        seconds = (perf_counter() - started) / len(drafts)
        for state, draft in drafts:
            if state.speculation is not None:
                state.speculation.took(len(draft.found), seconds)
            if draft.error is not None:
                self._errors.fail(state, draft.error)
            self._add(state, draft.found, rows)

    @staticmethod
    def _add(
        state: RequestState, guesses: Sequence[int], rows: dict[RequestState, list[int]]
    ) -> None:
        rows[state] += guesses
        state.drafted = bool(guesses)
        state.stats.draft_n += len(guesses)
        state.stats.drafts += bool(guesses)
