from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from make_models import SPECS, write_model

from aleator import LanguageModel, LogitsError, ParameterError, load
from aleator.generate.bans import Bans, Strings
from aleator.models.hub.bundled import bundled_model

OPTIONS: dict[str, Any] = {"max_tokens": 40, "seed": 3, "temperature": 0.9}


def test_a_banned_string_never_occurs(model: LanguageModel) -> None:
    plain = model.generate("ROMEO:", **OPTIONS)
    words = [word for word in plain.text.split() if len(word) > 3][:3]
    made = model.generate("ROMEO:", banned_strings=words, **OPTIONS)
    assert not any(word in made.text for word in words)
    assert made.text == model.tokenizer.decode(made.tokens).removesuffix("<|endoftext|>")
    # Up to the token in which the first one begins it is the text without a ban.
    first = min(plain.text.index(word) for word in words)
    pairs = zip(made.tokens, plain.tokens, strict=True)
    at = next(i for i, (a, b) in enumerate(pairs) if a != b)
    before, through = (model.tokenizer.decode(plain.tokens[:n]) for n in (at, at + 1))
    assert len(before) <= first < len(through)
    assert len(made.tokens) == 40
    assert made.stats.sampled_tokens > 40
    again = model.generate("ROMEO:", banned_strings=words, **OPTIONS)
    assert again.tokens == made.tokens
    assert "".join(again) == made.text


def test_what_does_not_occur_changes_nothing(model: LanguageModel) -> None:
    plain = model.generate("ROMEO:", **OPTIONS)
    made = model.generate("ROMEO:", banned_strings="xylophone", **OPTIONS)
    assert (made.tokens, made.text, made.stop_reason) == (plain.tokens, plain.text, "length")
    assert made.stats.sampled_tokens == plain.stats.sampled_tokens == 40
    start = plain.text[3:8]  # a string whose beginning occurs
    made = model.generate("ROMEO:", banned_strings=[start + "#"], **OPTIONS)
    assert (made.tokens, made.text) == (plain.tokens, plain.text)


def test_the_tokens_are_drawn_as_if_the_others_had_never_been(model: LanguageModel) -> None:
    """Each token is drawn from its own row, less what was refused there."""
    word = model.generate("ROMEO:", **OPTIONS).text.split()[2]
    made = model.generate("ROMEO:", banned_strings=word, logprobs=0, **OPTIONS)
    assert made.logprobs is not None
    for entry, thought in zip(
        made.logprobs,
        model.prompt_logprobs([*made.request.tokens, *made.tokens])[len(made.request.tokens) :],
        strict=True,
    ):
        assert abs(entry.chosen.logprob - thought.chosen.logprob) < 1e-3  # type: ignore[union-attr]


def test_with_stop_strings_ends_and_grammars(model: LanguageModel) -> None:
    plain = model.generate("ROMEO:", **OPTIONS)
    stop = plain.text[10:14]
    made = model.generate("ROMEO:", stop=stop, banned_strings="xyz", **OPTIONS)
    assert (made.text, made.stop_reason) == (plain.text[: plain.text.index(stop)], "stop")
    made = model.generate("Say:", grammar='root ::= "yes" | "no"', banned_strings="yes", **OPTIONS)
    assert (made.text, made.stop_reason) == ("no", "grammar")
    with pytest.raises(LogitsError):
        model.generate("Say:", grammar='root ::= "yes"', banned_strings="e", **OPTIONS).text  # noqa: B018
    short = model.generate("ROMEO:", banned_strings="xyz", **OPTIONS | {"max_tokens": 3})
    assert short.tokens == plain.tokens[:3]


def test_what_does_not_go_together(model: LanguageModel) -> None:
    with pytest.raises(ParameterError, match="banned_strings and reasoning_budget"):
        model.generate("a", banned_strings="b", reasoning_budget=3)
    for wrong in ("", [""], [3]):
        with pytest.raises(ParameterError, match="banned_strings="):
            model.generate("a", banned_strings=wrong)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="sampling_device='device' cannot be here"):
        model.generate("a", banned_strings="b", sampling_device="device")


