"""What about this machine, and how the process is run on it, makes models slower than they need be."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path

from aleator.core.memory import memory_limit

ROOT = Path("/")
"""Where the system's files are."""
SMALL = 2 << 30
"""Bytes of memory below which most models do not fit."""
INSTRUCTIONS = {"v4": "avx512f", "v3": "avx2"}
"""Instruction sets of the native code, the best first, and the processor's flag for each."""
ORDER = ("base", "v3", "v4")


def slow_settings() -> Iterator[tuple[str, str]]:
    """What is slow: a title, and the setting with its remedy."""
    yield from _threads()
    yield from _instructions()
    yield from _quota()
    yield from _frequency()
    yield from _memory()


def usable_processors() -> int:
    """Processors that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def cores() -> int:
    """Cores among the processors, of which each may run two threads; 0: unknown."""
    found = set()
    for block in _read("proc/cpuinfo").split("\n\n"):
        fields = {}
        for line in block.splitlines():
            name, _, value = line.partition(":")
            fields[name.strip()] = value.strip()
        if "core id" in fields:
            found.add((fields.get("physical id", "0"), fields["core id"]))
    return len(found)


def _threads() -> Iterator[tuple[str, str]]:
    usable, there = usable_processors(), os.cpu_count() or 1
    if usable < there:
        yield (
            "threads",
            f"the process may use {usable} of {there} processors (taskset, or a container)",
        )
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked) < min(usable, cores() or usable):
        yield (
            "threads",
            f"OMP_NUM_THREADS={asked}: unset it, or give -t {min(usable, cores() or usable)}",
        )
    if asked.isdecimal() and int(asked) > usable:
        yield "threads", f"OMP_NUM_THREADS={asked} is more than the {usable} processors: unset it"


def _instructions() -> Iterator[tuple[str, str]]:
    from aleator.core.host import isa

    if platform.machine() not in ("x86_64", "AMD64"):
        return
    flags, used = _read("proc/cpuinfo").split(), isa()
    best = next((name for name, flag in INSTRUCTIONS.items() if flag in flags), "base")
    if used in ORDER and ORDER.index(used) < ORDER.index(best):
        how = " (ALEATOR_ISA is set: unset it)" if os.environ.get("ALEATOR_ISA") else ""
        yield "instructions", f"native code runs as {used}, the processor can do {best}{how}"


def _quota() -> Iterator[tuple[str, str]]:
    quota, _, period = _read("sys/fs/cgroup/cpu.max").strip().partition(" ")
    if not (quota.isdecimal() and period.isdecimal() and int(period)):
        quota = _read("sys/fs/cgroup/cpu/cpu.cfs_quota_us").strip()
        period = _read("sys/fs/cgroup/cpu/cpu.cfs_period_us").strip()
    if not (quota.isdecimal() and period.isdecimal() and int(period)):
        return
    share = int(quota) / int(period)
    if share < usable_processors():
        yield (
            "quota",
            f"the container has {share:g} processors' time on {usable_processors()} processors: threads wait "
            f"for each other; give -t {max(1, int(share))}, or raise the quota",
        )


def _frequency() -> Iterator[tuple[str, str]]:
    governor = _read("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip()
    if governor == "powersave" and "intel_pstate" not in _read(
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver"
    ):
        yield "frequency", "the governor is powersave: cpupower frequency-set -g performance"


def _memory() -> Iterator[tuple[str, str]]:
    fields = {}
    for each in _read("proc/meminfo").splitlines():
        name, _, value = each.partition(":")
        if value.split():
            fields[name] = int(value.split()[0]) << 10
    limit = memory_limit()
    free = min((each for each in (fields.get("MemAvailable"), limit) if each), default=None)
    if free is not None and free < SMALL:
        yield (
            "memory",
            f"{free / 2**30:.1f} GiB are free: a model larger than that is read from disk at every token",
        )
    swapped = fields.get("SwapTotal", 0) - fields.get("SwapFree", 0)
    if swapped > SMALL:
        yield (
            "memory",
            f"{swapped / 2**30:.1f} GiB are swapped out: close what uses them, or --mlock",
        )


def _read(name: str) -> str:
    try:
        return (ROOT / name).read_text()
    except OSError:
        return ""
