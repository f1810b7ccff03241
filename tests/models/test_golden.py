"""Every small random model gives the answers of llama.cpp that tools/golden_models.py recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from delta_models import Delta
from dense_shapes import Dense
from hybrid_models import Hybrid
from make_models import write_model
from wide_models import SMALL

from aleator.core.errors import CacheFull, CannotRewind, CannotShift, ParameterError
from aleator.generate import Batch, Context
from aleator.models.decoder import Decoder
from aleator.models.hub.bundled import bundled_model
from tests.cache.caches import decode
from tests.models.check_golden import F32, FORMS, N_PREFILL, decoder_of, golden_of, tokens_of
from tests.models.check_kept import check_rewinds, check_texts
from tests.models.check_transformers import relative

N_STATE = 6
REMOVALS: dict[type, tuple[tuple[int, int], ...]] = {
    Delta: ((3, -1), (9, 12)),
    Dense: ((4, 5), (3, -1), (9, 12)),
    Hybrid: ((3, -1), (2, 4), (9, 12)),
}
TOLERANCES = {"qwen2vl": 2e-5} | dict.fromkeys(
    (
        "bloom", "bloom-six-heads", "codeshell", "falcon", "falcon-two-norms", "gpt2", "gptneox",
        "gptneox-in-turn", "mpt", "phi2", "starcoder", "starcoder2", "gemma2", "gemma2-wide-heads", "gemma3",
        "spark2_5", "gemma3-pattern-2", "gemma3-full", "gemma3-softcap", "gemma3-full-softcap",
        *(name for name in SMALL if name.startswith("gemma4")),
    ), 1e-4,
)  # fmt: skip
"""Differences over the range of logits, where 1e-5 is not enough.

GELU is rounded to float16 in both (models/layers/feed_forward.py), so a difference in the last bit of a sum can
become one of float16's last bit.
"""
UNTIL_A_SHIFT = (
    "afmoe", "baichuan", "baichuan-alibi", "cohere2", "cohere2moe", "cohere2moe-rms",
    "deepseek2-ocr", "deepseek2-yarn", "exaone-moe", "gpt-oss", "llama-yarn", "llama4", "mellum",
    "minicpm3-longrope", "olmo2-windows", "phi3-longrope",
    "phi3-longrope-short", "qwen2-tied-yarn", "qwen3-tied-yarn", "qwen3moe-all", "smollm3", "starcoder",
)  # fmt: skip
"""Models of whose script the last four rows are not compared.

