"""What a context shift leaves behind: when it is interrupted, and when nothing is to be left."""

from __future__ import annotations

from typing import Any

import pytest

import aleator
from aleator.cache.cache import Cache
from aleator.core.errors import ContextFull
from aleator.generate.completion import one_time_namespace


@pytest.mark.parametrize("name", ["seq_rm", "seq_add"])
def test_an_interrupted_shift_leaves_no_wrong_prefix(
    model: aleator.LanguageModel, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    small = aleator.load(n_threads=1, n_ctx=64)
    options: dict[str, Any] = {"max_tokens": 60, "ignore_eos": True, "context_shift": True}
    change = getattr(Cache, name)

    def interrupted(cache: Cache, seq: int, p0: int = -1, *others: int) -> None:
        change(cache, seq, p0, *others)
        if p0 > 0:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Cache, name, interrupted)
        broken = small.generate("ROMEO:\nWhat is it that you would have of me?", seed=1, **options)
        with pytest.raises(KeyboardInterrupt):
            broken.wait()
    text = [*broken.request.tokens, *broken.tokens]
    again = small.generate(text[:60], max_tokens=4, seed=2, logprobs=3)
    alone = model.generate(text[:60], max_tokens=4, seed=2, logprobs=3)
    assert again.tokens == alone.tokens
    assert again.logprobs == alone.logprobs


def test_a_request_that_is_to_leave_nothing_leaves_nothing_after_a_shift() -> None:
    small = aleator.load(n_threads=1, n_ctx=64)
    options: dict[str, Any] = {"max_tokens": 80, "ignore_eos": True, "context_shift": True}
    for namespace, left in (("", True), (one_time_namespace(), False)):
        with small.engine(n_seq_max=1) as engine:
            text = engine.submit("ROMEO:", seed=1, namespace=namespace, **options)
            text.wait()
            assert text.stats.context_shifts
            used = engine.visit(lambda context, _: vars(context.cache.pool)["cells"].used)
            assert bool(used.result(60)) == left


def test_a_prompt_may_fill_the_context_and_no_more() -> None:
    """What was drawn and is not decoded yet may stand beside a full context, but no token of a prompt."""
    model = aleator.load(n_threads=1)
    tokens = [*model.prompt_tokens("ROMEO:"), *range(300, 340)][:33]
    for shift in (False, True):
        with model.engine(n_seq_max=1, n_ctx=32) as engine:
            with pytest.raises(ContextFull):
                engine.submit(tokens, max_tokens=2, context_shift=shift).wait()
            made = engine.submit(tokens[:32], max_tokens=2, context_shift=shift, ignore_eos=True)
            assert len(made.tokens) == (2 if shift else 1)
