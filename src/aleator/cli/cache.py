"""``aleator cache``: inspect, check and shrink the prompt cache on disk."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

from aleator.cache.disk_store import DiskStore
from aleator.cli.arguments import Parser, did_you_mean
from aleator.cli.models import mebibytes
from aleator.cli.terminal import write, write_json
from aleator.core.errors import ParameterError
from aleator.generate.options import MOST_BYTES, read_size
from aleator.generate.prompt_tiers import default_directory

EXAMPLES = """\
What --cache-disk has kept of prompts (docs/prompt-cache.md).  show: how much there is, by
model; list: every entry, what was used last first; verify: read everything, remove what
is damaged, and mend what the index says wrongly of the rest; prune: remove what was not
used for the longest time; clear: remove all; pin: keep an entry, and those before it in
its text, whatever else comes; unpin: end that.

examples:
  aleator cache
  aleator cache list --json
  aleator cache verify
  aleator cache prune --size 2G
  aleator cache pin 3f1c0a5d9b27e648      (a key that list shows, or its beginning)
  aleator cache clear
"""
ACTIONS = ("show", "list", "verify", "prune", "clear", "pin", "unpin")


def add_arguments(parser: Parser) -> None:
    parser.positional("action", f"{', '.join(ACTIONS)} (default: show)")
    parser.positional("key", "pin and unpin: which entry")
    group = parser.group("prompt cache")
    group.option(
        "--cache-dir DIRECTORY", "where it is (default: aleator/prompts in the user's cache folder)"
    )
    group.option("--size SIZE", "prune: leave at most so much, such as 500M or 8G")
    group.switch("--json", "write JSON")


def run(arguments: argparse.Namespace) -> None:
    action = arguments.action or "show"
    if action not in ACTIONS:
        raise ParameterError(
            "action",
            f"{action!r} is no action{did_you_mean(action, ACTIONS)}: {', '.join(ACTIONS)}",
        )
    if (action == "prune") != (arguments.size is not None):
        raise ParameterError("size", "--size SIZE belongs to prune, which needs it")
    if (action in ("pin", "unpin")) != (arguments.key is not None):
        raise ParameterError("key", "pin and unpin need a KEY, which list shows; others take none")
    left = 0 if arguments.size is None else read_size("size", arguments.size)
    directory = Path(arguments.cache_dir or default_directory())
    if not (directory / "index.sqlite").exists():
        write("{}\n" if arguments.json else f"{directory}: nothing is cached there\n")
        return
    store = DiskStore(directory, MOST_BYTES)
    if not store.usable:
        raise ParameterError(
            "cache_dir", f"--cache-dir {directory}: it cannot be written: give another"
        )
    with closing(store):
        if arguments.key is not None:
            _pin(store, arguments.key, action == "pin")
            action = "show"
        _act(store, action, left, arguments.json)


def _pin(store: DiskStore, beginning: str, pinned: bool) -> None:
    """Pin or unpin the entry whose key begins with ``beginning``."""
    found = [key for key, *_ in store.listed() if key.startswith(beginning.lower())]
    if len(found) != 1:
        raise ParameterError(
            "key", f"{len(found)} keys begin with {beginning!r}: give one that list shows"
        )
    store.pin(bytes.fromhex(found[0]), pinned)


def _act(store: DiskStore, action: str, left: int, as_json: bool) -> None:
    before = store.listed()
    if action == "list":
        if as_json:
            names = ("key", "tokens", "size", "made", "model", "pinned")
            write_json([dict(zip(names, row, strict=True)) for row in before])
            return
        for key, tokens, size, made, model, pinned in before:
            moment = time.strftime("%Y-%m-%d %H:%M", time.localtime(made))
            write(
                f"{key[:16]} {tokens:>8} tokens {mebibytes(size):>12}  {moment}  {model}{', pinned' * pinned}\n"
            )
        return
    facts: dict[str, object] = {"directory": str(store.directory)}
    if action == "verify":
        sound = sum(store.check(bytes.fromhex(key)) for key, *_ in before)
        others = {name: store.counts[name] for name in ("mended", "damaged", "missing")}
        facts |= {"sound": sound, **others}
    elif action in ("prune", "clear"):
        store.prune(left, pinned=action == "clear")
        facts["removed"] = len(before) - len(store.listed())
    rows, sizes = store.listed(), Counter[str]()
    for _, _, size, _, model, _ in rows:
        sizes[model] += size
    facts |= {
        "entries": len(rows),
        "pinned": sum(row[-1] for row in rows),
        "size": sum(sizes.values()),
        "models": dict(sizes.most_common()),
    }
    if as_json:
        write_json(facts)
        return
    for name, value in facts.items():
        if isinstance(value, dict):
            value = "".join(f"\n  {mebibytes(size):>12}  {model}" for model, size in value.items())
        elif name == "size":
            value = mebibytes(int(str(value)))
        write(f"{name}: {value}\n")
