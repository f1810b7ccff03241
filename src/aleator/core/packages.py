"""Optional packages: what is asked for that needs one names it, and how to install it."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def required_torch(what: str) -> ModuleType:
    """PyTorch, imported now.

    Args:
        what: what needs it, such as ``"device='cuda'"``.

    Raises:
        ImportError: it is not installed; says how to.

    """
    try:
        return import_module("torch")
    except ImportError as error:
        raise ImportError(
            f'{what} needs PyTorch ({error.name} is missing): pip install "aleator[torch]"',
            name=error.name,
        ) from error