In a shift llama.cpp multiplies keys by the magnitude of YaRN or LongRoPE once more, and rotates keys of layers
that do not rotate, and deepseek2-ocr's as other pairs; ours stay exact (tests/generate/test_context.py).
"""
REUSED = [
    "jamba", "jamba-experts",
    *(n for n, spec in SMALL.items() if isinstance(spec, Hybrid | Delta) and n == spec.arch),
]  # fmt: skip
TEXTS = [
    "falcon-h1", "gpt-oss", "jamba", "kimi-linear", "lfm2", "mamba2", "nemotron_h", "nemotron_h_moe",
]  # fmt: skip


# Of gpt-oss-mxfp4 see test_gpt_oss.py.
@pytest.mark.parametrize("name", [name for name in SMALL if name != "gpt-oss-mxfp4"])
def test_llama_cpp(name: str, tmp_path: Path) -> None:
    """Logits in both forms, a greedy continuation, a script of sequences, a state, and what edits answer."""
    golden, tolerance = golden_of(name), TOLERANCES.get(name, 1e-5)
    for form in FORMS:
        decoder = decoder_of(name, tmp_path, form)
        check_prefill_and_greedy(decoder, golden, tolerance)
        has_states = decoder.architecture.recurrent is not None
        if "script" in golden and (has_states or decoder.architecture.shifts):
            check_script(name, decoder, golden, tolerance)
    if "state" in golden:
        check_edits(name, decoder_of(name, tmp_path), golden, tolerance)


def check_prefill_and_greedy(decoder: Decoder, golden: Any, tolerance: float) -> None:
    ctx = Context(decoder, n_ctx=128, **F32)
    rows = ctx.decode(Batch.one(tokens_of(decoder), 0, logits=True))
    wanted = golden["prefill"]  # of all rows, or of every fourth
    assert relative(rows if len(wanted) == N_PREFILL else rows[3::4], wanted) < tolerance
    expected = golden["greedy"].tolist()
    got: list[int] = []
    row = rows[-1]
    while len(got) < len(expected):
        got.append(int(row.argmax()))
        row = ctx.decode(Batch.one(got[-1:], N_PREFILL + len(got) - 1))[0]
    assert got == expected


Rows = list[npt.NDArray[np.float32]]


def check_script(name: str, decoder: Decoder, golden: Any, tolerance: float) -> None:
    """Sequences share a beginning, part, and are cut, shifted or forked, as in tools/golden_models.py."""
    ctx = Context(decoder, n_ctx=128, n_seq_max=4, **F32)
    if decoder.architecture.recurrent is None:
        script = cut_and_shifted
    else:
        script = forked if decoder.cache_shapes else forked_states
    ours, theirs = np.concatenate(script(ctx, tokens_of(decoder))), golden["script"]
    assert ours.shape == theirs.shape
    for row in range(4 if name in UNTIL_A_SHIFT else len(ours)):
        assert relative(ours[row], theirs[row]) < tolerance, f"row {row}"
    ctx.cache.check()


def cut_and_shifted(ctx: Context, t: list[int]) -> Rows:
    got = [decode(ctx, *((x, i, [0, 1]) for i, x in enumerate(t[:6])))[-1:]]
    got.append(decode(ctx, (t[6], 6, [0]), (t[7], 6, [1]), (t[8], 7, [1])))
    ctx.cache.seq_rm(1, 2, 4)
    ctx.cache.seq_add(1, 4, -1, -2)
    ctx.cache.seq_cp(1, 2)
    got.append(decode(ctx, (t[9], 6, [1]), (t[10], 6, [2])))
    ctx.cache.seq_rm(0)
    got.append(decode(ctx, (t[11], 7, [1]), (t[12], 7, [2])))
    return got


def forked(ctx: Context, t: list[int]) -> Rows:
    """Copies of a sequence with keys and a state go their own ways, side by side in a batch."""
    got = [decode(ctx, *((x, i, [0]) for i, x in enumerate(t[:6])))[-1:]]
    ctx.cache.seq_cp(0, 1)
    got.append(decode(ctx, (t[6], 6, [0]), (t[7], 6, [1])))
    ctx.cache.seq_rm(0)
    fresh = [(t[10 + i], i, [0]) for i in range(3)]
    got.append(decode(ctx, *[(t[13 + i], 7 + i, [1]) for i in range(3)], *fresh))
    return got


def forked_states(ctx: Context, t: list[int]) -> Rows:
    """A sequence of states alone is relabelled as well."""
    got = [decode(ctx, *((x, i, [0]) for i, x in enumerate(t[:6])))[-1:]]
    ctx.cache.seq_cp(0, 1)
    got.append(decode(ctx, (t[6], 6, [0]), (t[7], 6, [1])))
    ctx.cache.seq_cp(1, 2)
    ctx.cache.seq_add(2, 0, -1, -2)
    got.append(decode(ctx, (t[8], 5, [1]), (t[9], 5, [2])))
    ctx.cache.seq_rm(0)
    fresh = [(t[10 + i], i, [0]) for i in range(3)]
    got.append(decode(ctx, *[(t[13 + i], 6 + i, [1]) for i in range(3)], *fresh))
    return got


def check_edits(name: str, decoder: Decoder, golden: Any, tolerance: float) -> None:
    """Answers of removals, a batch that does not fit, and llama.cpp's own state of a sequence, restored."""
    kind, tokens = type(SMALL[name]), tokens_of(decoder)
    context = Context(decoder, n_ctx=256, n_seq_max=4, swa_full=True, flash_attn=False, **F32)
    cache: Any = context.cache
    answers = [int(cache.can_shift())] if kind is Delta else []
    context.decode(Batch.one(tokens[:N_STATE], 0))
    state, own = golden["state"].tobytes(), cache.state_write(0)
    answers += [removed(cache, p0, p1) for p0, p1 in REMOVALS[kind]]
    # With M-RoPE llama.cpp's cells have further positions where layers keep states too.
    for held in (state, own) if kind is not Delta or cache.can_shift() else ():
        assert len(own) == len(state)
        cache.seq_rm(1)
        cache.state_read(held, 1)
        row = np.asarray(context.decode(Batch.one([tokens[N_STATE]], N_STATE, seq=1)))
        assert relative(row, golden["restored"]) < tolerance
    answers.append(1)
    if kind is Dense:
        cache.clear()
        n = decoder.config.n_vocab
        context.decode(Batch.one([t % n for t in range(250)], 0))
        with pytest.raises(CacheFull):
            context.decode(Batch.one([t % n for t in range(10)], 250))
        answers.append(1)
    elif cache.can_shift():
        with pytest.raises(CannotRewind):
            cache.sequence(1).truncate(3)
    cache.check()
    assert answers == golden["answers"].tolist()


