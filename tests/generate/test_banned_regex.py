"""Bans by regular expression: held tokens against a search of the whole text, and generations with them."""

from __future__ import annotations

import random
import re
import weakref
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import re2  # noqa: F401  # without it this file is skipped

from aleator import LanguageModel, LogitsError, ParameterError
from aleator.generate import bans
from aleator.generate.bans import Bans, Strings
from aleator.generate.expressions import searchers

OPTIONS: dict[str, Any] = {"max_tokens": 40, "seed": 3, "temperature": 0.9}
PIECES = [
    b"a", b"b", b"ab", b"ba ", b" a", b"c", b"\xc3", b"\xa9", "é".encode(), b"", b"\n", b"ac b",
]  # fmt: skip
BROKEN = r"\udc80-\udcff"
EXPRESSIONS = {  # as RE2 and as Python read them; bytes that are no characters match nothing
    "ab": "ab",
    r"a{2,3}b?c": "a{2,3}b?c",
    r"\bab?\b": r"\bab?\b",
    "(?i)A[^b]c": f"(?i:A)[^b{BROKEN}](?i:c)",
    "é[ab]": "é[ab]",
    r"(?m)^b.{0,2}a$": rf"(?m:^)b[^\n{BROKEN}]{{0,2}}a(?m:$)",
    r"c\n|b{3}": r"c\n|b{3}",
    r"b[^a]{1,4}b": f"b[^a{BROKEN}]{{1,4}}b",
    r"\Bb\b": r"\Bb\b",
    r"[ab]{2,4}c": "[ab]{2,4}c",
    "é$": r"é\Z",
}


def refused_next(held: Bans) -> list[int]:
    masked = held.masked(np.zeros(len(PIECES), np.float32))
    return [int(token) for token in np.flatnonzero(np.isneginf(masked))]


def take(held: Bans, token: int, over: bool = False) -> int:
    return held.take(token, lambda *_: None, over)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(40))
def test_held_tokens_against_a_search_of_all_the_text(seed: int) -> None:
    """Taken back is what begins with the leftmost match; given out is what no longer text would change."""
    draw = random.Random(seed)
    sources = draw.sample([*EXPRESSIONS], draw.randint(1, 3))
    strings = draw.choice([[], ["ac", "bé"]])
    each: list[Any] = [*searchers(tuple((source, 1.0) for source in sources))]
    each += [Strings(strings)] if strings else []
    held = Bans(each, PIECES.__getitem__, len(PIECES), lambda _: 0.0)
    looks = any(ban.looks for ban in each[:1]) and re.search(r"\$|\\[bB]", "".join(sources))
    follows = "(?=(?s:.))" if looks else ""
    given: list[int] = []
    refused: list[set[int]] = [set() for _ in range(200)]
    for step in range(120):
        at = len(given) + len(held.held)
        allowed = sorted({*range(len(PIECES))} - refused[at])
        if not allowed:
            break
        token, over = draw.choice(allowed), step == 119
        tokens = [*given, *(h.token for h in held.held), token]
        n = take(held, token, over)
        # What depends on what follows counts when that is there.
        patterns = [f"(?:{EXPRESSIONS[source]}){'' if over else follows}" for source in sources]
        assert n == min(len(held.held), naive(tokens, [*patterns, *strings])), (
            sources,
            strings,
            b"".join(PIECES[t] for t in tokens),
        )
        if n:
            place = len(tokens) - n  # nothing that was given out is taken back
            refused[place + 1 :] = [set() for _ in refused[place + 1 :]]
            gone = held.back(n)
            assert gone.token == tokens[place]
            refused[place] = set(refused_next(held))
            assert gone.token in refused[place]
            continue
        given += [h.token for h in held.ready(over)]
    assert len(given) > 10 or len(sources) > 1


def naive(tokens: list[int], patterns: list[str]) -> int:
    """How many tokens stand from that on in which the first match of the whole text begins."""
    text = b"".join(PIECES[t] for t in tokens).decode(errors="surrogateescape")
    found = [m.start() for p in patterns if (m := re.compile(p, re.ASCII).search(text))]
    if not found:
        return 0
    start = len(text[: min(found)].encode(errors="surrogateescape"))
    ends = accumulate(len(PIECES[t]) for t in tokens)
    return len(tokens) - next(i for i, end in enumerate(ends) if end > start)


