"""Aleator's KV cache in transformers: the cases that transformers tests its own caches with, and ours."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    DynamicCache,
    FalconConfig,
    FalconForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    Lfm2Config,
    Lfm2ForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    MistralConfig,
    MistralForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from aleator.core.errors import CacheError, CacheFull, CannotShift, ParameterError, UnsupportedModel
from aleator.integrations.transformers_cache import AleatorCache
from aleator.integrations.transformers_layers import held_by
from tests.integrations.small_llama import padded, small_llama
from tests.torch_threads import (
    one_torch_thread as one_torch_thread,
)  # this runs without conftest.py

PROMPTS = [[5, 6, 7, 8, 9, 5, 6], [11], [20, 21, 20, 21, 20]]
N = 10


pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(scope="module")
def llama() -> Any:
    return small_llama()


def greedy(model: Any, cache: Any, ids: torch.Tensor, **options: Any) -> torch.Tensor:
    out: torch.Tensor = model.generate(
        ids, do_sample=False, max_new_tokens=N, **held_by(model, cache), **options
    )
    return out


def same(ours: Any, theirs: Any) -> None:
    """Keys and values are those of transformers' cache, bit for bit."""
    assert ours.get_seq_length() == theirs.get_seq_length()
    for a, b in zip(ours.layers, theirs.layers, strict=True):
        assert torch.equal(a.keys, b.keys)
        assert torch.equal(a.values, b.values)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"prefill_chunk_size": 3}])
def test_texts_are_those_with_their_cache(llama: Any, options: dict[str, Any]) -> None:
    ids, mask = padded(PROMPTS)
    theirs = DynamicCache(config=llama.config)
    want = greedy(llama, theirs, ids, attention_mask=mask, **options)
    ours = AleatorCache(llama, 512, max_batch=9)
    assert torch.equal(greedy(llama, ours, ids, attention_mask=mask, **options), want)
    if not options:
        same(ours, theirs)
        ours.kv.check()


def test_assisted_generation_cuts_it(llama: Any) -> None:
    ids = torch.tensor([PROMPTS[0]])
    want = greedy(llama, DynamicCache(config=llama.config), ids)
    ours = AleatorCache(llama, 128)
    assert torch.equal(greedy(llama, ours, ids, assistant_model=small_llama(layers=1)), want)


def test_cases_of_their_own_tests(llama: Any) -> None:
    """update, crop, reorder, select, repeat and reset, beside DynamicCache."""
    torch.manual_seed(1)

    def states(rows: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(rows, 2, n, 8), torch.randn(rows, 2, n, 8)

    ours, theirs = AleatorCache(llama, 256, max_batch=6), DynamicCache(config=llama.config)

    def update(rows: int, n: int) -> None:
        for layer in range(2):
            k, v = states(rows, n)
            got = ours.update(k, v, layer)
            want = theirs.update(k, v, layer)
            assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))

    assert ours.get_seq_length() == 0
    assert not ours.is_initialized
    update(2, 5)
    update(2, 1)
    assert ours.get_mask_sizes(3, 0) == theirs.get_mask_sizes(3, 0) == (9, 0)
    for cache in (ours, theirs):
        cache.crop(-2)
    same(ours, theirs)
    for cache in (ours, theirs):
        cache.reorder_cache(torch.tensor([1, 1]))
    same(ours, theirs)
    update(2, 3)
    for cache in (ours, theirs):
        cache.batch_repeat_interleave(3)
    same(ours, theirs)
    update(6, 1)
    for cache in (ours, theirs):
        cache.batch_select_indices(torch.tensor([4, 0]))
    same(ours, theirs)
    for cache in (ours, theirs):
        cache.batch_select_indices((1, 0))  # their own test gives a tuple
    same(ours, theirs)
    update(2, 2)
    ours.kv.check()
    for cache in (ours, theirs):
        cache.crop(-100)
    update(2, 2)
    ours.reset()
    assert ours.kv.used == 0
    assert ours.get_seq_length() == 0
    assert len(ours) == 2


