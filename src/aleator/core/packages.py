"""Optional packages: their import, with errors that say what needs them and how to install them."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any


def required_torch(what: str) -> ModuleType:
    """Import and return PyTorch; ImportError says that ``what`` needs it, and how to install it."""
    try:
        return import_module("torch")
    except ImportError as error:
        raise ImportError(
            f'{what} needs PyTorch ({error.name} is missing): pip install "aleator[torch]"',
            name=error.name,
        ) from error


def require_matplotlib() -> Any:
    """Import Matplotlib and its class of figures, without a window; ImportError says how to install it."""
    try:
        import matplotlib
        from matplotlib.backends import backend_agg  # noqa: F401
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ImportError(
            f"pictures need matplotlib ({error.name} is missing): pip install 'aleator[plot]'"
        ) from None
    return matplotlib, Figure
