"""Adapters beside a directory, and beside a GGUF file that has its matrices in another form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from aleator.core.errors import FileFormatError, UnsupportedModel
from aleator.models import build_decoder, open_weights
from aleator.models.adapter_files import TENSORS
from tests.models.adapters import RANK, write_adapter
from tests.models.check_converted import converted
from tests.models.check_transformers import QWEN3_MOE, SMALL, write
from tests.models.test_adapted import pair, write_outer_peft
from tests.models.test_adapted_latents import (
    LOW,
    directory,
    peft,
    transformers_rows,
    with_magnitudes,
)
from tests.models.test_adapters import adapted, logits
from tests.models.test_other_names import as_internlm2
from tests.models.test_qwen3vlmoe import with_pictures

BY_HALVES = LOW | {"rope_interleave": False}
"""Rows that are half of a head apart rotate together, and not as these models' usually do."""
STATES = {"mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 8, "mamba_chunk_size": 16}
FALCON = SMALL | STATES | {
    "mamba_d_ssm": 64, "embedding_multiplier": 3.0, "lm_head_multiplier": 0.5, "key_multiplier": 0.6,
    "ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 0.7], "mlp_multipliers": [1.4, 0.6],
}  # fmt: skip
GRANITE = SMALL | {"num_local_experts": 4, "num_experts_per_tok": 2}
HYBRID = SMALL | STATES | {
    "num_local_experts": 0, "shared_intermediate_size": 48,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
GEMMA = SMALL | {
    "head_dim": 8, "global_head_dim": 16, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 96,
    "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
LLAMA4 = SMALL | {
    "num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size": 24, "intermediate_size_mlp": 40,
    "interleave_moe_layer_step": 1, "head_dim": 8,
}  # fmt: skip
NEOX = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}
OF_GELU = ("BloomConfig", "FalconConfig", "GPTNeoXConfig", "Gemma4TextConfig")
AFMOE = SMALL | {
    "head_dim": 16, "num_experts": 6, "num_experts_per_tok": 3, "num_dense_layers": 1,
    "moe_intermediate_size": 24, "sliding_window": 8, "mup_enabled": True,
}  # fmt: skip


DBRX = {
    "vocab_size": 96, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 1.5, "rope_theta": 1e4}, "tie_word_embeddings": False,
    "ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 4, "moe_top_k": 2},
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "sizes", "kinds", "beside"),
    [
        ("DeepseekV3Config", BY_HALVES, ("q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"), True),
        ("DeepseekV3Config", BY_HALVES | {"q_lora_rank": None}, ("q_proj", "kv_a_proj_with_mqa"), True),
        ("FalconH1Config", FALCON, ("q_proj", "k_proj", "in_proj", "gate_proj", "down_proj"), False),
        ("BloomConfig", {"vocab_size": 96, "hidden_size": 32, "n_layer": 2, "n_head": 4},
         ("query_key_value", "dense"), True),
        ("GPTNeoXConfig", NEOX, ("query_key_value", "dense_4h_to_h"), True),
        ("FalconConfig", SMALL | {"new_decoder_architecture": True, "num_kv_heads": 2},
         ("query_key_value",), True),
        ("GraniteMoeHybridConfig", HYBRID, ("input_linear", "output_linear"), True),
        ("Gemma4TextConfig", GEMMA,
         ("per_layer_input_gate", "per_layer_projection", "per_layer_model_projection"), True),
        ("Qwen2MoeConfig", QWEN3_MOE, ("shared_expert_gate",), True),
        ("AfmoeConfig", AFMOE, ("q_proj", "k_proj"), True),
        ("DbrxConfig", DBRX, ("Wqkv", "out_proj", "router.layer"), True),
        ("AfmoeConfig", AFMOE, ("self_attn.gate_proj", "router.gate"), True),
        ("AfmoeConfig", AFMOE, ("q_proj", "self_attn.gate_proj", "up_proj"), True),
    ],
)  # fmt: skip
def test_adapters_of_peft(
    config: str, sizes: dict[str, Any], kinds: tuple[str, ...], beside: bool, tmp_path: Path
) -> None:
    """``beside``: they are read beside the GGUF file too."""
    model = directory(tmp_path / "m", config, sizes)
    added = peft(tmp_path / "p", model, kinds)
    plain, wanted = transformers_rows(model, {}), transformers_rows(model, added)
    assert np.abs(plain - wanted).max() > 0.02 * np.ptp(wanted)
    converted(tmp_path / "m", tmp_path / "m.gguf")
    if not beside:
        with pytest.raises(UnsupportedModel, match="give the model's directory"):
            adapted(tmp_path / "m.gguf", tmp_path / "p")
    for name in ("m", "m.gguf") if beside else ("m",):
        mine = logits(adapted(tmp_path / name, tmp_path / "p"), "a")
        # GELU is a table beside GGUF files
        table = name == "m.gguf" and config in OF_GELU
        assert np.abs(mine - wanted).max() < (1e-3 if table else 2e-5) * np.ptp(wanted)


