"""A budget of reasoning, and guidance by a negative prompt."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aleator import LanguageModel, ParameterError, load
from aleator.core.errors import ContextFull
from aleator.engine.engine_core import count_used_cells
from aleator.engine.replay import Record, differences, make_again
from aleator.generate import Batch
from aleator.generate.logprobs import log_softmax
from aleator.generate.speculative import Speculation
from aleator.generate.steering import Guidance, ReasoningBudget, _sentence_ended, _whole
from tests.chat import templates
from tests.generate.test_speculation import steady as steady

OPTIONS: dict[str, Any] = {"max_tokens": 30, "seed": 3}
HI = [{"role": "user", "content": "Speak."}]
END = (7, 8)


def run(budget: ReasoningBudget, pieces: list[str | bytes]) -> list[int | None]:
    made = []
    for piece in pieces:
        token = budget.next()
        made.append(token)
        budget.take(
            -1 if token is None else token, piece if isinstance(piece, bytes) else piece.encode()
        )
    return made


def made(n: int, opened: bool = False) -> ReasoningBudget:
    return ReasoningBudget(n, b"<t>", b"</t>", END, opened)


def test_reasoning_ends_after_its_budget() -> None:
    assert run(made(2, True), ["a", "b", "", "", "c", "d"]) == [None, None, 7, 8, None, None]
    assert run(made(1), [" ", "<t", ">", "a", "", "", "b"]) == [None, None, None, None, 7, 8, None]
    assert run(made(0, True), ["", "", "b"]) == [7, 8, None]
    # What ends by itself is not ended again, and what is no reasoning has no budget.
    assert run(made(3, True), ["a", "</t>", "b", "c", "d"]) == [None] * 5
    assert run(made(1), ["x", "<t>", "a", "b"]) == [None] * 4
    # No character is cut in two.
    assert run(made(1, True), [b"\xc3", b"\xa9", "", "", "x"]) == [None, None, 7, 8, None]


def test_a_grace_lasts_to_the_end_of_a_sentence() -> None:
    def graced(n: int, grace: int) -> ReasoningBudget:
        return ReasoningBudget(n, b"<t>", b"</t>", END, True, grace)

    assert run(graced(1, 9), ["a", " b", ".", "", "", "c"]) == [None, None, None, 7, 8, None]
    assert run(graced(1, 9), ["a", '!"', "", "", "c"]) == [None, None, 7, 8, None]
    assert run(graced(1, 9), ["a", ", \n", "", "", "c"]) == [None, None, 7, 8, None]
    assert run(graced(1, 9), ["a", "\u3002", "", "", "c"]) == [None, None, 7, 8, None]
    # A sentence that has ended already, no reasoning at all, and one that does not end in time.
    assert run(graced(1, 9), ["a.", "", "", "c"]) == [None, 7, 8, None]
    assert run(graced(0, 9), ["", "", "c"]) == [7, 8, None]
    assert run(graced(1, 2), ["a", "b", "c", "", "", "d"]) == [None, None, None, 7, 8, None]
    # No character is cut in two, nor is reasoning ended that ends by itself.
    assert run(graced(1, 1), ["a", b"\xc3", b"\xa9", "", ""]) == [None, None, None, 7, 8]
    assert run(graced(1, 9), ["a", "b</t>", "c", "d."]) == [None] * 4


def test_what_an_earlier_generation_drew_counts() -> None:
    budget = made(2, True)
    for token, piece in ((3, b"a"), (4, b"b"), (7, b"")):
        budget.next()
        budget.take(token, piece)
    assert run(budget, ["", "c", "d"]) == [8, None, None]
    longer = made(2, True)  # drawn under no budget
    for token in (3, 4, 5, 6):
        longer.next()
        longer.take(token, b"a")
    assert run(longer, ["", "", "c"]) == [7, 8, None]


MESSAGE = "... Enough, I answer now.\n"


@pytest.mark.parametrize("budget", [0, 5])
def test_a_message_ends_the_reasoning(model: LanguageModel, budget: int) -> None:
    asked: Any = {"chat_template": templates.DEEPSEEK, **OPTIONS, "max_tokens": 60}
    asked |= {"reasoning_budget": budget, "reasoning_budget_message": MESSAGE}
    answer = model.chat(HI, **asked)
    decode = model.tokenizer.decode
    before = decode(answer.tokens[:budget]) + MESSAGE + "</think>"
    assert (decode(answer.tokens)).startswith(before)
    assert answer.message.reasoning_content == before.removesuffix("</think>").strip()
    assert answer.message.content
    told = dict.fromkeys(("reasoning", "content"), "")
    for delta in model.chat(HI, **asked).deltas():
        told[delta.kind] += delta.text
    assert told["reasoning"].strip() == answer.message.reasoning_content
    assert told["content"].strip() == answer.message.content.strip()
    spec = model.chat(HI, **asked, spec_type="ngram")
    assert spec.tokens == answer.tokens
    record = Record.of(answer.generation, model, "1")
    again = make_again(record, model)
    assert record.made is not None
    assert differences(record.made, again) == []
    with model.engine(n_seq_max=2) as engine:
        both = [model.chat(HI, engine=engine, **asked) for _ in range(2)]
        assert [each.tokens for each in both] == [answer.tokens] * 2


def test_a_session_goes_on_within_its_reasoning(model: LanguageModel, tmp_path: Path) -> None:
    """Wherever a text is cut in two: within the budget, the message, the end mark, or after it."""
    asked: Any = {"seed": 3, "temperature": 0.9, "ignore_eos": True}
    asked |= {"reasoning_budget": 4, "reasoning_budget_message": MESSAGE}
    asked |= {"reasoning_budget_grace": 3}
    prompt = "ROMEO: <think>\n"
    whole = model.generate(prompt, max_tokens=40, **asked).tokens
    for cut in (1, 3, 4, 6, 9, 15, 22, 30):
        half = model.generate(prompt, max_tokens=cut, **asked)
        assert half.tokens == whole[:cut]
        model.save_session(tmp_path / f"s{cut}", half)
        session = model.load_session(tmp_path / f"s{cut}")
        rest = model.generate(session, max_tokens=40 - cut, **asked)
        assert [*half.tokens, *rest.tokens] == whole


def test_a_message_that_cannot_be(model: LanguageModel) -> None:
    asked: Any = {"reasoning_budget": 3, "max_tokens": 9}
    with pytest.raises(
        ParameterError, match="'</think>' in it, which ends the reasoning"
    ) as refused:
        model.generate("a", reasoning_budget_message="So </think> it is", **asked)
    assert refused.value.parameter == "reasoning_budget_message"
    with pytest.raises(ParameterError, match="reasoning_budget_grace=-1 is out of range"):
        model.generate("a", reasoning_budget_grace=-1, **asked)
    with pytest.raises(ParameterError, match="'b!' in it, a stop string, which would end the text"):
        model.generate("a", reasoning_budget_message="ab!", stop=["x", "b!"], **asked)
    # Names of control tokens are text, as in all that is no template.
    asked.update(chat_template=templates.DEEPSEEK, stop=(), seed=1)
    answer = model.chat(HI, reasoning_budget_message="<|eot|>", **asked)
    assert "<|eot|>" in answer.message.reasoning_content


@pytest.mark.parametrize("budget", [0, 1, 6])
def test_a_chat_reasons_no_longer(model: LanguageModel, budget: int) -> None:
    asked: Any = {"chat_template": templates.DEEPSEEK, **OPTIONS, "stop": ()}
    free = model.chat(HI, **asked)
    answer = model.chat(HI, reasoning_budget=budget, **asked)
    end = model.tokenizer.encode("</think>", add_special=False, parse_special=True)
    assert answer.tokens[budget : budget + len(end)] == end
    assert answer.tokens[:budget] == free.tokens[:budget]
    said = model.tokenizer.decode(answer.tokens[:budget]).strip()
    assert answer.message.reasoning_content == said
    assert answer.message.content
    with model.engine() as engine:
        assert (
            model.chat(HI, reasoning_budget=budget, engine=engine, **asked).tokens == answer.tokens
        )
    assert model.chat(HI, reasoning_budget=-1, **asked).tokens == free.tokens


def test_a_budget_before_json(model: LanguageModel) -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
    }
    schema["additionalProperties"] = False
    answer = model.chat(
        HI,
        chat_template=templates.DEEPSEEK,
        json_schema=schema,
        reasoning_budget=4,
        **OPTIONS | {"max_tokens": 60},
    )
    assert answer.text in ('{"a": true}', '{"a": false}')
    told = model.chat(
        HI,
        chat_template=templates.DEEPSEEK,
        json_schema=schema,
        reasoning_budget=4,
        reasoning_budget_message=MESSAGE,
        **OPTIONS | {"max_tokens": 60},
    )
    assert told.text in ('{"a": true}', '{"a": false}')
    assert told.message.reasoning_content.endswith(MESSAGE.strip())


def test_a_budget_needs_marks(model: LanguageModel) -> None:
    with pytest.raises(ParameterError, match="nothing says how this model writes its reasoning"):
        model.chat(HI, reasoning_budget=3)
    for wrong in ("ab", ["a"], ["a", ""], 3):
        with pytest.raises(ParameterError, match="reasoning_marks="):
            model.generate("a", reasoning_budget=3, reasoning_marks=wrong)  # type: ignore[arg-type]


def test_guidance_is_what_two_contexts_give(model: LanguageModel) -> None:
    prompt, negative = model.prompt_tokens("ROMEO:"), model.prompt_tokens("JULIET: O")
    guided = model.generate(
        list(prompt),
        guidance_scale=1.7,
        negative_prompt=list(negative),
        temperature=0,
        max_tokens=10,
    )
    own, other = model.context(64), model.context(64)
    text: list[int] = []
    new_p, new_q = list(prompt), list(negative)
    for token in guided.tokens:
        p = log_softmax(np.asarray(own.decode(Batch.one(new_p)))[0, : len(model.vocab)])
        q = log_softmax(np.asarray(other.decode(Batch.one(new_q)))[0, : len(model.vocab)])
        assert token == int(np.argmax((q + 1.7 * (p - q)).astype(np.float32)))
        text.append(token)
        new_p = new_q = [token]
    plain = model.generate(list(prompt), temperature=0, max_tokens=10)
    assert guided.tokens != plain.tokens


@pytest.mark.parametrize("drawn", [1, 12])
def test_guidance_goes_on_with_a_session(model: LanguageModel, tmp_path: Path, drawn: int) -> None:
    asked: Any = {"guidance_scale": 1.7, "negative_prompt": "JULIET: O", "seed": 4}
    whole = model.generate("ROMEO:", max_tokens=30, **asked).tokens
    model.save_session(tmp_path / "s", model.generate("ROMEO:", max_tokens=drawn, **asked))
    session = model.load_session(tmp_path / "s")
    assert model.generate(session, max_tokens=30 - drawn, **asked).tokens == whole[drawn:]
    shifted = dataclasses.replace(session, forgotten=((len(session.tokens) - 1, 1),))
    rest = model.generate(shifted, max_tokens=0, **asked)
    assert rest.request.remaining_drawn == tuple(whole[: drawn - 1])


def test_guidance_of_a_chat_has_another_system_message(model: LanguageModel) -> None:
    messages = [{"role": "system", "content": "Enter ROMEO."}, *HI]
    answer = model.chat(messages, guidance_scale=2.0, negative_prompt="Enter TYBALT.", **OPTIONS)
    form = model.chat_format()
    other = form.tokens(form.rendered([{"role": "system", "content": "Enter TYBALT."}, *HI]))
    direct = model.generate(
        list(answer.generation.request.tokens),
        stop=model.vocab.chat_stop,
        guidance_scale=2.0,
        negative_prompt=other,
        **OPTIONS,
    )
    assert answer.tokens == direct.tokens


def test_what_guidance_cannot_do(model: LanguageModel) -> None:
    with pytest.raises(ParameterError, match="does nothing without guidance_scale"):
        model.generate("a", negative_prompt="b")
    with pytest.raises(ParameterError, match="context_shift do not go together"):
        model.generate("a", guidance_scale=2.0, context_shift=True)
    wrong: tuple[Any, ...] = (3, b"ab", [1.5], ["a"], [True])
    for given in wrong:
        with pytest.raises(ParameterError, match="give a text or a list of token ids"):
            model.generate("a", guidance_scale=2.0, negative_prompt=given)
    with pytest.raises(ParameterError, match="negative_prompt is empty") as refused:
        model.generate("a", guidance_scale=2.0, negative_prompt=[])
    assert refused.value.parameter == "negative_prompt"
    with (
        model.engine(n_seq_max=1) as engine,
        pytest.raises(ParameterError, match="two sequences: make the engine with n_seq_max=2"),
    ):
        engine.submit("a", guidance_scale=2.0)
    with model.engine(n_seq_max=2, n_ctx=40) as engine:
        with pytest.raises(ContextFull, match="its negative prompt included"):
            engine.submit("a", guidance_scale=2.0, negative_prompt="b", max_tokens=30)
        with pytest.raises(ContextFull, match="the negative prompt has"):
            engine.submit("a", guidance_scale=2.0, negative_prompt=[5] * 50, max_tokens=3)


def test_guidance_in_an_engine(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {"guidance_scale": 1.5, "negative_prompt": "JULIET: O", **OPTIONS}
    long = "First Citizen:\nBefore we proceed any further, hear me speak.\n\n" * 4
    wanted: list[tuple[str, dict[str, Any]]] = [
        ("ROMEO:", asked | {"logprobs": 2}),
        (long, asked | {"negative_prompt": long + "NURSE:"}),
        ("ROMEO:", dict(OPTIONS)),
        ("ROMEO:", asked | {"banned_strings": "the"}),
        ("ROMEO:", asked | {"grammar": 'root ::= "My lord, " [a-z ]{9} "."', "spec_type": "ngram"}),
        (long, asked | {"spec_type": "ngram", "temperature": 0.0, "max_tokens": 60}),
    ]
    alone = [model.generate(prompt, **options) for prompt, options in wanted]
    with model.engine(n_seq_max=5, token_budget=48) as engine:
        made = [engine.submit(prompt, **options) for prompt, options in wanted]
        for one, other in zip(alone, made, strict=True):
            told = one.tokens, one.logprobs, one.text
            assert told == (other.tokens, other.logprobs, other.text)
        loop = engine._loop
        assert loop is not None
        while engine.stats.running:
            time.sleep(0.002)
        loop.context.cache.check()
        assert engine.stats.cells_reserved == 0
        assert count_used_cells(loop.context.cache, range(5)) == 0
    monkeypatch.setattr(Speculation, "n_guesses", lambda _, room, *others: min(room, 3))
    guessed = model.generate(long, **wanted[5][1])
    assert guessed.tokens == alone[5].tokens
    assert guessed.stats.draft_n


def test_a_long_negative_prompt_leaves_less_room(model: LanguageModel) -> None:
    small = load(n_ctx=32)
    made = small.generate("a", guidance_scale=2.0, negative_prompt=[5] * 20, ignore_eos=True)
    n = len(made.request.tokens)
    assert (len(made.tokens), made.stop_reason) == (32 - 20 + 1, "context")
    assert n < 20


@pytest.mark.parametrize(
    ("text", "ended"),
    [
        ("", True), ("  ", True), ("a", False), ("a.", True), ("a. ", True), ("a\n", True), ("a \n ", True),
        ("a\nb", False), ('a."', True), ("a?)]", True), ("a,", False), ("a\u3002\u300d", True), (".a", False),
        ("a\u2026\u201d  ", True), ('a"', False),
    ],
)  # fmt: skip
def test_where_a_sentence_ends(text: str, ended: bool) -> None:
    assert _sentence_ended(text.encode()) is ended


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        (b"", True), (b"a", True), (b"\xc3", False), (b"\xc3\xa9", True), (b"a\xe2\x82", False),
        (b"\xff", True), (b"\xe2\x82a", True), (b"\xff\xc3", True), (b"\xf0\x9f\xa6", False),
    ],
)  # fmt: skip
def test_where_a_character_is_whole(text: bytes, whole: bool) -> None:
    assert _whole(text) is whole


def test_guided_logits_are_moved_and_what_one_rules_out_is() -> None:
    inf = np.inf
    row, other = (np.array(x, np.float32) for x in ([1, 2, -inf, 0], [2, 1, 0, -inf]))
    for scale in (0.5, 1.0, 1.5):
        p, q = log_softmax(row), log_softmax(other)
        moved = q[:2] + scale * (p[:2] - q[:2])
        with np.errstate(invalid="ignore"):
            found = Guidance([1], scale).guided(row, other)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found[:2], moved.astype(np.float32))
        assert found[2] == -inf
        assert found[3] == p[3].astype(np.float32)
    assert (Guidance([1, 2], 1.0).seq, Guidance([1, 2], 1.0).prompt) == (-1, (1, 2))
