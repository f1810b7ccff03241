"""Terminal output: messages and progress on standard error, text on standard output."""

from __future__ import annotations

import json
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

PROGRESS_DELAY = 0.2
"""Seconds that a task may take before its progress is shown."""


_silent = False


@contextmanager
def messages(verbose: bool, silent: bool) -> Iterator[None]:
    """Set how much is printed on standard error within the block: logs as well, or errors only."""
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
    """Print part of a line for people on standard error, and flush."""
    if not _silent:
        print(text, end="", file=sys.stderr, flush=True)


def write(text: str) -> None:
    """Print text on standard output, and flush; characters that its encoding lacks become '?'."""
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


def write_json(value: object, **form: Any) -> None:
    """Print a value as a line of JSON on standard output; ``form`` has options of ``json.dumps``."""
    write(json.dumps(value, **form) + "\n")


def open_closed_streams() -> None:
    """Open the null device for standard streams that the caller has closed: no file may take their places."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def quiet_stdout() -> None:
    """Discard further output, without errors, after the reader of standard output has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class ProgressBar:
    """Progress of a slow task on a terminal; elsewhere nothing.

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
        """Show that ``done`` of ``total`` is done; clear the line at the end."""
        if not self._wanted:
            return
        if done >= total:
            self._stop()
            return
        self._began = self._began or monotonic()
        if self._bar is None:
            if monotonic() - self._began < PROGRESS_DELAY:
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
    """Let the first Ctrl-C call ``stops``; only a second one raises KeyboardInterrupt."""

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
