"""Fields of small models, and which mean something together: what tools/declared_models.py gives to readers."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "block_count": 4, "num_hidden_layers": 4, "n_layer": 4, "n_layers": 4, "num_layers": 4,
    "embedding_length": 64, "hidden_size": 64, "n_embd": 64, "d_model": 64,
    "head_count": 4, "num_attention_heads": 4, "n_head": 4, "n_heads": 4,
    "head_count_kv": 2, "num_key_value_heads": 2,
    "feed_forward_length": 96, "intermediate_size": 96,
    "short_factor": [1.5] * 8, "long_factor": [2.5] * 8,
    "vocab_size": 100, "context_length": 512, "max_position_embeddings": 512,
}  # fmt: skip
"""Values of fields that must be there, by the last part of their names; others have one within their range."""


TEXT: dict[str, Any] = {"text_config": {}}
DELTA: dict[str, Any] = {"ssm.inner_size": 64, "rope.dimension_sections": [3, 3, 2]}
AXES: dict[str, Any] = {"rope.dimension_sections": [4, 2, 2]}
EIGHT: dict[str, Any] = {"rope.dimension_count": 8}
GIVEN: dict[str, dict[str, dict[str, Any]]] = {
    "GGUF": {
        "qwen2vl": AXES, "qwen3vl": AXES, "qwen3vlmoe": AXES,
        "minicpm3": EIGHT, "plm": EIGHT, "mistral4": EIGHT, "deepseek2": EIGHT,
        "kimi-linear": {"rope.dimension_count": 8, "attention.head_count_kv": [0, 4, 0, 4]},
        "gemma4": {"attention.sliding_window": 32, "attention.sliding_window_pattern": 0},
        "qwen3next": DELTA, "qwen35": DELTA, "qwen35moe": DELTA,
        "lfm2moe": {"expert_gating_func": 2},
    },
    "config.json": {
        "mistral3": TEXT, "llama4": TEXT, "gemma3": TEXT, "gemma4": TEXT, "gemma4_unified": TEXT,
        "nemotron_h": {"layer_types": ["mamba", "attention", "mlp"]},
    },
}  # fmt: skip
"""Further fields that a small model must have, by architecture or model type."""


_LLAMA3 = {"rope_type": "llama3", "factor": 8.0}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
_SCALED = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 128,
}
_EXPERTS = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 32}
_LONG = {"rope_type": "longrope", "short_factor": [1.5] * 8, "long_factor": [2.5] * 8}
TOGETHER: dict[str, tuple[dict[str, Any], ...]] = {
    "GGUF": (
        *({"rope.scaling.type": "linear", "rope.scaling.factor": factor} for factor in (4.0, 0.5, 0.0)),
        _SCALED,
        {**_SCALED, "rope.scaling.yarn_log_multiplier": 0.05, "rope.scaling.attn_factor": 1.25},
        {"expert_group_count": 2, "expert_group_used_count": 1},
        {"attention.temperature_scale": 0.25, "attention.temperature_length": 64},
        {"attention.sliding_window": 16, "attention.sliding_window_pattern": 3},
        {"attention.sliding_window": 16, "attention.sliding_window_pattern": [True, False, True, True]},
        {"attention.sliding_window": 16, "attention.sliding_window_pattern": [True, False]},
        {"attention.sliding_window": 16, "rope.freq_base_swa": 500.0},
        *({"block_count": n, "vocab_size": 154880} for n in (46, 47, 48, 62, 64)),
        {"block_count": 47}, {"block_count": 64, "attention.sliding_window": 16},
        {**_SCALED, "rope.scaling.factor": 1.0}, {**_SCALED, "rope.scaling.factor": 0.5},
        {**_SCALED, "rope.scaling.yarn_beta_fast": 1.0}, {**_SCALED, "rope.scaling.yarn_beta_slow": 1e-6},
        {**_SCALED, "rope.scaling.yarn_beta_slow": 0.0}, {**_SCALED, "rope.freq_base": 1.0},
        {"rope.scale_linear": 2.0}, {"rope.scale_linear": 2.0, "rope.scaling.factor": 3.0},
        {"rope.scaling.type": "longrope", "rope.scaling.attn_factor": 1.5}, {"rope.scaling.type": "none"},
        {"rope.scaling.yarn_ext_factor": -1.0}, {"rope.scaling.yarn_ext_factor": 0.5},
        {"attention.head_count": [4, 4, 2, 4], "attention.head_count_kv": [2, 0, 1, 0]},
        {"attention.head_count": 4, "attention.head_count_kv": 3}, {"attention.head_count_kv": [2, 2]},
        {"attention.head_count": [0, 4, 0, 4], "attention.head_count_kv": [0, 2, 0, 2]},
        {"feed_forward_length": [96, 0, 96, 64]}, {"attention.head_count": 3},
        {"rope.dimension_count": 7},
        {"tensors": ["token_embd.weight", "output.weight"]},
        {"tensors": ["token_embd.weight", "rope_freqs.weight"], "attention.shared_kv_layers": 2,
         "attention.sliding_window": 16, "attention.sliding_window_pattern": [True, False] * 2},
        {"tensors": ["rope_freqs.weight", "blk.0.attn_v.weight", "blk.3.attn_qkv.weight"],
         "attention.sliding_window": 16, "attention.sliding_window_pattern": [True, False, False, True]},
        {"tensors": ["rope_freqs.weight"], "attention.shared_kv_layers": 1, "attention.sliding_window": 16,
         "attention.sliding_window_pattern": [True, False, True, False]},
        {**_EXPERTS, "tensors": ["blk.1.ffn_gate_inp.weight", "blk.3.exp_probs_b.bias"]},
        {**_EXPERTS, "leading_dense_block_count": 1, "interleave_moe_layer_step": 2, "expert_shared_count": 2,
         "expert_shared_feed_forward_length": 24, "expert_gating_func": 2, "expert_weights_norm": True,
         "expert_weights_scale": 2.5},
        {**_EXPERTS, "expert_used_count": [2] * 4, "expert_feed_forward_length": [32] * 4},
        {**_EXPERTS, "expert_used_count": [2, 3, 2, 2]}, {**_EXPERTS, "expert_used_count": [2, 2]},
        {**_EXPERTS, "expert_group_count": 4, "expert_group_used_count": 2},
        {**_EXPERTS, "expert_group_count": 8}, {**_EXPERTS, "expert_group_count": 3},
        {"expert_count": 128, "expert_used_count": 1},
        {"attention.kv_lora_rank": 32, "attention.key_length": 40, "attention.value_length": 32,
         "attention.key_length_mla": 24, "attention.value_length_mla": 16, "rope.dimension_count": 8,
         "attention.head_count_kv": 1},
        {"attention.kv_lora_rank": 32, "attention.key_length_mla": 8, "rope.dimension_count": 8},
        {"attention.q_lora_rank": 24, "attention.head_count_kv": 4},
        {"nextn_predict_layers": 1}, {"nextn_predict_layers": 4}, {"full_attention_interval": 2},
        {"attention.recurrent_layers": [True, False, True, True]}, {"attention.recurrent_layers": [True] * 4},
        {"attention.recurrent_layers": [True, False]},
        *({"rope.dimension_sections": sizes} for sizes in ([8, 0, 0, 0], [2, 3, 3, 0], [2, 2, 2], [1] * 5)),
        {"ssm.inner_size": 60, "ssm.time_step_rank": 8}, {"ssm.time_step_rank": 8, "ssm.group_count": 3},
        {"ssm.inner_size": 64, "ssm.time_step_rank": 8, "ssm.group_count": 2, "ssm.state_size": 8},
        {"pooling_type": 2, "classifier.pooling_type": 1}, {"pooling_type": 4},
        {"attention.value_length": 8}, {"attention.key_length_swa": 8, "attention.value_length_swa": 8},
    ),
    "config.json": (
        {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {"rope_scaling": _YARN},
        {"rope_scaling": {**_YARN, "mscale": 0.75, "mscale_all_dim": 0.5, "beta_fast": 20, "beta_slow": 2}},
        {"rope_scaling": {**_YARN, "attention_factor": 1.25}},
        {"rope_scaling": {**_LLAMA3, "low_freq_factor": 1.0, "high_freq_factor": 4.0}},
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0, "alpha": 1000.0}},
        {"sliding_window": 16, "sliding_window_pattern": 3},
        {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 2},
        {"layer_types": ["full_attention", "sliding_attention"] * 2, "sliding_window": 16},
        {"layer_types": ["sliding_attention"] * 4, "sliding_window": 16}, {"sliding_window": None},
        {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": None},
        {"layer_types": ["sliding_attention", "full_attention"]}, {"layer_types": ["full_attention"] * 4},
        {"sliding_window": 16, "sliding_window_pattern": "LLG"}, {"sliding_window": 0},
        {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 16, "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 3e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4}}},
        {"rope_parameters": {"sliding_attention": {"rope_theta": 2e4}, "full_attention": {
            "rope_type": "proportional", "rope_theta": 3e6, "partial_rotary_factor": 0.5, "factor": 2.0}}},
        {"rope_scaling": _LONG}, {"rope_scaling": {**_LONG, "original_max_position_embeddings": 128}},
        {"rope_scaling": _LONG, "original_max_position_embeddings": 128},
        {"rope_scaling": {**_LONG, "original_max_position_embeddings": 128, "factor": 2.0}},
        {"rope_scaling": {**_LONG, "attention_factor": 1.25, "long_factor": [2.5] * 7}},
        {"rope_scaling": {**_YARN, "factor": None}}, {"rope_scaling": {**_YARN, "truncate": False}},
        {"rope_scaling": {**_YARN, "factor": 1.0}}, {"rope_scaling": {**_YARN, "beta_fast": 1.0}},
        {"rope_scaling": {**_YARN, "llama_4_scaling_beta": 0.25, "rope_theta": 2e4}},
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "llama_4_scaling_beta": 0.25}},
        {"rope_scaling": {**_LLAMA3, "low_freq_factor": 4.0, "high_freq_factor": 4.0}},
        {"rope_scaling": {"type": "linear", "factor": 0.5}}, {"rope_scaling": {"rope_type": "mrope"}},
        {"rope_parameters": {"rope_theta": 2e4, "partial_rotary_factor": 0.5}}, {"rope_scaling": {}},
        *({"partial_rotary_factor": share} for share in (0.5, 0.45, 0.07)),
        {"partial_rotary_factor": 0.5, "rope_scaling": _YARN},
        {"head_dim": 2, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, {"head_dim": 8},
        {"hidden_size": 272},
        {"num_attention_heads": 3}, {"num_key_value_heads": 3}, {"num_attention_heads": 8},
        {"num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": [1], "decoder_sparse_step": 2},
        {"num_local_experts": 8, "num_experts_per_tok": 2}, {"num_local_experts": 0},
        {"quantization_config": {"quant_method": "gptq"}}, {"hidden_act": "gelu"}, {"is_decoder": True},
        {"num_kv_shared_layers": 2, "use_double_wide_mlp": True, "attention_k_eq_v": True,
         "layer_types": ["sliding_attention", "full_attention"] * 2},
        {"num_kv_shared_layers": 3, "layer_types": ["sliding_attention", "full_attention"] * 2},
        {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 32},
        {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "global_head_dim": 32,
         "layer_types": ["sliding_attention", "full_attention"] * 2},
        {"per_layer_config": {"3": {"head_dim": 32, "num_key_value_heads": 1}}},
        {"per_layer_config": {"0": {"n": 1}}}, {"vocab_size_per_layer_input": 99},
        {"topk_method": "group_limited_greedy", "n_routed_experts": 8, "n_group": 4, "topk_group": 2,
         "num_experts_per_tok": 3, "first_k_dense_replace": 1},
        {"n_routed_experts": 8, "n_group": 8, "topk_group": 1, "num_experts_per_tok": 1},
        {"n_routed_experts": 8, "n_group": 3}, {"rope_interleave": False}, {"topk_method": "other"},
        {"q_lora_rank": 24, "v_head_dim": 12}, {"q_lora_rank": None},
        {"moe_num_experts": 8, "moe_k": 2, "moe_layer_start_index": 1, "moe_layer_end_index": 2},
        {"moe_num_experts": 8, "moe_k": 2, "moe_layer_start_index": 0, "moe_layer_interval": 2},
        {"no_rope_layers": [1, 0, 1, 1]}, {"no_rope_layers": [1]}, {"no_rope_layer_interval": 2},
        {"moe_layers": [1, 3], "attn_temperature_tuning": False}, {"interleave_moe_layer_step": 2},
        {"layer_types": ["chunked_attention", "full_attention"] * 2, "attention_chunk_size": 16},
        {"attention_chunk_size": None}, {"layer_types": ["linear_attention", "full_attention"] * 2},
        {"layer_types": ["conv", "full_attention"] * 2}, {"full_attn_idxs": [1, 3]},
        {"layer_types": ["mamba", "attention"] * 2}, {"layers_block_type": ["mamba", "attention"] * 2},
        {"layer_types": ["linear_attention"] * 4}, {"hybrid_override_pattern": "M*-M"},
        {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 0},
        {"mamba_dt_rank": 7, "num_experts": 1, "mamba_d_head": 8, "mamba_n_heads": 16},
        {"time_step_limit": [0.0, float("inf")]}, {"time_step_limit": [0.1, "Infinity"]},
        {"time_step_limit": [0.0, 0.5]}, {"mamba_rms_norm": True, "mamba_norm_before_gate": False},
        {"block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.5, "block_multiple_of": 64},
        {"block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": None}, {"block_ff_dim": 80},
        {"attn_config": {"softmax_scale": 0.25, "clip_qkv": 6.0}}, {"attn_config": {"qk_ln": True}},
        {"attn_config": {"alibi": False}}, {"position_embedding_type": "rope"}, {"pad_token_id": 0},
        {"max_position_embeddings": 2}, {"global_attn_every_n_layers": 2, "local_attention": 8},
        {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_inner": 80}, {"n_embd": 48, "n_layer": 3, "n_head": 4,
         "prenorm": True}, {"n_embd": 48, "n_layer": 3, "n_head": 4, "moe_every_n_layers": 2},
        {"final_logit_softcapping": None, "attn_logit_softcapping": None}, {"attn_logit_softcapping": 20.0},
    ),
}  # fmt: skip
"""Fields that mean something only together; and "tensors", names of those that a GGUF file has."""
