"""Makes recorded texts again, and says whether they came out the same."""

from __future__ import annotations

from collections.abc import Sequence

from aleator.core.errors import ParameterError
from aleator.engine.engine import Engine, Served
from aleator.engine.options import SubmitOptions
from aleator.engine.replay.record import CUT_OFF, Made, Record
from aleator.generate.generation import writing_of


def make_again(record: Record, model: Served, prompt: Sequence[int] | None = None) -> Made:
    """Make a record's text again, by itself.

    Args:
        record: What to make.
        model: The model of the record.
        prompt: Its tokens, where the record has only their hash.

    Raises:
        ParameterError: As for :meth:`Record.request`; or the model was loaded with too small an ``n_ctx``.
    """
    request = record.request(prompt, model.tokenizer)
    if record.n_ctx > model.n_ctx:
        raise ParameterError(
            "n_ctx",
            f"the text might use {record.n_ctx} positions, and the model was loaded with {model.n_ctx}: load "
            f"it with n_ctx={record.n_ctx}",
        )
    cells = max(record.n_ctx, len(request.remaining) + 1)
    with Engine(model, n_seq_max=1, n_ctx=cells) as engine:
        generation = engine.start(request, SubmitOptions())
        if record.made is not None and record.made.stop_reason in CUT_OFF:
            wanted = len(record.made.tokens)
            for _ in generation:
                if len(writing_of(generation).completion.tokens) >= wanted:
                    generation.cancel()
        return Made.of(generation)


def differences(then: Made, now: Made) -> list[str]:
    """Where two texts differ, in words; none: they are the same to the bit.

    Args:
        then: Of the record.
        now: Made again.
    """
    n = len(then.tokens)
    cut_off = then.stop_reason in CUT_OFF
    tokens = now.tokens[:n] if cut_off else now.tokens
    found = []
    if tokens != then.tokens:
        at = next(
            (i for i, (a, b) in enumerate(zip(then.tokens, tokens, strict=False)) if a != b),
            min(n, len(tokens)),
        )
        was, is_now = (each[at] if at < len(each) else "the end" for each in (then.tokens, tokens))
        found.append(f"token {at} of the text: {was} then, {is_now} now")
    if then.logprobs is not None and now.logprobs is not None:
        for i, (a, b) in enumerate(zip(then.logprobs, now.logprobs, strict=False)):
            if a != b:
                found.append(f"log-probability of token {i}: {a!r} then, {b!r} now")
                break
        else:
            if len(then.logprobs) != len(now.logprobs[:n] if cut_off else now.logprobs):
                found.append(
                    f"{len(then.logprobs)} log-probabilities then, {len(now.logprobs)} now"
                )
    if cut_off:
        return found
    if now.stop_reason != then.stop_reason:
        found.append(f"why it ended: {then.stop_reason!r} then, {now.stop_reason!r} now")
    if not found and now.text_hash != then.text_hash:
        found.append("the tokens are equal, and their text is not: the tokenizer is another one")
    return found
