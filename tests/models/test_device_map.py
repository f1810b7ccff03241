"""Layers on several devices: where weights and caches are, and that nothing else changes.

No GPU is needed.  Two parts of the CPU with numbers are devices of their own for a map, and compute.  PyTorch's
device "meta" computes nothing, but is another device to PyTorch, which refuses to mix tensors of both.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from make_models import write_model
from wide_models import SMALL

import aleator
from aleator.cache.devices import Device
from aleator.core.errors import Aborted, ParameterError
from aleator.generate import Batch, Context
from aleator.language_model import LanguageModel
from aleator.models import build_decoder, open_weights
from aleator.models.hub.bundled import bundled_model
from aleator.models.native_decoder import NativeDecoder
from aleator.models.placement import Place
from aleator.models.torch_decoder import TorchDecoder
from aleator.models.weights import Weights

pytestmark = pytest.mark.usefixtures("one_torch_thread")

FIRST, SECOND, META = Device("cpu", 0), Device("cpu", 1), Device("meta")


def weights_of(name: str, folder: Path) -> Weights:
    return open_weights(write_model(folder / f"{name}.gguf", SMALL[name]))


def halves(weights: Weights, first: Device, second: Device, *dtypes: str) -> list[Place]:
    """The first half of the layers on one device, the rest on another."""
    n = weights.config.n_layers
    kinds = dtypes or ("float32", "float32")
    return [Place(first, kinds[0])] * (n // 2) + [Place(second, kinds[1])] * (n - n // 2)


def divided(weights: Weights, *dtypes: str) -> TorchDecoder:
    decoder = build_decoder(weights, places=halves(weights, FIRST, SECOND, *dtypes))
    assert isinstance(decoder, TorchDecoder)
    return decoder


def both(name: str, folder: Path, **options: Any) -> tuple[Context, Context]:
    """A context of the whole model and one of the model on two devices."""
    weights = weights_of(name, folder)
    whole, parts = build_decoder(weights, form="torch"), divided(weights)
    if whole.config.window is not None:
        options = {"swa_full": True, **options}
    given = {"n_ctx": 128, "n_seq_max": 3, **options}
    return Context(whole, **given), Context(parts, **given)


def same(contexts: tuple[Context, Context], batch: Batch) -> None:
    """Equal bits of logits."""
    whole, parts = (np.asarray(context.decode(batch)) for context in contexts)
    assert np.isfinite(whole).all()
    assert whole.tobytes() == parts.tobytes()


TEXT = np.random.default_rng(5).integers(1, 60, 40).tolist()

ATTENDING = [
    "llama", "qwen3", "gemma3", "gemma4-layer-embeddings", "gemma4-shared-keys", "smollm3", "llama4",
    "deepseek2", "bloom", "mpt", "gpt2", "mistral3", "phi3-longrope", "gpt-oss", "qwen3moe", "command-r",
]  # fmt: skip
STATEFUL = ["mamba", "jamba", "falcon-h1", "granitehybrid", "lfm2", "nemotron_h", "qwen3next"]


@pytest.mark.parametrize("name", ATTENDING)
def test_edits_and_logits_are_those_of_the_whole_model(tmp_path: Path, name: str) -> None:
    contexts = both(name, tmp_path)
    same(contexts, Batch.one(TEXT[:30], 0, logits=True))
    same(contexts, Batch.one(TEXT[30:31], 30))
    for context in contexts:
        context.cache.seq_cp(0, 1)
        context.cache.seq_rm(0, 20, -1)
    same(contexts, Batch.one(TEXT[31:36], 20, logits=True))
    if contexts[0].decoder.architecture.shifts:
        for context in contexts:
            context.cache.seq_rm(1, 3, 12)
            context.cache.seq_add(1, 12, -1, -9)
        batch = Batch()
        batch.add(7, 25, [0], logits=True)
        batch.add(8, 22, [1], logits=True)
        same(contexts, batch)
    for context in contexts:
        context.cache.defrag()
        context.cache.check()
    same(contexts, Batch.one([9], 26 if contexts[0].decoder.architecture.shifts else 25))


@pytest.mark.parametrize("name", STATEFUL)
def test_states_are_those_of_the_whole_model(tmp_path: Path, name: str) -> None:
    contexts = both(name, tmp_path, n_rollback=4)
    same(contexts, Batch.one(TEXT[:20], 0, logits=True))
    for context in contexts:
        context.cache.seq_cp(0, 1)
        context.cache.seq_rm(0, 17, -1)
    batch = Batch()
    batch.add(7, 17, [0], logits=True)
    batch.add(8, 20, [1], logits=True)
    same(contexts, batch)
    for context in contexts:
        context.cache.check()


@pytest.mark.parametrize("name", ["llama", "gemma3", "mamba", "jamba", "falcon-h1"])
@pytest.mark.parametrize("seq", [-1, 0])
def test_states_go_from_a_whole_model_to_parts_and_back(
    tmp_path: Path, name: str, seq: int
) -> None:
    contexts = both(name, tmp_path)
    same(contexts, Batch.one(TEXT[:20], 0, logits=True))
    whole, parts = (context.state_write(seq) for context in contexts)
    assert bytes(whole) == bytes(parts)
    for context in contexts:
        context.cache.seq_rm(-1)
        context.state_read(parts, seq)
    same(contexts, Batch.one(TEXT[20:23], 20, logits=True))


def test_many_shifts_rewrite_the_keys_of_each_device(tmp_path: Path) -> None:
    contexts = both("smollm3", tmp_path, n_ctx=256)
    text = [1 + i % 50 for i in range(200)]
    same(contexts, Batch.one(text, 0, logits=True))
    for context in contexts:
        context.cache.seq_div(0, 0, -1, 2)
        context.cache.update()
        assert (context.cache.key_positions[:200] == np.arange(200) // 2).all()
    same(contexts, Batch.one([4], 100))


def test_a_step_that_fails_leaves_the_cache_of_every_device(tmp_path: Path) -> None:
    _, context = both("jamba", tmp_path)
    context.decode(Batch.one(TEXT[:10]))
    before = bytes(context.state_write())
    context.abort_callback = lambda: True
    with pytest.raises(Aborted):
        context.decode(Batch.one(TEXT[10:14], 10))
    assert bytes(context.state_write()) == before


@pytest.mark.parametrize("name", ["llama", "gemma3", "jamba", "mamba", "falcon-h1"])
def test_layers_and_their_caches_are_where_the_map_says(tmp_path: Path, name: str) -> None:
    weights = weights_of(name, tmp_path)
    decoder, config = divided(weights), weights.config
    context = Context(decoder, n_ctx=64)
    layers = context.cache.pool.layer_bytes
    places = [place.device for place in decoder.places]
    keeping = [
        *(places[i] for i in range(config.n_layers) if config.stores_keys(i) and not decoder.windowed(i)),
        *(places[i] for i in range(config.n_layers) if config.stores_keys(i) and decoder.windowed(i)),
        *(places[i] for i in range(config.n_layers) if decoder.keeps_state(i)),
    ]  # fmt: skip
    assert [device for device, _ in layers] == keeping
    assert {FIRST, SECOND} == set(keeping)
    sizes = context.cache.device_bytes
    assert sizes == {str(d): sum(n for at, n in layers if at == d) for d in set(keeping)}
    assert sum(sizes.values()) == context.cache.total_size
    if decoder.cache_shapes:
        aside = Context(decoder, n_ctx=64, offload_kqv=False)
        assert {str(device) for device in aside.cache.devices} == {"cpu"}


def tensors(holder: Any, known: set[int]) -> list[torch.Tensor]:
    """All tensors that an object of ours holds, however deep; those over a file's bytes are none."""
    if isinstance(holder, torch.Tensor):
        return [holder]
    if id(holder) in known:
        return []
    known.add(id(holder))
    if isinstance(holder, dict):
        inner = list(holder.values())
    elif isinstance(holder, list | tuple):
        inner = list(holder)
    elif type(holder).__module__.startswith("aleator."):
        names = [name for kind in type(holder).__mro__ for name in getattr(kind, "__slots__", ())]
        inner = [*getattr(holder, "__dict__", {}).values()]
        inner += [getattr(holder, name) for name in names]
    else:
        return []
    return [each for part in inner for each in tensors(part, known)]


