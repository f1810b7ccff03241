"""The Triton kernels without a GPU: under the interpreter, and compiled ahead of time for sm_90."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.device.compiled import ALL, spills
from tests.device.compiled import compiled as for_sm_90

HERE = Path(__file__).parent
PADDED, PROBABILITIES = 1, 2  # aleator.device.backends.triton.candidates
pytest.importorskip("triton")


def test_under_the_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", str(HERE / "test_interpreter.py")],
        env=environment, cwd=HERE.parent.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert re.search(r"\d+ passed", done.stdout)
    assert "skipped" not in done.stdout


GROUPS = {
    "filters": ("Filters", "*i32 *fp32 *fp32 i32 i32"),
    "noise": ("Noise", "*fp32 i32 fp32 *i64 *i64"),
    "work": ("Scratch", "*fp32 *i64 *i32 *i64 *i64 *i64 *fp32 *i64 *i64"),
    "out": ("Listed", "*i64 *i64 *fp32"),
    "sizes": ("Widths", "i32 i32 i32"),
}
"""The operator's groups of arguments, and the types of their fields."""


def compiled(kernel: str, warps: int, dtype: str = "fp32", **constants: Any) -> list[str]:
    """The instructions of one of the operator's kernels."""
    from aleator.device.backends.triton import layout, tiles, top_k_top_p_sample
    from aleator.device.backends.triton import top_k_top_p_kernels as kernels

    if kernel == "tile_maxima":
        plain = {**dict.fromkeys(("stride", "n_vocab", "n_tiles"), "i32"), "maxima": "*fp32"}
        return for_sm_90(tiles.tile_maxima, {**plain, "logits": f"*{dtype}"}, warps, **constants)
    groups: dict[str, Any] = {
        name: getattr(layout, group)._make(types.split()) for name, (group, types) in GROUPS.items()
    }
    groups["logits"] = layout.Logits._make((f"*{dtype}", "i32"))
    types = {**groups, "selected": "*fp32", "n_vocab": "i32"}
    registers = top_k_top_p_sample.MAX_REGISTERS if kernel == "choose" else None
    return for_sm_90(getattr(kernels, kernel), types, warps, registers, **constants)


@pytest.mark.parametrize(("dtype", "budget"), [("fp32", 8), ("bf16", 4), ("fp16", 4)])
def test_budget_of_the_delegate_sweep(dtype: str, budget: int) -> None:
    """Per element, the whole program counted: 64 tiles of 128 on 128 threads are 64 each."""
    code = compiled("tile_maxima", 4, dtype, LOGITS=True, TILES=64)
    assert len(code) / 64 <= budget
    assert spills(code) == 0
    loads = [i for i in code if "LDG" in i]
    assert len(loads) == (16 if dtype == "fp32" else 8)  # each logit once, 16 bytes at a time
    assert all("LDG.E.128" in i for i in loads)


def test_budget_of_the_weight_sweep() -> None:
    """Per element of the sweep itself: what 32 more tiles cost."""
    small, large = (
        compiled("row_masses", 4, PROBS=False, KIND=PADDED, BLOCK_T=1024, TILES=tiles)
        for tiles in (32, 64)
    )
    assert (len(large) - len(small)) / 32 <= 30
    assert spills(large) == 0


def test_no_spills_in_a_row() -> None:
    """ALEATOR_COMPILE_ALL=1 compiles it for every mode; the race is the largest."""
    for mode in range(4) if ALL else (1,):
        code = compiled(
            "choose", 8, HAS_MIN_P=True, MODE=mode, NEED_LIST=2, KIND=PADDED, BLOCK_T=1024, BLOCK_G=128,
            CAP_SMALL=256, CAP_LARGE=2048,
        )  # fmt: skip
        assert spills(code) == 0, f"mode {mode}"


@pytest.mark.parametrize("kind", [PADDED, PROBABILITIES])
def test_no_spills_elsewhere(kind: int) -> None:
    assert spills(compiled("select", 4, KIND=kind)) == 0
    for mode in (1, 2):
        code = compiled(
            "emit_rows", 4, HAS_MIN_P=True, MODE=mode, KIND=kind, BLOCK_T=1024, BLOCK_G=128
        )
        assert spills(code) == 0