@pytest.mark.parametrize("name", ["m", "m.gguf"])
def test_dora_of_rows_in_another_order(name: str, tmp_path: Path) -> None:
    model = directory(tmp_path / "m", "GPTNeoXConfig", NEOX)
    added = peft(tmp_path / "p", model, ("query_key_value",))
    with_magnitudes(tmp_path / "p", model, added)
    converted(tmp_path / "m", tmp_path / "m.gguf")
    mine = logits(adapted(tmp_path / name, tmp_path / "p"), "a")
    wanted = transformers_rows(model, added)
    assert np.abs(mine - wanted).max() < (1e-3 if name == "m.gguf" else 2e-5) * np.ptp(wanted)


def test_internlm2(tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers")
    write(transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)), tmp_path / "m")
    as_internlm2(tmp_path / "m")
    converted(tmp_path / "m", tmp_path / "m.gguf")
    file, name = tmp_path / "m" / "model.safetensors", "model.layers.1.attention.wqkv"
    found = load_file(file)
    a, b = pair(1, *found[f"{name}.weight"].shape)
    write_outer_peft(tmp_path / "p", {f"{name}.lora_A.weight": a, f"{name}.lora_B.weight": b})
    rows = [logits(adapted(tmp_path / each, tmp_path / "p"), "a") for each in ("m", "m.gguf")]
    plain = logits(build_decoder(open_weights(tmp_path / "m")))
    save_file(found | {f"{name}.weight": found[f"{name}.weight"] + np.float32(1.5) * b @ a}, file)
    wanted = logits(build_decoder(open_weights(tmp_path / "m")))
    assert np.abs(plain - wanted).max() > 0.02 * np.ptp(wanted)
    for mine in rows:
        assert np.abs(mine - wanted).max() < 2e-5 * np.ptp(wanted)


@pytest.mark.parametrize("changes", [{}, {"intermediate_size": 16}])  # the second is square
@pytest.mark.parametrize("version", ["0.18.1", "0.21.2"])
def test_experts_of_llama4(changes: dict[str, Any], version: str, tmp_path: Path) -> None:
    """Its parameters are [in, out], which PEFT no longer asks."""
    model = directory(tmp_path / "m", "Llama4TextConfig", LLAMA4, **changes)
    at, new = "model.layers.1.feed_forward.experts.", version != "0.18.1"
    parts: dict[str, Any] = {}
    added: dict[str, Any] = {}
    for i, (name, where) in enumerate(
        {"gate_up_proj": f"{at}base_layer.", "down_proj": at}.items()
    ):
        n, n_in, out = model.get_parameter(at + name).shape
        sizes = (n_in, out) if new else (out, n_in)
        a, b = pair(i, *sizes, rank=n * RANK)
        parts |= {f"{where}lora_A.weight": a, f"{where}lora_B.weight": b}
        each = b.reshape(-1, RANK, n), a.reshape(n, RANK, -1)
        how = "ore,eri->eoi" if new else "ore,eri->eio"
        added[at + name] = np.float32(1.5) * np.einsum(how, *each)
    write_outer_peft(tmp_path / "p", parts, peft_version=version)
    if changes and not new:
        with pytest.raises(UnsupportedModel, match=r"square matrices of PEFT '0\.18\.1'"):
            adapted(tmp_path / "m", tmp_path / "p")
        return
    mine = logits(adapted(tmp_path / "m", tmp_path / "p"), "a")
    wanted = transformers_rows(model, added)
    assert np.abs(mine - wanted).max() < 2e-5 * np.ptp(wanted)


