"""Disks that are small or cannot be written, which only one process sees and which end with it."""

from __future__ import annotations

import ctypes
from pathlib import Path

NEW_NAMESPACE, PRIVATE, READ_ONLY, REMOUNT, RECURSIVE = 0x20000, 1 << 18, 1, 32, 16384


def mounted_disk(directory: Path, size: int) -> bool:
    """Put an empty disk of so many bytes there, for this process alone; returns whether that is permitted."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_NAMESPACE) or libc.mount(b"none", b"/", None, RECURSIVE | PRIVATE, None):
        return False
    about = f"size={size},mode=700".encode()
    return bool(libc.mount(b"tmpfs", bytes(directory), b"tmpfs", 0, about) == 0)


def read_only(directory: Path) -> None:
    """Let nobody write there any more: what :func:`mounted_disk` put there."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mount(None, bytes(directory), None, REMOUNT | READ_ONLY, None)
