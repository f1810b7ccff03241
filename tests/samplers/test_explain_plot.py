from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aleator import samplers as S
from aleator.core.errors import ParameterError
from aleator.samplers import explain_plot
from aleator.samplers.explain_plot import LABELLED, plot_steps
from tests.drawn import differences
from tests.samplers.test_explain import AWKWARD, CHAINS, PNG, ROWS, WORDS, params, steps


@pytest.mark.parametrize("name", ["default", "everything", "adaptive", "flat"])
def test_picture_of_a_step(name: str, tmp_path: Path) -> None:
    chain = CHAINS[name].chain()
    row = ROWS[0].copy()
    row[: len(AWKWARD)] = 6
    chain.explain(row, WORDS).plot(tmp_path / "step.png")
    assert (tmp_path / "step.png").read_bytes().startswith(PNG)


def test_picture_of_steps(tmp_path: Path) -> None:
    plot_steps(steps(mirostat=2), tmp_path / "steps.png")
    assert (tmp_path / "steps.png").read_bytes().startswith(PNG)
    plot_steps(steps(samplers=""), tmp_path / "plain.svg")
    assert b"<svg" in (tmp_path / "plain.svg").read_bytes()
    with pytest.raises(ParameterError, match="no steps"):
        plot_steps([], tmp_path / "none.png")
    with pytest.raises(ParameterError, match=r"wrong\.xyz"):
        plot_steps(steps(), tmp_path / "wrong.xyz")


def test_pictures_of_steps_are_those_on_record(drawn: list[Any], tmp_path: Path) -> None:
    row = np.linspace(3, 0, 9).astype(np.float32)
    for changes in (
        {"top_k": 6, "top_p": 0.8, "temperature": 1.5, "xtc_probability": 1.0},
        {"samplers": "", "seed": 7},
        {"mirostat": 2, "mirostat_tau": 2.0, "logit_bias": {8: 3.0, 2: -9.0}},
    ):
        params(**changes).chain().explain(row, WORDS).plot(tmp_path / "step.png")
    one = S.SamplerChain([S.TopK(1)], seed=1).explain(row[:1])
    one.plot(tmp_path / "one.png")
    assert differences("explain_step", drawn) == []


def test_pictures_of_generations_are_those_on_record(drawn: list[Any], tmp_path: Path) -> None:
    plot_steps(steps(mirostat=2)[:5], tmp_path / "steps.png")
    plot_steps(steps(top_k=9, dynatemp_range=0.5)[:3], tmp_path / "steps.png")
    undrawn = S.SamplerChain([S.TopK(3)], seed=1)
    plot_steps([undrawn.explain(row, WORDS) for row in ROWS[:2]], tmp_path / "steps.png")
    chain = params(samplers="").chain()
    row = np.zeros(2, np.float32)
    many = [chain.explain(row, WORDS)] * LABELLED
    plot_steps(many, tmp_path / "steps.png")
    plot_steps([*many, many[0]], tmp_path / "steps.png")
    assert differences("explain_steps", drawn) == []
    assert len(drawn[3][0]["axes"][-1]["x"][1]["names"]) == LABELLED


@pytest.mark.parametrize(
    ("n", "width"), [(1, 11.0), (27, 11.0), (28, 11.16), (86, 23.92), (87, 24.0), (500, 24.0)]
)
def test_a_picture_widens_with_its_steps(
    n: int, width: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Made(Exception):
        pass

    def figure(figsize: tuple[float, float], **_: Any) -> None:
        raise Made(figsize[0])

    matplotlib = pytest.importorskip("matplotlib")
    monkeypatch.setattr(explain_plot, "require_matplotlib", lambda: (matplotlib, figure))
    with pytest.raises(Made) as raised:
        plot_steps(steps(samplers="")[:1] * n, tmp_path / "steps.png")
    assert raised.value.args[0] == pytest.approx(width)