def test_copies_share_cells(llama: Any) -> None:
    ours = AleatorCache(llama, 64, max_batch=4)
    ids = torch.tensor([PROMPTS[0]])
    with torch.no_grad():
        llama(ids, **held_by(llama, ours))
    used = ours.kv.used
    other, third = ours.fork(), copy.deepcopy(ours)
    assert ours.kv.used == used == len(PROMPTS[0])
    want = greedy(llama, DynamicCache(config=llama.config), torch.tensor([[*PROMPTS[0], 3]]))
    for cache in (other, third, ours):
        assert torch.equal(greedy(llama, cache, torch.tensor([[*PROMPTS[0], 3]])), want)
    ours.truncate(3)
    assert (ours.length, other.length) == (3, len(PROMPTS[0]) + N)


def test_a_context_shift(llama: Any) -> None:
    """Keys that move are those of a text that stood there from the start (one layer, so values are too)."""
    model = small_llama(layers=1)
    text = [4, 5, 6, 7, 8, 9, 10, 11]
    ours, want = AleatorCache(model, 64), AleatorCache(model, 64)
    with torch.no_grad():
        model(torch.tensor([text]), **held_by(model, ours))
        model(torch.tensor([text[:2] + text[5:]]), **held_by(model, want))
    assert ours.slide(keep=2, discard=3) == 3
    assert ours.get_seq_length() == 5
    torch.testing.assert_close(ours.layers[0].keys, want.layers[0].keys, atol=1e-5, rtol=1e-5)
    assert torch.equal(ours.layers[0].values, want.layers[0].values)


SMALL = {
    "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "intermediate_size": 32, "pad_token_id": 0,
}  # fmt: skip
LATENT = {
    "num_key_value_heads": 2,
    "kv_lora_rank": 16, "q_lora_rank": None, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "first_k_dense_replace": 1, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (CohereForCausalLM, CohereConfig(**SMALL)),  # rotates neighbours, not halves
        (SmolLM3ForCausalLM, SmolLM3Config(**SMALL, no_rope_layers=[0])),  # does not rotate
        (FalconForCausalLM, FalconConfig(**SMALL, multi_query=True)),  # one head for all
        (SmolLM3ForCausalLM, SmolLM3Config(**{**SMALL, "num_hidden_layers": 2}, no_rope_layers=[0, 1])),
    ],
)  # fmt: skip
def test_keys_move_as_the_model_rotates_them(kind: Any, config: Any) -> None:
    torch.manual_seed(0)
    model = kind(config).eval()
    text = [4, 5, 6, 7, 8, 9, 10, 11]
    ours, want = AleatorCache(model, 64), AleatorCache(model, 64)
    with torch.no_grad():
        model(torch.tensor([text]), **held_by(model, ours))
        model(torch.tensor([text[:2] + text[5:]]), **held_by(model, want))
    if getattr(config, "no_rope_layers", None) == [0]:
        with pytest.raises(CannotShift):  # nothing shows that the model heard of positions
            ours.slide(keep=2, discard=3)
        return
    before = [layer.keys for layer in ours.layers]
    ours.slide(keep=2, discard=3)
    torch.testing.assert_close(ours.layers[0].keys, want.layers[0].keys, atol=1e-5, rtol=1e-5)
    if (
        len(before) == 2
    ):  # the second layer's keys depend on what was there: they are rotated back here
        moved = [0, 1, 5, 6, 7]
        off = ours.layers[1].keys[:, :, 2:] - before[1][:, :, moved][:, :, 2:]
        assert off.abs().max() > 0.01
        assert torch.equal(ours.layers[0].keys, before[0][:, :, moved])


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (GPT2LMHeadModel, GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=2)),
        (DeepseekV3ForCausalLM, DeepseekV3Config(**{**SMALL, **LATENT})),
        (FalconForCausalLM, FalconConfig(**SMALL, multi_query=True)),
    ],
)
def test_layers_of_other_shapes(kind: Any, config: Any) -> None:
    torch.manual_seed(0)
    model = kind(config).eval()
    ids = torch.tensor([PROMPTS[0]])
    ours = AleatorCache(model, 64)
    assert torch.equal(greedy(model, ours, ids), greedy(model, DynamicCache(), ids))
    if kind is not FalconForCausalLM:
        with pytest.raises(CannotShift):
            ours.slide(keep=2, discard=3)


