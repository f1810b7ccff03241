"""Two contexts on one model, each in a thread of its own, do not disturb each other."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from aleator import LanguageModel
from aleator.generate import Batch, Context

Logits = npt.NDArray[np.float32]


def text(model: LanguageModel, seed: int) -> list[Logits]:
    """Logits of a prompt, an edit, and thirty tokens after it."""
    tokens = np.random.default_rng(seed).integers(1, 2000, 50).tolist()
    context = Context(model, n_ctx=128, n_seq_max=2, n_threads=1)
    rows = [context.decode(Batch.one(tokens[:20])).copy()]
    context.cache.seq_rm(0, 3, 6)
    context.cache.seq_add(0, 6, -1, -3)
    context.cache.seq_cp(0, 1, 0, 10)
    for token in tokens[20:]:
        rows.append(context.decode(Batch.one([token])).copy())
    context.cache.cells.check()
    return rows


def test_threads_get_what_one_gets(model: LanguageModel) -> None:
    seeds = (1, 2, 3)
    alone = {seed: text(model, seed) for seed in seeds}
    together: dict[int, list[Logits]] = {}

    def run(seed: int) -> None:
        together[seed] = text(model, seed)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in seeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    for seed in seeds:
        for expected, made in zip(alone[seed], together[seed], strict=True):
            np.testing.assert_array_equal(made, expected)
