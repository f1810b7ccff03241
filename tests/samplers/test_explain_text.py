"""Lines of explanations that only some chains have."""

from __future__ import annotations

import numpy as np

from aleator import samplers as S
from aleator.samplers.explain import Explanation
from aleator.samplers.explain_text import curves, step_line, summary

ROWS = np.random.default_rng(2).normal(size=(3, 50)).astype(np.float32)


def steps(*samplers: S.Sampler, completion: int = 0) -> list[Explanation]:
    chain = S.SamplerChain(samplers, seed=5, completion=completion)
    return [chain.explain(row) for row in ROWS]


def test_a_draw_of_a_further_completion_says_so() -> None:
    first, third = (steps(S.Dist(), completion=n)[0].table() for n in (0, 2))
    assert first.endswith("seed 5, position 0")
    assert third.endswith("seed 5, position 0, completion 2")


def test_steps_that_draw_nothing_have_no_probability_drawn() -> None:
    drawn, undrawn = steps(S.TopK(top_k=4), S.Dist()), steps(S.TopK(top_k=4))
    gone = {"probability drawn, before", "probability drawn, after"}
    assert curves(drawn).keys() - curves(undrawn).keys() == gone
    assert gone.isdisjoint(line.strip() for line in summary(undrawn).splitlines())
    token = drawn[0].draw
    assert token is not None
    assert token.token.label in step_line(drawn[0])
    assert step_line(undrawn[0]).lstrip()[:4] == f"{undrawn[0].before.entropy:.2f}"


def test_samplers_of_one_name_have_curves_of_their_own() -> None:
    made = curves(steps(S.TopK(top_k=9), S.TopK(top_k=8), S.TopK(top_k=7), S.Dist()))
    names = [name for name in made if name.startswith("mass cut")]
    assert names == ["mass cut by top_k", "mass cut by top_k #2", "mass cut by top_k #3"]
    assert len({tuple(made[name]) for name in names}) == 3
