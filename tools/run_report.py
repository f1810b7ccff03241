"""Shared output of tools and benchmarks: the machine, the command, tables, files, progress."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import shlex
import sys
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

from aleator.core import host

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def parser(doc: str | None, out: str = "") -> argparse.ArgumentParser:
    """A command line whose help is a module's text.

    Args:
        doc: the text.
        out: what ``--out`` writes; "": there is no such option.
    """
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if out:
        made.add_argument("--out", type=Path, help=out)
    return made


def command(file: str, given: Sequence[str] | None = None) -> str:
    """How a tool was started, from the root of a checkout; ``given`` are its arguments if not the process's.

    Absolute paths, which are those of one machine, are shown by their last names.
    """
    path, words = Path(file), sys.argv[1:] if given is None else given
    shown = [Path(word).name if Path(word).is_absolute() else word for word in words]
    return shlex.join(["python", f"{path.parent.name}/{path.name}", *shown])


def processor() -> str:
    """The processor's name."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = (line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def version(package: str) -> str:
    """The version of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "source tree" if package == "aleator" else "not installed"


def about(*packages: str) -> dict[str, Any]:
    """Facts of a run: when, on what machine, and with which versions."""
    return {
        "date": date.today().isoformat(),
        "cpu": processor(),
        "cores": os.cpu_count(),
        "isa": host.isa(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "niceness": os.nice(0),
        "load_average": os.getloadavg(),
        "versions": ", ".join(f"{package} {version(package)}" for package in packages),
    }


def machine(*packages: str) -> str:
    """Facts of a run, in one line."""
    facts = about(*packages)
    named = f"{facts['date']}, {facts['cpu']}, {facts['cores']} processors, kernels {facts['isa']}"
    more = [f"load {facts['load_average'][0]:.1f}", f"Python {facts['python']}"]
    return ", ".join([named, *more, *filter(None, [facts["versions"]])])


def table_row(*cells: object) -> str:
    """A row of a table in Markdown."""
    return f"| {' | '.join(map(str, cells))} |"


def table_head(*columns: str) -> list[str]:
    """The head of a table; columns whose names end with a colon hold numbers."""
    rule = "|".join("---:" if name.endswith(":") else "---" for name in columns)
    return [table_row(*(name.removesuffix(":") for name in columns)), f"|{rule}|"]


class Report:
    """Markdown that is printed line by line and written at the end.

    Args:
        title: the first line.
        paragraphs: the text after it; commands are indented by four spaces.
    """

    def __init__(self, title: str, *paragraphs: str) -> None:
        self.lines: list[str] = []
        self.say(f"# {title}", "")
        for each in paragraphs:
            self.say(each, "")

    def say(self, *lines: str) -> None:
        """Add lines."""
        self.lines += lines
        for line in lines:
            print(line, flush=True)

    def table(self, *columns: str) -> None:
        """Begin a table."""
        self.say(*table_head(*columns))

    def row(self, *cells: object) -> None:
        """Add a row to it."""
        self.say(table_row(*cells))

    def write(self, out: Path | None) -> None:
        """Write the report, if there is a file."""
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text("\n".join(self.lines).rstrip("\n") + "\n")


_SHOWN = [0.0]
"""Time of the last display."""


def progress(line: str) -> None:
    """Show a run's progress now and then, in place on a terminal; "" clears it."""
    in_place, now = sys.stderr.isatty(), time.monotonic()
    if line and now - _SHOWN[0] < (1 if in_place else 30):
        return
    _SHOWN[0] = now
    if in_place:
        print(f"\r{line:<100}", end="" if line else "\r", file=sys.stderr, flush=True)
    elif line:
        print(line, file=sys.stderr, flush=True)
