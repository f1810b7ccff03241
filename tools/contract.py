"""Write or check native/contract.hpp: the constants of src/aleator/core/contract.py in C++.

python tools/contract.py            writes it
python tools/contract.py --check    fails if it is stale
"""

from __future__ import annotations

import sys
from pathlib import Path

from aleator.core import contract

HEADER = Path(__file__).parent.parent / "native" / "contract.hpp"
# C++ types of constants other than int64_t.
TYPES = {
    **dict.fromkeys(
        ("EXP2_COEFFICIENTS", "ROUND", "LEAST_BITS", "DEPTH_UNIT", "SIGMA_LEAST", "SIGMA_UNIT",
         "XTC_LARGEST", "ADAPTIVE_PEAK", "ADAPTIVE_SLOPE", "ADAPTIVE_WIDTH"), "float",
    ),
    **dict.fromkeys(
        ("LOG2_E", "COLDEST", "ENTROPY_SERIES", "EXP2_LIMIT", "MU_LIMIT", "DRY_LARGEST_POWER",
         "DRY_LARGEST_PENALTY"), "double",
    ),
    **dict.fromkeys(
        ("PHILOX_MULTIPLIERS", "PHILOX_KEY_STEPS", "MAX_ORDINAL", "MAX_COMPLETION"), "uint32_t"
    ),
    **dict.fromkeys(
        ("WEIGHT_BITS", "PHILOX_ROUNDS", "PURPOSE_SHIFT", "ORDINAL_SHIFT"), "int"
    ),
}  # fmt: skip


def literal(value: float, kind: str) -> str:
    """A number as C++ writes it."""
    if kind == "float":
        return f"{value!r}f"
    return f"{value:#x}u" if kind == "uint32_t" and isinstance(value, int) else repr(value)


def header() -> str:
    """The text of the header."""
    lines = [
        "// Constants of the portable numerics contract (docs/numerics.md), made by tools/contract.py of",
        "// src/aleator/core/contract.py, which explains them.  Do not edit.",
        "#pragma once",
        "",
        "#include <cstdint>",
        "",
        "namespace aleator {",
        "",
        "// clang-format off",
        "namespace contract {",
        "",
    ]
    for name, value in vars(contract).items():
        if not name.isupper():
            continue
        kind = TYPES.get(name, "int64_t")
        if isinstance(value, tuple):
            values = ", ".join(literal(v, kind) for v in value)
            lines.append(f"constexpr {kind} {name.lower()}[] = {{{values}}};")
        else:
            lines.append(f"constexpr {kind} {name.lower()} = {literal(value, kind)};")
    purposes = ", ".join(f"{p.name.lower()} = {p.value}" for p in contract.Purpose)
    lines += [
        "",
        "}  // namespace contract",
        "",
        "// What a stream of random numbers is for.",
        f"enum class Purpose : uint32_t {{ {purposes} }};",
        "// clang-format on",
        "",
        "}  // namespace aleator",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    """Write or compare the header."""
    text = header()
    if "--check" not in sys.argv[1:]:
        HEADER.write_text(text)
    elif not HEADER.exists() or HEADER.read_text() != text:
        print(f"stale: {HEADER}: run 'python tools/contract.py'", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
