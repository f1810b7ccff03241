from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aleator.core.errors import AleatorError, ContextFull, ParameterError
from aleator.engine.scheduled_request import cells_needed
from aleator.generate.completion import remaining
from aleator.generate.generation import reader_of
from tests.engine.fake_run import EOG, FakeContext, run, scripted, single, state


def test_equals_the_plain_loop() -> None:
    tokens, chain = list(state().request.tokens), state().chain
    for _ in range(20):
        tokens.append(chain.sample(FakeContext().logits(tokens).astype(np.float32)))
    assert single(max_tokens=20).tokens == tokens[5:]


def test_a_larger_limit_begins_with_the_same_text() -> None:
    long = single(max_tokens=40)
    for n in range(40):
        short = single(max_tokens=n)
        assert long.text.startswith(short.text)
        assert short.tokens == long.tokens[:n]


@pytest.mark.parametrize("n_ubatch", [1, 3, 64])
def test_a_batch_gives_what_each_gives_alone(n_ubatch: int) -> None:
    prompts = [("romeo", 0), ("romeo", 1), ("juliet", 0), ("a", 0), ("romeo", 2)]
    context = FakeContext(n_ubatch)
    together = run(context, *(state(p, c, max_tokens=15) for p, c in prompts)).generations
    assert [g.text for g in together] == [single(p, c, max_tokens=15).text for p, c in prompts]
    assert together[0].text != together[1].text


def test_equal_prompts_are_prefilled_once() -> None:
    context = FakeContext()
    made = run(context, *(state(completion=c, max_tokens=3) for c in range(4)))
    assert len(made.generations[0].text) == 3
    assert made.stats.prompt_tokens == 5
    assert context.cache.copies == 3
    assert made.stats.decode_tokens == 8
    assert made.stats.sampled_tokens == 12


@pytest.mark.parametrize("shift", [False, True])
def test_there_are_enough_cells(shift: bool) -> None:
    states = [
        state(p, c, max_tokens=n, context_shift=shift)
        for p, c, n in [("romeo", 0, 9), ("romeo", 1, 30), ("juliet", 0, 2), ("juliet", 1, None)]
    ]
    context = FakeContext()
    made = run(context, *states, n_ctx=16)
    while not made.done and made.stats.decode_tokens < 200:
        made.step()
    assert context.most_used <= cells_needed(states, 16) <= 4 * 16


def test_ends_at_the_length() -> None:
    made = single(max_tokens=7)
    assert (len(made.tokens), made.stop_reason) == (7, "length")


def test_ends_at_an_end_of_generation_token() -> None:
    made = scripted([0, 1, EOG, 2])
    assert (made.text, made.tokens, made.stop_reason) == ("ab", [0, 1, EOG], "eog")


def test_ends_at_a_stop_string() -> None:
    made = scripted([0, 1, 2, 3, 4, 5], stop=("cde", "zz"))
    assert list(made) == ["a", "b"]
    assert (made.stop_reason, made.stop_string) == ("stop", "cde")
    assert made.tokens == [0, 1, 2, 3, 4]


def test_ends_with_the_context() -> None:
    made = single(n_ctx=12)
    # The last token drawn needs no position.
    assert (len(made.tokens), made.stop_reason) == (12 - 5 + 1, "context")


def test_a_prompt_that_fills_the_context_gives_one_token() -> None:
    assert len(single(n_ctx=5).tokens) == 1


def test_ends_when_cancelled_and_shows_what_was_held_back() -> None:
    made = scripted([0, 1, 2, 3], stop=("bcdefg",))
    assert next(made) == "a"
    made.cancel()
    assert (made.text, made.stop_reason) == ("a", "interrupted")
    assert made.done
    made = scripted([0, 1, 2, 3], stop=("abcdefg",))
    run: Any = reader_of(made).run
    while not reader_of(made).completion.tokens:
        run.step()
    made.cancel()
    assert list(made) == ["a"]


def test_no_tokens_at_all() -> None:
    made = single(max_tokens=0)
    assert (made.text, made.tokens, made.stop_reason) == ("", [], "length")


def test_pieces_not_iterated_over_stay_available() -> None:
    made = scripted([0, 1, 2], max_tokens=3)
    assert made.text == "abc"
    assert list(made) == ["a", "b", "c"]