@pytest.mark.parametrize("name", ["m", "m.gguf"])
def test_gguf_cannot_say_which_rows_rotate_together(name: str, tmp_path: Path) -> None:
    """llama.cpp's converter leaves them in the directory's order, in which its GGUF files would not work."""
    directory(tmp_path / "m", "DeepseekV3Config", BY_HALVES)
    converted(tmp_path / "m", tmp_path / "m.gguf")
    pairs = {"blk.0.attn_q_b.weight": pair(1, 80, LOW["q_lora_rank"])}
    file = write_adapter(tmp_path / "a.gguf", pairs, architecture="deepseek2")
    with pytest.raises(UnsupportedModel, match="rope_interleave=false: give PEFT's directory"):
        adapted(tmp_path / name, file)


def test_factors_within_a_gguf_files_matrices(tmp_path: Path) -> None:
    directory(tmp_path / "m", "FalconH1Config", FALCON)
    converted(tmp_path / "m", tmp_path / "m.gguf")
    a, b = pair(1, 32, 96)
    pairs = {"token_embd.weight": (a.T.copy(), b), "output.weight": pair(2, 96, 32)}
    file = write_adapter(tmp_path / "a.gguf", pairs, architecture="falcon-h1")
    theirs, ours = (logits(adapted(tmp_path / name, file), "a") for name in ("m.gguf", "m"))
    assert np.abs(ours - theirs).max() < 2e-5 * np.ptp(theirs)
    plain = logits(build_decoder(open_weights(tmp_path / "m")))
    assert np.abs(ours - plain).max() > 0.1 * np.ptp(plain)


@pytest.mark.parametrize("name", ["granitemoe", "qwen3vlmoe"])
def test_experts_that_a_directory_has_in_one_tensor(name: str, tmp_path: Path) -> None:
    if name == "granitemoe":
        model = directory(tmp_path / "m", "GraniteMoeConfig", GRANITE)
        at = "model.layers.1.block_sparse_moe.experts."
    else:
        model, at = (
            write(with_pictures(), tmp_path / "m"),
            "model.language_model.layers.1.mlp.experts.",
        )
    parts: dict[str, Any] = {}
    added: dict[str, Any] = {}
    for i, (name, where) in enumerate(
        {"gate_up_proj": f"{at}base_layer.", "down_proj": at}.items()
    ):
        n, out, n_in = model.get_parameter(at + name).shape
        a, b = pair(i, out, n_in, rank=n * RANK)
        parts |= {f"{where}lora_A.weight": a, f"{where}lora_B.weight": b}
        each = b.reshape(out, RANK, n), a.reshape(n, RANK, n_in)
        added[at + name] = np.float32(1.5) * np.einsum("ore,eri->eoi", *each)
    write_outer_peft(tmp_path / "p", parts)
    wanted = transformers_rows(model, added)
    converted(tmp_path / "m", tmp_path / "m.gguf")
    for name in ("m", "m.gguf"):
        mine = logits(adapted(tmp_path / name, tmp_path / "p"), "a")
        assert np.abs(mine - wanted).max() < 2e-5 * np.ptp(wanted), name


def test_what_is_refused_where_matrices_have_factors(tmp_path: Path) -> None:
    model = directory(tmp_path / "m", "FalconH1Config", FALCON)
    peft(tmp_path / "p", model, ("k_proj",))
    file, stem = tmp_path / "p" / TENSORS, "base_model.model.model.layers.0."
    found = load_file(file)
    wrong = {
        f"{stem}mamba.in_proj.lora_{side}.weight": np.ones((6, 6), np.float32) for side in "AB"
    }
    save_file(found | wrong, file)
    with pytest.raises(FileFormatError, match=r"shape \[6, 6\]"):
        adapted(tmp_path / "m", tmp_path / "p")
    save_file(
        found | {f"{stem}self_attn.k_proj.lora_magnitude_vector": np.ones(16, np.float32)}, file
    )
    with pytest.raises(UnsupportedModel, match="stored in another form here"):
        adapted(tmp_path / "m", tmp_path / "p")
