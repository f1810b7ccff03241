"""Processes that write to one store of the prompt cache and are killed at random moments; damage to fields.

Whatever can be read afterwards is what was put there, nothing half written is left, and the quota holds.
Then each field of a file and of the index is damaged in turn: that is a miss, and no error.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sqlite3
import time
from collections.abc import Generator
from pathlib import Path

from aleator.cache.block_store import Entry, Sections
from aleator.cache.disk_store import DiskStore
from attacks.world import World, changed

WRITERS = 4
KEYS, PARENTS = 200, 4
LONGEST = 0.1
"""Seconds that writers live at most."""
COLUMNS = ("key", "parent", "length", "size", "used", "made", "model")
ODD = (None, -1, 2**62, 1.5, float("inf"), "text", b"", b"\xff" * 32)
FLIPS = 40
"""Places of a file that a trial looks at; all of them in turn."""


def entry(number: int) -> tuple[Entry, Sections]:
    """An entry and its contents, which follow from its number."""
    size = 1000 + 37 * number % 3000
    parent = bytes([number % PARENTS]) * 32
    return Entry(number.to_bytes(32, "big"), parent, 128, size), {"cells": bytes([number]) * size}


def write(directory: Path, seed: int, begun: int) -> None:
    """Write, read, use and drop entries until the process is killed."""
    rng = random.Random(seed)
    if rng.random() < 0.2:
        os.write(begun, b"!")  # it may be killed while it opens the store
    store = DiskStore(directory, rng.choice([60_000, 90_000]))
    os.write(begun, b"!")
    while True:
        number = rng.randrange(KEYS)
        made, sections = entry(number)
        store.put(made, sections, "a model")
        store.touch([entry(rng.randrange(KEYS))[0].key])
        store.get(entry(rng.randrange(KEYS))[0].key)
        if rng.random() < 0.1:
            store.drop(entry(rng.randrange(KEYS))[0].key)
        if rng.random() < 0.05:  # as a start does
            store.close()
            store = DiskStore(directory, 60_000)


def writer(directory: Path, seed: int) -> int:
    """A process that writes; its id, once it has begun."""
    begun, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            write(directory, seed, tell)
        finally:
            os._exit(1)
    os.close(tell)
    os.read(begun, 1)
    os.close(begun)
    return pid


def kills(world: World, directory: Path, rng: random.Random) -> None:
    """Some writers, killed one after the other, and a look at what they left."""
    writers = [writer(directory, rng.getrandbits(64)) for _ in range(WRITERS)]
    for pid in writers:
        time.sleep(rng.random() * LONGEST / WRITERS)
        os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        world.check(code == -signal.SIGKILL, "killed", code)
    quota = rng.choice([20_000, 60_000])
    store = DiskStore(directory, quota)
    world.check(store.usable, "starts", store.counts)
    found = sorted((directory / "blocks").iterdir())
    left = [each.name for each in found if each.suffix != ".block"]
    world.check(not left, "nothing half written is left", left)
    held = sum(each.stat().st_size for each in found)
    world.check(held <= quota, "quotas", f"{held} of {quota}")
    read(world, store)
    damaged = store.counts["damaged"], store.counts["errors"]
    world.check(damaged == (0, 0), "stores without damage", damaged)
    store.close()


def read(world: World, store: DiskStore) -> None:
    """Read everything that is found, and everything that might be."""
    found = {each.key: each for each in store.find([bytes([i]) * 32 for i in range(PARENTS)])}
    for number in range(KEYS):
        made, sections = entry(number)
        got = store.get(made.key)
        if got is not None:
            equal = bytes(got["cells"]) == sections["cells"]
            world.check(equal and {*got} == {"cells"}, "entries as they were put", number)
        else:
            world.count("entries missed")
    world.counts["entries found"] += len(found)


def fields(world: World, directory: Path, rng: random.Random, number: int) -> None:
    """Damage places of a file, each alone; then the index."""
    store = DiskStore(directory, 60_000)
    made, sections = entry(number % KEYS)
    store.put(made, sections, "a model")
    path = directory / "blocks" / f"{made.key.hex()}.block"
    whole = path.read_bytes()
    for at in range(FLIPS * number, FLIPS * (number + 1)):
        damaged = bytearray(whole)
        damaged[at % len(whole)] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        world.check(store.get(made.key) is None, "flipped bits are misses", at % len(whole))
    path.write_bytes(changed(rng, whole)[1])
    got = store.get(made.key)
    world.check(got is None or path.read_bytes() == whole, "changed files are misses", number)
    store.put(made, sections, "a model")
    store.close()
    if rng.random() < 0.5:
        with sqlite3.connect(directory / "index.sqlite") as base:
            column, value = rng.choice(COLUMNS), rng.choice(ODD)
            which = rng.choice(["rowid % 3 = 0", "1"])
            base.execute(f"UPDATE OR IGNORE blocks SET {column} = ? WHERE {which}", (value,))
        base.close()
    else:
        index = directory / "index.sqlite"
        index.write_bytes(changed(rng, index.read_bytes())[1])
    store = DiskStore(directory, 60_000)
    world.check(store.usable, "starts with a damaged index", store.counts)
    read(world, store)
    store.listed()
    store.touch([made.key])
    again, sections = entry(rng.randrange(KEYS))
    if store.put(again, sections, "a model"):
        found = [each.key for each in store.find([again.parent]) if each.length == again.length]
        world.check(again.key in found, "what is put again is found", again.key)
    store.prune(30_000)
    store.close()


def scene(world: World) -> Generator[None, None, None]:
    """Kill writers, then damage what they wrote."""
    directory = world.folder / "store"
    for number in itertools.count():
        rng = world.rng("stores", number)
        kills(world, directory, rng)
        fields(world, directory, rng, number)
        yield
