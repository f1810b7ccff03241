"""The Triton kernels of device chains without a GPU: interpreted, and compiled for sm_80 to sm_120."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from aleator.core.errors import ParameterError
from aleator.device.arguments import ChainOptions
from aleator.device.cases import BANS, DRY, SAMPLERS
from aleator.device.chain import DeviceChain
from aleator.samplers import index as S
from tests.device.compiled import ALL, CAPABILITIES, compiled, spills
from tests.device.inside import inside

HERE = Path(__file__).parent
TRITON = "aleator.device.backends.triton."
(
    triton_chain,
    triton_layout,
    triton_past,
    triton_path,
    triton_places,
    triton_report,
    triton_rows,
    triton_sparse,
) = (
    pytest.importorskip(TRITON + name, exc_type=ImportError)
    for name in ("chain", "layout", "past", "path", "places", "report", "rows", "sparse")
)
RowPath = triton_path.Path

LIST, WINDOW, TORCH = (
    at.value for at in (triton_rows.AT_LIST, triton_rows.AT_WINDOW, triton_rows.AT_TORCH)
)


def test_under_the_interpreter() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", str(HERE / "test_triton_interpreter.py")],
        env={**os.environ, "TRITON_INTERPRET": "1"}, cwd=HERE.parents[1], capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert re.search(r"\d+ passed", done.stdout)
    assert "skipped" not in done.stdout


TEMPLATE = [
    S.LogitBias(), S.Penalties(), S.TokenMask(), S.Softmax(), S.TopNSigma(), S.TopK(), S.TypicalP(), S.TopP(),
    S.MinP(), S.XTC(), S.Temperature(), S.Dist(),
]  # fmt: skip
MIROSTAT = [S.Penalties(), S.TopK(), S.Temperature(), S.MirostatV2()]
WATERMARK = [S.TopK(), S.Temperature(), *SAMPLERS["watermark"]]
SYNTHID = [S.TopK(), S.Temperature(), *SAMPLERS["synthid"]]
SHAPES = [S.MinK(), S.TopK(), S.PLess(), S.TopH(), S.Temperature(), S.Dist()]
CUTTING = [
    S.TopK(), S.Smoothing(), S.EpsilonCutoff(), S.EtaCutoff(), S.Temperature(), S.Mirostat()
]  # fmt: skip
LOOKING = [S.TopK(), *BANS, DRY, S.AdaptiveP()]
GUMBEL = [S.TopK(), S.LogitBias(), S.Penalties(), S.TokenMask(), S.Dist(draw="gumbel")]


def places(template: list[Any]) -> list[Any]:
    return inside(DeviceChain(template, 2, 1280, kernels="torch")).program.places


def path(template: list[Any], *samplers: Any, tail: bool = False) -> Any:
    """The path of a row that has these of the template's samplers."""
    kinds = [type(place) for place in places(template)]
    slots: list[Any] = [None] * len(template)
    for sampler in samplers:
        slots[[type(s) for s in template].index(type(sampler))] = sampler
    return triton_path.path_of(kinds, slots, 4096, tail)


DIST, GREEDY_LIKE = S.Dist(), S.Temperature(temperature=0.0)


@pytest.mark.parametrize(
    ("samplers", "expected"),
    [
        ((S.TopK(top_k=40), S.XTC(xtc_probability=0.5), DIST), RowPath(LIST, 5, 40)),
        ((S.TopK(top_k=1024), S.TypicalP(typical_p=0.5), DIST), RowPath(LIST, 5, 1024)),
        ((S.TopK(top_k=1025), DIST), RowPath(WINDOW, 5, 1)),
        ((S.TopK(top_k=1025), S.TypicalP(typical_p=0.5), DIST), RowPath(TORCH)),
        ((S.TopP(top_p=0.9), S.Temperature(temperature=0.5), DIST), RowPath(WINDOW, 7, 192, 1.0)),
        ((S.MinP(min_p=0.1), DIST), RowPath(WINDOW, 8, 192)),
        ((S.MinP(min_p=0.1), S.XTC(xtc_probability=0.5), DIST), RowPath(TORCH)),
        ((S.Temperature(temperature=0.5), DIST), RowPath(WINDOW, 11, 1, 0.5)),
        ((GREEDY_LIKE, DIST), RowPath(LIST, 10, 1)),
        ((S.TopNSigma(top_n_sigma=1.0), S.TopK(top_k=9), DIST), RowPath(TORCH)),
        ((S.Temperature(temperature=1.0, dynatemp_range=0.5), DIST), RowPath(TORCH)),
        ((S.Softmax(), S.TopK(top_k=9), S.TopP(top_p=0.9, mass="full"), DIST), RowPath(LIST, 5, 9, 1.0)),
        ((S.LogitBias(logit_bias={1: 1.0, 2: 1.0}), S.Penalties(penalty_last_n=64, repetition_penalty=2.0),
          S.TopK(top_k=9), DIST), RowPath(LIST, 5, 9, 0.0, 66, True)),
        ((S.Penalties(penalty_last_n=-1, repetition_penalty=2.0), S.TopK(top_k=9), DIST),
         RowPath(LIST, 5, 9, 0.0, 4096, True)),
        ((S.TopK(top_k=9),), RowPath(TORCH)),
    ],
)  # fmt: skip
def test_the_host_knows_the_path_of_a_row(samplers: Any, expected: Any) -> None:
    assert path(TEMPLATE, *samplers) == expected


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ([S.Mirostat()], "mirostat needs a top_k of at most 1024 before it"),
        ([S.Temperature(temperature=0.5), *BANS, DIST], "min_tokens comes after a temperature"),
        ([S.TypicalP(typical_p=0.5), DIST], "typical_p needs a top_k of at most 1024 before it"),
        ([S.MinP(min_p=0.1), S.XTC(xtc_probability=0.5), DIST],
         "xtc needs a top_k of at most 1024 before it"),
        ([S.Temperature(temperature=0.5), S.LogitBias(logit_bias={1: 1.0}), DIST],
         "logit_bias comes after a temperature"),
        ([S.Softmax(), S.Temperature(temperature=0.5), DIST],
         "the mass of the whole row is needed at two temperatures"),
        ([S.TopK(top_k=9)], "none of the samplers chooses a token"),
        ([S.TopK(top_k=9), DIST], ""),
    ],
)  # fmt: skip
def test_a_row_that_is_pytorch_s_says_why(template: list[Any], why: str) -> None:
    assert path(template, *template).why == why


