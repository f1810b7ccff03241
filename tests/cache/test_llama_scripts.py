"""Scripts of operations against what llama.cpp 0.5 made of them (tools/golden_cache.py)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from aleator.cache import KVCache, LayerShape
from aleator.core.errors import CacheError
from aleator.generate import Batch

GOLDEN = json.loads(
    (Path(__file__).parent.parent / "golden" / "cache" / "scripts.json").read_text()
)


def carry_out(cache: KVCache, op: list[Any]) -> int:
    """As golden_cache.py's apply, without a model: what is stored does not matter here."""
    name, arguments = op[0], op[1:]
    if name == "decode":
        batch = Batch()
        for first, n, seqs in arguments[0]:
            for i in range(n):
                batch.add(1, first + i, seqs)
        try:
            with cache.step(cache.plan(batch, n_ubatch=64)) as step:
                list(step)
        except CacheError as error:
            return 0 if error.code is None else error.code
    elif name == "clear":
        cache.clear()
    else:
        getattr(cache, f"seq_{name}")(*arguments)
    return 0


@pytest.mark.parametrize("number", range(len(GOLDEN["scripts"])))
def test_codes_positions_owners_and_order(number: int) -> None:
    cache = KVCache(
        [LayerShape(1, 8, 8)], 256, n_seq_max=4, rotate=lambda layer, keys, distances: keys
    )
    for i, expected in enumerate(GOLDEN["scripts"][number]):
        where = f"operation {i}: {expected['op']}"
        assert carry_out(cache, expected["op"]) == expected["code"], where
        spans = [[cache.seq_pos_min(s), cache.seq_pos_max(s)] for s in range(4)]
        assert (spans, cache.used) == (expected["spans"], expected["used"]), where
        positions = cache.cells.positions.tolist()
        cells = [(p, cache.cells.owners_of(c)) for c, p in enumerate(positions) if p >= 0]
        digest = hashlib.sha256(json.dumps(cells).encode()).hexdigest()[:16]
        assert digest == expected["cells"], where
        cache.check()


def test_the_scripts_are_worth_it() -> None:
    steps = [s for script in GOLDEN["scripts"] for s in script]
    codes = [s["code"] for s in steps if s["op"][0] == "decode"]
    assert codes.count(0) > 400
    assert codes.count(1) > 20
    assert codes.count(-1) > 20
