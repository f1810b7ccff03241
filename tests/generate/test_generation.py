"""The public face of a generation: what futures have, how it is shown, and nothing of the inside."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import aleator
from aleator.chat.generation import ChatGeneration
from aleator.core.errors import ParameterError, TokenizerError

BOTH = {
    "cancel", "cancelled", "done", "error", "exception", "result", "seed", "stats", "stop_reason",
    "text", "tokens", "wait",
}  # fmt: skip
OPTIONS: dict[str, Any] = {"max_tokens": 8, "seed": 1}


@pytest.fixture(scope="module")
def model() -> aleator.LanguageModel:
    return aleator.load(n_threads=1)


@pytest.fixture(scope="module")
def engine(model: aleator.LanguageModel) -> Iterator[aleator.Engine]:
    with model.engine(n_seq_max=2) as made:
        yield made


@pytest.fixture(params=["generate", "submit"])
def begin(request: pytest.FixtureRequest, model: Any, engine: Any) -> Any:
    """Either way to a generation; a tuple of options may be given over the usual ones."""
    how = {"generate": model.generate, "submit": engine.submit}[request.param]
    return lambda **options: how("ROMEO:", **OPTIONS | options)


class Stuck:
    """Holds up a generation until it is let go."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()

    def __call__(self, chain: Any, logits: Any) -> None:
        assert self.goes_on.wait(120)


def failing(chain: Any, logits: Any) -> None:
    raise RuntimeError("not today")


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_the_public_face() -> None:
    assert public(aleator.Generation) == BOTH | {
        "as_json", "chain", "complete", "logprobs", "n_ctx", "namespace", "prompt_logprobs", "request",
        "stop_string",
    }  # fmt: skip
    assert public(ChatGeneration) == BOTH | {"deltas", "message", "so_far"}


def test_names_that_are_no_more_are_said(begin: Any) -> None:
    with pytest.raises(AttributeError, match="no 'kept': take logprobs, whose entries have kept"):
        _ = begin().kept
    with pytest.raises(AttributeError, match=r"no 'drawn'$"):
        _ = begin().drawn


def test_the_result_is_the_whole_text(begin: Any) -> None:
    made = begin()
    assert made.result() == made.text == "".join(made)
    assert made.result(0) == made.text
    assert made.exception() is None
    assert (made.done, made.cancelled, made.error) == (True, False, None)


def test_a_wait_that_is_too_long_is_a_timeout(engine: aleator.Engine) -> None:
    stuck = Stuck()
    made = engine.submit("ROMEO:", on_logits=stuck, **OPTIONS)
    for wait in (made.result, made.exception):
        with pytest.raises(TimeoutError, match=r"timeout=0\.01 s"):
            wait(0.01)
    assert not made.wait(0)
    stuck.goes_on.set()
    assert made.result() == engine.submit("ROMEO:", **OPTIONS).result()


def test_generate_gives_up_waiting_too(model: aleator.LanguageModel) -> None:
    made = model.generate("ROMEO:", **OPTIONS)
    with pytest.raises(TimeoutError):
        made.result(0)
    assert made.result() == made.text


@pytest.mark.parametrize("timeout", [-1, float("nan"), "1", True])
def test_a_timeout_is_seconds(begin: Any, timeout: Any) -> None:
    made = begin()
    for wait in (made.wait, made.result, made.exception):
        with pytest.raises(ParameterError, match="give seconds, 0 or more") as error:
            wait(timeout)
        assert error.value.parameter == "timeout"


def test_an_error_is_raised_by_result_and_given_by_exception(begin: Any) -> None:
    made = begin(on_logits=failing)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="not today"):
            made.result()
    assert str(made.exception()) == "not today"
    assert (made.text, made.stop_reason, made.cancelled) == ("", "interrupted", False)
    assert "RuntimeError" in repr(made)
    told = begin(on_logits=failing)
    assert isinstance(told.exception(), RuntimeError)
    assert told.text == ""  # nobody is told twice


