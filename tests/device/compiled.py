"""Triton kernels compiled ahead of time, as their instructions."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

CAPABILITIES = (80, 90, 120)
"""Of the GPUs that kernels are compiled for."""
APPROXIMATE = ("ex2.approx", "div.full", "div.approx", "sqrt.approx", "rcp.approx", ".ftz")
ALL = bool(os.environ.get("ALEATOR_COMPILE_ALL"))
"""Whether everything is compiled for each of them, which takes long."""
SHARED = 99 * 1024
"""Bytes of shared memory that a program may have on the one that has least, of capability 12.0."""


def in_turn(*cases: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Each case behind the capability of one GPU, in turn, or of :data:`ALL`."""
    n = len(CAPABILITIES)
    return [
        (capability, *case)
        for i, case in enumerate(cases)
        for capability in (CAPABILITIES if ALL else CAPABILITIES[i % n : i % n + 1])
    ]


def compiled(
    function: Any,
    types: Mapping[str, Any],
    warps: int,
    registers: int | None = None,
    exact: bool = True,
    capability: int = 90,
    **constants: Any,
) -> list[str]:
    """The instructions of a kernel for a GPU, as in a launch with rows that are a multiple of 16 long.

    No program may take more shared memory than the smallest of the GPUs has.

    ``types``: of its arguments, by name, nested as they are; ``*i64`` where it says nothing.  ``exact``:
    nothing may be contracted or approximated.
    """
    from triton.compiler import ASTSource

    names = function.arg_names
    signature = {n: "constexpr" if n in constants else types.get(n, "*i64") for n in names}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}

    def align(path: tuple[int, ...], name: str, given: Any) -> None:
        if isinstance(given, tuple):
            inner = getattr(given, "_fields", [name] * len(given))
            for i, (field, each) in enumerate(zip(inner, given, strict=True)):
                align((*path, i), field, each)
        elif str(given).startswith("*") or (
            name in ("stride", "q_stride", "n_vocab") and name not in constants
        ):
            attributes[path] = [["tt.divisibility", 16]]

    for i, n in enumerate(names):
        align((i,), n, signature[n])
    options: dict[str, Any] = {"num_warps": warps, "enable_fp_fusion": False}
    if registers:
        options["maxnreg"] = registers
    source = ASTSource(
        function, signature, {(names.index(n),): v for n, v in constants.items()}, attributes
    )
    binary = built(source, capability, options)
    assert binary.metadata.shared <= SHARED
    if exact:  # every multiply and add is rounded by itself
        for instruction in ("fma.rn.f32", "fma.rn.f64", "ex2.approx", "div.full", "div.approx"):
            assert instruction not in binary.asm["ptx"], instruction
    found = re.findall(r"/\*[0-9a-f]{4,}\*/\s+([^;]*);", dumped(binary, "-sass"))
    return [i for i in found if not re.match(r"NOP|BRA 0x", i)]


def tool(name: str) -> Path:
    """A program of NVIDIA's; skip the test where Triton comes without it."""
    from triton.backends.nvidia import compiler as nvidia

    path = Path(nvidia.__file__).parent / "bin" / name
    if not path.exists():
        pytest.skip(f"this Triton comes without {name}")
    return path


def built(source: Any, capability: int, options: Mapping[str, Any]) -> Any:
    """Compile a kernel for a GPU."""
    import triton
    from triton.backends.compiler import GPUTarget

    tool("ptxas")
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=dict(options))


def dumped(binary: Any, what: str) -> str:
    """What cuobjdump says of a compiled kernel."""
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"aleator-{os.getpid()}.cubin"
    try:
        path.write_bytes(binary.asm["cubin"])
        return subprocess.run(
            [tool("cuobjdump"), what, path], capture_output=True, text=True, check=True
        ).stdout
    finally:
        path.unlink()


def check_exact(binary: Any, stack: int = 0) -> None:
    """A kernel approximates nothing, and spills nothing but ``stack`` bytes of a thread."""
    for instruction in APPROXIMATE:
        assert instruction not in binary.asm["ptx"], instruction
    usage = dumped(binary, "-res-usage")
    assert f"STACK:{stack} " in usage, usage


def spills(instructions: list[str]) -> int:
    """Accesses to local memory."""
    return sum("LDL" in i or "STL" in i for i in instructions)
