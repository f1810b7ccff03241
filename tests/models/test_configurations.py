"""Random models of transformers' configurations give its own logits: a test for each architecture."""

from __future__ import annotations

from typing import Any

from tests.models.check_transformers import DELTA_NETS, QWEN3_MOE, SMALL, like_transformers

MIXTURE: dict[str, Any] = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 24,
}  # fmt: skip
GRANITE_MOE = SMALL | {
    "intermediate_size": 24, "num_local_experts": 6, "num_experts_per_tok": 3, "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 2.0,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128,
}  # fmt: skip
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
MELLUM = SMALL | {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 16,
    "num_hidden_layers": 4, "sliding_window": 8,
    "layer_types": [*["sliding_attention"] * 3, "full_attention"],
}  # fmt: skip
MAMBA: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 3, "conv_kernel": 4,
    "time_step_rank": 4,
}  # fmt: skip
NEMOTRON_H: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48,
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"],
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "ssm_state_size": 8,
    "mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 2, "chunk_size": 16,
}  # fmt: skip
MINISTRAL = {
    "rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 8,
    "llama_4_scaling_beta": 0.5, "mscale": 1.0, "mscale_all_dim": 0.5, "beta_fast": 32.0, "beta_slow": 1.0,
}  # fmt: skip
LONGROPE = {
    "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [1.0, 2.0, 3.0, 4.0],
    },
    "original_max_position_embeddings": 32,
}  # fmt: skip

