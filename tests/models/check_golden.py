"""One model against llama.cpp's logits: prefill, greedy continuation, shared and shifted sequences."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from aleator.generate import Batch, Context
from aleator.models.decoder import Decoder
from tests.optional import absent

N_PREFILL = 20
FORMS = ("native",) if "torch" in absent() else ("native", "torch")
"""A decoder's forms that run here."""


def tokens_of(decoder: Decoder) -> list[int]:
    """The prompt of tools/golden_models.py."""
    n = decoder.config.n_vocab
    return [int(t) for t in np.random.default_rng(7).integers(0, n, N_PREFILL)]


def relative(ours: npt.NDArray[np.float32], theirs: npt.NDArray[np.float32]) -> float:
    """Largest difference over the range of the logits."""
    return float(np.abs(ours - theirs).max() / (theirs.max() - theirs.min()))


def check_prefill_and_greedy(
    decoder: Decoder, name: str, golden: Any, tolerance: float = 1e-5
) -> None:
    tokens = tokens_of(decoder)
    ctx = Context(decoder, n_ctx=128, type_k="f32", type_v="f32")
    rows = ctx.decode(Batch.one(tokens, 0, logits=True))
    wanted = golden[f"{name}/prefill"]  # of all rows, or of every fourth
    assert relative(rows if len(wanted) == N_PREFILL else rows[3::4], wanted) < tolerance
    expected = golden[f"{name}/greedy"].tolist()
    got: list[int] = []
    row = rows[-1]
    while len(got) < len(expected):
        got.append(int(row.argmax()))
        row = ctx.decode(Batch.one(got[-1:], N_PREFILL + len(got) - 1))[0]
    assert got == expected


def check_script(
    decoder: Decoder, name: str, golden: Any, n_rows: int = 8, tolerance: float = 1e-5
) -> None:
    """Sequences share a beginning, part, are cut and shifted; the first ``n_rows`` are compared."""
    t = tokens_of(decoder)
    ctx = Context(decoder, n_ctx=128, n_seq_max=4, type_k="f32", type_v="f32")

    def decode(*rows: tuple[int, int, list[int]]) -> npt.NDArray[np.float32]:
        batch = Batch()
        for token, pos, seqs in rows:
            batch.add(token, pos, seqs, logits=True)
        made: npt.NDArray[np.float32] = ctx.decode(batch)
        return made

    got = [decode(*((x, i, [0, 1]) for i, x in enumerate(t[:6])))[-1:]]
    got.append(decode((t[6], 6, [0]), (t[7], 6, [1]), (t[8], 7, [1])))
    ctx.cache.seq_rm(1, 2, 4)
    ctx.cache.seq_add(1, 4, -1, -2)
    ctx.cache.seq_cp(1, 2)
    got.append(decode((t[9], 6, [1]), (t[10], 6, [2])))
    ctx.cache.seq_rm(0)
    got.append(decode((t[11], 7, [1]), (t[12], 7, [2])))
    ours, theirs = np.concatenate(got), golden[f"{name}/script"]
    assert ours.shape == theirs.shape
    for row in range(n_rows):
        assert relative(ours[row], theirs[row]) < tolerance, f"row {row}"
    ctx.cache.cells.check()


def decode_rows(ctx: Context, *rows: tuple[int, int, int]) -> npt.NDArray[np.float32]:
    """Logits of (token, position, sequence) in one batch."""
    batch = Batch()
    for token, pos, seq in rows:
        batch.add(token, pos, [seq], logits=True)
    made: npt.NDArray[np.float32] = ctx.decode(batch)
    return made


def check_recurrent_script(
    decoder: Decoder, name: str, golden: Any, tolerance: float = 1e-5
) -> None:
    """A sequence is forked and relabelled, its copies go their own ways, side by side in a batch."""
    t = tokens_of(decoder)
    ctx = Context(decoder, n_seq_max=4)

    decode = partial(decode_rows, ctx)
    got = [decode(*((x, i, 0) for i, x in enumerate(t[:6])))[-1:]]
    ctx.cache.seq_cp(0, 1)
    got.append(decode((t[6], 6, 0), (t[7], 6, 1)))
    ctx.cache.seq_cp(1, 2)
    ctx.cache.seq_add(2, 0, -1, -2)
    got.append(decode((t[8], 5, 1), (t[9], 5, 2)))
    ctx.cache.seq_rm(0)
    fresh = [(t[10 + i], i, 0) for i in range(3)]
    got.append(decode(*[(t[13 + i], 6 + i, 1) for i in range(3)], *fresh))
    assert relative(np.concatenate(got), golden[f"{name}/script"]) < tolerance
    ctx.cache.check()


def check_hybrid_script(decoder: Decoder, name: str, golden: Any, tolerance: float = 1e-5) -> None:
    """A sequence with keys and a state is forked, its copies go their own ways, side by side in a batch."""
    t = tokens_of(decoder)
    ctx = Context(decoder, n_ctx=128, n_seq_max=4, type_k="f32", type_v="f32")

    decode = partial(decode_rows, ctx)
    got = [decode(*((x, i, 0) for i, x in enumerate(t[:6])))[-1:]]
    ctx.cache.seq_cp(0, 1)
    got.append(decode((t[6], 6, 0), (t[7], 6, 1)))
    ctx.cache.seq_rm(0)
    fresh = [(t[10 + i], i, 0) for i in range(3)]
    got.append(decode(*[(t[13 + i], 7 + i, 1) for i in range(3)], *fresh))
    assert relative(np.concatenate(got), golden[f"{name}/script"]) < tolerance
    ctx.cache.check()


def model_test(check: Callable[..., None], *names: str, **options: Any) -> Any:
    """A test of ``check(name, folder, **options)`` for each model that is named."""

    @pytest.mark.parametrize("name", names)
    def test(name: str, tmp_path: Path) -> None:
        check(name, tmp_path, **options)

    return test


def like_llama_cpp(
    *names: str, script: Callable[..., None] = check_script, tolerance: float = 1e-5, **options: Any
) -> Any:
    """A test of models of tools/make_models.py: prefill, greedy continuation, and a script.

    ``options``: those of the script.
    """

    @pytest.mark.parametrize("name", names)
    def test(name: str, make_decoder: Any, golden_logits: Any) -> None:
        decoder = make_decoder(name)
        check_prefill_and_greedy(decoder, name, golden_logits, tolerance)
        script(decoder, name, golden_logits, tolerance=tolerance, **options)

    return test
