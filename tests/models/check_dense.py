"""A model of tools/dense_models.py against llama.cpp's answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dense_models import DENSE, write_dense

from aleator.core.errors import CacheFull, CannotShift, ParameterError
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.decoder import Decoder
from tests.models.check_golden import (
    FORMS,
    check_prefill_and_greedy,
    check_script,
    relative,
    tokens_of,
)

GOLDEN = Path(__file__).parents[1] / "data" / "golden_dense"
F32: Any = {"type_k": "f32", "type_v": "f32"}
N_STATE = 6


def decoder_of(name: str, folder: Path, form: str = "auto") -> Decoder:
    path = folder / f"{name}.gguf"
    if not path.exists():
        write_dense(path, DENSE[name])
    return build_decoder(open_weights(path), form=form)


def check_golden(name: str, folder: Path, tolerance: float = 1e-5, script_rows: int = 8) -> None:
    """Logits in both forms, a greedy continuation, and a script of shared and shifted sequences.

    Args:
        name: of the model.
        folder: where its file is made.
        tolerance: largest difference over the range of the logits.
        script_rows: rows of the script that are compared; the last four come after a shift.
    """
    with np.load(GOLDEN / f"{name}.npz") as arrays:
        golden = {f"{name}/{key}": arrays[key] for key in arrays.files}
    for form in FORMS:
        decoder = decoder_of(name, folder, form)
        check_prefill_and_greedy(decoder, name, golden, tolerance)
        if f"{name}/script" in golden and decoder.architecture.shifts:
            check_script(decoder, name, golden, script_rows, tolerance)
    if f"{name}/state" in golden:
        check_edits(decoder_of(name, folder), name, golden, tolerance)


def check_edits(decoder: Decoder, name: str, golden: Any, tolerance: float) -> None:
    """Answers of removals, a batch that does not fit, and llama.cpp's own state of a sequence, restored."""
    tokens = tokens_of(decoder)
    context = Context(decoder, n_ctx=256, n_seq_max=4, swa_full=True, flash_attn=False, **F32)
    cache = context.cache
    context.decode(Batch.one(tokens[:N_STATE], 0))
    state = golden[f"{name}/state"].tobytes()
    own = cache.state_write(0)
    assert len(own) == len(state)
    answers = [int(cache.seq_rm(0, p0, p1)) for p0, p1 in ((4, 5), (3, -1), (9, 12))]
    cache.state_read(state, 1)
    answers.append(1)
    restored = np.asarray(context.decode(Batch.one([tokens[N_STATE]], N_STATE, seq=1)))
    assert relative(restored, golden[f"{name}/restored"]) < tolerance
    cache.seq_rm(1)
    cache.state_read(own, 1)
    again = np.asarray(context.decode(Batch.one([tokens[N_STATE]], N_STATE, seq=1)))
    assert relative(again, golden[f"{name}/restored"]) < tolerance
    cache.clear()
    n = decoder.config.n_vocab
    context.decode(Batch.one([t % n for t in range(250)], 0))
    with pytest.raises(CacheFull):
        context.decode(Batch.one([t % n for t in range(10)], 250))
    answers.append(1)
    assert answers == golden[f"{name}/answers"].tolist()


def check_no_shift(name: str, folder: Path) -> None:
    """A shift is refused by name, and so are keys that are rotated as they are read."""
    decoder = decoder_of(name, folder)
    context = Context(decoder, n_ctx=64, **F32)
    context.decode(Batch.one(tokens_of(decoder), 0))
    assert not context.cache.can_shift()
    with pytest.raises(CannotShift):
        context.cache.seq_add(0, 4, -1, 2)
    with pytest.raises(ParameterError, match="raw"):
        Context(decoder, n_ctx=64, k_storage="raw", **F32)
