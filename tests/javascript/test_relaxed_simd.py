"""The number of relaxed SIMD's multiply-add in a module, whichever the compiler wrote."""

from __future__ import annotations

import re
import sys

import pytest

from tests.javascript.conftest import PACKAGE, ROOT

sys.path.append(str(ROOT / "tools"))

from relaxed_simd import EARLIER, PRESENT, renumbered


def module() -> bytes:
    """The module with one such instruction that js/src/runtime.js tries the machine with."""
    text = (PACKAGE / "runtime.js").read_text()
    [code] = re.findall(r"`(0061736d[^`]*)`", text)
    return bytes.fromhex("".join(code.split()))


@pytest.mark.parametrize("number", [EARLIER, PRESENT])
def test_the_present_number_is_written_for_either(number: bytes) -> None:
    present = module()
    assert present.count(PRESENT) == 1
    assert renumbered(present.replace(PRESENT, number)) == (present, 1)


def test_bytes_of_constants_stay() -> None:
    plain = module()
    at = plain.index(bytes([0x20, 0, 0xFD, 0x13]))
    constant = bytes([0xFD, 0x0C]) + EARLIER + bytes(13)  # v128.const in place of the first splat
    code = plain[:at] + constant + plain[at + 4 :]
    longer = len(constant) - 4
    section = code.index(bytes([0x0A, 0x16, 0x01, 0x14]))
    sizes = bytes([0x0A, 0x16 + longer, 0x01, 0x14 + longer])
    made = code[:section] + sizes + code[section + 4 :]
    assert renumbered(made) == (made, 1)
