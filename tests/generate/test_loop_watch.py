"""A temperature that rises for a stretch of tokens after a loop."""

from __future__ import annotations

from aleator import SamplerChain
from aleator.generate.loops import LoopWatch
from aleator.samplers import Dist, Temperature


def test_a_loop_within_a_stretch_does_not_raise_again() -> None:
    chain = SamplerChain([Temperature(temperature=0.5), Dist(seed=1)])
    watch = LoopWatch((2, 4, 1.5, 8), chain, 0.5)

    def temperatures() -> list[float]:
        return [each.temperature for each in chain if isinstance(each, Temperature)]

    for token in (7, 7, 7, 7, 7, 7, 7, 7):
        assert not watch.push(token)
    assert temperatures() == [1.5]
    for token in range(8):
        watch.push(token)
    assert temperatures() == [0.5]