def test_what_comes_late_works_on_the_list() -> None:
    samplers: tuple[Any, ...] = (S.TopK(top_k=9), S.TokenMask(allowed=[1]), S.Dist(draw="gumbel"))
    assert path(GUMBEL, *samplers) == RowPath(LIST, 0, 9, late=frozenset({3}))
    heated = [S.Temperature(), S.Penalties(), S.TopK(), S.Dist()]
    samplers = (
        S.Temperature(temperature=0.5),
        S.Penalties(penalty_last_n=9, repetition_penalty=2.0),
    )
    assert path(heated, *samplers, S.TopK(top_k=3), S.Dist()) == RowPath(TORCH)
    assert path(TEMPLATE, S.TopK(top_k=3), DIST, tail=True) == RowPath(TORCH)


def test_a_report_needs_all_that_is_left() -> None:
    kinds = [type(place) for place in places(TEMPLATE)]
    for k, want in ((40, LIST), (1025, TORCH), (0, TORCH)):
        slots: list[Any] = [None] * len(TEMPLATE)
        slots[5], slots[-1] = S.TopK(top_k=k) if k else None, DIST
        assert triton_path.path_of(kinds, slots, 64, tail=False, report=True).want == want
    kinds = [type(place) for place in places([S.Greedy()])]
    assert triton_path.path_of(kinds, [S.Greedy()], 64, tail=False, report=True).want == TORCH


def test_windows_of_a_history_are_one_in_the_other() -> None:
    """A token is written once, whatever looks at it: no table is larger than what is reserved."""
    whole = S.Penalties(penalty_last_n=-1, repetition_penalty=2.0)
    kinds = [type(place) for place in places([whole, whole, DRY, S.TopK(), DIST])]
    found = triton_path.path_of(kinds, [whole, whole, DRY, S.TopK(top_k=9), DIST], 64, False)
    assert found == RowPath(LIST, 3, 9, 0.0, 64, True, True)


def test_refuses_the_cpu_without_the_interpreter() -> None:
    with pytest.raises(ParameterError) as caught:
        DeviceChain(TEMPLATE, 1, 64, kernels="triton")
    assert caught.value.parameter == "kernels"


def test_memory_is_known_beforehand() -> None:
    for template in (TEMPLATE, [S.TopK(top_k=5), S.Dist()]):
        for device, kernels in (("cuda", "triton"), ("cpu", "triton")):
            known = DeviceChain.bytes_for(template, 3, 5000, device=device, kernels=kernels)
            chain = DeviceChain.bytes_for(template, 3, 5000, kernels="torch")
            assert known.tensors > chain.tensors
    assert known.workspace == 24


POINTERS = {
    torch.bool: "*i1", torch.int64: "*i64", torch.int32: "*i32", torch.float32: "*fp32", torch.float64: "*fp64",
    torch.uint8: "*u8",
}  # fmt: skip


def type_of(given: Any) -> Any:
    """How Triton writes the type of an argument; groups stay groups."""
    if isinstance(given, torch.Tensor):
        return POINTERS[given.dtype]
    if isinstance(given, tuple):
        kinds = [type_of(each) for each in given]
        return type(given)(*kinds) if hasattr(given, "_fields") else tuple(kinds)
    return "i32"


def types_of(template: list[Any], dtype: str) -> dict[str, Any]:
    """The types of the groups as a device chain would pass them."""
    known = places(template or [S.Greedy()])
    options = ChainOptions(2, 1280, torch.device("meta"), 4096, "triton", None, kept=False)
    chain = triton_chain.TritonChain(known, options, report=True)
    types = {
        "wanted": chain._wanted, "work": chain._work, "sizes": chain._sizes,
        "history": triton_layout.History(*(torch.empty(2, dtype=d, device="meta") for d in HISTORY)),
        "places": chain._places, "asked": chain._past_places,
        "made": tuple(chain._places[i] for i in chain._past),
    }  # fmt: skip
    own = {name: type_of(group) for name, group in types.items()}
    return {**own, "logits": triton_layout.Logits(f"*{dtype}", "i32"), "allowed": "*i32"}


