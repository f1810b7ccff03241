"""Adapters of layers that keep states, against the same model with merged weights."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from make_models import write_model
from safetensors.numpy import save_file
from wide_models import SMALL

from aleator.models import build_decoder, open_weights
from aleator.models.adapter_files import TENSORS
from tests.models.adapters import ALPHA, RANK, write_adapter, write_peft
from tests.models.check_converted import converted
from tests.models.check_transformers import DELTA_NETS, write
from tests.models.test_adapted import Pair, pair
from tests.models.test_adapters import COMPANY, TOKENS, adapted, company, logits

MODELS = (
    "mamba", "mamba-norms", "jamba", "mamba2", "granitehybrid", "nemotron_h", "falcon-h1", "lfm2",
    "kimi-linear", "qwen3next", "qwen3next-joint", "qwen35",
)  # fmt: skip
NO_PRODUCTS = {"ssm_a", "ssm_d", "ssm_norm", "ssm_conv1d", "shortconv.conv", "attn_kv_a_mqa"}


def written(path: Path, model: str) -> Path:
    return write_model(path, SMALL[model])


def pairs_of(path: Path, seed: int = 1, rank: int = RANK) -> dict[str, Pair]:
    """Adapters of all matrices of the layers."""
    made = {}
    for i, tensor in enumerate(gguf.GGUFReader(path).tensors):
        name, shape = tensor.name, tensor.shape[::-1].tolist()
        kind = name.removesuffix(".weight").split(".", 2)[-1]
        if name.startswith("blk.") and len(shape) == 2 and kind not in NO_PRODUCTS:
            made[name] = pair(100 * seed + i, *shape, rank=rank, size=0.15)
    return made


def merged(path: Path, to: Path, pairs: Mapping[str, Pair]) -> Path:
    shutil.copy(path, to)
    for tensor in gguf.GGUFReader(to, "r+").tensors:
        if tensor.name in pairs:
            a, b = pairs[tensor.name]
            tensor.data[...] += np.float32(ALPHA / RANK) * (b @ a)
    return to


@pytest.mark.parametrize("model", MODELS)
def test_they_are_what_merged_weights_are(tmp_path: Path, model: str) -> None:
    path = written(tmp_path / "base.gguf", model)
    base = open_weights(path)
    pairs = pairs_of(path)
    file = write_adapter(tmp_path / "a.gguf", pairs, architecture=base.architecture.name)
    rows = logits(adapted(path, file), "a")
    wanted = logits(build_decoder(open_weights(merged(path, tmp_path / "m.gguf", pairs))))
    assert np.abs(rows - wanted).max() < 2e-5 * np.ptp(wanted)
    assert np.abs(rows - logits(build_decoder(base))).max() > 0.05 * np.ptp(wanted)


@pytest.mark.parametrize("model", ["mamba", "nemotron_h", "lfm2", "qwen35"])
def test_bits_are_those_alone(tmp_path: Path, model: str) -> None:
    path = written(tmp_path / "base.gguf", model)
    name = open_weights(path).architecture.name
    files = [
        write_adapter(tmp_path / f"{i}", pairs_of(path, i, rank), architecture=name)
        for i, rank in ((1, 6), (2, 17))
    ]
    decoder = adapted(path, *files)
    alone = [logits(decoder, chosen, TOKENS[i:]) for i, chosen in enumerate(COMPANY)]
    company(decoder, alone, threads=2, at_once=16)


def saved_as_peft(folder: Path, pairs: Mapping[str, Pair]) -> Path:
    """The adapter, by Hugging Face's names, as PEFT saves it."""
    write_peft(folder, {})
    tensors = {
        f"base_model.model.{name.removesuffix('.weight')}.lora_{side}.weight": part
        for name, pair in pairs.items()
        for side, part in zip("AB", pair, strict=True)
    }
    save_file(tensors, folder / TENSORS)
    return folder


@pytest.mark.parametrize(
    "model", ["mamba", "jamba", "mamba2", "nemotron_h", "lfm2", "kimi-linear", "qwen3next-joint"]
)
def test_peft_calls_them_by_their_own_names(tmp_path: Path, model: str) -> None:
    path = written(tmp_path / "base.gguf", model)
    architecture, config = open_weights(path).architecture, open_weights(path).config
    assert architecture.hugging_face is not None
    names = architecture.hugging_face.names(config.n_layers)
    theirs = {gguf: name for name, gguf in names.items()}
    pairs = pairs_of(path)
    file = write_adapter(tmp_path / "a.gguf", pairs, architecture=architecture.name)
    folder = saved_as_peft(tmp_path / "p", {theirs[name]: pair for name, pair in pairs.items()})
    decoder = adapted(path, file, folder)
    assert logits(decoder, "a").tobytes() == logits(decoder, "b").tobytes()


def test_heads_of_values_are_put_in_order(tmp_path: Path) -> None:
    """GGUF files of qwen35 have them in another order than directories, as rows and as columns."""
    transformers: Any = pytest.importorskip("transformers")
    torch.manual_seed(2)
    sizes = DELTA_NETS | {"linear_num_value_heads": 6, "linear_value_head_dim": 8}
    model = transformers.Qwen3_5ForCausalLM(transformers.Qwen3_5TextConfig(**sizes))
    write(model, tmp_path / "base")
    pairs = {
        name: pair(i, *values.shape, size=0.15)
        for i, (name, values) in enumerate(model.state_dict().items())
        if ".linear_attn." in name and values.ndim == 2
    }
    for name, (a, b) in pairs.items():
        model.get_parameter(name).data += torch.from_numpy(ALPHA / RANK * (b @ a))
    model.save_pretrained(tmp_path / "merged")
    converted(tmp_path / "base", tmp_path / "base.gguf")
    files = [
        saved_as_peft(tmp_path / "p", pairs),
        write_adapter(tmp_path / "a", pairs_of(tmp_path / "base.gguf"), architecture="qwen35"),
    ]
    decoders = [adapted(tmp_path / name, *files) for name in ("base", "base.gguf")]
    wanted = logits(build_decoder(open_weights(tmp_path / "merged")))
    for decoder in decoders:
        assert np.abs(logits(decoder, "a") - wanted).max() < 2e-5 * np.ptp(wanted)
    rows, others = (logits(decoder, "b") for decoder in decoders)
    assert np.abs(rows - others).max() < 2e-5 * np.ptp(rows)
    assert np.abs(rows - wanted).max() > 0.1 * np.ptp(rows)
