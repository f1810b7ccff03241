"""What pictures are drawn with."""

from __future__ import annotations

from typing import Any


def require_matplotlib() -> Any:
    """matplotlib, without a window system.

    Raises:
        ImportError: It is not installed; says how to.
    """
    try:
        import matplotlib
        from matplotlib.backends import backend_agg  # noqa: F401
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ImportError(
            f"pictures need matplotlib ({error.name} is missing): pip install 'aleator[plot]'"
        ) from None
    return matplotlib, Figure
