"""The comparisons of native kernels with references once more, where this processor has better instructions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aleator import _native

FILES = (
    "adapter_numerics", "attention_numerics", "block_numerics", "decoder_numerics", "latent_numerics",
    "native_linear", "native_step", "pairs", "scaled_numerics",
)  # fmt: skip
COMPARISONS = (
    "reference or does_not_see or shared_out or extreme or rows_are_read or broken or everyones or "
    "rounded_with or 16_bit or q8_0 or float64 or do_not_depend"
)


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["base", "v3"])
def test_comparisons(isa: str) -> None:
    if os.environ.get("ALEATOR_ISA") or _native.isa() in ("base", isa):
        pytest.skip("no better instruction set here")
    files = [str(Path(__file__).with_name(f"test_{name}.py")) for name in FILES]
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider"]
    out = subprocess.run(
        [*command, "-k", COMPARISONS, *files], env={**os.environ, "ALEATOR_ISA": isa},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert out.returncode == 0, out.stdout[-3000:]
    for name in FILES:
        assert f"test_{name}.py" in out.stdout