HISTORY = (torch.int64, torch.int32, torch.bool, torch.int64)
SHAPE = {"H": 512, "BIASES": 1024, "CAP": 2048, "BLOCK_T": 1024, "BLOCK_G": 128}


def built(
    module: Any, kernel: str, warps: int, template: Any = (), dtype: str = "fp32", **constants: Any
) -> list[str]:
    function = getattr(module, kernel)
    types = types_of(list(template), dtype)
    constants = {n: v for n, v in SHAPE.items() if n in function.arg_names} | constants
    registers = triton_chain.MAX_REGISTERS if kernel in ("choose", "whole") else None
    return compiled(function, types, warps, registers, **constants)


def kinds(template: list[Any], late: bool = False) -> tuple[int, ...]:
    return tuple(
        triton_places.SKIPPED.value
        if type(place) in triton_path.WRITERS and not late
        else triton_path.KINDS[type(place)].value
        for place in places(template)
    )


def test_budget_of_the_masked_sweep() -> None:
    """Per element, the whole program counted: what looks at a bit for each logit is within memory's pace."""
    for dtype, budget in (("fp32", 10), ("bf16", 9)):
        code = built(
            triton_sparse, "masked_maxima", 4, dtype=dtype, ALLOWED=True, MASKS=False, TILES=64
        )
        assert len(code) / 64 <= budget
        assert spills(code) == 0
        loads = [i for i in code if re.search(r"LDG\.E\.128", i)]
        assert len(loads) >= (16 if dtype == "fp32" else 8)  # each logit once, 16 bytes at a time


def test_budget_of_the_weight_sweep() -> None:
    small, large = (built(triton_rows, "group_masses", 4, H=0, TILES=tiles) for tiles in (32, 64))
    assert (len(large) - len(small)) / 32 <= 30
    assert spills(large) == 0


def test_no_spills_in_the_list() -> None:
    """ALEATOR_COMPILE_ALL=1 compiles every template and length of the list for every GPU."""
    cases = [
        (TEMPLATE, False, 64, 90), (WATERMARK, False, 64, 80), (SYNTHID, False, 64, 120),
        (SHAPES, False, 64, 80), (CUTTING, False, 64, 120),
    ]  # fmt: skip
    if ALL:
        cases = [
            (template, late, size, capability)
            for template, late in (
                (TEMPLATE, False),
                (MIROSTAT, False),
                (GUMBEL, True),
                (WATERMARK, False),
                (SYNTHID, False),
                (SHAPES, False),
                (CUTTING, False),
                (LOOKING, True),
            )
            for size in (16, 64, 256, 1024)
            if not (late and size == 1024)  # a few dozen there
            for capability in CAPABILITIES
        ]
    for template, late, size, capability in cases:
        code = built(
            triton_rows,
            "choose",
            8,
            template,
            KINDS=kinds(template, late),
            SIZE=size,
            REPORT=True,
            capability=capability,
        )
        assert spills(code) == 0, (template, size, capability)


def test_no_spills_elsewhere() -> None:
    own = TEMPLATE[:3]
    writers = tuple(triton_path.WRITERS[type(place)].value for place in places(own))
    for code in (
        built(triton_sparse, "mark", 8, own, WRITERS=writers, ALLOWED=True),
        built(triton_sparse, "settle", 8, own, WRITERS=writers, ALLOWED=True),
        built(triton_sparse, "masked_maxima", 4, ALLOWED=True, MASKS=True, TILES=64),
        built(triton_rows, "whole", 8, TEMPLATE, KINDS=kinds(TEMPLATE)),
        built(triton_rows, "accept", 1, MIROSTAT, KINDS=kinds(MIROSTAT, True)),
        built(triton_rows, "accept", 1, LOOKING, KINDS=kinds(LOOKING, True)),
        built(triton_past, "look_back", 8, LOOKING, KINDS=(0, 1, 2, 3)),
    ):
        assert spills(code) == 0
    types = {**types_of([], "bf16"), "logprobs": "*fp64", "top_logprobs": "*fp64", "n": "i32"}
    for kernel, warps, constants in (
        ("exp_sums", 4, {"TILES": 8}),
        ("describe", 8, {"TOP": True, "SIZE": 32, "CAP": 2048, "BLOCK_G": 128}),
        (
            "describe",
            8,
            {"TOP": True, "SIZE": 32, "CAP": 2048, "BLOCK_G": 128, "n": 1},
        ),  # as launched with 1
    ):  # float64 exponentials and logarithms of the library: nothing is decided by them
        function = getattr(triton_report, kernel)
        code = compiled(function, types, warps, 128, exact=False, BLOCK_T=1024, **constants)
        assert spills(code) == 0
