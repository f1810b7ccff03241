"""Two contexts on one model: in threads of their own, and one whose prefixes the other copies."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from aleator import LanguageModel
from aleator.cache.prefix_index import PrefixConfig
from aleator.generate import Batch, Context
from aleator.generate.prefix_reuse import SPARE, CopiedPrefixes

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


TEXT = [(7 * i) % 60 + 3 for i in range(100)]


def copied(model: LanguageModel) -> tuple[CopiedPrefixes, Context, Context]:
    """Prefixes of a context of 120 cells, for another one."""
    owner = Context(model, n_ctx=120, n_seq_max=2, n_threads=1, prefix=PrefixConfig(block=1))
    borrower = Context(model, n_ctx=200, n_seq_max=2, n_threads=1)
    borrower.decode(Batch.one(TEXT, 0, 1, logits=False))
    return CopiedPrefixes(owner, borrower), owner, borrower


def test_prefixes_are_copied_where_it_pays(model: LanguageModel) -> None:
    for n, reused in ((15, 0), (16, 0), (17, 16), (40, 39), (41, 40), (42, 40)):
        prefixes, owner, borrower = copied(model)
        owner.decode(Batch.one(TEXT[:40], 0, 0, logits=False))
        owner.cache.keep(0, TEXT[:40])
        owner.cache.seq_rm(0)
        held = prefixes.reuse(0, [*TEXT[: min(n, 41)], *[1] * (n - 41)])
        assert held == reused
        assert borrower.cache.seq_pos_max(0) == held - 1
        assert owner.cache.seq_pos_max(SPARE) == -1
        if held:  # bit for bit what the owner has
            owner.cache.reuse(0, [*TEXT[:held], 0])
            assert borrower.state_write(0) == owner.state_write(0)


def test_a_borrower_keeps_what_is_new_while_the_owner_has_room(model: LanguageModel) -> None:
    prefixes, owner, _ = copied(model)
    # (tokens, whether they are kept: at least 16 are new, and a quarter)
    for n, kept in ((15, False), (16, True), (31, False), (32, True), (42, False), (43, False)):
        assert prefixes.keep(1, TEXT[:n]) is kept, n
        assert owner.cache.seq_pos_max(SPARE) == -1
    assert prefixes.keep(1, TEXT[:48])  # 16 of 48
    for left, kept in ((64, True), (63, False)):
        prefixes, owner, _ = copied(model)
        assert prefixes._left == 120
        prefixes._left = left
        assert prefixes.keep(1, TEXT[:64]) is kept
        assert (owner.cache.match([*TEXT[:64], 0]).length == 64) is kept
    prefixes, owner, _ = copied(model)
    assert prefixes.keep(1, TEXT[:70])
    assert not prefixes.keep(1, TEXT[:86])  # 16 new, of which a quarter would be 21
    assert not prefixes.keep(1, TEXT[:93])
    assert prefixes._left == 50
