"""What goes to the terminal: messages and progress on standard error, text on standard output."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def complain(message: str) -> None:
    """Print an error of the user or of the machine."""
    note(f"aleator: error: {message}")


def note(message: str) -> None:
    """Print a line for people on standard error."""
    print(message, file=sys.stderr, flush=True)


def write(text: str) -> None:
    """Print text on standard output at once; what its encoding lacks becomes '?'."""
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


def quiet_stdout() -> None:
    """The reader of our output is gone: let nothing more be written to it, nor complained about."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Bar:
    """Progress of one task on a terminal; does nothing elsewhere or without ``rich``."""

    def __init__(self, progress: Any, title: str) -> None:
        self._progress, self._title, self._task = progress, title, None

    def __call__(self, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` is done."""
        if self._progress is None:
            return
        if self._task is None:
            self._task = self._progress.add_task(self._title, total=total)
        self._progress.update(self._task, completed=done, total=total)


@contextmanager
def progress_bar(title: str, unit: str) -> Iterator[Bar]:
    """A bar that disappears when its work is done."""
    progress = _rich_progress(unit) if sys.stderr.isatty() else None
    if progress is None:
        yield Bar(None, title)
        return
    with progress:
        yield Bar(progress, title)


def _rich_progress(unit: str) -> Any:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    except ModuleNotFoundError:
        return None
    counts = f"{{task.completed:.0f}}/{{task.total:.0f}} {unit}" if unit else ""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn(counts),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )


@contextmanager
def on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Let the first Ctrl-C call ``stop`` and only a second one raise KeyboardInterrupt."""

    def handle(signum: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop()

    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
