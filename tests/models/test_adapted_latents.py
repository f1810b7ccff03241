"""Adapters of compressed queries, keys and values, against transformers' model with merged weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dense_models import DENSE
from model_file import write_model
from safetensors.numpy import load_file, save_file

from aleator.core.errors import FileFormatError
from aleator.models import build_decoder, open_weights
from aleator.models.adapter_files import CONFIG, TENSORS
from tests.models.adapters import ALPHA, RANK, write_adapter
from tests.models.check_converted import converted
from tests.models.check_transformers import write
from tests.models.test_adapted import SCALE, Floats, pair, write_outer_peft
from tests.models.test_adapters import COMPANY, TOKENS, adapted, company, logits
from tests.models.test_deepseek2 import SIZES

KEYS = "kv_b_proj"


LOW = SIZES | {"q_lora_rank": 24, "n_group": 4, "topk_group": 2}


def directory(
    folder: Path, config: str = "DeepseekV3Config", sizes: dict[str, Any] = LOW, **more: int
) -> Any:
    """A random model of transformers' in a directory."""
    transformers: Any = pytest.importorskip("transformers")
    made = getattr(transformers, config)(**sizes | more)
    return write(transformers.AutoModelForCausalLM.from_config(made), folder)


def peft(
    folder: Path, model: Any, kinds: str | tuple[str, ...], seed: int = 1
) -> dict[str, Floats]:
    """A random adapter of its projections of these kinds; what it adds to them."""
    tensors: dict[str, Floats] = {}
    added: dict[str, Floats] = {}
    for i, (name, values) in enumerate(model.named_parameters()):
        stem, _, kind = name.rpartition(".")
        if kind == "weight" and stem.endswith(kinds):
            a, b = pair(seed + i, *values.shape)
            tensors |= {f"{stem}.lora_A.weight": a, f"{stem}.lora_B.weight": b}
            added[name] = np.float32(SCALE) * (b @ a)
    write_outer_peft(folder, tensors)
    return added


def transformers_rows(model: Any, added: dict[str, Floats]) -> Floats:
    """Logits of transformers' own model with what is added to its matrices."""
    import torch

    with torch.no_grad():
        for name, values in model.named_parameters():
            if name in added:
                values.add_(torch.from_numpy(added[name]))
        made: Floats = model(torch.tensor([TOKENS])).logits[0].numpy()
        return made


@pytest.mark.parametrize(
    "kinds", ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", KEYS, ("q_b_proj", KEYS, "o_proj")]
)
@pytest.mark.parametrize("rank", [16, RANK])  # of keys; that of adapters makes shapes alike
def test_projections(tmp_path: Path, kinds: Any, rank: int) -> None:
    model = directory(tmp_path / "m", kv_lora_rank=rank)
    added = peft(tmp_path / "p", model, kinds)
    converted(tmp_path / "m", tmp_path / "m.gguf")
    rows = {name: logits(adapted(tmp_path / name, tmp_path / "p"), "a") for name in ("m", "m.gguf")}
    wanted = transformers_rows(model, added)
    for name, mine in rows.items():
        assert np.abs(mine - wanted).max() < 1e-5 * np.ptp(wanted), name


def test_kimi_linear(tmp_path: Path) -> None:
    """transformers calls some of its modules by other names than a directory has them."""
    from tests.models.test_kimi_linear import SIZES as KIMI

    model = directory(tmp_path / "m", "KimiLinearConfig", KIMI)
    kinds = ("f_a_proj", "f_b_proj", "g_b_proj", KEYS, "q_proj", "gate_proj", "down_proj")
    added = peft(tmp_path / "p", model, kinds)
    rows = logits(adapted(tmp_path / "m", tmp_path / "p"), "a")
    wanted = transformers_rows(model, added)
    assert np.abs(rows - wanted).max() < 1e-5 * np.ptp(wanted)


def with_magnitudes(folder: Path, model: Any, added: dict[str, Floats]) -> None:
    """Make an adapter DoRA, and change what it adds."""
    rng, file, config = np.random.default_rng(5), folder / TENSORS, folder / CONFIG
    tensors = load_file(file)
    for name, more in added.items():
        before = model.get_parameter(name).detach().numpy()
        size = np.linalg.norm(before, axis=1) * rng.uniform(0.7, 1.4, len(before)).astype(
            np.float32
        )
        after = before + more
        added[name] = (size / np.linalg.norm(after, axis=1))[:, None] * after - before
        stem = name.removesuffix(".weight")
        tensors[f"base_model.model.{stem}.lora_magnitude_vector"] = size
    save_file(tensors, file)
    config.write_text(json.dumps(json.loads(config.read_text()) | {"use_dora": True}))