def test_half_a_character_is_left_out_at_the_length_but_not_at_the_end() -> None:
    assert scripted([0, 27, 28], max_tokens=2).text == "a"
    assert scripted([0, 27, 28], max_tokens=3).text == "aé"
    assert scripted([0, 27, EOG]).text == "a\ufffd"


def test_echo_comes_first_and_is_not_searched_for_stop_strings() -> None:
    made = scripted([0, 1, 2], max_tokens=2, echo="cd: ", stop=("d",))
    assert list(made) == ["cd: ", "a", "b"]


def test_logprobs_come_with_every_token() -> None:
    made = single(max_tokens=6, logprobs=3)
    assert [entry.chosen.token for entry in made.logprobs] == made.tokens
    assert all(len(entry.top) == 3 for entry in made.logprobs)
    assert single(max_tokens=6, logprobs=3).text == single(max_tokens=6).text
    assert single(max_tokens=6).logprobs is None


def test_a_context_shift_keeps_the_beginning_and_the_newer_half() -> None:
    context = FakeContext()
    made = run(context, state(max_tokens=40, context_shift=True, n_keep=2), n_ctx=12)
    made.step()
    while made.stats.context_shifts == 0:
        before = list(made.states[0].tokens)
        made.step()
    # 12 positions: 2 are kept, 5 of the other 10 are forgotten, and one token was decoded since.
    after = made.states[0].tokens
    assert after[:7] == before[:2] + before[7:]
    assert context.cache.tokens[0] == after
    assert len(made.generations[0].tokens) == 40
    assert made.stats.context_shifts == 7


def test_with_context_shift_completions_share_no_cells() -> None:
    context = FakeContext()
    options: dict[str, Any] = {"max_tokens": 30, "context_shift": True, "n_keep": 1}
    made = run(context, state(**options), state(completion=1, **options), n_ctx=12)
    assert context.cache.copies == 0
    texts = [generation.text for generation in made.generations]
    assert texts == [single(completion=c, n_ctx=12, **options).text for c in range(2)]


def test_a_prompt_longer_than_the_context_is_refused() -> None:
    with pytest.raises(ContextFull, match=r"prompt has 6 tokens and the context 5 positions"):
        single("juliet", n_ctx=5)


@pytest.mark.parametrize("n_keep", [-1, 11])
def test_a_shift_must_have_something_to_forget(n_keep: int) -> None:
    with pytest.raises(ParameterError, match="can keep 0 to 10"):
        single(n_ctx=12, context_shift=True, n_keep=n_keep)


def test_an_error_ends_all_completions() -> None:
    context = FakeContext()
    made = run(context, state(max_tokens=30), state("b", max_tokens=30))
    context.fail_at = 11
    broken = made.generations[0]
    with pytest.raises(RuntimeError, match="device is gone"):
        list(broken)
    assert made.done
    assert {g.stop_reason for g in made.generations} == {"interrupted"}
    assert list(broken) == []
    assert len(made.generations[1].tokens) == 4


def test_an_error_is_raised_to_another_generation_of_the_completion() -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("not today")

    made = run(FakeContext(), state(max_tokens=2), state("b", max_tokens=2))
    made.states[1].on_logits = failing
    whole, failed = made.generations
    assert len(whole.tokens) == 2
    del failed
    with pytest.raises(RuntimeError, match="not today"):
        made.generations[1].wait()


def test_only_what_is_not_kept_is_prefilled() -> None:
    context = FakeContext()
    first = run(context, state("romeo", max_tokens=1))
    assert first.generations[0].tokens
    second = run(context, state("romeobc", max_tokens=4))
    assert second.generations[0].tokens == single("romeobc", max_tokens=4).tokens
    assert (second.stats.prompt_tokens, second.stats.reused_tokens) == (2, 5)
    drawn = second.generations[0].tokens
    assert (*state("romeobc").request.tokens, *drawn[:-1]) in context.cache.kept
    assert context.cache.seqs[0] == []