def test_a_match_may_stay_and_is_passed_over_whole() -> None:
    """The coin of the token in which a match begins decides, and only a new match has a new one."""
    asked: list[int] = []

    def coin(place: int) -> float:
        asked.append(place)
        return 0.9 if place < 2 else 0.1

    held = Bans(searchers((("[ab]{2}c", 0.5),)), PIECES.__getitem__, len(PIECES), coin)
    assert [take(held, token) for token in (0, 1, 5)] == [0, 0, 0]  # "abc" stays
    assert {*asked} == {0}
    assert [each.token for each in held.ready(False)] == [0, 1, 5]
    assert [take(held, token) for token in (1, 1, 5)] == [0, 0, 2 + 1]  # the next one does not
    assert max(asked) == 3


@pytest.mark.parametrize("seed", range(12))
def test_probabilities_against_a_search_of_all_the_text(seed: int) -> None:
    """Of the matches of the whole text, none of which overlap, the first goes whose token's coin says so."""
    draw = random.Random(seed)
    source = draw.choice(["[ab]{2}c", "ab", "b[^a]b", "ba |é"])
    coins = [draw.random() for _ in range(500)]
    held = Bans(searchers(((source, 0.5),)), PIECES.__getitem__, len(PIECES), coins.__getitem__)
    given: list[int] = []
    stayed = taken = 0
    while len(given) < 300:
        token = draw.randrange(len(PIECES))
        tokens = [*given, *(each.token for each in held.held), token]
        n = take(held, token)
        text = b"".join(PIECES[t] for t in tokens).decode(errors="surrogateescape")
        pattern = source.replace("[^a]", f"[^a{BROKEN}]")
        ends = [*accumulate(len(PIECES[t]) for t in tokens)]
        first = len(tokens)
        for match in re.finditer(pattern, text, re.ASCII):
            start = len(text[: match.start()].encode(errors="surrogateescape"))
            place = next(i for i, end in enumerate(ends) if end > start)
            first = min(first, place) if coins[place] < 0.5 else first
        stayed += first == len(tokens)
        assert n == min(len(held.held), len(tokens) - first), (source, tokens)
        if n:
            taken += 1
            held.back(n)
        else:
            given += [each.token for each in held.ready(False)]
    assert taken
    assert stayed


def test_of_many_refused_tokens_all_that_must_be_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bans, "ONE_BY_ONE", 2)
    held = Bans(searchers((("[ac]", 1.0),)), PIECES.__getitem__, len(PIECES), lambda _: 0.0)
    assert take(held, 0) == 1
    held.back(1)
    assert refused_next(held) == [0]
    assert take(held, 5) == 1
    held.back(1)
    assert refused_next(held) == [0, 2, 3, 4, 5, 11]
    monkeypatch.setattr(bans, "MOST_REFUSED", 2)
    assert take(held, 2) == 1
    with pytest.raises(LogitsError, match="is in each of 3 texts"):
        held.back(1)


def test_a_beginning_that_is_not_shown() -> None:
    """Bytes of a healed prompt, and the space that a SentencePiece vocabulary begins with, are no text."""
    for token, hidden in ((4, {"strip": True}), (2, {"skip": 1})):
        for source, found in (("^a", token == 4), ("^b", token == 2), (" a|ab", False)):
            held = Bans(
                searchers(((source, 1.0),)), PIECES.__getitem__, 12, lambda _: 0.0, **hidden
            )
            assert take(held, token) == int(found), (source, token)
    held = Bans(searchers(((r"^a|\bc", 1.0),)), PIECES.__getitem__, 12, lambda _: 0.0, begun=[2])
    assert [take(held, token) for token in (0, 5)] == [0, 0]
    # After a token without text the beginning is still to come.
    for before, taken_back in ((9, 0), (1, 1)):
        held = Bans(searchers(((" a", 1.0),)), PIECES.__getitem__, 12, lambda _: 0.0, strip=True)
        assert [take(held, token) for token in (before, 4)] == [0, taken_back]


