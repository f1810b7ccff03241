"""Caches interrupted at random places of every operation: the state is that before or that after.

Places are lines, bytecodes, calls of C functions and native allocations, and moments of a timer's signal.
``tools/interrupts.py`` tries all places of the first four.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import time
from collections.abc import Generator

from cache_scenes import MODELS, OPERATIONS, Operation, Scene
from interrupts import KINDS, broken, examine, probed

from attacks.world import World

MOST = 4
"""Places of an operation that a trial looks at."""


def scene(world: World) -> Generator[None, None, None]:
    """Interrupt one operation of one cache after another."""
    for number in itertools.count():
        rng = world.rng("cache", number)
        model, name = rng.choice(sorted(MODELS)), rng.choice(sorted(OPERATIONS))
        if number % 2:
            signals(world, model, name, rng)
        else:
            kind = rng.choice(KINDS)
            found = examine(model, OPERATIONS[name], kind, rng.randint(1, MOST))
            what = f"{model}, {name}, {kind}: {found.violations}"
            world.check(not found.violations, "operations with errors at places", what)
        yield


def signals(world: World, model: str, name: str, rng: random.Random) -> None:
    """Interrupt an operation by a signal, beside the same without one."""
    operation = OPERATIONS[name]
    scene, reference = operation.scene(model), operation.scene(model)
    before, started = reference.state(), time.perf_counter()
    _quietly(operation, reference)
    took, after = time.perf_counter() - started, reference.state()
    probes = (probed(operation.scene(model)), probed(reference))
    for _ in range(20):
        if not _interrupted(operation, scene, took * rng.random()):
            return
        now = scene.state()
        found = broken(scene, now, (before, after), probes)
        world.check(not found, "operations with a signal", f"{model}, {name}: {found}")
        if found or now != before:
            return


def _interrupted(operation: Operation, scene: Scene, after: float) -> bool:
    over = False

    def ring(*_: object) -> None:
        if not over:  # another thread may deliver it late
            raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, max(1e-6, after))
        try:
            _quietly(operation, scene)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            over = True
    except KeyboardInterrupt:
        return True
    finally:
        signal.signal(signal.SIGALRM, old)
    return False


def _quietly(operation: Operation, scene: Scene) -> None:
    with contextlib.suppress(Exception):  # a verb that this cache refuses
        operation.run(scene)