@pytest.mark.parametrize(
    "name", ["llama", "gemma3", "gemma4-layer-embeddings", "smollm3", "gpt2", "bloom", "mpt", "mistral3",
             "phi3-longrope", "command-r", "mamba", "jamba", "falcon-h1", "lfm2", "nemotron_h"],
)  # fmt: skip
def test_all_of_a_part_is_on_its_device_and_only_that(tmp_path: Path, name: str) -> None:
    weights = weights_of(name, tmp_path)
    decoder = build_decoder(weights, places=halves(weights, Device("cpu"), META))
    context = Context(decoder, n_ctx=64, device=None)
    for tokens, start in ((TEXT[:5], 0), (TEXT[5:6], 5)):
        logits = context.decode(Batch.one(tokens, start, logits=True))
        assert logits.device == torch.device("meta")
        assert logits.shape == (len(tokens), weights.config.n_vocab)
    sizes = context.cache.device_bytes
    assert sizes["cpu"] > 0
    assert sizes["meta"] > 0
    at = context.decoder
    assert isinstance(at, TorchDecoder)
    for layer, (device, _) in zip(at.layers, at.at, strict=True):
        found = tensors(layer, set())
        assert found
        assert {each.device for each in found} == {device}
    assert {each.device.type for each in tensors([at.head, at.output_norm], set())} == {"meta"}


