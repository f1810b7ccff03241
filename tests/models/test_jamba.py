"""jamba against llama.cpp's logits (tools/golden_models.py), and a real model in a cache of two pools."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_models import SPECS, random_tensors, write_model

from aleator import load
from aleator.cache.prefix_index import PrefixConfig
from aleator.core.errors import CannotRewind, FileFormatError
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.decoder import Decoder
from aleator.models.hub.bundled import bundled_model
from tests.models.check_golden import check_hybrid_script, check_prefill_and_greedy
from tests.models.check_transformers import check, write

transformers: Any = pytest.importorskip("transformers")

NAMES = ["jamba", "jamba-tied", "jamba-experts"]
TEXT = [int(t) for t in np.random.default_rng(4).integers(0, 64, 300)]


@pytest.mark.parametrize("name", NAMES)
def test_prefill_and_greedy(name: str, make_decoder: Any, golden_logits: Any) -> None:
    check_prefill_and_greedy(make_decoder(name), name, golden_logits)


@pytest.mark.parametrize("name", NAMES)
def test_forked_sequences(name: str, make_decoder: Any, golden_logits: Any) -> None:
    check_hybrid_script(make_decoder(name), name, golden_logits)


def feed(ctx: Any, seq: int, tokens: list[int]) -> Any:
    logits: Any = ctx.decode(Batch.one(tokens, None, seq))[-1]
    ctx.cache.check()
    return logits


def same(a: Any, b: Any) -> bool:
    return bool(np.abs(a - b).max() < 1e-5 * (b.max() - b.min()))


def fresh(decoder: Decoder, tokens: list[int]) -> Any:
    return feed(Context(decoder, n_ctx=400, type_k="f32", type_v="f32"), 0, tokens)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_norms_in_16_bits(tmp_path: Path, dtype: str) -> None:
    """Those of a state's step and matrices too; PyTorch warns of weights in another type."""
    weights = open_weights(write_model(tmp_path / "m.gguf", SPECS["jamba"]))
    exact, rounded = (
        feed(Context(build_decoder(weights, dtype=each, form="torch"), n_ctx=16), 0, [3, 1, 4])
        for each in ("float32", dtype)
    )
    assert np.abs(exact - rounded).max() < 0.05 * (exact.max() - exact.min())


@pytest.mark.parametrize("name", ["jamba", "jamba-experts"])
def test_rewinds_checkpoints_and_cached_prefixes(name: str, make_decoder: Any) -> None:
    decoder = make_decoder(name)
    ctx: Any = Context(
        decoder,
        n_ctx=400,
        n_ubatch=16,
        n_seq_max=2,
        n_rollback=3,
        type_k="f32",
        type_v="f32",
        prefix=PrefixConfig(block=4, spacing=8),
    )
    cache = ctx.cache
    feed(ctx, 0, TEXT[:50])
    text = cache.sequence(0)
    with pytest.raises(CannotRewind) as caught:
        text.truncate(46)
    assert caught.value.oldest_legal == 47
    mark = text.checkpoint()
    feed(ctx, 0, TEXT[50:90])
    text.restore(mark)
    assert same(feed(ctx, 0, TEXT[50:60]), fresh(decoder, TEXT[:60]))
    cache.seq_rm(0)
    feed(ctx, 0, TEXT[:60])
    assert cache.keep(0, TEXT[:60])
    other: Any = Context(decoder, n_ctx=400, n_seq_max=2, type_k="f32", type_v="f32")
    other.cache.state_read(cache.state_write())
    other.cache.state_read(cache.state_write(0), 1)
    for seq in (0, 1):
        assert same(feed(other, seq, TEXT[60:63]), fresh(decoder, TEXT[:63]))
    part = cache.state_write(0, partial=True)
    feed(ctx, 0, TEXT[60:70])
    cache.state_read(part, 0, partial=True)
    assert text.next == 60
    cache.seq_rm(0)
    for parts, found in ((60, 60), (59, 56), (24, 24), (23, 16), (7, 0)):
        tokens = [*TEXT[:parts], 1, 2, 3]
        assert cache.reuse(1, tokens) == found
        assert same(feed(ctx, 1, tokens[found:]), fresh(decoder, tokens))
        cache.seq_rm(1)


def test_generation(tmp_path: Path) -> None:
    spec = replace(SPECS["jamba"], n_vocab=2048)
    path = write_model(tmp_path / "m.gguf", spec, tokenizer_from=bundled_model())
    options: dict[str, Any] = {"max_tokens": 20, "temperature": 0.0, "ignore_eos": True}
    model = load(path, n_threads=1)
    first = model.generate("ROMEO: But soft, what light", **options)
    assert (
        first.text == load(path, prompt_cache=False).generate(first.request.tokens, **options).text
    )
    shifted = load(path, n_threads=1, n_ctx=24).generate(
        first.request.tokens, context_shift=True, seed=1, max_tokens=40, ignore_eos=True
    )
    assert len(shifted.text) >= 30
    assert shifted.stats.context_shifts > 1
    model.save_session(tmp_path / "s", first)
    again = load(path, n_threads=1)
    rest = again.generate(again.load_session(tmp_path / "s"), max_tokens=2)
    assert rest.text is not None
    assert rest.stats.prompt_tokens == 1


@pytest.mark.parametrize(
    "name", ["blk.0.ssm_b_norm.weight", "blk.1.attn_q.weight", "blk.2.ffn_up.weight"]
)
def test_missing_tensors_are_named(tmp_path: Path, name: str) -> None:
    tensors = random_tensors(SPECS["jamba"])
    del tensors[name]
    path = write_model(tmp_path / "m.gguf", SPECS["jamba"], tensors)
    with pytest.raises(FileFormatError, match=name.removesuffix(".weight")):
        build_decoder(open_weights(path))


@pytest.mark.parametrize(
    "changes", [{}, {"num_experts": 1}, {"mamba_conv_bias": False, "tie_word_embeddings": True}]
)
def test_logits_are_those_of_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    sizes: dict[str, Any] = {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 512,
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 3,
        "expert_layer_offset": 1,
        "use_mamba_kernels": False,
    }
    config = transformers.JambaConfig(**(sizes | changes))
    # B and C are small before they are normalised, which magnifies the last bits.
    check(write(transformers.JambaForCausalLM(config), tmp_path), tmp_path, tolerance=1e-4)
