"""The constants of the contract: one module, the header made of it, and the reference's own numbers."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from aleator.core import contract, numerics, philox
from aleator.samplers.adaptive_p import AdaptiveP
from aleator.samplers.dry import DRY
from aleator.samplers.mirostat_v2 import MirostatV2
from aleator.samplers.temperature import Temperature
from aleator.samplers.top_n_sigma import TopNSigma
from aleator.samplers.xtc import XTC

ROOT = Path(__file__).parents[2]


def test_the_header_is_made_of_the_module() -> None:
    subprocess.run([sys.executable, ROOT / "tools" / "contract.py", "--check"], check=True)


def test_the_reference_has_the_same_numbers() -> None:
    assert numerics.NUMERICS_VERSION == contract.NUMERICS_VERSION
    assert numerics.LOG2_E == contract.LOG2_E
    assert tuple(map(np.float32, contract.EXP2_COEFFICIENTS)) == numerics.EXP2_COEFFICIENTS
    assert float(numerics.ROUND_MAGIC) == contract.ROUND
    assert numerics.MAX_VOCAB == contract.MAX_VOCAB
    top = np.zeros(1, np.float32)
    assert numerics.weights(top, top[0], 1.0).tolist() == [1 << contract.WEIGHT_BITS]
    last = philox.stream(contract.Purpose.ADAPTIVE_P, contract.MAX_ORDINAL, contract.MAX_COMPLETION)
    assert last == (contract.Purpose.ADAPTIVE_P + 1 << contract.PURPOSE_SHIFT) - 1


# What stands in the reference as a number among others.
WRITTEN: dict[Any, tuple[str, ...]] = {
    numerics.scaled: (f"{contract.LEAST_BITS:.0f}",),
    numerics.Row.depths: (f"{contract.DEPTH_UNIT:.0f}",),
    numerics.Row.entropy: (f"exponent + {contract.WEIGHT_BITS}", "2**-10"),
    numerics.exp2_double: (f"{contract.EXP2_LIMIT}", f"{-contract.EXP2_LIMIT}"),
    philox.philox4x32: (
        f"range({contract.PHILOX_ROUNDS})",
        *(f"0x{n:X}" for n in (*contract.PHILOX_MULTIPLIERS, *contract.PHILOX_KEY_STEPS)),
    ),
    philox.stream: (f"<< {contract.PURPOSE_SHIFT}", f"<< {contract.ORDINAL_SHIFT}"),
    Temperature.reference: ("1e-5",),
    TopNSigma.reference: (f"{contract.SIGMA_LEAST:.0f}", f"{contract.SIGMA_UNIT:.0f}"),
    XTC: (f"{contract.XTC_LARGEST}",),
    MirostatV2.reference: (f"{contract.MU_LIMIT}",),
    AdaptiveP.reference: (
        f"float32({contract.ADAPTIVE_PEAK:.0f})",
        f"float32({contract.ADAPTIVE_SLOPE:.0f})",
        f"float32({contract.ADAPTIVE_WIDTH})",
    ),
    DRY: ("1e300", "3e38"),
}


def test_the_reference_writes_the_same_numbers() -> None:
    assert contract.COLDEST == 1e-5
    assert contract.ENTROPY_SERIES == 2**-10
    assert (contract.DRY_LARGEST_POWER, contract.DRY_LARGEST_PENALTY) == (1e300, 3e38)
    for code, numbers in WRITTEN.items():
        source = inspect.getsource(code)
        for number in numbers:
            assert number in source, (code, number)


def test_device_code_takes_its_numbers_from_the_module() -> None:
    """None of them stands there as a literal."""
    coefficients = [f"{c}" for c in (*contract.EXP2_COEFFICIENTS, contract.LOG2_E) if c != 1]
    hexadecimal = [f"0x{n:X}" for n in (*contract.PHILOX_MULTIPLIERS, *contract.PHILOX_KEY_STEPS)]
    others = [
        f"{contract.ROUND}", "-256.0", "1000.0)", "<= 1e-5", "-100.0", "100.0)", "4096.0", "65536.0",
    ]  # fmt: skip
    for path in (ROOT / "src" / "aleator" / "device").rglob("*.py"):
        found = [n for n in (*coefficients, *hexadecimal, *others) if n in path.read_text("utf-8")]
        assert not found, (path, found)
