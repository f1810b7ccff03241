"""The prompt cache's part in requests: what is looked up before its turn, and what has arrived of a prompt."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from aleator.generate.completion import ONCE
from aleator.generate.prefix_reuse import PrefixReuse
from aleator.generate.request_state import RequestState
from aleator.generate.steering import Guidance
from tests.engine.fake_run import state

PROMPT = (17, 14, 12, 4, 14)  # "romeo"


class Tiers:
    """Prefixes with tiers below them, which note what they are asked for."""

    def __init__(self, done: bool = False) -> None:
        self.asked: list[Any] = []
        self.load = SimpleNamespace(done=done)
        self.nothing = False

    def look_up(self, tokens: Any, namespace: str) -> Any:
        self.asked.append((tuple(tokens), namespace))
        return None if self.nothing else f"look-up of {len(tokens)}"

    def begin(self, seq: int, tokens: Any, namespace: str, wake: Any, looked: Any) -> Any:
        self.asked.append((seq, looked))
        return 3, None if self.nothing else self.load

    def reuse(self, seq: int, tokens: Any, namespace: str) -> int:
        self.asked.append(("reuse", seq))
        return 2

    def keep(self, *given: Any) -> None:
        self.asked.append(given)

    def computed(self, *given: Any) -> None:
        self.asked.append(given)


def reuse(tiers: Any, wake: bool = True) -> PrefixReuse:
    return PrefixReuse(tiers, (lambda: None) if wake else None)


def test_prompts_are_looked_up_before_their_turn() -> None:
    tiers = Tiers()
    request: Any = state()
    reuse(tiers).look_up(request)
    assert request.look_ups == {PROMPT: "look-up of 5", (): "look-up of 0"}
    request = state()
    request.guidance = Guidance([9, 8], 1.5)
    reuse(tiers).look_up(request)
    assert request.look_ups == {PROMPT: "look-up of 5", (9, 8): "look-up of 2"}
    tiers.nothing, request = True, state()
    reuse(tiers).look_up(request)
    assert request.look_ups == {}


def test_nothing_is_looked_up_where_it_would_not_be_used() -> None:
    for tiers, wake, wants in ((Tiers(), False, False), (Tiers(), True, True), (None, True, False)):
        request, plain = state(), SimpleNamespace()
        if wants:
            request.completion.want_prompt(0)
        made = reuse(tiers or plain, wake)
        assert made.tiered is (tiers is not None)
        made.look_up(request)
        assert request.look_ups == {}
        assert tiers is None or tiers.asked == []
    reuse(SimpleNamespace()).computed(5, 0.5)  # nobody is told


def test_a_prefix_is_loaded_beside_the_steps_where_somebody_is_woken() -> None:
    for wake, done, nothing, loads, asked in (
        (True, False, False, 1, (4, "looked")), (True, True, False, 0, (4, "looked")),
        (True, False, True, 0, (4, "looked")), (False, False, False, 0, ("reuse", 4)),
    ):  # fmt: skip
        tiers, request = Tiers(done), state()
        tiers.nothing = nothing
        request.look_ups[PROMPT] = "looked"  # type: ignore[assignment]
        held = reuse(tiers, wake).begin(request, 4, PROMPT)
        assert (held, tiers.asked) == (3 if wake else 2, [asked])
        assert request.prefix_loads == [tiers.load] * loads
        assert (PROMPT in request.look_ups) is not wake
    plain = SimpleNamespace(reuse=lambda seq, tokens, namespace: 5)
    assert reuse(plain).begin(state(), 4, PROMPT) == 5


class Load:
    """A load that has so many tokens after it went on, for some seconds."""

    def __init__(self, seq: int, before: int, after: int, seconds: float, done: bool) -> None:
        self.seq, self.length, self.after, self.seconds, self.more = (
            seq,
            before,
            after,
            1.0,
            seconds,
        )
        self.done, self.given, self.stopped = done, list[float](), False

    def go_on(self, seconds: float) -> None:
        self.given.append(seconds)
        self.length, self.seconds = self.after, self.seconds + self.more

    def stop(self) -> None:
        self.stopped = True


@pytest.mark.parametrize("guided", [False, True])
def test_what_has_arrived_is_counted_and_belongs_to_its_prompt(guided: bool) -> None:
    request: RequestState = state()
    request.seq, request.tokens = 2, list(PROMPT[:1])
    loads: Any = [Load(2, 1, 4, 0.5, False)]
    if guided:
        request.guidance = Guidance([1] * 9, 2.0)
        request.guidance.seq = 3
        loads.append(Load(3, 0, 6, 0.25, True))
    request.prefix_loads = list(loads)
    assert reuse(Tiers()).take_arrived(request, 0.125) == 0.5 + 0.25 * guided
    assert request.tokens == list(PROMPT[:4])
    assert request.stats.reused_tokens == 3 + 6 * guided
    assert request.prefix_loads == loads[:1]
    assert all(load.given == [0.125] for load in loads)
    if guided:
        assert request.guidance is not None
        assert request.guidance.computed == 6
    PrefixReuse.stop(request)
    assert (request.prefix_loads, loads[0].stopped) == ([], True)
    assert not guided or not loads[1].stopped


def test_what_is_to_leave_nothing_is_not_kept() -> None:
    tiers = Tiers()
    for namespace in ("", "a", f"{ONCE}5"):
        reuse(tiers).keep(1, PROMPT, namespace)
    assert tiers.asked == [(1, PROMPT, ""), (1, PROMPT, "a")]
