"""Gives a WebAssembly module the numbers of two instructions of relaxed SIMD.

    python tools/relaxed_simd.py MODULE.wasm OUT.wasm

Clang 14, which Debian 12's emscripten has, knows f32x4.relaxed_madd by an earlier number, whose bytes are as
many.  It lacks i32x4.relaxed_dot_i8x16_i7x16_add_s, which also makes one vector of three: native code has
f32x4.relaxed_nmadd in its place (native/layers/block_simd128.hpp).  The dot product is exact on every machine
where one side is at most 127, as in nearly all types; Node 20's first compiler computes it wrongly, which
js/src/runtime.js notices.  Code is read instruction by instruction, as constants may have the same bytes.
"""

from __future__ import annotations

import sys
from pathlib import Path

MADD, NMADD, DOT = b"\xfd\x85\x02", b"\xfd\x86\x02", b"\xfd\x93\x02"
NUMBERS = {b"\xfd\xaf\x01": MADD, MADD: MADD, b"\xfd\xb0\x01": DOT, NMADD: DOT}
"""What the compiler may have written, and what stands in its place."""
_INDEX = {
    0x07, 0x08, 0x09, 0x0C, 0x0D, 0x10, 0x18, *range(0x20, 0x27), 0x3F, 0x40, 0x41, 0x42, 0xD0, 0xD2,
}  # fmt: skip
_TWO = {0x11, *range(0x28, 0x3F)}  # an index each, or a memory's alignment and offset
_BYTES = {0x43: 4, 0x44: 8}
_BLOCKS = {0x02, 0x03, 0x04, 0x06}
_VECTOR_LOADS = {*range(12), 92, 93}
_BULK = {8: 2, 9: 1, 10: 2, 11: 1, 12: 2, 13: 1, 14: 2, 15: 1, 16: 1, 17: 1}


class Reader:
    """Reads a module; ``at`` is the index of the next byte."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = bytearray(data), 0

    def number(self) -> int:
        """The next number in LEB128, taken as unsigned."""
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def skip(self, n: int) -> None:
        """Read n numbers."""
        for _ in range(n):
            self.number()

    def instruction(self) -> bool:
        """Read one instruction, changing its number; return whether it has the present number now."""
        start, code = self.at, self.data[self.at]
        self.at += 1
        if code == 0xFD:
            return self._vector(start)
        if code == 0xFC:
            self.skip(_BULK.get(self.number(), 0))
        elif code == 0xFE:  # atomic; a fence has no address
            self.skip(1 if self.number() == 3 else 2)
        elif code == 0x0E:  # br_table
            self.skip(self.number() + 1)
        elif code == 0x1C:
            self.skip(self.number())
        else:
            self.skip(1 if code in _INDEX or code in _BLOCKS else 2 if code in _TWO else 0)
            self.at += _BYTES.get(code, 0)
        return False

    def _vector(self, start: int) -> bool:
        code = self.number()
        if code in _VECTOR_LOADS:
            self.skip(2)
        elif code in (12, 13):
            self.at += 16
        elif 21 <= code <= 34:
            self.at += 1
        elif 84 <= code <= 91:
            self.skip(2)
            self.at += 1
        present = NUMBERS.get(bytes(self.data[start : self.at]))
        if present:
            self.data[start : self.at] = present
        return present is not None

    def code(self) -> int:
        """Change the instructions of the code section; return how many there were."""
        changed = 0
        for _ in range(self.number()):
            end = self.number() + self.at
            for _ in range(self.number()):  # groups of local variables: how many, and their type
                self.skip(2)
            while self.at < end:
                changed += self.instruction()
            if self.at != end:
                raise SystemExit(f"an unknown instruction before byte {self.at}")
        return changed


def renumbered(module: bytes) -> tuple[bytes, int]:
    """A module with the present numbers, and how many instructions have changed."""
    reader, changed = Reader(module), 0
    reader.at = 8
    while reader.at < len(module):
        section = reader.data[reader.at]
        reader.at += 1
        end = reader.number() + reader.at
        if section == 10:
            changed += reader.code()
        reader.at = end
    return bytes(reader.data), changed


def main() -> int:
    """Write the module; an error if it has no such instruction."""
    source, out = map(Path, sys.argv[1:])
    module, changed = renumbered(source.read_bytes())
    if not changed:
        raise SystemExit(f"{source} has no instruction of relaxed SIMD")
    out.write_bytes(module)
    return 0


if __name__ == "__main__":
    sys.exit(main())
