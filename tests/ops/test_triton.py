"""The Triton kernels without a GPU: under the interpreter, and compiled ahead of time for sm_90."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.device.compiled import compiled as for_sm_90
from tests.device.compiled import spills

HERE = Path(__file__).parent
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


TYPES = {
    "maxima": "*fp32", "top_p": "*fp32", "min_p": "*fp32", "q": "*fp32", "probs": "*fp32",
    "tops": "*fp32", "select": "*fp32", "top_k": "*i32", "tiles": "*i32", "eps": "fp32",
    "stride": "i32", "q_stride": "i32", "n_vocab": "i32", "n_tiles": "i32", "limit": "i32",
    "guess": "i32",
}  # fmt: skip


def compiled(kernel: str, warps: int, dtype: str = "fp32", **constants: Any) -> list[str]:
    """The instructions of one of the operator's kernels."""
    from aleator.device.backends.triton import top_k_top_p_sample as device

    registers = device.MAX_REGISTERS if kernel == "_filter" else None
    types = {"logits": f"*{dtype}", **TYPES}
    return for_sm_90(getattr(device, kernel), types, warps, registers, **constants)


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
        compiled("_row_masses", 4, PROBS=False, BLOCK_T=1024, TILES=tiles) for tiles in (32, 64)
    )
    assert (len(large) - len(small)) / 32 <= 30
    assert spills(large) == 0


def test_no_spills_in_the_filter() -> None:
    """ALEATOR_COMPILE_ALL=1 compiles it for every mode; the race is the largest."""
    for mode in range(4) if os.environ.get("ALEATOR_COMPILE_ALL") else (1,):
        code = compiled(
            "_filter", 8, HAS_MIN_P=True, MODE=mode, NEED_LIST=2, LOGITS=True, BLOCK_T=1024,
            CAP_SMALL=256, CAP_LARGE=2048,
        )  # fmt: skip
        assert spills(code) == 0, f"mode {mode}"


@pytest.mark.parametrize("logits", [True, False])
def test_no_spills_elsewhere(logits: bool) -> None:
    assert spills(compiled("_select", 4, LOGITS=logits)) == 0
    for mode in (1, 2):
        code = compiled("_emit_rows", 4, HAS_MIN_P=True, MODE=mode, LOGITS=logits, BLOCK_T=1024)
        assert spills(code) == 0
