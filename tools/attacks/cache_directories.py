"""Damages directories of the prompt cache that are in use, and looks at what is left in them."""

from __future__ import annotations

import random
import shutil
import sqlite3
from pathlib import Path

from aleator.cache.disk_store import DiskStore
from attacks.world import World, changed

DAMAGE = (
    "blocks", "blocks", "index", "rows", "another's", "version", "remove", "link", "link of blocks",
)  # fmt: skip


def damage(world: World, directory: Path, rng: random.Random) -> None:
    """Do something to a directory that is in use."""
    what = rng.choice(DAMAGE)
    world.count(f"damage: {what}")
    blocks = sorted((directory / "blocks").glob("*.block"))
    aside = directory.with_name(f"aside {rng.random()}")
    try:
        match what:
            case "blocks" if blocks:
                for path in rng.sample(blocks, min(len(blocks), 3)):
                    rewrite(path, rng)
            case "index":
                rewrite(rng.choice(sorted(directory.glob("index.sqlite*"))), rng)
            case "rows":
                with sqlite3.connect(directory / "index.sqlite", timeout=30) as base:
                    column, value = rng.choice([("length", 5), ("parent", b"7" * 32), ("size", 9)])
                    where = f"WHERE rowid % 3 = {rng.randrange(3)}"
                    base.execute(f"UPDATE blocks SET {column} = ? {where}", (value,))
                base.close()
            case "another's" if blocks:
                shutil.copy(rng.choice(blocks), rng.choice(blocks))
            case "version":
                with sqlite3.connect(directory / "index.sqlite", timeout=30) as base:
                    base.execute(f"PRAGMA user_version={rng.choice([2, 99])}")
                base.close()
            case "remove":
                shutil.rmtree(directory)
            case "link":
                directory.rename(aside)
                directory.symlink_to(rng.choice([aside, directory.with_name("nowhere")]))
            case "link of blocks":
                (directory / "blocks").rename(aside)
                (directory / "blocks").symlink_to(aside)
    except (OSError, IndexError, sqlite3.Error):  # it was not there, or being written
        world.count("damage that failed")


def rewrite(path: Path, rng: random.Random) -> None:
    """Change a file, unless it is empty."""
    if data := path.read_bytes():
        path.write_bytes(changed(rng, data)[1])


def examine(world: World, directory: Path, rng: random.Random, damaged: bool) -> None:
    """Open a store where nobody lives any more, and look at everything."""
    for path in (directory, directory / "blocks"):
        if path.is_symlink():
            path.unlink()
    quota = rng.choice([200_000, 2**24])
    store = DiskStore(directory, quota)
    world.check(store.usable, "starts", store.counts)
    try:
        found = sorted((directory / "blocks").iterdir())
        names = {each.name for each in directory.iterdir()}
        known = {"blocks", *(f"index.sqlite{end}" for end in ("", "-wal", "-shm"))}
        left = [each.name for each in found if each.suffix != ".block"] + sorted(names - known)
        world.check(not left, "nothing half written is left", left)
        held = sum(each.stat().st_size for each in found)
        world.check(held <= quota or damaged, "quotas", f"{held} of {quota}")
        keys = [bytes.fromhex(row[0]) for row in store.listed()]
        world.counts["entries read"] += sum(store.get(key) is not None for key in keys)
        spoiled = store.counts["damaged"]
        world.check(not spoiled or damaged, "stores without damage", spoiled)
        world.counts["entries damaged"] += spoiled
    finally:
        store.close()
