"""The state of a request by itself: what it may still draw, and how much is guessed for a step."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aleator.core.errors import ContextFull, ParameterError, StateError
from aleator.generate import model_runner, request_state
from aleator.generate.completion import Stats
from aleator.generate.model_runner import ModelRunner
from aleator.generate.prompt_chunks import Chunk
from aleator.generate.request_state import Proposer, RequestErrors, RequestState, go_on
from aleator.generate.speculative import Draft
from aleator.generate.steering import Guidance
from aleator.generate.token_sampler import HostTokenSampler
from tests.engine.fake_run import EOG, state


def at(
    n_ctx: int = 16, held: int = 5, made: int = 0, prompt: str = "romeo", **options: Any
) -> RequestState:
    """A request that has ``held`` tokens in the cache, and has drawn ``made``."""
    request = state(prompt, **options)
    request.take_place(0, n_ctx, Stats())
    request.tokens, request.completion.tokens = [1] * held, [1] * made
    return request


@pytest.mark.parametrize(
    ("given", "banned", "left"),
    [
        ({}, 0, (12, "context")),
        ({"held": 16}, 0, (1, "context")),
        ({"held": 17}, 0, (0, "context")),
        ({"context_shift": True}, 0, (None, "context")),
        ({"max_tokens": 11}, 0, (11, "length")),
        ({"max_tokens": 12}, 0, (12, "length")),
        ({"max_tokens": 13}, 0, (12, "context")),
        ({"max_tokens": 13, "context_shift": True}, 0, (13, "length")),
        ({"max_tokens": 13, "made": 1}, 0, (12, "length")),
        ({"max_tokens": 13, "made": 1}, 2, (10, "length")),
        ({"max_tokens": 3, "made": 3, "held": 8}, 0, (0, "length")),
    ],
)
def test_what_may_still_be_drawn(given: dict[str, Any], banned: int, left: Any) -> None:
    request = at(**given)
    held: Any = SimpleNamespace(held=[None] * banned, refuses=False)
    request.banned = held if banned else None
    assert request.limits() == left


def test_what_a_token_ends() -> None:
    assert at().ends_with(EOG)
    assert not at().ends_with(1)
    for made, ends in ((1, False), (2, True), (3, False)):
        assert at(max_tokens=3, made=made).ends_with(1) is ends
    request, grammar = at(), SimpleNamespace(name="g")
    for has, finished in ((True, True), (True, False), (False, True)):
        chain: Any = SimpleNamespace(grammar=grammar if has else None, finished=finished)
        request.chain = chain
        assert request.ends_with(1) is (has and finished)


def test_positions_beside_a_request() -> None:
    request = at(held=8)
    assert (request.second_positions, request.to_prefill) == (0, 5)
    request.guidance = Guidance([1] * 9, 1.5)
    for computed, held, beside in ((0, 0, 0), (9, 3, 9), (9, 5, 9), (9, 6, 10), (4, 8, 7)):
        request.guidance.computed, request.tokens = computed, [1] * held
        assert request.second_positions == beside
    request.n_ctx = 4
    assert request.to_prefill == 4


@pytest.mark.parametrize(
    ("prompt", "n_ctx", "options"),
    [
        ("romeo", 5, {}),
        ("romeo", 6, {"context_shift": True, "n_keep": 0}),
        ("romeo", 6, {"context_shift": True, "n_keep": 4}),
    ],
)
def test_a_prompt_that_just_fits(prompt: str, n_ctx: int, options: dict[str, Any]) -> None:
    request = state(prompt, **options)
    stats = Stats()
    request.take_place(3, n_ctx, stats)
    assert (request.seq, request.n_ctx, request.completion.n_ctx) == (3, n_ctx, n_ctx)
    assert request.stats is stats
    with pytest.raises(ContextFull, match=f"has 5 tokens and the context {len(prompt) - 1} pos"):
        request.take_place(0, len(prompt) - 1, stats)
    if options:
        with pytest.raises(ParameterError, match=r"in 5 positions can keep 0 to 3"):
            state(prompt, context_shift=True, n_keep=4).take_place(0, 5, stats)
        drawn = state(prompt, context_shift=True, n_keep=0)
        object.__setattr__(drawn.request, "drawn", 1)
        drawn.take_place(0, 4, stats)  # it shifts before the token drawn last is decoded
        with pytest.raises(ContextFull):
            drawn.take_place(0, 3, stats)


def test_who_draws_alone() -> None:
    assert at().draws_alone
    assert not at(logprobs=1, kept=True).draws_alone
    for name in ("guidance", "on_logits", "budget", "completer"):
        request = at()
        setattr(request, name, SimpleNamespace())
        assert not request.draws_alone, name
    for refuses in (False, True):
        request, banned = at(), SimpleNamespace(refuses=refuses)
        request.banned = banned  # type: ignore[assignment]
        assert request.draws_alone is not refuses
    for made, opened in ((1, True), (2, False)):
        request, healing = at(made=made), SimpleNamespace(open=lambda n: n < 2)
        request.healing = healing  # type: ignore[assignment]
        assert request.draws_alone is not opened


def test_what_is_held_back_counts_for_a_healed_prompt() -> None:
    request, row = at(made=2), np.zeros(3, np.float32)
    asked: list[Any] = []

    def masked(row: Any, drawn: list[int]) -> Any:
        asked.append(drawn)
        return row

    healing = SimpleNamespace(open=lambda n: n < 3, masked=masked)
    request.healing = healing  # type: ignore[assignment]
    assert request.allowed(row) is row
    banned = SimpleNamespace(held=[SimpleNamespace(token=7)], masked=lambda row: row + 1)
    request.banned = banned  # type: ignore[assignment]
    assert request.allowed(row).tolist() == [1, 1, 1]
    request.completion.tokens = [1, 1, 1]
    request.allowed(row)
    assert asked == [[1, 1], [1, 1, 7]]


class Guessing:
    """Speculation that wants all there is room for."""

    def __init__(self, model: Any = None) -> None:
        self.model, self.rooms, self.seen = model, list[Any](), list[Any]()
        self.looks_for_repeats, self.found = False, list[int]()

    def rests(self) -> bool:
        return False

    def repeated(self, text: list[int], room: int, n_sequences: int, costs: Any) -> list[int]:
        assert self.looks_for_repeats  # otherwise a long text is copied in each step for nothing
        self.seen.append(text)
        return self.found

    def n_guesses(self, room: int, n_sequences: int, costs: Any) -> int:
        self.rooms.append((room, n_sequences))
        return min(room, 3)

    def guesses(self, text: list[int], n: int) -> list[int]:
        self.seen.append(text)
        return list(range(n))

    def least_probability(self, n_sequences: int, costs: Any) -> float:
        return n_sequences / 10

    def observe(self, n: int, seconds: float) -> None:
        self.seen.append((n, seconds))


def proposer(rewindable: int, failed: list[Any] | None = None) -> Proposer:
    context: Any = SimpleNamespace(rewindable=lambda n: rewindable // n)
    errors = RequestErrors(lambda state: None, lambda *told: (failed or []).append(told))
    return Proposer(context, errors)


@pytest.mark.parametrize(
    ("given", "rewindable", "room"),
    [
        ({}, 99, 10), ({}, 8, 8), ({"held": 14}, 99, 1), ({"held": 15}, 99, 0), ({"held": 16}, 99, -1),
        ({"max_tokens": 7, "made": 3}, 99, 3), ({"max_tokens": 4, "made": 3}, 99, 0),
        ({"max_tokens": 99, "made": 3}, 99, 10),
    ],
)  # fmt: skip
def test_room_for_guesses(given: dict[str, Any], rewindable: int, room: int) -> None:
    """Each needs a position, the token after them too; and all but the first can be taken back."""
    request, guessing = at(**given), Guessing()
    request.drawn = 9
    request.speculation = guessing  # type: ignore[assignment]
    ((_, tokens),) = proposer(rewindable).propose([request])
    assert guessing.rooms == [(room, 1)]
    wanted = list(range(max(0, min(room, 3))))
    assert tokens == [9, *wanted]
    assert guessing.seen == ([[*request.tokens, 9]] if wanted else [])
    assert request.drafted is bool(wanted)
    assert (request.stats.draft_n, request.stats.drafts) == (len(wanted), bool(wanted))


@pytest.mark.parametrize("found", [[], [7, 8]])
def test_repeats_come_before_guesses(found: list[int]) -> None:
    request, guessing = at(), Guessing()
    request.drawn, request.speculation = 9, guessing  # type: ignore[assignment]
    guessing.looks_for_repeats, guessing.found = True, found
    ((_, tokens),) = proposer(99).propose([request])
    assert tokens == [9, *(found or [0, 1, 2])]
    assert guessing.seen == [[*request.tokens, 9]] * (1 if found else 2)
    assert len(guessing.rooms) == (not found)
    assert request.stats.draft_n == len(tokens) - 1


@pytest.mark.parametrize(
    ("room", "n_ahead", "n"), [(9, 4, 4), (3, 4, 3), (0, 4, 0), (-1, 4, 0), (9, 9, 6)]
)
def test_what_a_grammar_forces_comes_before_guesses(room: int, n_ahead: int, n: int) -> None:
    request, guessing = at(n_ctx=40, held=39 - room, max_tokens=None), Guessing()
    request.drawn, request.n_ahead = 9, n_ahead
    request.spell = lambda text: [4, 5, 6, 7, 8, 9]
    request.speculation = guessing  # type: ignore[assignment]
    ((_, tokens),) = proposer(99).propose([request])
    assert tokens[: 1 + n] == [9, *[4, 5, 6, 7, 8, 9][:n]]
    assert len(guessing.rooms) == (n == 0)
    assert request.stats.draft_n == len(tokens) - 1 - n


def test_guidance_has_a_sequence_of_its_own_and_bans_guess_nothing() -> None:
    requests = [at(n_ctx=99), at(n_ctx=99), at(n_ctx=99), at(n_ctx=99)]
    guessing = [Guessing() for _ in requests]
    for request, each in zip(requests, guessing, strict=True):
        request.speculation = each  # type: ignore[assignment]
        request.drafted = True
    requests[1].guidance = Guidance([1], 2.0)
    requests[2].banned = SimpleNamespace(held=[])  # type: ignore[assignment]
    requests[3].speculation = None
    found = proposer(50).propose(requests)
    assert [len(tokens) for _, tokens in found] == [4, 4, 1, 1]
    assert [each.rooms for each in guessing] == [[(10, 5)], [(10, 5)], [], []]
    assert [request.drafted for request in requests] == [True, True, False, False]


def test_draft_models_guess_together_and_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[Any] = [0]
    times = count(5.0, 6.0)
    monkeypatch.setattr(request_state, "perf_counter", lambda: next(times))
    requests = [at(), at()]
    shared = SimpleNamespace()
    guessing = [Guessing(SimpleNamespace(shared=shared)) for _ in requests]
    for request, each in zip(requests, guessing, strict=True):
        request.speculation = each  # type: ignore[assignment]

    def together(drafts: list[Draft]) -> None:
        assert [(draft.n, draft.least) for draft in drafts] == [(3, 0.2), (3, 0.2)]
        assert [draft.model for draft in drafts] == [each.model for each in guessing]
        drafts[0].found = [5, 6]
        drafts[1].error = RuntimeError("not today")

    shared.guess = together
    found = proposer(99, failed).propose(requests)
    assert [tokens for _, tokens in found] == [[-1, 5, 6]]
    assert [each.seen for each in guessing] == [[(2, 3.0)], [(0, 3.0)]]
    assert [request.stats.draft_n for request in requests] == [2, 0]
    assert failed[1:] == [(requests[1], requests[1].completion.error)]

    def broken(drafts: list[Draft]) -> None:
        raise RuntimeError("nor now")

    shared.guess = broken
    assert proposer(99, failed).propose(requests[:1]) == []
    assert str(requests[0].completion.error) == "nor now"


def test_errors_end_one_request_and_an_interrupt_none() -> None:
    request, dropped = at(), list[RequestState]()
    errors = RequestErrors(dropped.append, None)

    def raises(error: BaseException) -> None:
        raise error

    with pytest.raises(KeyboardInterrupt):
        errors.run_for(request, raises, KeyboardInterrupt())
    assert not request.completion.done
    errors.run_for(request, raises, SystemExit(3))
    assert isinstance(request.completion.error, SystemExit)
    assert dropped == [request]


@pytest.mark.parametrize("way", ["same", "other", "unreadable"])
def test_a_chain_goes_on_from_its_state_if_that_is_of_this_text(way: str) -> None:
    done: list[Any] = []

    class Chain:
        def __init__(self) -> None:
            self.history: list[int] = []

        def state_read(self, given: bytes) -> None:
            if way == "unreadable":
                raise StateError("no")
            self.history = [1, 2, 3] if way == "same" else [1, 2]

        def reset(self) -> None:
            done.append("reset")

        def accept_many(self, tokens: Any, generated: bool = False) -> None:
            done.append((list(tokens), generated))

    request: Any = SimpleNamespace(tokens=(1, 2, 3), drawn=1, chain_state=b"s")
    chain: Any = Chain()
    go_on(chain, request)
    accepted = [([1, 2], False), ([3], True)]
    assert done == {"same": [], "other": ["reset", *accepted], "unreadable": accepted}[way]


@pytest.mark.parametrize(
    ("n", "done", "drawn", "drafted", "ended", "pending", "after"),
    [
        # (goes on, n_ahead, accepted guesses, forced tokens, cut, learnt)
        (3, 1, 8, False, False, False, (True, 16, 0, 1, 0, [])),
        (3, 1, 8, True, False, False, (True, 16, 1, 0, 0, [])),
        (3, 1, 5, False, False, False, (False, 8, 0, 0, 1, [])),
        (3, 1, 5, True, False, False, (False, 16, 0, 0, 1, [(2, 0)])),
        (3, 2, 5, True, False, False, (False, 16, 0, 0, 1, [(2, 1)])),
        (3, 3, 5, True, False, False, (False, 16, 0, 0, 0, [(2, 2)])),
        (3, 3, 5, False, False, False, (False, 32, 0, 0, 0, [])),
        (1, 1, 5, False, False, False, (False, 16, 0, 0, 0, [])),
        (3, 1, 8, False, True, False, (False, 16, 0, 0, 1, [])),
        (3, 1, 8, False, False, True, (False, 16, 0, 0, 1, [])),
        (3, 3, 8, True, False, True, (False, 16, 0, 0, 0, [])),
    ],
)
def test_how_far_guesses_were_right(
    n: int, done: int, drawn: int, drafted: bool, ended: bool, pending: bool, after: Any
) -> None:
    """Of the tokens 7, 8, 9 that were decoded together."""
    request, cut, learnt = at(), list[Any](), list[Any]()
    request.drawn, request.drafted = drawn, drafted
    guesses = SimpleNamespace(learn=lambda *told: learnt.append(told))
    request.speculation = guesses  # type: ignore[assignment]
    request.completion.stop_reason = "stop" if ended else None
    cache = SimpleNamespace(seq_rm=lambda *given: cut.append(given))
    context: Any = SimpleNamespace(cache=cache)
    prefixes: Any = SimpleNamespace()
    waiting: Any = {request} if pending else set()
    runner = ModelRunner(context, HostTokenSampler(), 30, prefixes)
    runner.pending = waiting
    goes_on = runner._goes_on(request, [7, 8, 9][:n], done)
    stats = request.stats
    told = goes_on, request.n_ahead, stats.draft_n_accepted, stats.forced_tokens, len(cut), learnt
    assert told == after
    assert cut == [(0, 5)] * len(cut)
    for start, drawn_then, bound in ((1, 5, 1), (64, 9, 64), (33, 9, 64)):
        request = at()
        request.n_ahead, request.drawn = start, drawn_then
        runner.pending = set()  # type: ignore[assignment]
        assert not runner._goes_on(request, [7, 8], 1 if drawn_then == 5 else 2)
        assert request.n_ahead == bound


def test_rates_of_what_was_counted() -> None:
    rates = ("prompt_tokens_per_second", "decode_tokens_per_second", "sampler_us_per_token")
    assert [getattr(Stats(), name) for name in rates] == [0.0] * 3
    told = Stats(10, 0, 4.0, 9, 3.0, 5, 2.0)
    assert [getattr(told, name) for name in rates] == [2.5, 3.0, 400_000.0]
    assert told.as_json() == {**vars(told), **{name: getattr(told, name) for name in rates}}


@pytest.mark.parametrize("tiered", [False, True])
@pytest.mark.parametrize("keep_pieces", [False, True])
def test_pieces_of_prompts_are_kept_where_there_are_tiers(tiered: bool, keep_pieces: bool) -> None:
    prefixes: Any = SimpleNamespace(look_up=None) if tiered else SimpleNamespace()
    context: Any = SimpleNamespace()
    runner = ModelRunner(context, HostTokenSampler(), 30, prefixes, keep_pieces=keep_pieces)
    assert runner._keep_pieces is (tiered or keep_pieces)


def test_a_completion_of_nothing_goes_on_until_its_prompt_is_told() -> None:
    for prompt, max_tokens, ended in (("r", 0, True), ("ro", 0, False), ("r", 1, False)):
        completion = state(prompt, max_tokens=max_tokens).completion
        completion.want_prompt(1)
        assert completion.done is ended
        assert completion.prompt_logprobs == [None]
    completion = state("ro", max_tokens=0).completion
    completion.want_prompt(2)
    for _ in range(2):  # the logits after the last token are ignored
        completion.feed_prompt(np.zeros(30, np.float32))
    assert completion.prompt_logprobs is not None
    assert [each and len(each.top) for each in completion.prompt_logprobs] == [None, 2]
    assert completion.stop_reason == "length"


def test_a_step_is_timed_as_prompts_or_as_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece of a prompt alone tells how fast prompts are; rows alone what a row costs."""
    times, told = count(0, 2.0), list[Any]()
    monkeypatch.setattr(model_runner, "perf_counter", lambda: next(times))
    context: Any = SimpleNamespace(
        decode=lambda batch: np.zeros((len(batch.outputs()), 32), np.float32),
        cache=SimpleNamespace(seq_rm=lambda *given: None),
    )
    prefixes: Any = SimpleNamespace(keep=lambda *given: told.append("keep"))
    runner = ModelRunner(context, HostTokenSampler(), 30, prefixes)
    monkeypatch.setattr(runner.prefix_reuse, "computed", lambda *given: told.append(given))
    costs: Any = SimpleNamespace(observe=lambda *given: told.append(given))
    runner.proposer.costs = costs
    fresh, going, guided = at(held=0), at(n_ctx=40), at(n_ctx=40)
    guided.guidance = Guidance([1, 2], 1.5)
    guided.guidance.seq, guided.guidance.computed = 1, 2
    runner.step([], [Chunk(fresh, 3)])
    assert told == [(3, 2.0)]
    assert (fresh.tokens, fresh.stats.prompt_tokens) == (list(fresh.request.remaining[:3]), 3)
    told.clear()
    runner.step([(going, [1, 2, 3]), (guided, [1])])
    assert told[0][:2] == (3, 2)  # three sequences, two rows that were guessed
    assert told[0][2] > 0
    assert len(going.tokens) >= 6
    told.clear()
    runner.step([(going, [1])], [Chunk(fresh, 2)])
    assert told == ["keep"]  # of both together neither is told


def test_who_shares_a_prompt_counts_it_as_reused() -> None:
    """Unless it is of the same run, whose counts have it already."""
    request, follower, same = at(held=0), at(held=0), at(held=0)
    same.stats, copied = request.stats, list[Any]()
    cache = SimpleNamespace(seq_cp=lambda *given: copied.append(given))
    context: Any = SimpleNamespace(cache=cache)
    prefixes: Any = SimpleNamespace(keep=lambda *given: True)
    runner = ModelRunner(context, HostTokenSampler(), 30, prefixes)
    runner._computed(Chunk(request, 5, [follower, same]))
    assert (request.stats.prompt_tokens, request.stats.reused_tokens) == (5, 0)
    assert follower.stats.reused_tokens == 5
    assert [len(each.tokens) for each in (request, follower, same)] == [5, 5, 5]
    assert len(copied) == 2
