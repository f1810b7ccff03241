"""Clears the frames of errors, so that a kept error does not keep alive what its frames refer to."""

from __future__ import annotations

import inspect
from contextlib import suppress
from types import FrameType

OURS = (
    "aleator.engine.engine_loop",
    "aleator.engine.engine_core",
    "aleator.generate.model_runner",
    "aleator.generate.context",
    "aleator.generate.request_state",
)
"""Modules whose frames hold the context."""

SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
"""Flags of code whose frames may be resumed later."""


def clear_frames(error: BaseException | None) -> None:
    """Clear the frames of an error that ended a request; its traceback still says where it was raised.

    The frames refer to the context and the logits of a whole step, and the error refers to the frames.  The
    frames and the request refer to one another, so without this only the garbage collector would free them.
    The errors in ``__cause__`` and ``__context__`` are cleared too.  Running frames, generators, coroutines and
    the frames of readers are not cleared.
    """
    cleared: set[int] = set()
    seen: set[int] = set()
    left = [] if error is None else [error]
    while left:
        each = left.pop()
        trace = each.__traceback__
        clears = trace is not None and id(trace.tb_frame) in cleared  # caught in that frame
        while trace is not None:
            # Readers' frames come first, then the engine's, then those of the code it called.
            clears = clears or _is_ours(trace.tb_frame)
            if clears:
                cleared.add(id(trace.tb_frame))
                _clear(trace.tb_frame)
                _clear_callers(trace.tb_frame)
            trace = trace.tb_next
        seen.add(id(each))
        left += [
            e for e in (each.__cause__, each.__context__) if e is not None and id(e) not in seen
        ]


def _clear_callers(frame: FrameType) -> None:
    caller = frame.f_back
    while caller is not None:
        if _is_ours(caller):
            _clear(caller)
        caller = caller.f_back


def _is_ours(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") in OURS


def _clear(frame: FrameType) -> None:
    if not frame.f_code.co_flags & SUSPENDED:
        with suppress(RuntimeError):  # the frame is running
            frame.clear()