# fmt: off
test_afmoe = like_transformers(
    "AfmoeConfig", {"mup_enabled": True}, {"layer_types": ["full_attention"] * 4},
    {"route_scale": 2.5, "tie_word_embeddings": True, "mup_enabled": True},
    sizes=SMALL | {
        "num_hidden_layers": 4, "num_experts": 6, "num_experts_per_tok": 3, "num_shared_experts": 1,
        "moe_intermediate_size": 24, "head_dim": 16, "sliding_window": 8,
    }
)
test_arcee = like_transformers(
    "ArceeConfig", {"mlp_bias": True}, {"head_dim": 16, "attention_bias": True},
    sizes=SMALL | {"num_hidden_layers": 3}
)
test_bloom = like_transformers(
    "BloomConfig", {}, {"n_head": 6, "hidden_size": 48, "tie_word_embeddings": False},
    sizes={"vocab_size": 96, "hidden_size": 32, "n_layer": 2, "n_head": 4}
)
test_chatglm = like_transformers(
    "GlmConfig", {"head_dim": 8}, {"head_dim": 16, "partial_rotary_factor": 0.25, "attention_bias": False}
)
test_cohere2 = like_transformers(
    "Cohere2Config", {}, {"logit_scale": 0.5, "attention_bias": True}, {"layer_types": ["full_attention"] * 4},
    sizes=SMALL | {"num_hidden_layers": 4, "sliding_window": 6}
)
test_command_r = like_transformers(
    "CohereConfig", {}, {"use_qk_norm": True, "logit_scale": 0.5, "attention_bias": True}
)
test_dbrx = like_transformers(
    "DbrxConfig",
    {"ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 6, "moe_top_k": 2}},
    {
        "ffn_config": {
            "ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 3, "moe_normalize_expert_weights": None,
        }
    },
    sizes={
        "vocab_size": 96, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64,
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 1.5, "rope_theta": 1e4}, "tie_word_embeddings": False,
    }
)
test_dots1 = like_transformers(
    "Dots1Config", {}, {"norm_topk_prob": True, "routed_scaling_factor": 2.5},
    sizes=SMALL | {
        "num_hidden_layers": 3, "n_routed_experts": 6, "n_shared_experts": 2, "num_experts_per_tok": 3,
        "moe_intermediate_size": 24, "first_k_dense_replace": 1, "sliding_window": None,
    }
)
test_ernie4_5 = like_transformers(
    "Ernie4_5Config", {"head_dim": 16}, {"head_dim": 8, "use_bias": True, "tie_word_embeddings": False}
)
test_ernie4_5_moe = like_transformers(
    "Ernie4_5_MoeConfig", {}, {"moe_num_shared_experts": 0, "tie_word_embeddings": False},
    sizes=SMALL | {"moe_intermediate_size": 16, "num_hidden_layers": 3, "moe_num_experts": 6, "moe_k": 3}
)
test_exaone_moe = like_transformers(
    "ExaoneMoeConfig", {}, {"n_group": 3, "topk_group": 2, "num_shared_experts": 2},
    {"layer_types": ["full_attention"] * 3},
    sizes=SMALL | {
        "num_hidden_layers": 3, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
        "sliding_window": 6, "sliding_window_pattern": 3,
    }
)
test_falcon_mamba = like_transformers(
    "FalconMambaConfig", {}, {"expand": 16, "intermediate_size": 64, "mixer_rms_eps": 1e-2}, tolerance=2e-5,
    sizes=MAMBA
)
test_falcon = like_transformers(
    "FalconConfig", {}, {"multi_query": False, "tie_word_embeddings": False},
    {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
    {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    sizes={key: SMALL[key] for key in SMALL if key not in ("intermediate_size", "num_key_value_heads")}
)
test_falcon_h1 = like_transformers(
    "FalconH1Config", {}, {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "key_multiplier": 1.0},
    tolerance=1e-4,
    sizes=SMALL | {
        "intermediate_size": 48, "mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_n_groups": 2,
        "mamba_d_state": 8, "mamba_chunk_size": 16, "embedding_multiplier": 3.0, "lm_head_multiplier": 0.5,
        "key_multiplier": 0.6, "attention_in_multiplier": 1.3, "attention_out_multiplier": 0.8,
        "ssm_in_multiplier": 1.2, "ssm_out_multiplier": 0.7, "ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 0.7],
        "mlp_multipliers": [1.4, 0.6],
    }
)
test_gemma = like_transformers(
    "GemmaConfig", {}, {"hidden_act": "gelu", "tie_word_embeddings": False},
    sizes=SMALL | {"num_hidden_layers": 3, "head_dim": 16}
)
test_gemma2 = like_transformers(
    "Gemma2Config", {"head_dim": 8, "query_pre_attn_scalar": 16},
    {"head_dim": 16, "attn_logit_softcapping": 2.0, "final_logit_softcapping": None},
    {"head_dim": 8, "attn_logit_softcapping": None, "tie_word_embeddings": False},
    sizes=SMALL | {"num_hidden_layers": 4, "sliding_window": 8}
)
test_gemma3 = like_transformers(
    "Gemma3TextConfig", {}, {"final_logit_softcapping": 5.0, "layer_types": None},
    {"tie_word_embeddings": False}, tolerance=2e-5,
    sizes=SMALL | {
        "num_hidden_layers": 4, "head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 16,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    }
)
test_glm4 = like_transformers(
    "Glm4Config", {"head_dim": 16}, {"head_dim": 8, "partial_rotary_factor": 0.25, "attention_bias": False}
)
test_glm4moe = like_transformers(
    "Glm4MoeConfig", {}, {"use_qk_norm": True, "attention_bias": True, "routed_scaling_factor": 1.5},
    sizes=SMALL | {
        "num_hidden_layers": 3, "n_routed_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
        "head_dim": 16,
    }
)
test_gptneox = like_transformers(
    "GPTNeoXConfig", {}, {"use_parallel_residual": False, "rotary_pct": 1.0, "hidden_size": 64},
    {"attention_bias": False}, sizes={**SMALL, "num_key_value_heads": 4, "rotary_pct": 0.5}
)
test_granite = like_transformers(
    "GraniteConfig", {},
    {
        "attention_multiplier": 0.2, "embedding_multiplier": 3.0, "residual_multiplier": 0.5,
        "logits_scaling": 2.0, "attention_bias": True, "mlp_bias": True,
    }
)
test_granite_swa = like_transformers(
    "GraniteSWAConfig", {"layer_rope_theta": [0, 500.0, 500.0, 500.0]},
    {"attention_multiplier": 0.2, "residual_multiplier": 0.5, "tie_word_embeddings": False},
    sizes=SMALL | {"num_hidden_layers": 4, "sliding_window": 8, "logits_scaling": 2.0}
)
test_granitehybrid = like_transformers(
    "GraniteMoeHybridConfig", {}, {"num_local_experts": 0, "position_embedding_type": "rope"}, tolerance=1e-4,
    sizes=SMALL | {
        "intermediate_size": 24, "shared_intermediate_size": 48, "num_hidden_layers": 3,
        "num_local_experts": 4, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 8, "mamba_chunk_size": 16,
        "embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.5,
        "attention_multiplier": 0.3, "tie_word_embeddings": True,
    }
)
test_granitemoe = like_transformers("GraniteMoeConfig", sizes=GRANITE_MOE)
test_granitemoe_shared = like_transformers(
    "GraniteMoeSharedConfig", {"shared_intermediate_size": 40}, sizes=GRANITE_MOE
)
test_hunyuan_dense = like_transformers(
    "HunYuanDenseV1Config", {"head_dim": 8},
    {
        "head_dim": 16,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 1.0, "alpha": 50.0},
    }
)
test_hunyuan_moe = like_transformers(
    "HunYuanMoEV1Config",
    sizes=SMALL | {"intermediate_size": 24, "head_dim": 8, "num_experts": 6, "moe_topk": 3}
)
# B and C are small before they are normalised, which magnifies the last bits.
test_jamba = like_transformers(
    "JambaConfig", {}, {"num_experts": 1}, {"mamba_conv_bias": False, "tie_word_embeddings": True},
    tolerance=1e-4, sizes=SMALL | {
        "intermediate_size": 48, "num_hidden_layers": 4, "num_experts": 4, "num_experts_per_tok": 2,
        "mamba_d_state": 8, "mamba_dt_rank": 4, "attn_layer_period": 2, "attn_layer_offset": 1,
        "expert_layer_period": 3, "expert_layer_offset": 1, "use_mamba_kernels": False,
    }
)
test_jais2 = like_transformers("Jais2Config", sizes=SMALL | {"num_hidden_layers": 3})
test_lfm2 = like_transformers(
    "Lfm2Config", {}, {"conv_bias": True, "block_auto_adjust_ff_dim": False}, tolerance=1e-4,
    sizes=SMALL | {
        "intermediate_size": 96, "block_multiple_of": 16, "num_hidden_layers": 3,
        "layer_types": ["conv", "full_attention", "conv"],
    }
)
test_cohere2moe = like_transformers(
    "Cohere2MoeConfig", {}, {"num_shared_experts": 2, "first_k_dense_replace": 1, "head_dim": 12},
    {"mlp_layer_types": ["dense", "dense", *["sparse"] * 3], "expert_selection_fn": "sigmoid"},
    {"rms_norm_eps": 1e-6, "expert_selection_fn": "sigmoid", "norm_topk_prob": False},
    sizes=SMALL | {
        "num_hidden_layers": 5, "num_experts": 6, "num_experts_per_tok": 3, "intermediate_size": 24,
        "prefix_dense_intermediate_size": 48, "head_dim": 8, "sliding_window": 8,
    }
)
test_hy_v3 = like_transformers(
    "HYV3Config", {}, {"num_shared_experts": 2, "tie_word_embeddings": True},
    {"mlp_layer_types": ["sparse"] * 3, "attention_bias": True, "router_scaling_factor": 1.5},
    sizes=SMALL | {
        "num_hidden_layers": 3, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
        "head_dim": 16,
    }
)
test_lfm2moe = like_transformers(
    "Lfm2MoeConfig", {}, {"use_expert_bias": False, "norm_topk_prob": False}, tolerance=1e-4,
    sizes=SMALL | {
        "intermediate_size": 96, "moe_intermediate_size": 24, "num_dense_layers": 1, "num_experts": 4,
        "num_experts_per_tok": 2, "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"],
    }
)
test_mamba = like_transformers(
    "MambaConfig", {}, {"tie_word_embeddings": False, "use_conv_bias": False, "time_step_rank": "auto"},
    {"intermediate_size": 48}, tolerance=2e-5, sizes=MAMBA
)
test_mamba2 = like_transformers(
    "Mamba2Config", {}, {"use_conv_bias": False, "tie_word_embeddings": True}, tolerance=1e-4,
    sizes={
        "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 8,
        "state_size": 8, "n_groups": 2, "chunk_size": 16,
    }
)
test_mellum = like_transformers(
    "MellumConfig", {"rope_parameters": {"full_attention": YARN, "sliding_attention": PLAIN}},
    {"rope_parameters": {"full_attention": PLAIN, "sliding_attention": PLAIN}}, sizes=MELLUM, whole=True
)
test_mellum_what_gguf_cannot_say = like_transformers(
    "MellumConfig", {"layer_types": None, "norm_topk_prob": False},
    {"mlp_layer_types": ["dense", "sparse", "sparse", "dense"]}, sizes=MELLUM
)
test_minicpm3 = like_transformers(
    "MiniCPM3Config", {}, {"scale_depth": None, "dim_model_base": None},
    sizes=SMALL | {
        "intermediate_size": 48, "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16,
        "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 12,
    }
)
test_minimax_m2 = like_transformers(
    "MiniMaxM2Config", {},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    sizes=SMALL | {"num_hidden_layers": 3, "num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 16}
)
test_mistral3 = like_transformers(
    "Ministral3Config", {"head_dim": 8}, {"head_dim": 16, "rope_parameters": MINISTRAL}
)
test_mixtral = like_transformers(
    "MixtralConfig", {}, {"sliding_window": 7, "head_dim": 12},
    sizes=SMALL | {"intermediate_size": 24, "num_local_experts": 6, "num_experts_per_tok": 3}
)
test_mpt = like_transformers(
    "MptConfig", {}, {"n_heads": 6, "d_model": 48, "attn_config": {"clip_qkv": 1.0, "softmax_scale": 0.3}},
    sizes={"vocab_size": 96, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}
)
test_nemotron = like_transformers(
    "NemotronConfig", {}, {"mlp_bias": True, "attention_bias": True}, sizes=SMALL | {"num_hidden_layers": 3}
)
# Steps are kept from being shorter than time_step_min: most of them, with this one.
test_nemotron_h = like_transformers(
    "NemotronHConfig", {}, {"time_step_min": 0.7, "mlp_bias": True}, sizes=NEMOTRON_H, tolerance=1e-4
)
test_nemotron_h_moe = like_transformers(
    "NemotronHConfig", {}, {"n_group": 3, "topk_group": 2, "norm_topk_prob": False}, tolerance=1e-4,
    sizes=NEMOTRON_H | {
        "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"], "n_routed_experts": 6,
        "num_experts_per_tok": 2, "moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 40,
        "routed_scaling_factor": 2.5,
    }
)
test_olmo = like_transformers("OlmoConfig", {}, {"clip_qkv": 1.5, "tie_word_embeddings": True})
test_olmo2 = like_transformers(
    "Olmo2Config", {}, {"num_key_value_heads": 4, "attention_bias": True}
)
test_olmo3 = like_transformers(
    "Olmo3Config", sizes=SMALL | {"num_hidden_layers": 4, "sliding_window": 8}
)
test_olmoe = like_transformers(
    "OlmoeConfig", sizes=SMALL | {"num_hidden_layers": 3, "num_experts": 6, "num_experts_per_tok": 2}
)
test_phi2 = like_transformers(
    "PhiConfig", {}, {"num_key_value_heads": 4, "partial_rotary_factor": 1.0},
    {"tie_word_embeddings": True}
)
test_phi3 = like_transformers(
    "Phi3Config", {}, {"num_key_value_heads": 4, "partial_rotary_factor": 0.5}, {"sliding_window": 12}
)
# transformers goes by the length of the text, we by that of the context.
test_phi3_within_the_original_length = like_transformers("Phi3Config", LONGROPE, n=24, n_ctx=32)
test_phi3_beyond_the_original_length = like_transformers("Phi3Config", LONGROPE, n=40, n_ctx=64)
test_qwen2moe = like_transformers(
    "Qwen2MoeConfig", {}, {"norm_topk_prob": True}, {"mlp_only_layers": [0]},
    sizes=QWEN3_MOE | {"shared_expert_intermediate_size": 40}
)
# A linear_value_head_dim of 8 is what GGUF can say.
test_qwen35 = like_transformers(
    "Qwen3_5TextConfig", {}, {"linear_num_value_heads": 2, "attention_bias": True},
    {"tie_word_embeddings": True}, {"linear_value_head_dim": 8}, sizes=DELTA_NETS, tolerance=1e-4
)
test_qwen35moe = like_transformers(
    "Qwen3_5MoeTextConfig", {}, {"num_hidden_layers": 5, "linear_num_value_heads": 6},
    {"linear_num_value_heads": 6, "linear_value_head_dim": 8}, sizes=DELTA_NETS | MIXTURE, tolerance=1e-4
)
test_qwen3moe = like_transformers(
    "Qwen3MoeConfig", {}, {"norm_topk_prob": True}, {"mlp_only_layers": [1]}, {"decoder_sparse_step": 2},
    {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2, "head_dim": 16}, sizes=QWEN3_MOE
)
test_qwen3next = like_transformers(
    "Qwen3NextConfig", {},
    {"layer_types": ["full_attention", *["linear_attention"] * 3], "norm_topk_prob": False},
    {"mlp_only_layers": [1], "tie_word_embeddings": True}, {"linear_value_head_dim": 8},
    sizes=DELTA_NETS | MIXTURE, tolerance=1e-4
)
test_seed_oss = like_transformers(
    "SeedOssConfig", {"head_dim": 16}, {"head_dim": 8, "attention_bias": False}
)
# Until a shift only: llama.cpp then rotates the keys of layers without rotation.
test_smollm3 = like_transformers(
    "SmolLM3Config", {}, {"no_rope_layers": [0, 1, 1, 0], "attention_bias": True},
    sizes=SMALL | {"num_hidden_layers": 4, "bos_token_id": 1, "eos_token_id": 2}
)
test_stablelm = like_transformers(
    "StableLmConfig", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25}},
    {"rope_parameters": {"rope_theta": 1e5, "partial_rotary_factor": 0.5}, "use_qkv_bias": True}, whole=True
)
test_starcoder = like_transformers(
    "GPTBigCodeConfig", {}, {"n_inner": 48, "scale_attn_weights": False, "tie_word_embeddings": False},
    sizes={"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
)
test_starcoder2 = like_transformers(
    "Starcoder2Config", {"sliding_window": None},
    {"sliding_window": 8, "use_bias": False, "tie_word_embeddings": False}
)
# fmt: on
