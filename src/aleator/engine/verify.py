"""Checks the texts of records at the speed of a prefill.

A text is generated again with its own tokens as guesses, as in speculation: the model computes hundreds of them
in one batch, and the record's chain draws each from its key.  Where a draw gives another token, the text
continues with the drawn one, so that each altered token is found by itself, without those that follow it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from aleator.core.arrays import Floats
from aleator.core.errors import ParameterError
from aleator.core.records import dataclass
from aleator.engine.engine import Served
from aleator.engine.replay import CUT_OFF, Made, Record, begin_again
from aleator.generate.completion import Request
from aleator.generate.context import Context
from aleator.generate.generation import reader_of
from aleator.generate.request_state import RequestState
from aleator.generate.scores import rows_at_once
from aleator.generate.speculative import Costs, Speculation
from aleator.models.native_decoder import NativeDecoder
from aleator.samplers.chain import SamplerChain
from aleator.samplers.kept_tokens import KeptRow

MOST_WRONG = 16
"""Wrong tokens after which the check stops: the text is a different one."""

LOW_BITS = 0.05
"""Largest difference of log-probabilities where logits depend on the batch's shape; on the CPU they do not."""


@dataclass(frozen=True)
class WrongToken:
    """A token of a record that its chain does not draw there."""

    position: int  # In the text, from 0
    token: int | None  # The record's token; None: its text has ended
    # What the chain draws after the preceding tokens, with wrong ones replaced by what was drawn for them;
    # None: the text ends
    drawn: int | None
    reason: str  # Explanation in words


@dataclass(frozen=True)
class Verification:
    """The result of a check."""

    checked: int  # Tokens that were drawn again
    wrong: tuple[WrongToken, ...]  # Tokens that differ from those drawn, at most :data:`MOST_WRONG`
    others: tuple[str, ...]  # Other differences, in words: log-probabilities, the end, the text

    @property
    def ok(self) -> bool:
        """Whether the text is what the record's chain draws, token by token."""
        return not (self.wrong or self.others)


class _Guesses(Speculation):
    """Guesses the text's own tokens, as many as fit a batch of ``most`` rows."""

    def __init__(self, text: Sequence[int], made: Sequence[int], most: int, size: int) -> None:
        super().__init__(self, most, size)
        self._text, self._made, self._most, self._size = text, made, most, size

    def n_guesses(self, room: int, n_sequences: int, costs: Costs) -> int:
        """See :class:`Speculation`; it always pays here."""
        return min(room, self._most)

    def draft(self, tokens: Sequence[int], n: int) -> Sequence[int]:
        """See :class:`aleator.generate.speculative.Drafter`."""
        start = len(self._made)
        return list(takewhile(lambda t: 0 <= t < self._size, self._text[start : start + n]))


class _Judge:
    """Compares each drawn token with the record's, and explains differences."""

    def __init__(self, model: Served, request: Request, tokens: Sequence[int]) -> None:
        self._model, self._request, self._tokens = model, request, tokens
        self._row: Floats | None = None
        self._seen = 0
        self.made: Sequence[int] = ()  # the text's list, once there is one
        self.wrong: list[WrongToken] = []

    def on_logits(self, chain: SamplerChain, row: Any) -> None:
        """Check the token drawn last, and keep the logits [V] of the next."""
        self.look()
        self._row = row.copy()

    def look(self) -> None:
        """Compare the tokens that were drawn since the last call."""
        made = self.made
        for at in range(self._seen, min(len(made), len(self._tokens))):
            if made[at] != self._tokens[at] and len(self.wrong) < MOST_WRONG:
                # Tokens that were held back come several at once: the logits belong to the last one.
                alone = len(made) == self._seen + 1
                why = self._why(at, made, self._row if alone else None)
                self.wrong.append(WrongToken(at, self._tokens[at], made[at], why))
        self._seen = len(made)

    def _why(self, at: int, made: Sequence[int], row: Floats | None) -> str:
        token, drawn = self._tokens[at], made[at]
        instead = f"its key draws {drawn} there"
        if not 0 <= token < len(self._model.vocab):
            return f"{token} is no token of the vocabulary; {instead}"
        request = self._request
        options = request.options
        if (
            row is None
            or request.params.numerics != "portable"
            or options.bans
            or options.raises_temperature
        ):
            return instead
        chain = self._model.request_states.make([request])[0].chain
        if chain.adapts:
            return instead  # its state is not known from the tokens alone
        chain.accept_many(made[:at], generated=True)
        kept = KeptRow.of(chain, row)
        if token in kept.ids:
            return f"{token} is one of {len(kept.ids)} tokens that were kept, and {instead}"
        return f"{token} is not among the {len(kept.ids)} tokens that were kept; {instead}"


