"""Whole decoders in Triton, under its interpreter: the native decoder's logits, bit for bit.

``tools/equality_decoder.py --isas triton`` compares every architecture in every type of weights.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wide_models import MODELS, write_wide

from aleator.core.errors import ParameterError
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.kernels import attention
from tests.models.prequantised import fp8, gptq, nf4, write_quantised

MISTRAL4: Any = MODELS["mistral4"]
SPECS = {
    **MODELS,
    "mistral4-growing": replace(
        MISTRAL4,
        meta={
            **MISTRAL4.meta,
            "attention.temperature_scale": 0.7,
            "attention.temperature_length": 2,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 2,
        },
    ),
}
CASES = [
    ("llama", "Q4_K", "f16", "f16"),
    ("gemma3", "Q6_K", "q8_0", "q4_0"),
    ("olmo2", "F16", "f16", "f16"),
    ("deepseek2", "Q8_0", "f32", "f32"),
    ("deepseek2", "BF16", "q8_0", "f16"),
    ("mistral4-growing", "Q8_0", "f16", "f16"),
    ("mpt", "Q5_0", "f16", "f16"),
    ("gpt-oss", "MXFP4", "f16", "f16"),
    ("gpt2", "F16", "f16", "f16"),
    ("bloom", "BF16", "f16", "f16"),
    ("gptneox", "Q4_K", "f16", "f16"),
    ("gemma4", "Q4_0", "f16", "f16"),
    ("gemma4-layer-embeddings", "Q4_0", "f16", "f16"),
    ("gemma4-experts", "Q8_0", "f16", "f16"),
    ("qwen35", "Q2_K", "bf16", "bf16"),
    ("falcon-h1", "Q5_K", "f16", "f16"),
    ("lfm2", "Q3_K", "f16", "f16"),
    ("mamba", "IQ2_XS", "f16", "f16"),
]


def logits(path: Path, form: str, **options: Any) -> list[np.ndarray[Any, Any]]:
    """Of two sequences: prefilled together, shifted where that can be, and one token each."""
    decoder = build_decoder(open_weights(path), form=form)
    context = Context(decoder, n_ctx=32, n_ubatch=8, n_seq_max=2, n_threads=1, **options)
    ids = [int(i) for i in np.random.default_rng(3).integers(0, decoder.config.n_vocab, 12)]
    batch = Batch()
    for i in range(6):
        batch.add(ids[i], i, [0], logits=True)
    for i in range(3):
        batch.add(ids[6 + i], i, [1], logits=True)
    rows = [np.asarray(context.decode(batch)).copy()]
    moved = 6
    if decoder.architecture.shifts and decoder.architecture.recurrent is None:
        context.cache.seq_rm(0, 1, 3)
        context.cache.seq_add(0, 3, -1, -2)
        moved = 4
    batch = Batch()
    batch.add(ids[10], moved, [0], logits=True)
    batch.add(ids[11], 3, [1], logits=True)
    return [*rows, np.asarray(context.decode(batch)).copy()]


@pytest.mark.parametrize(("name", "kind", "type_k", "type_v"), CASES)
def test_the_native_bits(name: str, kind: str, type_k: str, type_v: str, tmp_path: Path) -> None:
    path = write_wide(tmp_path / "m.gguf", SPECS[name], kind)
    with np.errstate(all="ignore"):
        right, ours = (logits(path, f, type_k=type_k, type_v=type_v) for f in ("native", "triton"))
    for theirs, made in zip(right, ours, strict=True):
        assert np.isfinite(theirs).all()
        assert made.tobytes() == theirs.tobytes()


def test_heads_without_a_program_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of more heads of tokens than :data:`attention.ALONE`."""
    monkeypatch.setattr(attention, "ALONE", 0)
    path = write_wide(tmp_path / "m.gguf", SPECS["deepseek2"], "Q8_0")
    right, ours = (logits(path, form) for form in ("native", "triton"))
    for theirs, made in zip(right, ours, strict=True):
        assert made.tobytes() == theirs.tobytes()


@pytest.mark.parametrize(
    ("name", "cache", "room"),
    [
        ("minicpm3", "f16", attention.ROOM), ("minicpm3", "f16", 100), ("qwen3", "q8_0", attention.ROOM),
        ("gpt-oss", "q5_1", attention.ROOM), ("gemma4", "bf16", attention.ROOM),
    ],
)  # fmt: skip
def test_new_keys_of_one_token_each(
    name: str, cache: str, room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attention's programs finish them, but where scores of all tokens have no room at once."""
    monkeypatch.setattr(attention, "ROOM", room)
    path = write_wide(tmp_path / "m.gguf", SPECS[name], "Q8_0")
    how: Any = {"type_k": cache, "type_v": cache}
    made = []
    for form in ("native", "triton"):
        decoder = build_decoder(open_weights(path), form=form)
        context = Context(decoder, n_ctx=32, n_ubatch=8, n_seq_max=2, n_threads=1, **how)
        for i in range(2):
            batch = Batch()
            for seq in (0, 1):
                batch.add(3 + 5 * i + seq, i, [seq], logits=True)
            rows = np.asarray(context.decode(batch))
        made.append(rows.tobytes())
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("method", "make"),
    [
        ("gptq", gptq),
        ("gptq", partial(gptq, scattered=True)),
        ("fp8", fp8),
        ("bitsandbytes", nf4),
    ],
)
def test_directories_that_others_quantised(tmp_path: Path, method: str, make: Any) -> None:
    config = {"quant_method": method, "group_size": 64, "weight_block_size": [64, 64]}
    write_quantised(tmp_path / "m", config, make)
    for theirs, made in zip(
        logits(tmp_path / "m", "native"), logits(tmp_path / "m", "triton"), strict=True
    ):
        assert made.tobytes() == theirs.tobytes()


def test_raw_keys(tmp_path: Path) -> None:
    path = write_wide(tmp_path / "m.gguf", MODELS["qwen3"], "Q8_0")
    right, ours = (logits(path, form, k_storage="raw") for form in ("native", "triton"))
    for theirs, made in zip(right, ours, strict=True):
        assert made.tobytes() == theirs.tobytes()


def test_another_type_is_refused(tmp_path: Path) -> None:
    weights = open_weights(write_wide(tmp_path / "m.gguf", MODELS["qwen3"], "Q8_0"))
    with pytest.raises(ParameterError, match="dtype='bfloat16': form='triton' keeps weights as"):
        build_decoder(weights, "cpu", "bfloat16", form="triton")
