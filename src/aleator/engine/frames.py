"""Frames of errors: who keeps an error would keep what its frames hold."""

from __future__ import annotations

from contextlib import suppress
from types import FrameType

OURS = (
    "aleator.engine.owner",
    "aleator.engine.core",
    "aleator.generate.advance",
    "aleator.generate.context",
    "aleator.generate.own_errors",
    "aleator.generate.speculation.guesses",
)
"""Modules whose frames hold the context."""


def clear_frames(error: BaseException | None) -> None:
    """Let an error's frames go that were the engine's: whoever keeps the error would keep the context."""
    trace = None if error is None else error.__traceback__
    while trace is not None:
        frame: FrameType | None = trace.tb_frame
        while frame is not None:
            if frame.f_globals.get("__name__") in OURS:
                with suppress(RuntimeError):  # it is the one that runs
                    frame.clear()
            frame = frame.f_back
        trace = trace.tb_next