# Generations.


def matched(expression: str, text: str) -> bool:
    return re.search(expression, text, re.ASCII) is not None


@pytest.mark.parametrize(
    "expression", [r"\b[Tt]he\b", "(?i)th", r"[aeiou]{2}\w", r"\n[A-Z]{3,8}:", r"\b\w{1,9}s\b", "e"]
)
def test_nothing_matches_at_any_time(model: LanguageModel, expression: str) -> None:
    asked = {**OPTIONS, "seed": 1}
    assert matched(expression, model.generate("ROMEO:", **asked).text)
    made = model.generate("ROMEO:", banned_regex=expression, **asked)
    assert not matched(expression, made.text)
    assert "".join(made) == made.text  # what is shown stays


def test_logits_of_held_tokens_are_not_kept(model: LanguageModel) -> None:
    seen: list[Any] = []
    alive: list[int] = []

    def look(chain: Any, row: Any) -> None:
        seen.append(weakref.ref(row))
        alive.append(sum(each() is not None for each in seen))

    ban = "(?s)[A-Z].{0,100}XYZ"  # all is held from the first capital on
    made = model.generate("ROMEO:", banned_regex=ban, logprobs=1, on_logits=look, **OPTIONS)
    assert made.tokens == model.generate("ROMEO:", **OPTIONS).tokens
    assert made.logprobs == model.generate("ROMEO:", logprobs=1, **OPTIONS).logprobs
    assert len(alive) == 40
    assert max(alive) <= bans.KEPT_ROWS + 2  # this one and the first token's


@pytest.mark.parametrize("options", [{}, {"guidance_scale": 1.5}, {"heal": True}])
@pytest.mark.parametrize("place", [0, 5])
def test_what_is_decoded_again_has_the_same_bits(
    model: LanguageModel, options: dict[str, Any], place: int
) -> None:
    """A token is drawn from the row that it was drawn from, less what was refused."""
    rows: dict[int, list[Any]] = {}
    asked: dict[str, Any] = {**OPTIONS, **options, "logprobs": 0}
    free = model.generate("ROMEO:\nI th", **asked)
    plain, decode = free.tokens, model.tokenizer.decode
    banned = decode(plain[place : place + 8]) if place else free.text[:20]

    def look(chain: Any, row: Any) -> None:
        rows.setdefault(chain.position, []).append(row.copy())

    made = model.generate("ROMEO:\nI th", banned_strings=banned, on_logits=look, **asked)
    at = next(i for i, pair in enumerate(zip(made.tokens, plain, strict=True)) if len({*pair}) > 1)
    assert banned not in made.text
    first, *again = rows[at]
    if at:  # the first token's row was kept
        assert np.flatnonzero(first != again[0]).tolist() == [plain[at]]
    chain = made.chain.clone()
    chain.rollback(len(made.tokens) - at)
    first[plain[at]] = -np.inf
    assert chain.sample(first) == made.tokens[at]
    assert made.logprobs is not None
    assert made.logprobs[at].chosen.token == made.tokens[at]


def test_a_beginning_that_was_given_out() -> None:
    """What follows it at first is no match, and is itself taken back."""
    held = Bans([Strings(["ab c", "ba ab"])], PIECES.__getitem__, 12, lambda _: 0.0)
    assert [take(held, token) for token in (0, 3)] == [0, 0]
    assert [each.token for each in held.ready(False)] == [0]  # "aba " is no "ab c"
    assert take(held, 2) == 2  # "ba ab"
    held.back(2)
    assert take(held, 1) == 0
    assert held.ready(False) == []  # "ab" may begin "ab c"
    assert [take(held, token) for token in (4, 0)] == [0, 0]
    assert [each.token for each in held.ready(False)] == [1, 4]
    held = Bans([Strings(["aac", "bé"])], PIECES.__getitem__, 12, lambda _: 0.0)
    assert [take(held, token) for token in (0, 1, 6)] == [0, 0, 0]  # "b" and half of an "é"
    assert [each.token for each in held.ready(False)] == [0]
    assert take(held, 7) == 3  # from "b" on
    held.back(3)
    assert take(held, 11) == 1  # "a" was given out, and now it would begin "aac"
    held.back(1)
    assert refused_next(held) == [1, 11]