def removed(cache: Any, p0: int, p1: int) -> int:
    """1, or 0 where the states are not held that the rest would need."""
    try:
        return int(cache.seq_rm(0, p0, p1))
    except CannotRewind:
        return 0


@pytest.mark.parametrize("name", REUSED)
def test_rewinds_checkpoints_and_cached_prefixes(name: str, tmp_path: Path) -> None:
    check_rewinds(decoder_of(name, tmp_path))


@pytest.mark.parametrize("name", TEXTS)
def test_generation_sessions_and_shifts(name: str, tmp_path: Path) -> None:
    spec: Any = replace(SMALL[name], n_vocab=2048)
    check_texts(write_model(tmp_path / "m.gguf", spec, tokenizer_from=bundled_model()))


@pytest.mark.parametrize("name", ["falcon-h1", "lfm2"])
def test_shifted_keys_are_rotated(name: str, tmp_path: Path) -> None:
    """Keys that are rotated to other positions give what they gave before: positions are relative."""
    decoder = decoder_of(name, tmp_path)
    text = [int(t) for t in np.random.default_rng(5).integers(0, decoder.config.n_vocab, 12)]
    rows = []
    for moved in (0, 3):
        context = Context(decoder, n_ctx=128, **F32)
        context.decode(Batch.one(text[:-1]))
        context.cache.seq_add(0, 0, -1, moved)
        rows.append(np.asarray(context.decode(Batch.one(text[-1:], len(text) - 1 + moved)))[0])
    assert relative(rows[1], rows[0]) < 1e-5
    assert rows[0].tobytes() != rows[1].tobytes()  # it was rotated


@pytest.mark.parametrize(
    "name",
    ["qwen2vl", "qwen3vl", "qwen3vlmoe", "maincoder", "hunyuan-dense", "hunyuan_vl", "paddleocr"],
)
def test_a_shift_is_refused(name: str, tmp_path: Path) -> None:
    """By name, and so are keys that are rotated as they are read."""
    decoder = decoder_of(name, tmp_path)
    context = Context(decoder, n_ctx=64, **F32)
    context.decode(Batch.one(tokens_of(decoder), 0))
    assert not context.cache.can_shift()
    with pytest.raises(CannotShift):
        context.cache.seq_add(0, 4, -1, 2)
    with pytest.raises(ParameterError, match="raw"):
        Context(decoder, n_ctx=64, k_storage="raw", **F32)