def verify(record: Record, model: Served, prompt: Sequence[int] | None = None) -> Verification:
    """Check that a record's text is what its chain draws, position by position.

    Grammars, penalties, biases, several completions, every form of draw, negative prompts and texts made with
    speculation are checked.  Texts with bans are drawn token by token, without guesses.

    Args:
        record: Has a text.  One that was cut off is checked as far as it came.
        model: That of the record; :attr:`Record.model` is not compared here.
        prompt: Token ids, where the record has only their hash.

    Returns:
        The wrong tokens with their reasons, and what else differs.

    Raises:
        ParameterError: The record has no text, or as for :func:`aleator.engine.replay.make_again`.
    """
    if record.made is None:
        raise ParameterError(
            "verify",
            "the record has no text to verify, as those of headers: use the record of the response's body, "
            "or leave --verify out to make the text",
        )
    then, request = record.made, record.request(prompt, model.tokenizer)
    # A grammar's own guesses are fewer than the record's.
    request = replace(request, options=replace(request.options, jump_forward=False))
    tolerance = 0.0
    judge, n_tokens = _Judge(model, request, then.tokens), len(model.vocab)

    def prepare(state: RequestState, context: Context) -> None:
        nonlocal tolerance
        judge.made, n_seqs = state.completion.tokens, context.n_seq_max
        tolerance = 0.0 if isinstance(context.decoder, NativeDecoder) else LOW_BITS
        if context.rewindable(n_seqs) > 0:
            most = rows_at_once(n_tokens) // n_seqs
            state.speculation = _Guesses(then.tokens, judge.made, most, n_tokens)

    generation = begin_again(record, model, request, prepare, judge.on_logits)
    made = reader_of(generation)
    n = len(then.tokens)
    cut_off = then.stop_reason in CUT_OFF

    def over() -> bool:
        drawn = len(made.completion.tokens)
        too_many = drawn >= n if cut_off else drawn > n
        return made.completion.done or too_many or len(judge.wrong) >= MOST_WRONG

    made.run.make(over)
    judge.look()
    generation.cancel()
    return _compared(then, Made.of(generation), judge.wrong, cut_off, tolerance)


def _compared(
    then: Made, now: Made, wrong: list[WrongToken], cut_off: bool, tolerance: float
) -> Verification:
    """All that differs between the text of a record and what was drawn."""
    n, checked = len(then.tokens), min(len(then.tokens), len(now.tokens))
    if len(wrong) >= MOST_WRONG:
        return Verification(checked, tuple(wrong), ())
    others: list[str] = []
    if len(now.tokens) > n and not cut_off:
        why = f"the text goes on; the record ends it by {then.stop_reason!r}"
        wrong = [*wrong, WrongToken(n, None, now.tokens[n], why)]
    elif len(now.tokens) < n:
        why = f"the text has ended by {now.stop_reason!r}; the record goes on"
        wrong = [*wrong, WrongToken(checked, then.tokens[checked], None, why)]
    elif not cut_off and now.stop_reason != then.stop_reason:
        others.append(f"it ended by {now.stop_reason!r}, not by {then.stop_reason!r}")
    if then.logprobs is not None and now.logprobs is not None:
        if len(then.logprobs) != n:
            others.append(f"{len(then.logprobs)} log-probabilities for {n} tokens")
        bad = {each.position for each in wrong}
        for at, (a, b) in enumerate(zip(then.logprobs, now.logprobs, strict=False)):
            if at not in bad and a != b and not abs(a - b) <= tolerance:
                others.append(f"log-probability of token {at}: {b!r}, not {a!r}")
    if not (wrong or others or cut_off) and now.text_hash != then.text_hash:
        others.append("the tokens are right, and their text is another one: it was altered")
    return Verification(checked, tuple(wrong), tuple(others[:MOST_WRONG]))
