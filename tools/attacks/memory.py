"""What a process has allocated, at a moment and over time; the standard library is all that it imports."""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

EVERY = 10.0
"""Seconds between two levels that are noted."""
MALLOC_INFO = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
"""Fields of what ``mallinfo2`` of the C library returns."""


class MallocInfo(ctypes.Structure):
    """What ``mallinfo2`` of the C library returns."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in MALLOC_INFO.split())


@dataclass(frozen=True)
class Memory:
    """What is allocated at a moment; 0 where the system does not say.

    Attributes:
        in_use: Bytes that native code has allocated and not freed.
        blocks: Blocks that Python has allocated and not freed.
        resident: Bytes that the process has of the system.
        anonymous: Those of them that are no file's.
        free: Bytes that the C library's allocator keeps for later.
        objects: Python's objects that may be part of a cycle.
        seconds: Since the process began to look.
    """

    in_use: int
    blocks: int
    resident: int
    anonymous: int = 0
    free: int = 0
    objects: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        native, held = self.in_use / 2**20, self.resident / 2**20
        return f"{native:.2f} MiB native, {self.blocks} blocks, {held:.1f} MiB resident"

    @classmethod
    def now(cls, seconds: float = 0.0) -> Memory:
        """What is allocated now."""
        in_use = free = resident = files = 0
        with suppress(AttributeError, OSError):  # another C library than glibc
            mallinfo = ctypes.CDLL(None).mallinfo2
            mallinfo.restype = MallocInfo
            found = mallinfo()
            in_use, free = found.uordblks + found.hblkhd, found.fordblks
        with suppress(OSError):  # another system than Linux
            resident, files = map(int, Path("/proc/self/statm").read_text().split()[1:3])
        return cls(
            in_use, sys.getallocatedblocks(), resident * 4096, (resident - files) * 4096, free,
            len(gc.get_objects()), seconds,
        )  # fmt: skip


def note_levels(path: str) -> None:
    """Write what this process has allocated to a file every :data:`EVERY` seconds, as lines of JSON."""

    def write() -> None:
        with Path(path).open("a") as out:
            while True:
                print(
                    json.dumps(asdict(Memory.now(time.monotonic() - began))), file=out, flush=True
                )
                time.sleep(EVERY)

    began = time.monotonic()
    threading.Thread(target=write, name="levels", daemon=True).start()


def levels(path: Path) -> list[Memory]:
    """What :func:`note_levels` wrote."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [Memory(**json.loads(line)) for line in lines]


def level_table(noted: list[Memory], rows: int = 18) -> list[str]:
    """Levels over time as a table in Markdown: the means of so many equal parts."""
    table = [
        "| seconds | resident, MiB | not of files | allocated natively | kept by its allocator "
        "| Python's blocks | objects |",
        "|---:" * 7 + "|",
    ]
    for row in range(rows):
        part = noted[len(noted) * row // rows : len(noted) * (row + 1) // rows]
        if part:
            bytes_ = [
                sum(getattr(x, n) for x in part) / len(part) / 2**20
                for n in ("resident", "anonymous", "in_use", "free")
            ]
            counts = [sum(getattr(x, n) for x in part) // len(part) for n in ("blocks", "objects")]
            table.append(
                f"| {part[-1].seconds:.0f} | {' | '.join(f'{x:.2f}' for x in bytes_)} | "
                f"{' | '.join(f'{n:,}' for n in counts)} |"
            )
    return table
