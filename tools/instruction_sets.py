"""Instruction sets of this processor as the kernel reports them, independent of the native module."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

X86 = {
    "v3": {"avx2", "fma", "bmi2", "f16c"},
    "v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni"},
}


def supported(cpuinfo: str, machine: str, system: str) -> list[str]:
    """Names of native/simd/dispatch.hpp, the best one last.

    Args:
        cpuinfo: The text of /proc/cpuinfo; "" if there is none.
        machine: As platform.machine says.
        system: As sys.platform says.
    """
    flags = {
        flag
        for line in cpuinfo.splitlines()
        if line.lower().startswith(("flags", "features"))
        for flag in line.partition(":")[2].split()
    }
    if machine in ("aarch64", "arm64"):
        return ["base", "dotprod"] if system == "darwin" or "asimddp" in flags else ["base"]
    found = ["base"]
    for name, needed in X86.items():
        if not needed <= flags:
            break
        found.append(name)
    return found


def here() -> list[str]:
    """The sets of this machine; on x86-64 without Linux only "base", as nothing reports more."""
    path = Path("/proc/cpuinfo")
    return supported(path.read_text() if path.exists() else "", platform.machine(), sys.platform)