TWO = {**SMALL, "num_hidden_layers": 2}
EXPERTS = {"num_local_experts": 2, "intermediate_size_mlp": 32, "interleave_moe_layer_step": 2}
MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}
WINDOWS = [
    (MistralForCausalLM, MistralConfig(**TWO, sliding_window=5)),
    (Gemma3ForCausalLM, Gemma3TextConfig(**TWO, **MIXED, head_dim=16)),  # two kinds of rotation
    (
        Llama4ForCausalLM,
        Llama4TextConfig(**TWO, **EXPERTS, attention_chunk_size=4, no_rope_layers=[1, 0]),
    ),
]


@pytest.mark.parametrize(("kind", "config"), WINDOWS)
def test_layers_with_windows(kind: Any, config: Any) -> None:
    """Texts, keys and values are those with transformers' cache, also where a text is cut far back."""
    torch.manual_seed(0)
    model = kind(config).eval()
    model.generation_config.eos_token_id = None
    ids, mask = padded(PROMPTS)
    for options in ({}, {"prefill_chunk_size": 3}):
        theirs = DynamicCache(config=config)
        ours = AleatorCache(model, 128, max_batch=3)
        want = greedy(model, theirs, ids, attention_mask=mask, **options)
        assert torch.equal(greedy(model, ours, ids, attention_mask=mask, **options), want)
        same(ours, theirs)
        for n in (1, 6):
            assert [ours.get_mask_sizes(n, i) for i in range(2)] == [
                theirs.get_mask_sizes(n, i) for i in range(2)
            ]
    assert ours.is_sliding == theirs.is_sliding
    other = ours.fork()
    other.truncate(8)  # their cache has forgotten what this needs
    longer = torch.nn.functional.pad(mask, (0, 2), value=1)
    again = greedy(model, other, want[:, :9], attention_mask=longer)
    assert torch.equal(again[:, : want.shape[1]], want)


def test_assisted_generation_with_windows() -> None:
    kind, config = WINDOWS[1]
    torch.manual_seed(0)
    model = kind(config).eval()
    model.generation_config.eos_token_id = None
    ids = torch.tensor([PROMPTS[0]])
    want = greedy(model, DynamicCache(config=config), ids)
    ours = AleatorCache(model, 128)
    assert torch.equal(greedy(model, ours, ids, prompt_lookup_num_tokens=3), want)


def test_a_context_shift_with_two_rotations() -> None:
    kind, config = WINDOWS[1]
    torch.manual_seed(0)
    model = kind(config).eval()
    text = [4, 5, 6, 7, 8, 9, 10, 11, 12]
    ours, want = AleatorCache(model, 64), AleatorCache(model, 64)
    with torch.no_grad():
        model(torch.tensor([text]), **held_by(model, ours))
        model(torch.tensor([text[:2] + text[5:]]), **held_by(model, want))
    ours.slide(keep=2, discard=3)
    a, b = ours.layers[0], want.layers[0]
    assert a.keys.shape[2] == 3  # of a window of 4, before the next token
    torch.testing.assert_close(a.keys, b.keys, atol=1e-5, rtol=1e-5)
    assert torch.equal(a.values, b.values)


def test_copies_that_are_dropped_give_up_their_rows(llama: Any) -> None:
    ours = AleatorCache(llama, 64, max_batch=2)
    with torch.no_grad():
        llama(torch.tensor([PROMPTS[0]]), **held_by(llama, ours))
    used = ours.kv.used
    for _ in range(8):
        other = copy.deepcopy(ours)
        greedy(llama, other, torch.tensor([[*PROMPTS[0], 3]]))
        del other
        assert ours.kv.used == used


