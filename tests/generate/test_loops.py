"""Loops: where a text has become a cycle of tokens, exactly, and that its generation ends there."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aleator import Generation, LanguageModel, ParameterError, SamplerChain
from aleator.engine.replay import Record, differences, make_again
from aleator.engine.verify import verify
from aleator.generate.loops import USUAL, LoopDetector, loop_limits
from aleator.samplers import Temperature
from tests.chat import templates
from tests.drawn import recorded

LIMITS = (USUAL["repeats"], USUAL["min_tokens"])
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 400, "ignore_eos": True}
PROMPTS = ("ROMEO:", "JULIET:", "To be", "The ", "NURSE:")


def first_loop(tokens: list[int], repeats: int, min_tokens: int) -> int:
    """After how many tokens the definition holds, looked up without any thought; 0: never."""
    for n in range(1, len(tokens) + 1):
        for period in range(1, n + 1):
            whole = max(repeats, -(-min_tokens // period)) * period
            if whole <= n and tokens[n - whole : n - period] == tokens[n - whole + period : n]:
                return n
    return 0


def found(tokens: list[int], repeats: int, min_tokens: int) -> int:
    detector = LoopDetector(repeats, min_tokens)
    return next((n for n, token in enumerate(tokens, 1) if detector.push(token)), 0)


def shaken(dice: random.Random) -> list[int]:
    """Few different tokens, with pieces that come again."""
    kinds, tokens = dice.choice([1, 2, 2, 3, 5]), [0]
    while len(tokens) < 140:
        if dice.random() < 0.5:
            start = dice.randrange(len(tokens))
            piece = tokens[start : dice.randrange(start, len(tokens)) + 1]
            tokens += piece * dice.choice([1, 1, 2, 3, 4])
        else:
            tokens += [dice.randrange(kinds) for _ in range(dice.randrange(1, 12))]
    return tokens[:150]


def test_a_loop_is_found_at_its_very_token() -> None:
    dice, hits = random.Random(36), 0
    for _ in range(400):
        tokens = shaken(dice)
        limits = dice.choice([2, 2, 3, 4, 6]), dice.choice([1, 4, 10, 20, 30, 60, 100])
        expected = first_loop(tokens, *limits)
        assert found(tokens, *limits) == expected, (tokens, limits)
        hits += expected > 0
    assert 100 < hits < 390


@pytest.mark.parametrize("period", [1, 2, 3, 4, 7, 8, 15, 16, 17, 63, 64, 100, 1000])
@pytest.mark.parametrize("before", [0, 1, 13, 64])
def test_a_cycle_of_any_length(period: int, before: int) -> None:
    cycle = list(range(period))
    tokens = [-1 - i for i in range(before)] + cycle * 200
    for repeats, least in ((2, 1), (4, 64), (3, 100)):
        assert found(tokens[: before + 8 * period + 200], repeats, least) == before + period * max(
            repeats, -(-least // period)
        )


def test_one_other_token_is_no_loop() -> None:
    for at in range(1, 4):
        tokens = [1, 2, 3] * 40
        tokens[-at] = 9
        assert found([1, 2, 3] * 40, 40, 1) == 120
        assert found(tokens, 40, 1) == 0


def theirs(tokens: list[int], shortest: int, count: int) -> int:
    """After how many tokens vLLM's ``repetition_detection`` ends a text: ``count`` copies stand at its end."""
    for n in range(1, len(tokens) + 1):
        for size in range(shortest, n // count + 1):
            last = tokens[n - size * count : n]
            if last == last[:size] * count:
                return n
    return 0


@pytest.mark.parametrize(
    ("tokens", "count", "n"),
    [
        ([7] * 9, 5, 5),
        ([1, 2, 3, 4] * 5, 3, 12),
        ([8, 9, 9, 1, 2, 1, 2, 1, 2], 3, 9),
        ([1, 2, 1, 2], 3, 0),
        ([1, 2, 1, 2, 5, 1, 2, 1, 2], 3, 0),
        ([1, 2, 3, 1, 2, 3, 1, 2], 3, 0),
        ([], 2, 0),
    ],
)
def test_what_vllm_s_repetition_detection_asks(tokens: list[int], count: int, n: int) -> None:
    assert theirs(tokens, 1, count) == found(tokens, count, 1) == n


def test_ours_ends_where_vllm_s_rule_does_or_sooner() -> None:
    """Its ``min_count`` is ``repeats``; its ``min_pattern_size`` is about ``min_tokens`` over that."""
    dice = random.Random(52677)
    for _ in range(30):
        tokens, count = shaken(dice), dice.choice([2, 3, 4])
        assert found(tokens, count, 1) == theirs(tokens, 1, count)
        shortest = dice.choice([2, 3, 5])
        other, ours = theirs(tokens, shortest, count), found(tokens, count, shortest * count)
        assert 0 < ours <= other or not other
    # A cycle of 2, three times, is 6 tokens; there it is a cycle of 4, twice.
    assert (found([1, 2] * 4, 2, 6), theirs([1, 2] * 4, 3, 2)) == (6, 8)


def test_followed_periods_stay_few() -> None:
    """Words of Fibonacci have runs of three repeats and a bit everywhere, as many as a text can have."""
    short, tokens = [0], [0, 1]
    while len(tokens) < 20_000:
        short, tokens = tokens, tokens + short
    detector = LoopDetector(4, 1)
    assert not any(detector.push(token) for token in tokens)
    assert len(detector._since) < 64


def test_the_periods_that_are_followed_are_as_recorded() -> None:
    """No sooner and no longer than they may matter; ALEATOR_RECORD=1 records a change that is meant."""
    dice, told = random.Random(9), []
    for _ in range(40):
        detector = LoopDetector(dice.choice([2, 3, 5]), dice.choice([1, 7, 40]))
        tokens = [*shaken(dice), *[1, 2, 3, 4, 5] * 9, *range(9, 30), *[*range(30, 50)] * 3]
        seen = [(detector.push(token), sorted(detector._since.items())) for token in tokens]
        told.append(hashlib.blake2b(repr(seen).encode(), digest_size=4).hexdigest())
    assert told == recorded("loops", "periods", told)


# Texts that repeat much, and are no loops.

CODE = """\
static const struct { int code; const char *name; } TABLE[] = {
    {0, "zero"}, {1, "one"}, {2, "two"}, {3, "three"}, {4, "four"}, {5, "five"},
};
case 0: return "zero";
case 1: return "one";
case 2: return "two";
case 3: return "three";
    assert f(0) == 0
    assert f(1) == 1
    assert f(2) == 4
    assert f(3) == 9
    assert f(4) == 16
    }
  }
}
xs = [0, 0, 0, 0, 0, 0, 0, 0]
"""
TABLE = """\
| day | open | noon | night |
|-----|------|------|-------|
| Mon | yes  | yes  | no    |
| Tue | yes  | yes  | no    |
| Wed | yes  | yes  | no    |
| Thu | yes  | yes  | no    |
| Fri | yes  | no   | no    |
| Sat | no   | no   | no    |
| Sun | no   | no   | no    |
+-----+------+------+-------+
1,0,0,0
2,0,0,0
3,0,0,0
4,0,0,0
"""
POEM = """\
Ring, bells, ring! Ring, bells, ring!
The year is old, the year is grey;
Ring, bells, ring! Ring, bells, ring!
And sing the weary year away.

La la la la, la la la la,
The wind goes over hill and lea;
La la la la, la la la la,
And where it goes there would I be.
Never, never, never, never, never!
"""
RULE = "Chapter one\n" + "-" * 200 + "\n"
ZEROS = "0,0,0,0\n" * 30
REFRAIN = "Row on, row on, across the silver bay, and sing the long and golden day away!\n" * 4


@pytest.mark.parametrize(
    ("text", "loops"),
    [(CODE, 0), (TABLE, 0), (POEM, 0), (RULE, 1), (ZEROS, 1), (REFRAIN, 1)],
    ids=["code", "table", "poem", "rule", "zeros", "refrain"],
)
def test_what_counts_as_a_loop(model: LanguageModel, text: str, loops: int) -> None:
    """Exact repeats do, whatever they mean; docs/chat.md says so."""
    tokens = model.tokenizer.encode(text, add_special=False)
    assert (found(tokens, *LIMITS) > 0) == loops


def test_no_false_alarm_in_sources_and_pages(model: LanguageModel) -> None:
    root = Path(__file__).parents[2]
    files = sorted([*(root / "src/aleator/samplers").glob("*.py"), *(root / "docs").glob("s*.md")])
    texts = [path.read_text(encoding="utf-8")[:20_000] for path in files]
    tokens = [model.tokenizer.encode(text, add_special=False) for text in texts]
    assert sum(map(len, tokens)) > 50_000
    assert [
        path.name for path, each in zip(files, tokens, strict=True) if found(each, *LIMITS)
    ] == []


# Generations.


def test_greedy_texts_end_in_their_loop(model: LanguageModel) -> None:
    """All of these loop, and what is drawn at temperature 1 does not."""
    for prompt in PROMPTS:
        free = model.generate(prompt, **GREEDY)
        made = model.generate(prompt, stop_loops={}, **GREEDY)
        assert made.stop_reason == "loop"
        assert found(free.tokens, *LIMITS) == len(made.tokens) < 400
        assert made.tokens == free.tokens[: len(made.tokens)]
        assert free.text.startswith(made.text)
        drawn = model.generate(prompt, stop_loops={}, **{**GREEDY, "temperature": 1}, seed=1)
        assert drawn.stop_reason == "length"


@pytest.mark.parametrize(
    "options", [{"spec_type": "ngram"}, {"banned_strings": "zzz"}, {"context_shift": True}]
)
def test_in_company_of_other_options(model: LanguageModel, options: dict[str, Any]) -> None:
    alone = model.generate("ROMEO:", stop_loops=(4, 64), **GREEDY)
    made = model.generate("ROMEO:", stop_loops=(4, 64), **GREEDY, **options)
    assert (made.tokens, made.text, made.stop_reason) == (alone.tokens, alone.text, "loop")
    if "spec_type" in options:
        assert made.stats.draft_n_accepted > 0


def test_on_a_device_in_several_steps(model: LanguageModel) -> None:
    pytest.importorskip("torch")
    alone = model.generate("ROMEO:", stop_loops={}, **GREEDY)
    for steps in (1, 7):
        device: dict[str, Any] = {"sampling_device": "device", "multi_step": steps}
        made = model.generate("ROMEO:", stop_loops={}, **device, **GREEDY)
        assert (made.tokens, made.text) == (alone.tokens, alone.text)
        assert (made.stop_reason, made.chain.history) == ("loop", alone.chain.history)


def test_a_session_goes_on_with_what_it_drew(model: LanguageModel, tmp_path: Path) -> None:
    whole = model.generate("ROMEO:", stop_loops={}, **GREEDY).tokens
    half = model.generate("ROMEO:", stop_loops={}, **{**GREEDY, "max_tokens": 60})
    assert half.stop_reason == "length"
    model.save_session(tmp_path / "s", half)
    rest = model.generate(model.load_session(tmp_path / "s"), stop_loops={}, **GREEDY)
    assert ([*half.tokens, *rest.tokens], rest.stop_reason) == (whole, "loop")
    # A prompt that repeats itself is no loop of the text.
    prompt = "Good night, good night! " * 20
    assert len(model.generate(prompt, stop_loops={}, max_tokens=20, seed=1).tokens) == 20


def test_what_vllm_s_loop_break_of_reasoning_asks(model: LanguageModel) -> None:
    """vLLM #52677 counts the tokens of the reasoning alone, and forces its end; ours ends the text."""
    messages = [{"role": "user", "content": "Speak."}]
    asked: dict[str, Any] = {**GREEDY, "chat_template": templates.DEEPSEEK, "stop_loops": {}}
    stuck = model.chat(messages, **asked)
    n = len(stuck.tokens)
    assert (stuck.stop_reason, found(stuck.tokens, *LIMITS)) == ("loop", n)
    assert stuck.message.reasoning_content
    assert not stuck.message.content
    # With a budget the answer comes; with a stretch at another temperature the reasoning goes on.
    asked["max_tokens"] = n + 9
    bounded = model.chat(messages, **asked, reasoning_budget=n - 1)
    assert bounded.tokens[: n - 1] == stuck.tokens[:-1]
    assert bounded.message.content
    warm = model.chat(messages, **{**asked, "stop_loops": {"temperature": 1.5}, "seed": 1})
    assert (warm.tokens[:n], len(warm.tokens) > n) == (stuck.tokens, True)
    # What is no exact cycle is none there either, and the mark between reasoning and answer cuts one.
    assert found([1, 2, 3] * 2 + [9] + [1, 2, 3] * 2, 3, 1) == 0
    assert found([each for i in range(9) for each in (1, 2, 100 + i)], 3, 1) == 0


WARM: dict[str, Any] = {"repeats": 3, "min_tokens": 24, "temperature": 1.5, "for": 8}


def temperatures(model: LanguageModel, **options: Any) -> tuple[Generation, list[float], list[Any]]:
    """A greedy text, and the temperature and the logits of each draw."""
    seen: list[float] = []
    rows: list[Any] = []

    def look(chain: SamplerChain, row: Any) -> None:
        (each,) = [sampler for sampler in chain if isinstance(sampler, Temperature)]
        seen.append(each.temperature)
        rows.append(row.copy())

    made = model.generate("ROMEO:", **{**GREEDY, "seed": 1, **options}, on_logits=look)
    made.wait()
    return made, seen, rows


def test_the_temperature_rises_for_a_stretch(model: LanguageModel) -> None:
    plain = model.generate("ROMEO:", **GREEDY)
    made, seen, rows = temperatures(model, stop_loops=WARM)
    first = found(plain.tokens, 3, 24)
    assert made.tokens[:first] == plain.tokens[:first]
    assert made.tokens[: first + 8] != plain.tokens[: first + 8]
    assert made.stop_reason == "length"
    expected, since = [], 0
    for n in range(len(made.tokens)):
        if found(made.tokens[since:n], 3, 24) == n - since > 0:
            since = n  # what came before counts no more
        expected.append(1.5 if 0 < since <= n < since + 8 else 0.0)
    assert seen == expected
    assert 8 < seen.count(1.5) < len(seen)
    # Each draw is the one that its own chain makes there: the key is that of the position.
    chain = model.sampling_params(temperature=1.5, ignore_eos=True, seed=1).chain(model.tokenizer)
    chain.accept_many(made.request.tokens)
    chain.accept_many(made.tokens[:first], generated=True)
    assert [chain.sample(row) for row in rows[first : first + 8]] == made.tokens[first : first + 8]


@pytest.mark.parametrize("options", [{"spec_type": "ngram"}, {"banned_strings": "zzz"}, {}])
def test_a_stretch_in_company(model: LanguageModel, options: dict[str, Any]) -> None:
    asked: dict[str, Any] = {**GREEDY, "max_tokens": 150, "seed": 1, "stop_loops": WARM}
    alone = model.generate("ROMEO:", **asked)
    made = model.generate_batch(["ROMEO:", "JULIET:"], n=2, **asked, **options)
    assert made[0].tokens == alone.tokens != made[1].tokens
    assert made[0].chain.describe() == model.generate("ROMEO:", **GREEDY).chain.describe()
    with model.engine(n_seq_max=2) as engine:
        assert engine.submit("ROMEO:", **asked).tokens == alone.tokens


def test_a_stretch_is_replayed_and_verified(model: LanguageModel) -> None:
    made, *_ = temperatures(model, stop_loops=WARM, max_tokens=120)
    record = Record.from_json(json.loads(json.dumps(Record.of(made, model, "1.2").as_json())))
    assert record.made is not None
    assert differences(record.made, make_again(record, model)) == []
    assert verify(record, model).ok
    at = (
        found(made.tokens, 3, 24) + 3
    )  # within the stretch, whose chain the record's parameters do not tell
    tokens = [*made.tokens[:at], made.tokens[at] ^ 1, *made.tokens[at + 1 :]]
    altered = replace(record, made=replace(record.made, tokens=tuple(tokens)))
    wrong = verify(altered, model).wrong
    assert [each.position for each in wrong] == [at]
    assert wrong[0].reason == f"its key draws {made.tokens[at]} there"


def test_a_session_goes_on_within_a_stretch(model: LanguageModel, tmp_path: Path) -> None:
    asked: dict[str, Any] = {**GREEDY, "seed": 1, "stop_loops": WARM}
    whole = model.generate("ROMEO:", **{**asked, "max_tokens": 120}).tokens
    at = found(model.generate("ROMEO:", **GREEDY).tokens, 3, 24) + 3
    half = model.generate("ROMEO:", **{**asked, "max_tokens": at})
    model.save_session(tmp_path / "s", half)
    rest = model.generate(model.load_session(tmp_path / "s"), **{**asked, "max_tokens": 120 - at})
    assert [*half.tokens, *rest.tokens] == whole


def test_a_chain_without_a_temperature(model: LanguageModel) -> None:
    asked: dict[str, Any] = {**GREEDY, "temperature": 1, "top_k": 1, "samplers": "top_k", "seed": 1}
    plain = model.generate("ROMEO:", **asked)
    made = model.generate("ROMEO:", **asked, stop_loops={"temperature": 2})
    assert (made.tokens, made.chain.describe()) == (plain.tokens, plain.chain.describe())


def test_a_stretch_that_cannot_be_is_refused(model: LanguageModel) -> None:
    for options, said in (
        ({"temperature": 1.5}, "temperature=1.5 is not above the request's, 1.5"),
        (
            {"temperature": 1, "numerics": "llama.cpp"},
            "temperature=1.5 cannot change in llama.cpp's chain",
        ),
        (
            {"temperature": 1, "sampling_device": "device"},
            "changes the temperature of the host's chain",
        ),
        ({"phases": {"answer": {"temperature": 0}}}, "cannot change in the chains of phases"),
    ):
        with pytest.raises(ParameterError, match=said):
            model.generate("a", stop_loops=WARM, max_tokens=3, seed=1, **options)


def test_limits_are_checked() -> None:
    for edge in ((2, 1, 0.0, 1), (1000, 4096, 100.0, 4096)):
        assert loop_limits(edge) == loop_limits(json.dumps(edge)) == edge
        assert [type(each) for each in loop_limits(edge)] == [int, int, float, int]
    for i, beyond in enumerate((1001, 4097, 100.5, 4097)):
        asked: list[Any] = [4, 64, 1.5, 64]
        asked[i] = beyond
        with pytest.raises(ParameterError, match=f"{beyond} is out of range"):
            loop_limits(asked)
    assert loop_limits({}) == loop_limits("4,64") == loop_limits([4, 64]) == LIMITS
    assert loop_limits({"repeats": 9}) == loop_limits('{"repeats": 9}') == (9, 64)
    assert loop_limits({"temperature": 2}) == loop_limits("4,64,2,64") == (4, 64, 2.0, 64)
    assert loop_limits([3, 9, 1.5, 7]) == (3, 9, 1.5, 7)
    for wrong, said in (
        ({"repeats": 1}, "repeats=1 is out of range: give an integer, 2 to 1000"),
        ({"min_tokens": 0}, "min_tokens=0 is out of range: give an integer, 1 to 4096"),
        ({"min_tokens": 5000}, "1 to 4096"),
        ({"repeats": True}, "repeats=True"),
        ({"repeats": 2.5}, "repeats=2.5"),
        ({"temperature": -1}, "temperature=-1 is out of range: give a number, 0 to 100"),
        ({"temperature": "hot"}, "temperature='hot' is out of range"),
        ({"temperature": True}, "temperature=True is out of range"),
        ({"temperature": float("nan")}, "temperature=nan is out of range"),
        ({"temperature": 1, "for": 0}, "for=0 is out of range: give an integer, 1 to 4096"),
        ({"temperature": 1, "for": 2.0}, "for=2.0 is out of range"),
        ({"for": 9}, "give repeats and min_tokens"),
        ("4,64,1.5", "give repeats and min_tokens"),
        ({"repeat": 3}, "give repeats and min_tokens"),
        ("4", "give repeats and min_tokens"),
        ("a,b", "give repeats and min_tokens"),
        ("[" * 200_000, "give repeats and min_tokens"),
        (7, "give repeats and min_tokens"),
    ):
        with pytest.raises(ParameterError, match=said) as refused:
            loop_limits(wrong)
        assert refused.value.parameter == "stop_loops"
