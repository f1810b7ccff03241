"""The numbers of relaxed SIMD's instructions in a module, whichever the compiler wrote."""

from __future__ import annotations

import re

import pytest
from relaxed_simd import DOT, MADD, NMADD, renumbered

from tests.javascript.conftest import PACKAGE

EARLIER = {MADD: b"\xfd\xaf\x01", NMADD: b"\xfd\xb0\x01"}
"""Clang 14's numbers."""


def module() -> bytes:
    """The module with both instructions that js/src/runtime.js tries the machine with."""
    text = (PACKAGE / "runtime.js").read_text()
    [code] = re.findall(r"`(0061736d[^`]*)`", text)
    return bytes.fromhex("".join(code.split()))


@pytest.mark.parametrize("added", [MADD, EARLIER[MADD]])
@pytest.mark.parametrize("dot", [NMADD, EARLIER[NMADD]])
def test_the_present_numbers_are_written_for_any(added: bytes, dot: bytes) -> None:
    present = module()
    assert (present.count(MADD), present.count(DOT)) == (1, 1)
    assert renumbered(present.replace(MADD, added).replace(DOT, dot)) == (present, 2)


def test_bytes_of_constants_stay() -> None:
    plain = module()
    at = plain.index(bytes([0x20, 0, 0xFD, 0x13]))
    constant = (
        bytes([0xFD, 0x0C]) + EARLIER[MADD] + bytes(13)
    )  # v128.const in place of the first splat
    code = plain[:at] + constant + plain[at + 4 :]
    longer = len(constant) - 4
    section = code.index(bytes([0x0A, 0x2B, 0x02, 0x14]))
    sizes = bytes([0x0A, 0x2B + longer, 0x02, 0x14 + longer])
    made = code[:section] + sizes + code[section + 4 :]
    assert renumbered(made) == (made, 1)