def test_what_cannot_be_taken_back_is_refused_in_the_callers_thread(tmp_path: Path) -> None:
    spec = replace(SPECS["mamba"], n_vocab=2048)
    model = load(
        write_model(tmp_path / "m.gguf", spec, tokenizer_from=bundled_model()), n_threads=1
    )
    long = "a string that is longer than the states of this model can be taken back by"
    with pytest.raises(ParameterError, match="larger n_rollback"):
        model.generate("ROMEO:", banned_strings=long, max_tokens=3)
    with model.engine(n_seq_max=2, n_ctx=256) as engine:
        other = engine.submit("ROMEO:", max_tokens=20, seed=1, ignore_eos=True)
        with pytest.raises(ParameterError, match="larger n_rollback") as caught:
            engine.submit("JULIET:", banned_strings=long, max_tokens=3)
        assert caught.value.parameter == "banned_strings"
        assert len(other.tokens) == 20
        assert engine.stats.submitted == 1


def test_tokens_are_held_until_no_string_can_begin_in_them() -> None:
    import numpy as np

    pieces = [b"ab", b"c", b"d", b"x", b""]
    held = Bans([Strings(["cdx", "bx"])], pieces.__getitem__, 5, lambda _: 0.0)

    def take(token: int) -> tuple[int, list[int]]:
        n = held.take(token, lambda *_: None, False)  # type: ignore[arg-type]
        return n, [] if n else [each.token for each in held.ready(False)]

    assert take(0) == (0, [])  # "b" may begin "bx"
    assert take(1) == (0, [0])
    assert take(2) == (0, [])
    assert take(3) == (3, [])  # "cdx" begins in "c"
    assert (held.back(3).token, held.held) == (1, [])
    row = np.zeros(5, np.float32)
    assert np.flatnonzero(np.isneginf(held.masked(row))).tolist() == [1]
    assert not np.isneginf(row).any()
    assert take(2) == (0, [2])
    assert held.ready(True) == []


def test_an_ending_beside_banned_strings_is_refused(model: LanguageModel) -> None:
    with pytest.raises(ParameterError, match="complete_grammar=True does not go together"):
        model.generate("x", regex="[a-z]+", banned_strings="a", complete_grammar=True)


def test_the_first_place_of_a_string_is_found() -> None:
    """By looking everywhere: not before ``at``, and with its last byte at ``since`` or later."""
    dice = random.Random(5)
    for _ in range(400):
        text = bytes(dice.choice(b"ab") for _ in range(dice.randrange(14)))
        strings = ["".join(dice.choice("ab") for _ in range(n)) for n in (1, 2, 4)][
            dice.randrange(3) :
        ]
        at, since = dice.randrange(len(text) + 1), dice.randrange(len(text) + 1)
        places = [
            (i, i + len(each))
            for each in strings
            for i in range(at, len(text) - len(each) + 1)
            if text.startswith(each.encode(), i) and i + len(each) > since
        ]
        found = list(Strings(strings).matches(text, at, since, over=False))
        assert found == sorted(places)[:1]


@pytest.mark.parametrize("given_out", [False, True])
def test_which_rows_of_held_tokens_are_kept(given_out: bool) -> None:
    """The last four before the newest, and that after the prompt, from which most is drawn again."""
    pieces = [b"a", b"b"]
    held = Bans([Strings(["a" * 20])], pieces.__getitem__, 2, lambda _: 0.0, begun=[1])
    row: Any = ("row", None)
    if given_out:
        assert held.take(1, row, False, row) == 0
        assert len(held.ready(False)) == 1
    for n in range(1, 9):
        assert held.take(0, row, False, row) == 0
        dropped = range(0 if given_out else 1, n - 4)
        kept = [each.row is not None for each in held.held]
        assert kept == [i not in dropped for i in range(n)]


def test_what_is_held_when_the_context_is_full_is_part_of_the_text() -> None:
    """A banned string may begin with the last tokens, which then nothing follows."""
    model = load(n_ctx=24, n_threads=1)
    plain = model.generate("ROMEO:", max_tokens=-1, seed=3, ignore_eos=True)
    assert plain.stop_reason == "context"
    for n in (1, 2, 3):
        word = model.tokenizer.decode(plain.tokens[-n:]) + "#"
        made = model.generate("ROMEO:", max_tokens=-1, seed=3, ignore_eos=True, banned_strings=word)
        assert (made.tokens, made.stop_reason) == (plain.tokens, "context")
        assert made.text == plain.text