@pytest.mark.parametrize("kind", ["stored", "q8_0"])
def test_dora(tmp_path: Path, kind: str) -> None:
    """A head's keys are columns where the cache holds compressed ones."""
    model = directory(tmp_path / "m", kv_lora_rank=32, qk_nope_head_dim=32)
    added = peft(tmp_path / "p", model, ("q_b_proj", KEYS))
    with_magnitudes(tmp_path / "p", model, added)
    converted(tmp_path / "m", tmp_path / "m.gguf")
    names = "m", "m.gguf"
    rows = {
        name: logits(adapted(tmp_path / name, tmp_path / "p", kind=kind), "a") for name in names
    }
    wanted = transformers_rows(model, added)
    for name, mine in rows.items():
        assert np.abs(mine - wanted).max() < (2e-5, 3e-2)[kind == "q8_0"] * np.ptp(wanted), name


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("at_once", [5, 64])
def test_bits_are_those_alone(tmp_path: Path, threads: int, at_once: int) -> None:
    model = directory(tmp_path / "m")
    for name, seed in (("a", 1), ("b", 99)):
        peft(tmp_path / name, model, ("q_b_proj", "kv_a_proj_with_mqa", KEYS), seed)
    decoder = adapted(tmp_path / "m", tmp_path / "a", tmp_path / "b")
    alone = [logits(decoder, each, TOKENS[i:]) for i, each in enumerate(COMPANY)]
    plain = build_decoder(open_weights(tmp_path / "m"))
    assert (alone[1] == logits(plain, tokens=TOKENS[1:])).all()
    company(decoder, alone, threads, at_once)


@pytest.mark.parametrize("name", ["deepseek2", "deepseek2-heads"])
def test_a_file_of_keys_together_and_apart(tmp_path: Path, name: str) -> None:
    """In the second the cache holds each head's keys, whose matrix is whole."""
    spec = DENSE[name]
    tensors = dict(spec.each_tensor())
    path = write_model(tmp_path / "base.gguf", spec, tensors)
    latent = spec.latent
    assert latent is not None
    heads, plain, dim_v = spec.n_heads, latent.head - spec.rope, latent.head_v
    stem = "blk.1.attn_kv_b.weight"
    a, b = pair(1, heads * (plain + dim_v), latent.rank)
    file = write_adapter(tmp_path / "a.gguf", {stem: (a, b)}, architecture=spec.arch)
    more = np.float32(ALPHA / RANK) * (b @ a)
    if stem in tensors:
        tensors[stem] = tensors[stem] + more
    else:
        parts = more.reshape(heads, plain + dim_v, -1)
        for each, part in (("k", parts[:, :plain].swapaxes(1, 2)), ("v", parts[:, plain:])):
            own = f"blk.1.attn_{each}_b.weight"
            tensors[own] = tensors[own] + part
    wanted = logits(build_decoder(open_weights(write_model(tmp_path / "m", spec, tensors))))
    rows = logits(adapted(path, file), "a")
    assert np.abs(rows - wanted).max() < 1e-5 * np.ptp(wanted)


@pytest.mark.parametrize("whole", [False, True])
def test_stacks_of_heads(tmp_path: Path, whole: bool) -> None:
    """llama.cpp's converter divides what changes ``attn_kv_b``: one side is that of all heads."""
    spec = DENSE["deepseek2"]
    latent = spec.latent
    assert latent is not None
    path = write_model(tmp_path / "m.gguf", spec, dict(spec.each_tensor()))
    heads, plain = spec.n_heads, latent.head - spec.rope
    a, b = pair(1, heads * (plain + latent.head_v), latent.rank)
    parts, at = b.reshape(heads, -1, RANK), "blk.1.attn_"
    of_all = [np.stack([each] * heads) if whole else each for each in (a.T, a)]
    stacks = {
        f"{at}k_b.weight": (parts[:, :plain].swapaxes(1, 2), of_all[0]),
        f"{at}v_b.weight": (of_all[1], parts[:, plain:]),
    }
    files = [
        write_adapter(tmp_path / f"{i}.gguf", each, architecture=spec.arch)
        for i, each in enumerate((stacks, {f"{at}kv_b.weight": (a, b)}))
    ]
    decoder = adapted(path, *files)
    assert (logits(decoder, "a") == logits(decoder, "b")).all()
    assert (logits(decoder, "a") != logits(decoder)).any()
    wrong = {f"{at}v_b.weight": (a, parts[1:, plain:])}
    file = write_adapter(tmp_path / "w.gguf", wrong, architecture=spec.arch)
    with pytest.raises(FileFormatError, match=f"and the model has {heads} heads"):
        adapted(path, file)


def test_what_is_refused(tmp_path: Path) -> None:
    model = directory(tmp_path / "m")
    peft(tmp_path / "p", model, KEYS)
    file = tmp_path / "p" / "adapter_model.safetensors"
    tensors = load_file(file)
    stem = "base_model.model.model.layers.0.self_attn.kv_b_proj.lora_"
    save_file(tensors | {f"{stem}B.weight": tensors[f"{stem}B.weight"][:-1].copy()}, file)
    with pytest.raises(FileFormatError, match=r"shape \[87, 16\], and the model's is \[88, 16\]"):
        adapted(tmp_path / "m", tmp_path / "p")


@pytest.mark.parametrize("layer", ["blk.99", "x"])
def test_a_layer_that_the_model_lacks_is_refused(tmp_path: Path, layer: str) -> None:
    spec = DENSE["deepseek2"]
    latent = spec.latent
    assert latent is not None
    path = write_model(tmp_path / "m.gguf", spec, dict(spec.each_tensor()))
    pairs = pair(1, spec.n_heads * (latent.head - spec.rope + latent.head_v), latent.rank)
    named = {f"{layer}.attn_kv_b.weight": pairs}
    file = write_adapter(tmp_path / "a.gguf", named, architecture=spec.arch)
    with pytest.raises(FileFormatError, match=f"has no '{layer}.attn_k_b.0.weight'"):
        adapted(path, file)