def test_each_device_may_have_its_type(tmp_path: Path) -> None:
    weights = weights_of("llama", tmp_path)
    rows = []
    for kinds in (("float32", "float32"), ("float32", "bfloat16")):
        decoder = divided(weights, *kinds)
        assert (decoder.dtype, str(decoder.device)) == (kinds[1], "cpu")
        rows.append(Context(decoder, n_ctx=64).decode(Batch.one(TEXT[:9], logits=True)))
    off = np.abs(rows[0] - rows[1]).max() / (rows[0].max() - rows[0].min())
    assert 0 < off < 0.05


def test_sizes_of_weights(tmp_path: Path) -> None:
    for name in ("llama", "llama-tied-mha"):
        weights = weights_of(name, tmp_path)
        size = {each: weights.stored(each).data.size for each in weights.names()}
        numbers = {each: weights.stored(each).n_elements for each in weights.names()}
        second = [each for each in size if each.startswith(("blk.1.", "output"))]
        if weights.config.tied:
            second.append("token_embd.weight")
        first = [each for each in size if not each.startswith(("blk.1.", "output"))]
        assert divided(weights, "float32", "bfloat16").device_bytes == {
            "cpu:0": sum(size[each] for each in first),
            "cpu:1": sum(2 * numbers[each] for each in second),
        }
        whole = build_decoder(weights)
        assert isinstance(whole, NativeDecoder)
        assert whole.device_bytes == {"cpu": weights.size_bytes}


def test_sizes_are_in_the_log(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.INFO, "aleator")
    Context(divided(weights_of("llama", tmp_path)), n_ctx=64)
    assert [line.split(": ", 1)[0] for line in caplog.messages][:2] == ["weights"] * 2
    assert caplog.messages[0].startswith("weights: 1 layers, cpu:0: ")
    assert "KV cache: 64 cells, 2 layers, cpu:0 0.01 MiB + cpu:1 0.01 MiB: K" in caplog.text


def test_a_model_loaded_with_a_map() -> None:
    model = aleator.load(device_map=[("cpu:0", 0, 2), ("cpu:1", 2, 6)])
    plain = LanguageModel(
        model.weights, build_decoder(model.weights, form="torch"), model.tokenizer
    )
    options: dict[str, Any] = {"max_tokens": 24, "temperature": 0.8, "seed": 3}
    text = model.generate("ROMEO:", **options).text
    assert text == plain.generate("ROMEO:", **options).text
    assert text == model.generate("ROMEO:", **options, sampling_device="device").text
    assert {str(device) for device in model.own_context().cache.devices} == {"cpu:0", "cpu:1"}
    loading: dict[str, Any] = dict(model.loading)
    assert loading == {"device_map": "cpu:0=0:2,cpu:1=2:6"}
    assert aleator.load(**loading).decoder.places == model.decoder.places
    with pytest.raises(ParameterError, match="multi_step needs all layers on one device"):
        model.generate("ROMEO:", **options, sampling_device="device", multi_step=4)
    with pytest.raises(ParameterError, match="form='native' computes on the CPU in float32, not"):
        build_decoder(model.weights, form="native", places=model.decoder.places)


def test_a_map_of_the_whole_cpu_is_native() -> None:
    whole = aleator.load(device_map="cpu=0:6")
    assert isinstance(whole.decoder, NativeDecoder)
    weights = open_weights(bundled_model())
    assert whole.decoder.device_bytes == {"cpu": weights.size_bytes}