def test_at_the_end_of_a_text(model: LanguageModel) -> None:
    r"""Where max_tokens or the end token ends it, \b and $ are true there."""
    asked = {**OPTIONS, "max_tokens": 12}
    plain = model.generate("ROMEO:", **asked)
    word = re.findall(r"\w+", plain.text)[-1]
    assert plain.text.endswith(word)
    for expression in (rf"\b{word}\b", rf"{word}$", r"\w$"):
        made = model.generate("ROMEO:", banned_regex=expression, **asked)
        assert not matched(expression, made.text)
        assert made.tokens[:8] == plain.tokens[:8]
    ended = model.generate("ROMEO:", stop_token_ids=[plain.tokens[6]], **OPTIONS)
    assert ended.stop_reason == "stop_token"
    end = rf"{re.escape(ended.text[-4:])}$"
    made = model.generate("ROMEO:", stop_token_ids=[plain.tokens[6]], banned_regex=end, **OPTIONS)
    assert not matched(end, made.text)


def test_a_probability_is_the_seeds(model: LanguageModel) -> None:
    def made(probability: float, **changes: Any) -> list[int]:
        ban = {"regex": "[aeiou]", "probability": probability}
        return model.generate("ROMEO:", banned_regex=ban, **{**OPTIONS, **changes}).tokens

    plain = model.generate("ROMEO:", **OPTIONS).tokens
    assert made(1e-9) == plain
    assert made(0.5) == made(0.5) != plain
    assert made(0.5, seed=4) != made(0.5)
    text = model.tokenizer.decode

    def vowels(probability: float) -> int:
        return sum(len(re.findall("[aeiou]", text(made(probability, seed=s)))) for s in (3, 4))

    assert vowels(1e-9) > vowels(0.5) > vowels(1) == 0


def test_a_session_goes_on(model: LanguageModel, tmp_path: Path) -> None:
    """A match that begins in what an earlier generation wrote does not come about."""
    half = model.generate("ROMEO:", **{**OPTIONS, "max_tokens": 10})
    model.save_session(tmp_path / "s", half)
    rest = model.generate(model.load_session(tmp_path / "s"), **OPTIONS).text
    both = re.escape(half.text[-2:] + rest[:2])
    made = model.generate(model.load_session(tmp_path / "s"), banned_regex=both, **OPTIONS).text
    assert made[:2] != rest[:2]
    assert not matched(both, half.text + made)


def test_healed_prompts(model: LanguageModel) -> None:
    asked: dict[str, Any] = {"seed": 3, "max_tokens": 6, "heal": True}
    assert model.generate("ROMEO:\nI th", **asked).text.startswith("ink")
    assert model.generate("ROMEO:\nI th", banned_regex="^th", **asked).text.startswith("ink")
    assert not model.generate("ROMEO:\nI th", banned_regex="^ink", **asked).text.startswith("ink")


def test_what_does_not_go_together(model: LanguageModel) -> None:
    with pytest.raises(ParameterError, match="banned_regex and reasoning_budget"):
        model.generate("a", banned_regex="b", reasoning_budget=3)
    with pytest.raises(ParameterError, match="sampling_device='device' cannot be here"):
        model.generate("a", banned_regex="b", sampling_device="device")
    with pytest.raises(ParameterError, match="complete_grammar=True does not go together"):
        model.generate("x", regex="[a-z]+", banned_regex="a", complete_grammar=True)
    with pytest.raises(LogitsError):
        model.generate("Say:", grammar='root ::= "yes"', banned_regex="e", **OPTIONS).text  # noqa: B018


def test_of_the_text_before_as_much_is_kept_as_a_match_can_need() -> None:
    held = Bans([Strings(["abc"])], PIECES.__getitem__, 12, lambda _: 0.0, begun=[0, 9, 1] * 20_000)
    assert held.ready(False) == []  # in a moment, and not as the square of what was begun
    assert take(held, 5) == 1
