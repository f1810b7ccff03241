"""kimi-linear against llama.cpp's answers (tools/golden_models.py)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoder_numerics import delta as rules
from decoder_numerics import floats as plain
from decoder_numerics.blocks import Floats
from hybrid_models import HYBRID
from model_file import write_model
from safetensors.torch import load_file, save_file

from aleator.core.errors import AleatorError, FileFormatError, UnsupportedModel
from aleator.models import build_decoder, open_weights
from tests.models.check_converted import converted, logits
from tests.models.check_kept import check_states
from tests.models.check_transformers import check, write

transformers: Any = pytest.importorskip("transformers")
NAME = "kimi-linear"
SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 5,
    "num_attention_heads": 4, "num_key_value_heads": 4, "moe_intermediate_size": 16, "num_local_experts": 4,
    "num_experts_per_tok": 2, "kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8,
    "v_head_dim": 12, "linear_head_dim": 8, "linear_num_heads": 4, "max_position_embeddings": 512,
    "pad_token_id": 0, "rms_norm_eps": 1e-6,
}  # fmt: skip
"""Of transformers' configuration; with this epsilon GGUF's rules are transformers'."""


ODD = replace(HYBRID[NAME], layers="ssa", dense_layers=2, head_dim=37, d_conv=3, n_ff=40, seed=5)
"""Two layers with delta nets before one that attends, of sizes that fill no register."""


def states_by_the_rules(ids: list[int]) -> list[Floats]:
    """The convolution's values and the state after a text, of each layer with a delta net."""
    tensors = dict(ODD.each_tensor())
    x, found, eps = tensors["token_embd.weight"][ids], [], 1e-5
    t, heads, dim, wide = len(ids), ODD.n_heads, ODD.head_dim, ODD.n_heads * ODD.head_dim
    for layer in range(2):

        def of(name: str, at: str = f"blk.{layer}.") -> Floats:
            return tensors[at + name]

        def low(name: str, taken: Floats, of: Any = of) -> Floats:
            few = plain.products(of(f"ssm_{name}_a.weight"), taken)
            return plain.products(of(f"ssm_{name}_b.weight"), few).reshape(t, heads, dim)

        taken = plain.rms_norm(x, of("attn_norm.weight"), eps)
        values = [plain.products(of(f"attn_{part}.weight"), taken) for part in "qkv"]
        joint = np.concatenate(values, axis=1)
        before = np.zeros((ODD.d_conv - 1, 3 * wide), np.float32)
        found.append(np.concatenate((before, joint))[t:].T)
        weights = [of(f"ssm_conv1d_{part}.weight").reshape(wide, -1) for part in "qkv"]
        weight, nothing = np.concatenate(weights).T, np.zeros(3 * wide, np.float32)
        u = plain.convolve(joint, before, weight, nothing).reshape(t, 3, heads, dim)
        scale = np.float32(1) / np.sqrt(np.float32(dim))
        q, k = rules.unit_length(u[:, 0], eps, scale), rules.unit_length(u[:, 1], eps)
        beta = plain.sigmoid(plain.products(of("ssm_beta.weight"), taken))
        decay = rules.decay_of(low("f", taken), of("ssm_dt.bias").reshape(heads, dim), of("ssm_a"))
        zero = np.zeros((heads, dim, dim), np.float32)
        y, state = rules.delta_rule(q, k, u[:, 2], beta, decay, zero)
        found.append(state.reshape(wide, dim))
        y = rules.sigmoid_gate(plain.rms_norm(y, of("ssm_norm.weight"), eps), low("g", taken))
        x = x + plain.products(of("attn_output.weight"), y.reshape(t, -1))
        taken = plain.rms_norm(x, of("ffn_norm.weight"), eps)
        up = plain.products(of("ffn_up.weight"), taken)
        up = plain.silu(plain.products(of("ffn_gate.weight"), taken)) * up
        x = x + plain.products(of("ffn_down.weight"), up)
    return found


def test_states_are_those_of_the_rules(tmp_path: Path) -> None:
    decoder = build_decoder(open_weights(write_model(tmp_path / "m.gguf", ODD)))
    ids = [int(t) for t in np.random.default_rng(4).integers(0, 64, 9)]
    check_states(decoder, ids, states_by_the_rules(ids))


