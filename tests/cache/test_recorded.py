"""Random scripts on caches of every kind: what they answer, and what is there after each step, is on record.

The record notices changes of what is chosen where any choice gives right logits: cells, rows, evictions.
ALEATOR_RECORD=1 records a change that is meant.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aleator.cache.cache import Cache
from aleator.cache.kv_cache import HybridCache, KVCache, LayerShape
from aleator.cache.pools.kept_states import kept_rows
from aleator.cache.pools.recurrent import RecurrentPool
from aleator.cache.pools.recurrent_rows import RecurrentShape
from aleator.cache.pools.window import WindowPool
from aleator.cache.prefix_index import PrefixConfig
from aleator.cache.recurrent import RecurrentCache
from tests.cache.scripted import Script, digest, rotate

RECORD = Path(__file__).parents[1] / "golden" / "cache" / "recorded.json"
STEPS = 120
SHAPES = [LayerShape(1, 2, 2), LayerShape(2, 1, 3, rope=1), LayerShape(1, 2, 2)]
STATES = [RecurrentShape(2, 1, 2), RecurrentShape(1, 2, 1, inner=3)]
ALL: dict[str, Any] = {"n_seq_max": 5, "type_k": "f32", "type_v": "f32", "rotate": rotate}
KEPT = PrefixConfig(block=4, texts=3, spacing=8, bytes=20 * 4 * (2 * 3 + 2 + 3))


def cells(n: int = 64, **options: Any) -> Cache:
    return KVCache(SHAPES, n, **ALL | options)


def windows(n: int, prefix: PrefixConfig | None = None, states: int = 0, **options: Any) -> Cache:
    """Cells beside windows of 4, in ``n`` cells, and beside states with so many to rewind to."""
    texts = 0 if prefix is None else prefix.texts
    shared = {name: options.pop(name) for name in ("policy",) if name in options}
    pool = WindowPool(SHAPES[:2], n, **ALL | shared | {"window": 4, "n_kept": texts} | options)
    recurrent = None
    if states:
        rows = kept_rows(prefix, 5, STATES)
        recurrent = RecurrentPool(STATES, n_seq_max=5, rollback=states, kept_rows=rows)
    both: Any = {"window": pool, "recurrent": recurrent, "prefix": prefix}
    return HybridCache(SHAPES[1:], 100, **ALL | shared | both)


def beside_states(prefix: PrefixConfig | None) -> Cache:
    rows = kept_rows(prefix, 5, STATES)
    pool = RecurrentPool(STATES, n_seq_max=5, rollback=3, kept_rows=rows)
    return HybridCache(SHAPES, 90, recurrent=pool, prefix=prefix, **ALL)


KINDS: dict[str, Callable[[], Cache]] = {
    "all": lambda: windows(60, KEPT, states=2),
    "rings": lambda: windows(60, ring=True, policy="streams"),
    "cells of 2024": lambda: cells(compat="llama-2024", pad=16),
    "kept states": lambda: RecurrentCache(STATES, n_seq_max=5, rollback=1, prefix=KEPT),
    "kept windows with sinks": lambda: windows(50, KEPT, sinks=2),
    "pictures": lambda: cells(rotate=None, n_pos_per_embd=4),
    "many sequences": lambda: cells(n_seq_max=70),
    "kept": lambda: cells(prefix=KEPT),
    "two streams": lambda: cells(50, policy="streams", n_seq_max=2),
    "raw keys": lambda: cells(k_storage="raw"),
    "cells": cells,
    "cells by channel": lambda: cells(v_layout="channel", type_k="f16", type_v="f16"),
    "a large cache": lambda: cells(300, compat="llama-2024"),
    "streams": lambda: cells(100, policy="streams"),
    "no rotation": lambda: KVCache([LayerShape(1, 3, 0)], 64, **ALL | {"rotate": None}),
    "windows": lambda: windows(40),
    "few window cells": lambda: windows(26),
    "kept windows": lambda: windows(60, KEPT),
    "a ring": lambda: windows(36, ring=True),
    "shares": lambda: windows(60, policy="streams"),
    "chunks": lambda: windows(40, chunked=True),
    "sinks": lambda: windows(40, sinks=2),
    "states": lambda: RecurrentCache(STATES, n_seq_max=5, rollback=2),
    "beside states": lambda: beside_states(None),
    "beside kept states": lambda: beside_states(KEPT),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_script_gives_what_is_on_record(kind: str) -> None:
    script = Script(KINDS[kind](), len(kind))
    lines = [script.step() for _ in range(STEPS)]
    known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    if os.environ.get("ALEATOR_RECORD"):
        known = {**known, kind: " ".join(map(digest, lines))}
        RECORD.write_text(json.dumps(known, indent=0, sort_keys=True) + "\n")
    for i, (line, expected) in enumerate(zip(lines, known[kind].split(), strict=True)):
        assert digest(line) == expected, f"step {i} is another one: {line}"


def test_every_kind_is_on_record() -> None:
    assert set(json.loads(RECORD.read_text())) == set(KINDS)
