"""The cells of a small context after each operation of a script; every request makes its own context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np

from aleator.cache import Frame
from aleator.cache.cache import Cache
from aleator.cache.view import take_frame
from aleator.core.errors import AleatorError, NoCells, ParameterError
from aleator.generate.cache_script import Script, checked
from aleator.language_model import LanguageModel

CELLS = 80
SEQUENCES = 8
MOST_OPERATIONS = 200
MOST_TOKENS = 500
PROMPT = "ROMEO:\nWhat light"
NO_CELLS: dict[str, Any] = {"owner": [], "owners": [], "positions": [], "shifts": []}


def frames(model: LanguageModel, script: Sequence[Any]) -> dict[str, Any]:
    """Run a script; return the cells after each operation, and its cost.  An error ends it early."""
    if not all(isinstance(each, str) and each.split() for each in script):
        raise ParameterError("script: give a list of operations, such as 'decode 0 20'")
    if len(script) > MOST_OPERATIONS:
        raise ParameterError(f"script has {len(script)} operations: give {MOST_OPERATIONS}")
    operations = [each.split() for each in script]
    for words in operations:
        checked(words)
    tokens = sum(max(0, int(words[2])) for words in operations if words[0] == "decode")
    if tokens > MOST_TOKENS:
        raise ParameterError(
            f"script decodes {tokens} times: {MOST_TOKENS} are the most in one script"
        )
    context = model.context(n_ctx=CELLS, n_seq_max=SEQUENCES)
    running = Script(context, model.prompt_tokens(PROMPT), seed=1)
    made: list[dict[str, Any]] = []
    for words in operations:
        before, began = running.computed, perf_counter()
        try:
            running.do(words)
        except AleatorError as error:
            failure = {"message": f"{' '.join(words)}: {error}", "param": "script", "code": None}
            return {"frames": made, "error": failure}
        seconds = perf_counter() - began
        made.append(
            {
                "operation": " ".join(words),
                **_held(context.cache, _frame, NO_CELLS),
                "computed": running.computed - before,
                "milliseconds": 1000 * seconds,
            }
        )
    return {"frames": made, "error": None}


def engine_cells(cache: Cache) -> dict[str, Any]:
    """The contents of a cache of any size: cells in runs, and states.

    Returns:
        The :func:`runs` of the cells that know every position, all empty if there are none; ``window``: the
        same of layers with a window; ``states``: of recurrent layers.
    """
    return _held(cache, runs, {"size": 0, "runs": []})


def _held(
    cache: Cache, read: Callable[[Frame], dict[str, Any]], none: dict[str, Any]
) -> dict[str, Any]:
    """The cells of a cache, of its window layers, and the states of its recurrent layers."""

    def shown(frame: Frame) -> dict[str, Any]:
        sequences = [asdict(span) for span in frame.spans]
        return {**read(frame), "sequences": sequences, "summary": frame.summary()}

    try:
        held = shown(cache.frame())
    except NoCells:
        held = {**none, "sequences": [], "summary": "no cells"}
    window = cache.window
    held["window"] = window and {**shown(take_frame(window.cells)), "seen": window.window}
    held["states"] = _states(cache)
    return held


def runs(frame: Frame) -> dict[str, Any]:
    """Cells as runs of neighbours with the same owners, for caches of any size."""
    owner, owners = frame.owner, frame.owners
    ends = np.flatnonzero((owner[1:] != owner[:-1]) | (owners[1:] != owners[:-1])) + 1
    begins = [0, *ends.tolist()]
    return {
        "size": len(owner),
        "runs": [
            {"at": at, "cells": end - at, "owner": int(owner[at]), "owners": int(owners[at])}
            for at, end in pairwise([*begins, len(owner)])
        ],
    }


def _frame(frame: Frame) -> dict[str, Any]:
    return {
        "owner": frame.owner.tolist(),
        "owners": frame.owners.tolist(),
        "positions": frame.positions.tolist(),
        "shifts": frame.shifts.tolist(),
    }


def _states(cache: Cache) -> dict[str, Any] | None:
    """Which rows hold which sequences' states, and at which positions; None without such layers."""
    pool = cache.recurrent
    if pool is None:
        return None
    book = pool.states.book()
    return {
        "rows": pool.states.n_rows,
        "sequences": [
            {"seq": seq, "states": [{"row": row, "position": at} for row, at in history]}
            for seq, history in sorted(book.items())
        ],
    }