def test_layers_that_all_attend_are_refused(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", replace(HYBRID[NAME], layers="aa"))
    with pytest.raises(FileFormatError, match="some layers must have KV heads"):
        open_weights(path)


def test_convolutions_of_another_size_are_refused(tmp_path: Path) -> None:
    spec = HYBRID[NAME]
    path = write_model(tmp_path / "m.gguf", replace(spec, meta={**spec.meta, "ssm.conv_kernel": 3}))
    with pytest.raises(FileFormatError, match="ssm_conv1d"):
        build_decoder(open_weights(path))


def write_small(folder: Path, **changes: Any) -> Any:
    config = transformers.KimiLinearConfig(**(SIZES | changes))
    model = transformers.KimiLinearForCausalLM(config)
    torch.manual_seed(2)
    for name, values in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            values.copy_(0.3 * torch.randn_like(values))
    return write(model, folder)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "num_hidden_layers": 4,
            "layer_types": ["full_attention", *["linear_attention"] * 3],
            "mlp_layer_types": ["dense", "dense", "sparse", "sparse"],
            "num_shared_experts": 2,
            "routed_scaling_factor": 1.5,
            "linear_head_dim": 12,
            "linear_conv_kernel_dim": 3,
        },
        {"num_local_experts": 8, "num_expert_group": 4, "topk_group": 2},
    ],
)
def test_logits_are_those_of_transformers(changes: dict[str, Any], tmp_path: Path) -> None:
    check(write_small(tmp_path, **changes), tmp_path, tolerance=1e-4, whole=True)


@pytest.mark.parametrize("changes", [{"linear_num_heads": 2}, {"moe_renormalize": False}])
def test_what_gguf_cannot_say(changes: dict[str, Any], tmp_path: Path) -> None:
    check(write_small(tmp_path, **changes), tmp_path, tolerance=1e-4)
    with pytest.raises(UnsupportedModel, match="cannot"):
        converted(tmp_path, tmp_path / "m.gguf")


def changed_config(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """config.json as the published models have it, and then changed."""
    path = folder / "config.json"
    fields = json.loads(path.read_text())
    for key in ("layer_types", "mlp_layer_types", "linear_conv_kernel_dim"):
        fields.pop(key, None)
    fields |= {
        "linear_attn_config": {
            "full_attn_layers": [5],
            "kda_layers": [1, 2, 3, 4],
            "head_dim": fields.pop("linear_head_dim", 8),
            "num_heads": fields.pop("linear_num_heads", 4),
            "short_conv_kernel_size": 4,
        },
        "first_k_dense_replace": 1,
        "mla_use_nope": True,
        "moe_layer_freq": 1,
        "moe_router_activation_func": "sigmoid",
        "head_dim": 72,
        "rope_scaling": None,
    }
    change(fields)
    path.write_text(json.dumps(fields))


def test_published_names_of_fields_and_tensors(tmp_path: Path) -> None:
    write_small(tmp_path)
    ids = [int(t) for t in np.random.default_rng(1).integers(0, 96, 20)]
    expected = logits(open_weights(tmp_path), ids).tobytes()
    changed_config(tmp_path, lambda fields: None)
    file = tmp_path / "model.safetensors"
    dense = "model.layers.0.block_sparse_moe."
    tensors = {
        name.replace(dense, "model.layers.0.mlp."): values
        for name, values in load_file(file).items()
    }
    assert "model.layers.0.mlp.gate_proj.weight" in tensors
    save_file(tensors, file)
    assert logits(open_weights(tmp_path), ids).tobytes() == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.update(mla_use_nope=False), "mla_use_nope"),
        (lambda f: f.update(moe_router_activation_func="softmax"), "moe_router_activation_func"),
        (lambda f: f["linear_attn_config"].pop("full_attn_layers"), "full_attn_layers"),
        (lambda f: f["linear_attn_config"].update(full_attn_layers=[0]), "numbers of layers, 1 to 5"),
        (lambda f: f["linear_attn_config"].update(full_attn_layers=[]), "some layers must attend"),
        (lambda f: f.update(layer_types=["linear_attention"] * 5), "layer_types"),
        (lambda f: f["linear_attn_config"].update(num_heads=0), "num_heads is 0"),
        (lambda f: f.update(num_experts=0), "num_experts is 0"),
        (lambda f: f.update(num_expert_group=3), "do not divide into 3 groups"),
    ],
)  # fmt: skip
def test_fields_that_are_refused(change: Any, message: str, tmp_path: Path) -> None:
    write_small(tmp_path)
    changed_config(tmp_path, change)
    with pytest.raises(AleatorError, match=message):
        open_weights(tmp_path)
