"""Token healing: the last tokens of a prompt are taken back, and their bytes written anew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from aleator import LanguageModel, ParameterError
from aleator.engine.replay import Record, make_again
from aleator.engine.verify import verify
from aleator.generate.healing import NOTHING, Healing, take_back, token_prefixes
from aleator.text.tokenizer import Tokenizer
from aleator.text.vocabulary import Vocabulary
from tests.text.vocabularies import sentencepiece

SPM = Tokenizer(Vocabulary.from_metadata(sentencepiece()))
PROMPTS = ("ROMEO:\nWhat li", "First Citi", "I th", "JULIET:\nO Rome", "Hear me sp", "é, R")


def bytes_of(model: LanguageModel, tokens: Any) -> bytes:
    return b"".join(map(model.vocab.token_bytes, tokens))


@pytest.mark.parametrize("prompt", [*PROMPTS, "", "The end.\n\n"])
def test_as_much_is_taken_back_as_a_longer_token_begins_with(
    model: LanguageModel, prompt: str
) -> None:
    tokens = model.prompt_tokens(prompt)
    left, (at, taken) = take_back(tokens, model.tokenizer)
    assert (*left[:at], *taken, *left[at:]) == tokens
    assert len(left) >= 1
    pieces = [
        b"" if model.vocab.is_special(i) else model.vocab.token_bytes(i)
        for i in range(len(model.vocab))
    ]
    fitting = [0]
    for n in range(1, len(tokens)):
        text = b"".join(pieces[token] for token in tokens[-n:])
        if any(piece.startswith(text) and piece != text for piece in pieces):
            fitting.append(n)
    assert len(taken) == max(fitting)


def test_tokens_that_agree(model: LanguageModel) -> None:
    known = token_prefixes(model.tokenizer)
    for text in (b" ", b" li", b"\n\n", b"RO", b"R\xc3", b" an unusually long piece of a text"):
        right = {
            i
            for i, piece in enumerate(known.bytes_of)
            if piece and (piece.startswith(text) or text.startswith(piece))
        }
        assert set(known.agreeing(text)) == right
        assert len(known.agreeing(text)) == len(right)


def test_texts_that_a_longer_token_begins_with(model: LanguageModel) -> None:
    known = token_prefixes(model.tokenizer)
    texts = [piece[:n] for piece in known._pieces[::7] for n in range(1, len(piece) + 1)]
    for text in (*texts, *known._pieces[-3:], b"", b"\xff", b"\xff\xff", b"zzzz"):
        longer = any(p.startswith(text) and len(p) > len(text) for p in known._pieces)
        assert known.begins_longer(text) is longer, text


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 0}, {"draw": "gumbel", "temperature": 2.0}, {"numerics": "llama.cpp"}],
)
def test_a_text_begins_after_its_prompt(
    model: LanguageModel, prompt: str, options: dict[str, Any]
) -> None:
    made = model.generate(prompt, heal=True, max_tokens=12, seed=3, **options)
    text = "".join(made)
    request = made.request
    assert request.taken_back != NOTHING
    assert request.prompt == model.prompt_tokens(prompt)
    whole, again = bytes_of(model, made.tokens), bytes_of(model, request.taken_back[1])
    assert whole.startswith(again)
    assert text == whole[len(again) :].decode("utf-8", "ignore")
    echoed = model.generate(prompt, heal=True, echo=True, max_tokens=12, seed=3, **options)
    assert echoed.text == prompt + text


def test_what_is_drawn_is_what_the_model_would_write(model: LanguageModel) -> None:
    """At a place where all tokens but the agreeing ones are banned by a bias the draws are the same."""
    made = model.generate("ROMEO:\nI th", heal=True, max_tokens=1, seed=5, logprobs=0)
    (taken,) = made.request.taken_back[1]
    allowed = token_prefixes(model.tokenizer).agreeing(model.vocab.token_bytes(taken))
    other = model.generate(
        list(made.request.tokens), max_tokens=1, seed=5, allowed_token_ids=allowed, logprobs=0
    )
    assert made.tokens == other.tokens
    # Log-probabilities are the model's, before anything is ruled out.
    assert made.logprobs is not None
    assert other.logprobs is not None
    assert made.logprobs[0].chosen == other.logprobs[0].chosen


def test_nothing_before_a_control_token_is_taken_back(model: LanguageModel) -> None:
    head = model.tokenizer.encode("I th", add_special=False)
    for control in (model.vocab.eos, model.vocab.bos):
        assert control is not None
        assert not token_prefixes(model.tokenizer).bytes_of[control]
        left, (at, taken) = take_back([*head, control, *head], model.tokenizer)
        assert (at, taken) == (2 * len(head), (head[-1],))
        assert left == (*head, control, *head[:-1])
        assert take_back([*head, control], model.tokenizer)[1][1] == ()


def test_a_prompt_of_whole_words_stays(model: LanguageModel) -> None:
    tokens = model.prompt_tokens("The end.\n\n")
    left, taken = take_back(tokens[:1], model.tokenizer)
    assert (left, taken) == (tokens[:1], (1, ()))
    plain = model.generate(list(tokens[:1]), max_tokens=9, seed=2)
    assert model.generate(list(tokens[:1]), heal=True, max_tokens=9, seed=2).text == plain.text


@pytest.mark.parametrize(
    "options",
    [
        {"banned_strings": ["e", "an"]},
        {"guidance_scale": 1.5, "negative_prompt": "JULIET:"},
        {"spec_type": "ngram"},
        {"kept": True, "logprobs": 1},
        {"context_shift": True},
        {"mirostat": 2},
    ],
)
def test_records_are_made_again_and_verified(model: LanguageModel, options: dict[str, Any]) -> None:
    for prompt in PROMPTS[:3]:
        made = model.generate(prompt, heal=True, max_tokens=20, seed=9, **options)
        made.wait()
        again = bytes_of(model, made.request.taken_back[1])
        assert bytes_of(model, made.tokens).startswith(again)
        record = Record.from_json(Record.of(made, model, "1").as_json())
        assert record.prompt == model.prompt_tokens(prompt)
        assert make_again(record, model) == record.made
        assert verify(record, model).ok


def test_a_hole_is_healed_at_its_beginning(model: LanguageModel) -> None:
    pre, suf, mid = 2001, 2002, 2003
    special = replace(model.vocab.special, fim_pre=pre, fim_suf=suf, fim_mid=mid)
    tokenizer = Tokenizer(replace(model.vocab, special=special))
    head, tail = (tokenizer.encode(text, add_special=False) for text in ("to be, I th", "no"))
    short, (at, taken) = take_back([pre, *head, suf, *tail, mid], tokenizer)
    assert short == (pre, *head[:-1], suf, *tail, mid)
    assert (at, taken) == (len(head), (head[-1],))
    other, _ = take_back([suf, *tail, pre, *head, mid], tokenizer)
    assert other == (suf, *tail, pre, *head[:-1], mid)
    assert take_back([pre, suf, *tail, mid], tokenizer)[1][1] == ()
    # Without a hole at its end a prompt is healed there, whatever marks it has.
    for prompt in ([*tail, *head], [pre, *tail, suf, *head], [mid, *head]):
        short, (at, taken) = take_back(prompt, tokenizer)
        assert (short, at, taken) == (tuple(prompt[:-1]), len(prompt) - 1, (head[-1],))
    short, (at, taken) = take_back([*head, mid], tokenizer)  # a hole after an unmarked beginning
    assert (short, at, taken) == ((*head[:-1], mid), len(head) - 1, (head[-1],))


def test_the_first_space_of_sentencepiece_is_part_of_what_is_taken_back() -> None:
    token = 263
    piece = SPM.vocab.token_bytes(token)
    assert piece == b" ab"
    assert SPM.stream(skip=2).push(token) == "b"
    assert SPM.stream(skip=3).push(token) == ""
    stream = SPM.stream(skip=5)
    assert [stream.push(token), stream.push(token)] == ["", "b"]


@pytest.mark.parametrize(
    ("prompt", "phases"),
    [
        ("ROMEO:\nI th", {"thinking": {"begin": "I th", "end": "."}}),
        ("ROMEO:\nI th", {"thinking": {"begin": "th", "temperature": 1.2}}),
        ("ROMEO:\nI th", {"thinking": {"begin": "X", "end": "I t"}}),
        ("ROMEO:\nWhat li", {"speech": {"begin": "\nWhat li ", "end": "."}}),
    ],
)
def test_marks_of_phases_stay(model: LanguageModel, prompt: str, phases: Any) -> None:
    """A phase begins as without healing, and the record says so."""
    plain = model.generate(prompt, phases=phases, max_tokens=8, seed=3)
    made = model.generate(prompt, phases=phases, heal=True, max_tokens=8, seed=3)
    assert made.request.taken_back[1] == ()
    assert (made.text, made.chain.phases) == (plain.text, plain.chain.phases)
    record = Record.of(made, model, "1")
    assert make_again(record, model) == record.made


def test_what_stands_behind_a_mark_is_healed(model: LanguageModel) -> None:
    phases = {"thinking": {"begin": model.prompt_tokens("ROMEO:\nI")[-1], "end": ":"}}
    made = model.generate("ROMEO:\nI th", phases=phases, heal=True, max_tokens=8, seed=3)
    made.wait()
    assert bytes_of(model, made.request.taken_back[1]) == b" th"
    assert dict(made.request.params.phases)["start"] == "answer"  # as of the whole prompt
    assert (
        model.generate(
            "ROMEO:\nI", phases=phases, heal=True, max_tokens=1, seed=1
        ).request.taken_back[1]
        == ()
    )
    record = Record.of(made, model, "1")
    assert make_again(record, model) == record.made


def test_what_is_refused(model: LanguageModel) -> None:
    for other in ({"regex": "[a-z]+"}, {"reasoning_budget": 4}):
        with pytest.raises(ParameterError, match=r"heal=True and .* are both given"):
            model.generate("I th", heal=True, **other)
    with pytest.raises(ParameterError, match="the template ends a chat's prompt"):
        model.chat([{"role": "user", "content": "I th"}], heal=True, chat_template="{{ 1 }}")
    with pytest.raises(ParameterError, match="heal are the host's"):
        model.generate("I th", heal=True, sampling_device="device")
    with pytest.raises(ParameterError, match="looks at the bytes of tokens"):
        take_back([1, 2], None)


def test_rows_are_masked_until_the_bytes_are_spent(model: LanguageModel) -> None:
    healing = Healing(token_prefixes(model.tokenizer), b" li")
    row = np.zeros(len(model.vocab), np.float32)
    masked = healing.masked(row, [])
    assert 0 < np.isfinite(masked).sum() < len(row)
    assert healing.masked(row, model.tokenizer.encode(" li", add_special=False)) is row