def test_await_gives_the_result(begin: Any) -> None:
    async def ask() -> list[Any]:
        texts = list(await asyncio.gather(begin(), begin(seed=2)))
        with pytest.raises(RuntimeError, match="not today"):
            await begin(on_logits=failing)
        return texts

    assert asyncio.run(ask()) == [begin().text, begin(seed=2).text]


def test_a_task_that_gives_up_waiting_leaves_it_under_way(engine: aleator.Engine) -> None:
    async def ask() -> str:
        stuck = Stuck()
        made = engine.submit("ROMEO:", on_logits=stuck, **OPTIONS)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(made, 0.01)
        assert not made.cancelled
        stuck.goes_on.set()
        return await made

    assert asyncio.run(ask()) == engine.submit("ROMEO:", **OPTIONS).text


def test_a_cancelled_one_has_the_text_so_far(begin: Any) -> None:
    made = begin(max_tokens=200)
    first = next(made)
    assert made.cancel()
    assert made.result().startswith(first)
    assert (made.cancelled, made.stop_reason) == (True, "interrupted")
    assert not made.cancel()
    whole = begin()
    whole.wait()
    assert not whole.cancel()
    assert not whole.cancelled


def test_how_it_is_shown(begin: Any, engine: aleator.Engine, model: aleator.LanguageModel) -> None:
    made = begin()
    assert str(made) == made.text
    assert repr(made) == f"<Generation: {made.text!r}, 8 tokens, length, seed 1>"
    long = begin(max_tokens=60)
    assert f"{long.text[:39]!r}"[:-1] in repr(long.result() and long)
    lazy = model.generate("ROMEO:", **OPTIONS)
    for _ in range(2):  # showing it makes nothing
        assert repr(lazy) == (
            "<Generation: nothing made yet, seed 1; iterate over it, or take .text for all of it>"
        )
    next(lazy)
    assert "tokens so far, seed 1; iterate" in repr(lazy)


def test_without_texts_of_tokens(begin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = begin()
    detokenizer = made._completion._detokenizer

    class Mute:
        has_text = False

        def require_text(self, what: str) -> None:
            raise TokenizerError(what)

        def __getattr__(self, name: str) -> Any:
            return getattr(detokenizer, name)

    monkeypatch.setattr(made._completion, "_detokenizer", Mute())
    with pytest.raises(TokenizerError, match="result"):
        made.result()
    assert made.exception() is None
    assert str(made) == repr(made)


def test_a_chat_answer_has_the_same(model: aleator.LanguageModel) -> None:
    def ask(**options: Any) -> ChatGeneration:
        template = "{% for m in messages %}{{ m.content }}{% endfor %}"
        messages = [{"role": "user", "content": "Who is there?"}]
        return model.chat(messages, chat_template=template, **OPTIONS | options)

    async def awaited() -> Any:
        return await ask()

    made = ask()
    assert repr(made).startswith("<ChatGeneration: nothing made yet")
    with pytest.raises(TimeoutError):
        made.result(0)
    assert made.result() == made.message == asyncio.run(awaited())
    assert str(made) == made.text == made.message.content
    assert made.exception() is None
    broken = ask(on_logits=failing)
    with pytest.raises(RuntimeError, match="not today"):
        broken.result()
    assert broken.error is broken.exception()
    cut = ask(max_tokens=100)
    assert cut.cancel()
    assert cut.result().content == ""
    assert cut.cancelled


def test_a_chain_shows_the_samplers_that_act() -> None:
    chain = aleator.SamplingParams(top_k=40, temperature=0.5, seed=3).chain()
    shown = repr(chain)
    assert shown.startswith("SamplerChain([TopK(top_k=40")
    assert shown.count("(") == 5  # of the chain, three that act, and the rest
    assert f"({len(chain) - 3} more do nothing), seed=3)" in shown
    own = aleator.SamplerChain([aleator.samplers.TopK(top_k=2), aleator.samplers.Dist(seed=1)])
    assert "nothing" not in repr(own)
