from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

import aleator
from aleator import samplers as S
from aleator.samplers.plan import Plan


class OnDevice:
    def apply(self, candidates: Any) -> None:
        """Nothing."""

    def apply_device(self, data: Any) -> None:
        """Nothing."""


class OnHost:
    def apply(self, candidates: Any) -> None:
        """Nothing."""


def plan(*samplers: Any, **options: Any) -> Plan:
    return S.SamplerChain(samplers, seed=0, **options).plan("cuda")


def test_says_what_runs_where() -> None:
    assert str(plan(S.TopK(top_k=5), OnDevice(), S.Dist())).splitlines() == [
        "device (cuda): top_k -> OnDevice -> dist",
        "host: nothing; only the tokens are transferred",
    ]
    assert str(plan(S.TopK(top_k=9), S.TopK(top_k=7), OnHost(), S.Dist())).splitlines() == [
        "device (cuda): top_k -> top_k",
        "host: OnHost -> dist, because OnHost has no device form",
        "transferred: the 7 candidates that top_k leaves",
    ]
    found = plan(S.TopK(top_k=0), S.TopP(top_p=0.5), S.TailFree(tfs_z=0.5), S.Mirostat())
    assert (found.device, found.host, found.bound) == (("top_p",), ("tail_free", "mirostat"), 0)
    assert "all logits, since no top_k comes before: put one there" in str(found)
    assert plan(S.Dist(draw="gumbel-pcg")).host == ("dist",)
    assert "numerics" in plan(S.TopK(top_k=5), S.Dist(), numerics="llama.cpp").why


def test_what_does_nothing_runs_anywhere() -> None:
    params = S.SamplingParams(temperature=0.8, top_k=40, dry_sequence_breakers=[])
    found = params.chain().plan("cuda")  # DRY is there, and neutral
    assert (found.host, found.device) == ((), ("top_k", "temperature", "dist"))
    found = replace(params, dry_multiplier=0.5).chain().plan("cuda")
    assert (found.host, found.device) == ((), ("dry", "top_k", "temperature", "dist"))
    found = replace(params, dry_multiplier=0.5, dry_penalty_last_n=-1).chain().plan("cuda")
    assert found.why == (
        "dry has a device form for windows of at most 512 tokens, not for dry_penalty_last_n=-1"
    )
    assert (found.host, found.device) == (("dry", "top_k", "temperature", "dist"), ())


@pytest.mark.parametrize("name", [name for name in S.PRESETS if name.startswith("akunu")])
def test_akunus_presets_run_on_a_device(name: str) -> None:
    found = aleator.preset(name, draw="gumbel", repetition_penalty=1.1).chain().plan("cuda")
    assert (found.host, found.device[0], found.device[-1]) == ((), "penalties", "dist")
    drawn_there = aleator.preset(name, repetition_penalty=1.1).chain().plan("cuda")
    assert drawn_there.host == ("dist",)
    assert "draw='mt19937'" in drawn_there.why


def test_a_softmax_goes_with_those_that_need_its_mass() -> None:
    tail = (S.TailFree(tfs_z=0.9), S.TopP(top_p=0.5, mass="full"), S.Dist())
    found = plan(S.Temperature(temperature=0.5), S.Softmax(), S.TopK(top_k=9), *tail)
    assert found.device == ("temperature",)
    assert found.host == ("softmax", "top_k", "tail_free", "top_p", "dist")
    assert found.why == "top_p with mass='full', which runs there, needs what softmax notes"


def test_needs_no_torch() -> None:
    code = (
        "import sys; from aleator import samplers as S\n"
        "print(S.SamplerChain([S.TailFree(tfs_z=0.5), S.Dist()], seed=0).plan('cuda'))\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "tail_free has no device form" in done.stdout


def words(n: int, length: int) -> list[tuple[int, ...]]:
    return [(i, *range(length - 1)) for i in range(n)]


@pytest.mark.parametrize(
    ("sampler", "runs"),
    [
        (S.NoRepeatNgram(64), True),
        (S.NoRepeatNgram(65), False),
        (S.BadWords(words(256, 24)), True),
        (S.BadWords([*words(256, 24), (9,)]), True),  # of one token there may be any number
        (S.BadWords(words(257, 2)), False),
        (S.BadWords(words(1, 25)), False),
        *(
            (S.DRY(1.0, dry_penalty_last_n=n, dry_sequence_breakers=breakers), runs)
            for n, breakers, runs in (
                (512, (), True), (513, (), False), (-1, (), False), (1, words(64, 24), True),
                (1, [*words(64, 24), (9,)], True), (1, words(65, 2), False), (1, words(1, 25), False),
            )
        ),
    ],
)  # fmt: skip
def test_just_what_has_a_device_form(sampler: S.Sampler, runs: bool) -> None:
    made = plan(sampler, S.Dist())
    assert (made.host == ()) is runs
    assert (sampler.name in made.device) is runs