@pytest.mark.parametrize("type_", ["f16", "bf16"])
def test_types(llama: Any, type_: str) -> None:
    ours, theirs = AleatorCache(llama, 64, type_k=type_, type_v=type_), DynamicCache()
    ids = torch.tensor([PROMPTS[0]])
    with torch.no_grad():
        a = llama(ids, **held_by(llama, ours)).logits
        b = llama(ids, **held_by(llama, theirs)).logits
    torch.testing.assert_close(a, b, atol=0.5, rtol=0.05)
    assert ours.kv.bytes_k * 2 == AleatorCache(llama, 64).kv.bytes_k
    rounded = theirs.layers[0].keys.to({"f16": torch.float16, "bf16": torch.bfloat16}[type_])
    assert torch.equal(ours.layers[0].keys, rounded.float())


def test_blocks_of_eight_bits() -> None:
    model = small_llama()
    with pytest.raises(ParameterError, match="blocks of 32"):
        AleatorCache(model, 64, type_k="q8_0")
    config = copy.deepcopy(model.config)
    config.hidden_size, config.head_dim, config.num_attention_heads = 64, 32, 2
    config.num_key_value_heads = 1
    torch.manual_seed(0)
    wide = type(model)(config).eval()
    ours, theirs = AleatorCache(wide, 64, type_k="q8_0", type_v="q8_0"), DynamicCache()
    ids = torch.tensor([PROMPTS[0]])
    with torch.no_grad():
        wide(ids, **held_by(wide, ours))
        wide(ids, **held_by(wide, theirs))
    off = (ours.layers[0].keys - theirs.layers[0].keys).abs().max()
    assert 0 < off < theirs.layers[0].keys.abs().max() / 60


def test_files(llama: Any, tmp_path: Path) -> None:
    ours = AleatorCache(llama, 128)
    ids = torch.tensor([PROMPTS[0]])
    with torch.no_grad():
        llama(ids, **held_by(llama, ours))
    ours.save(tmp_path / "row", tokens=PROMPTS[0], model="small")
    blob = ours.save(tokens=PROMPTS[0])
    assert isinstance(blob, bytes)
    for source in (tmp_path / "row", blob):
        other = AleatorCache(llama, 128)
        assert other.load(source, rows=2).tokens == tuple(PROMPTS[0])
        assert other.kv.used == len(PROMPTS[0])
        for row in range(2):
            assert torch.equal(other.layers[1].keys[row], ours.layers[1].keys[0])
    want = greedy(llama, DynamicCache(config=llama.config), torch.tensor([[*PROMPTS[0], 3]] * 2))
    assert torch.equal(greedy(llama, other, torch.tensor([[*PROMPTS[0], 3]] * 2)), want)


def test_refusals(llama: Any) -> None:
    states = {**SMALL, "num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}
    with pytest.raises(UnsupportedModel, match=r"lfm2: .*one of its layers in a Linear"):
        AleatorCache(Lfm2ForCausalLM(Lfm2Config(**states)), 64)
    small = AleatorCache(llama, 4, max_batch=1)
    with pytest.raises(CacheFull, match="free cells"), torch.no_grad():
        llama(torch.tensor([PROMPTS[0]]), **held_by(llama, small))
    assert small.kv.used == 0
    with pytest.raises(ParameterError, match="max_batch=2"), torch.no_grad():
        llama(torch.tensor([[1], [2]]), **held_by(llama, small))
    with torch.no_grad():
        llama(torch.tensor([[1, 2]]), **held_by(llama, small))
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: small.crop(1), "-1"),
        (lambda: small.truncate(3), "2 tokens"),
        (lambda: small.batch_repeat_interleave(2), "max_batch=2"),
    ]
    for call, words in refused:
        with pytest.raises(ParameterError, match=words):
            call()
    with pytest.raises(ParameterError, match="2 rows in a cache of 1"), torch.no_grad():
        llama(torch.tensor([[1], [2]]), **held_by(llama, small))
    small.update(torch.zeros(1, 2, 1, 8), torch.zeros(1, 2, 1, 8), 0)
    with pytest.raises(CacheError, match="not ended"):
        small.save()
