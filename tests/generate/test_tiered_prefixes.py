"""What tiers are given of prompts, what is looked up in them and what comes from there: as recorded.

Texts are the same whatever a tier has (test_prompt_tiers.py).  ALEATOR_RECORD=1 records a change that is meant.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aleator.cache.block_store import Entry
from aleator.generate.prompt_tiers import PromptTiers
from tests.drawn import recorded
from tests.generate.test_prompt_tiers import ids, load, made
from tests.generate.test_prompt_tiers import paths as paths
from tests.generate.test_prompt_tiers import reading_is_worth_it as reading_is_worth_it

PROMPTS = {
    **{f"{n}": ids(n) for n in (400, 401, 399, 256, 257, 128, 129, 127, 160, 161)},
    "one more": [*ids(400), 9],
    "another end": [*ids(400)[:390], 3],
    "another middle": [*ids(400)[:300], 3, *ids(400)[301:]],
    **{f"short {n}": ids(n, 6) for n in (31, 32, 33, 34, 65)},
    "short, twice": ids(65, 6),
    "long": ids(900),
    "longer": ids(950),
}


def plain(value: Any) -> Any:
    """An argument without what differs between two runs: keys, and the model's name."""
    if isinstance(value, Entry):
        return value.length, value.size
    if isinstance(value, bytes):
        return "key"
    if isinstance(value, frozenset | set):
        return sorted(value)
    if isinstance(value, tuple | list):
        each = [plain(one) for one in value]
        return len(each) if each and set(map(str, each)) == {"key"} else each
    return bool(value) if isinstance(value, str | dict) else value


def watched(tiers: PromptTiers, noted: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def noting(name: str, done: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any) -> Any:
            noted.append([name, *map(plain, given)])
            return done(*given)

        return called

    for name in ("look_up", "known", "put", "ask", "used", "is_worth", "waits", "held"):
        monkeypatch.setattr(tiers, name, noting(name, getattr(tiers, name)))


@pytest.mark.parametrize("kind", ["llama", "gemma3", "jamba", "mamba"])
def test_what_tiers_are_asked_and_given(
    kind: str, paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(paths[kind], cache_ram=2**30)
    tiers = model.prompt_tiers
    assert tiers is not None
    noted: list[Any] = []
    watched(tiers, noted, monkeypatch)
    told: dict[str, Any] = {}
    for name, prompt in PROMPTS.items():
        for again in ("", ", again"):
            *_, reused = made(model, prompt)
            told[name + again] = [reused, *noted]
            noted.clear()
            if not again or name == "short 65":
                model.own_context().cache.give_up("")
    counts = {store: dict(sorted(each.items())) for store, each in tiers.tell().items()}
    told["counts"] = [counts, dict(tiers.counts)]
    told = {name: repr(each) for name, each in told.items()}
    assert told == recorded("tiers", kind, told)
