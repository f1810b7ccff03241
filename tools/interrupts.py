"""Interrupts every operation on a cache at every line: the state must be that before or after it.

    python tools/interrupts.py                       every line, every model and operation: a table
    python tools/interrupts.py --model llama --operation keep
    python tools/interrupts.py --kind opcode         at every bytecode instead
    python tools/interrupts.py --kind call           MemoryError at every call of a C function
    python tools/interrupts.py --kind native         MemoryError at every allocation of the native cells

An interrupt is a KeyboardInterrupt that a trace function raises in a frame of the package.  After each, every
cell, row, state, cached prefix, flag, handle and checkpoint is compared, and so are the logits of the next
decode, bit for bit.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from cache_scenes import MODELS, OPERATIONS, Operation, Scene, Snapshot, difference
from run_report import parser, table_head, table_row

import aleator
from aleator import _native

PACKAGE = str(Path(aleator.__file__).parent)
Kind = Literal["line", "opcode", "call", "native"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class Raiser:
    """Counts places in the package where something can be raised, and raises at one of them.

    Attributes:
        count: places so far.
        where: file and line of the raise.

    """

    def __init__(self, kind: Kind, at: int | None) -> None:
        self.kind, self.at = kind, at
        self.count, self.where = 0, ""

    def run(self, call: Callable[[], object]) -> BaseException | None:
        """Call, and return what was raised."""
        gc.disable()  # code that a collection runs is not part of the operation
        try:
            if self.kind == "native":
                _native.fail_allocation(-1 if self.at is None else self.at - 1)
            elif self.kind == "call":
                sys.setprofile(self._profile)
            else:
                sys.settrace(self._call)
            try:
                call()
            finally:
                sys.settrace(None)
                sys.setprofile(None)
                _native.fail_allocation(-1)
        except BaseException as error:
            return error.with_traceback(None)
        finally:
            gc.enable()
        return None

    def _count(self, frame: Any, error: type[BaseException]) -> None:
        self.count += 1
        if self.count == self.at:
            file = Path(frame.f_code.co_filename).relative_to(PACKAGE)
            self.where = f"{file}:{frame.f_lineno}"
            raise error

    def _call(self, frame: Any, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = self.kind == "opcode"
        return self._line

    def _line(self, frame: Any, event: str, arg: Any) -> Any:
        if event == self.kind:
            self._count(frame, KeyboardInterrupt)
        return self._line

    def _profile(self, frame: Any, event: str, arg: Any) -> None:
        if event == "c_call" and frame.f_code.co_filename.startswith(PACKAGE):
            self._count(frame, MemoryError)


@dataclass
class Violation:
    """A place where the state was neither the one before nor the one after."""

    place: int
    where: str
    what: list[str]


@dataclass
class Found:
    """The result for one operation of one model.

    Attributes:
        places: number of places where something can be raised.
        tried: how many of them were tried.
        refused: the error that the operation raises by itself.
        violations: places that broke the promise.

    """

    places: int = 0
    tried: int = 0
    refused: str = ""
    violations: list[Violation] = field(default_factory=list)


def examine(
    model: str,
    operation: Operation,
    kind: Kind = "line",
    most: int | None = None,
    warm: bool = False,
) -> Found:
    """Raise at places of an operation, all or ``most`` of them, evenly spread.

    Args:
        model: a name of :data:`MODELS`.
        operation: the operation.
        kind: what counts as a place.
        most: the most places that are tried; None: all.
        warm: one-time initialisation is done; otherwise the operation runs once for that.

    """
    found = Found()
    if not warm:
        _run(operation.scene(model), operation, kind, None)
    reference = operation.scene(model)
    before, probe = reference.state(), probed(reference)
    raiser, error = _run(reference, operation, kind, None)
    found.refused = "" if error is None else type(error).__name__
    after, found.places = reference.state(), raiser.count
    probes = (probe, probed(reference))
    current: Scene | None = None
    place, step = 0, 1.0
    if kind == "native":
        found.places = most or 10_000  # ends at the first place that is not reached
    elif most is not None and found.places > most:
        step = found.places / most
    at = 1.0
    while (place := int(at)) <= found.places:
        at += step
        scene = current or operation.scene(model)
        current = None
        raiser, error = _run(scene, operation, kind, place)
        if kind == "native" and (error is None or type(error).__name__ == found.refused):
            found.places = place - 1
            break
        found.tried += 1
        now = scene.state()
        wrong = broken(scene, now, (before, after), probes)
        if wrong:
            found.violations.append(Violation(place, raiser.where, wrong))
        elif now == before:
            current = scene  # continues as if nothing had happened
    return found


def _run(
    scene: Scene, operation: Operation, kind: Kind, at: int | None
) -> tuple[Raiser, BaseException | None]:
    raiser = Raiser(kind, at)
    error = raiser.run(lambda: operation.run(scene))
    return raiser, error


def probed(scene: Scene) -> bytes | str:
    """The logits of a scene's next decode, or its error."""
    try:
        return scene.probe()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def broken(
    scene: Scene,
    now: Snapshot,
    allowed: tuple[Snapshot, Snapshot],
    probes: tuple[bytes | str, bytes | str],
) -> list[str]:
    """What differs from the state before or after; the shorter list."""
    if now not in allowed:
        return min((difference(now, each) for each in allowed), key=len)
    try:
        scene.cache.check()
    except Exception as error:
        return [f"check: {error}"]
    expected = probes[allowed.index(now)]
    if probed(scene) != expected:
        return ["the next decode's logits"]
    again = scene.state()
    return [f"after the next decode: {name}" for name in difference(again, now)]


def table(models: list[str], operations: list[str], kind: Kind, most: int | None) -> int:
    """Examine, and print a table; returns the violations."""
    print(*table_head("model", "operation", f"{kind}s:", "tried:", "violations:"), sep="\n")
    bad = 0
    for model in models:
        places = tried = wrong = 0
        for name in operations:
            found = examine(model, OPERATIONS[name], kind, most)
            note = f" ({found.refused})" if found.refused else ""
            figures = found.places, found.tried, len(found.violations)
            print(table_row(model, f"{name}{note}", *figures), flush=True)
            for each in found.violations[:8]:
                print(f"  {each.place} {each.where}: {', '.join(each.what)}", file=sys.stderr)
            places, tried = places + found.places, tried + found.tried
            wrong += len(found.violations)
        bold = (f"**{each}**" for each in (model, "all", places, tried, wrong))
        print(table_row(*bold), flush=True)
        bad += wrong
    return bad


def main() -> None:
    """Parse the command line; the exit status says whether there were violations."""
    asked = parser(__doc__)
    asked.add_argument("--model", action="append", choices=list(MODELS))
    asked.add_argument("--operation", action="append", choices=list(OPERATIONS))
    asked.add_argument("--kind", default="line", choices=KINDS)
    asked.add_argument("--most", type=int, help="places tried per operation (default: all)")
    args = asked.parse_args()
    models, operations = args.model or list(MODELS), args.operation or list(OPERATIONS)
    sys.exit(table(models, operations, args.kind, args.most) > 0)


if __name__ == "__main__":
    main()