def test_what_a_context_shift_left_is_kept_apart() -> None:
    context = FakeContext()
    made = run(context, state("romeo", max_tokens=20, context_shift=True, n_keep=2), n_ctx=12)
    assert len(made.generations[0].tokens) == 20
    assert made.stats.context_shifts > 0
    assert set(context.cache.kept) == {state("romeo").request.tokens, state("ro").request.tokens}
    generation = made.generations[0]
    whole = (*generation.request.tokens, *generation.tokens[:-1])
    assert context.cache.shifted == {
        generation.namespace: list(remaining(whole, reader_of(generation).completion.forgotten))
    }
    assert len(reader_of(generation).completion.forgotten) == 1  # all of one place


def test_progress_of_the_prefill_and_cancelling_it() -> None:
    seen: list[tuple[int, int]] = []
    context = FakeContext(n_ubatch=4)
    made = run(context, state("abcdefghij"), progress=lambda *at: seen.append(at))
    while not made.states[0].completion.tokens:
        made.step()
    assert seen == [(0, 10), (4, 10), (8, 10), (10, 10)]
    context = FakeContext(n_ubatch=4)
    made = run(context, state("abcdefghij"), progress=lambda *at: made.generations[0].cancel())
    assert made.generations[0].tokens == []
    assert context.decoded == 0
    assert made.generations[0].stop_reason == "interrupted"


def test_stats_count_what_was_done() -> None:
    made = single(max_tokens=6)
    assert made.text
    stats = made.stats
    assert (stats.prompt_tokens, stats.decode_tokens, stats.sampled_tokens) == (5, 5, 6)
    assert stats.prompt_tokens_per_second == 5 / stats.prompt_seconds
    assert stats.decode_tokens_per_second == 5 / stats.decode_seconds
    assert 0 < stats.sampler_seconds < stats.prompt_seconds + stats.decode_seconds
    assert stats.sampler_us_per_token == pytest.approx(1e6 * stats.sampler_seconds / 6)


def test_an_error_of_one_completion_ends_that_one_alone() -> None:
    def fails(chain: Any, logits: Any) -> None:
        raise RuntimeError("not today")

    context, broken, fine = FakeContext(), state(max_tokens=9), state("juliet", max_tokens=9)
    broken.on_logits = fails
    made = run(context, broken, fine).generations
    assert made[1].tokens == single("juliet", max_tokens=9).tokens
    with pytest.raises(RuntimeError, match="not today"):
        made[0].wait()
    assert (made[0].tokens, made[0].stop_reason) == ([], "interrupted")
    assert context.cache.used() == 0


def test_who_follows_a_prompt_goes_on_with_it_when_it_is_given_up() -> None:
    context = FakeContext(n_ubatch=4)
    made = run(context, *(state("abcdefghij", c, max_tokens=5) for c in range(3)))
    made.step()
    generations = made.generations
    generations[0].cancel()
    assert generations[1].tokens == single("abcdefghij", 1, max_tokens=5).tokens
    assert generations[2].tokens == single("abcdefghij", 2, max_tokens=5).tokens
    assert generations[0].tokens == []
    assert made.stats.prompt_tokens == 10
    assert context.cache.used() == 0


def test_a_text_whose_sampler_reads_another_of_its_batch_ends_and_the_other_goes_on() -> None:
    context, reading, other = FakeContext(), state(max_tokens=9), state("juliet", max_tokens=9)
    made = run(context, reading, other).generations
    pieces = iter(made[1])

    def looks(chain: Any, logits: Any) -> None:
        if len(chain.history) > 7:
            made[1].wait()

    reading.on_logits = looks
    first = next(pieces)  # a step is made
    with pytest.raises(AleatorError, match="a step is needed, and one is under way: a sampler"):
        made[0].wait()
    assert len(made[0].tokens) == 3
    assert first + "".join(pieces) == single("juliet", max_tokens=9).text


def test_a_sampler_may_read_what_there_is_of_another_text_of_its_batch() -> None:
    context, reading, other = FakeContext(), state(max_tokens=3), state("b", max_tokens=1)
    made = run(context, other, reading).generations
    seen: list[str] = []
    reading.on_logits = lambda chain, logits: seen.append(made[0].text)
    assert made[1].tokens == single(max_tokens=3).tokens
    assert seen == [single("b", max_tokens=1).text] * 3
