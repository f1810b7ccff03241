"""What goes to the terminal: messages and progress on standard error, text on standard output."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from aleator.core.errors import DialectWarning

PATIENCE = 0.2
"""Seconds that a task may take before its progress is shown."""


_silent = False


@contextmanager
def messages(verbose: bool, silent: bool) -> Iterator[None]:
    """How much is said on standard error within the block: also what is logged, or errors alone."""
    global _silent
    before, _silent = _silent, silent
    root = logging.getLogger()
    level, handler = root.level, logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    if verbose:
        root.addHandler(handler)
        root.setLevel(logging.DEBUG)
    try:
        with warnings.catch_warnings():
            others = warnings.showwarning

            def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
                if issubclass(category, DialectWarning):
                    note(f"aleator: warning: {message}")
                else:
                    others(message, category, *where, **more)

            warnings.simplefilter("default", DialectWarning)
            warnings.showwarning = show
            yield
    finally:
        _silent = before
        root.removeHandler(handler)
        root.setLevel(level)


def complain(message: str) -> None:
    """Print an error of the user or of the machine."""
    print(f"aleator: error: {message}", file=sys.stderr, flush=True)


def note(message: str) -> None:
    """Print a line for people on standard error."""
    if not _silent:
        print(message, file=sys.stderr, flush=True)


def hint(text: str) -> None:
    """Print a piece of text for people on standard error at once."""
    if not _silent:
        sys.stderr.write(text)
        sys.stderr.flush()


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


class ProgressBar:
    """Progress of a task on a terminal, shown once it takes longer; elsewhere nothing.

    Use it in a ``with`` block, which clears the line whatever happens.
    """

    def __init__(self, title: str, unit: str) -> None:
        self._title, self._unit = title, unit
        self._bar: Any = None
        self._began = 0.0
        self._wanted = sys.stderr.isatty() and not _silent

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    def __call__(self, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` is done; the last one clears the line."""
        if not self._wanted:
            return
        if done >= total:
            self._stop()
            return
        self._began = self._began or monotonic()
        if self._bar is None:
            if monotonic() - self._began < PATIENCE:
                return
            self._bar = _rich_bar(self._unit)
            if self._bar is None:
                self._wanted = False
                return
            self._bar.start()
            self._bar.add_task(self._title, total=total)
        self._bar.update(self._bar.task_ids[0], completed=done, total=total)

    def _stop(self) -> None:
        self._began = 0.0
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _rich_bar(unit: str) -> Any:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    except ModuleNotFoundError:
        return None
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn(f"{{task.completed:.0f}}/{{task.total:.0f}} {unit}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )


@contextmanager
def on_interrupt(*stops: Callable[[], object]) -> Iterator[None]:
    """Let the first Ctrl-C call ``stops`` and only a second one raise KeyboardInterrupt."""

    def handle(signum: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for stop in stops:
            stop()

    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
