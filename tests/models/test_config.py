from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aleator.core.errors import FileFormatError, UnsupportedModel
from aleator.models import index, open_weights
from aleator.models.config import ModelConfig, RopeConfig, SSMConfig, WindowConfig
from aleator.models.files.fields import Fields
from aleator.models.files.gguf import GGUFFile
from aleator.models.index import ARCHITECTURES
from aleator.models.refused import NEEDS
from tests.models.builders import model_json, model_metadata, write_gguf

FromGGUF = Callable[..., ModelConfig]


def config_from_gguf(file: GGUFFile) -> ModelConfig:
    return index.read_gguf(file)[1]


def config_from_json(fields: Fields) -> ModelConfig:
    return index.read_json(fields)[1]


@pytest.fixture
def from_gguf(tmp_path: Path) -> FromGGUF:
    def config(changes: dict[str, Any] | None = None, architecture: str = "llama") -> ModelConfig:
        metadata = model_metadata(architecture) | (changes or {})
        metadata = {key: value for key, value in metadata.items() if value is not None}
        return config_from_gguf(
            GGUFFile(write_gguf(tmp_path / "m.gguf", metadata, architecture=architecture))
        )

    return config


def from_json(**changes: Any) -> ModelConfig:
    return config_from_json(Fields("config.json", model_json(**changes)))


def test_gguf_defaults(from_gguf: FromGGUF) -> None:
    config = from_gguf()
    assert config.rms_eps == pytest.approx(1e-5)
    assert config == ModelConfig(
        architecture="llama",
        name="",
        n_vocab=24,
        n_layers=2,
        n_embd=32,
        n_heads=(4, 4),
        n_kv_heads=(2, 2),
        n_ff=(64, 64),
        head_dim=8,
        head_dim_v=8,
        rms_eps=config.rms_eps,
        context_length=128,
        tied=True,
        rope=RopeConfig(theta=10000.0, dim=8, style="norm", original_context=128),
    )


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3"])
def test_gguf_architectures(from_gguf: FromGGUF, architecture: str) -> None:
    config = from_gguf({"general.name": "A model"}, architecture)
    assert (config.architecture, config.name) == (architecture, "A model")
    assert config.rope.style == ("norm" if architecture == "llama" else "neox")


def test_gguf_everything_given(from_gguf: FromGGUF) -> None:
    config = from_gguf(
        {
            "llama.attention.head_count": [4, 8],
            "llama.attention.head_count_kv": [4, 2],
            "llama.feed_forward_length": [64, 128],
            "llama.attention.key_length": 16,
            "llama.attention.value_length": 24,
            "llama.rope.dimension_count": 12,
            "llama.rope.freq_base": 500000.0,
            "llama.rope.scaling.type": "yarn",
            "llama.rope.scaling.factor": 4.0,
            "llama.rope.scaling.original_context_length": 32,
            "llama.rope.scaling.attn_factor": 1.5,
            "llama.rope.scaling.yarn_beta_fast": 16.0,
            "llama.rope.scaling.yarn_beta_slow": 2.0,
        }
    )
    assert (config.n_heads, config.n_kv_heads, config.n_ff) == ((4, 8), (4, 2), (64, 128))
    assert (config.head_dim, config.head_dim_v) == (16, 24)
    assert config.rope == RopeConfig(500000.0, 12, "norm", "yarn", 4.0, 32, 1.5, 16.0, 2.0)


@pytest.mark.parametrize(
    ("changes", "scaling", "factor"),
    [
        ({"scaling.factor": 2.0}, "linear", 2.0),
        ({"scale_linear": 4.0}, "linear", 4.0),
        ({"scaling.type": "linear", "scaling.factor": 0.0}, "none", 1.0),
        ({"scaling.type": "none", "scaling.factor": 2.0}, "none", 1.0),
        ({"scaling.type": "longrope", "scaling.factor": 2.0}, "longrope", 2.0),
    ],
)
def test_gguf_rope_scaling(
    from_gguf: FromGGUF, changes: dict[str, Any], scaling: str, factor: float
) -> None:
    rope = from_gguf({f"llama.rope.{key}": value for key, value in changes.items()}).rope
    assert (rope.scaling, rope.factor) == (scaling, factor)


def test_heads_default_to_no_groups(from_gguf: FromGGUF) -> None:
    assert from_gguf({"llama.attention.head_count_kv": None}).n_kv_heads == (4, 4)
    assert from_json(num_key_value_heads=None).n_kv_heads == (4, 4)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("llama.block_count", None, "missing"),
        ("llama.block_count", "2", "an integer"),
        ("llama.block_count", 0, "between 1 and"),
        ("llama.block_count", 2**32 - 1, "between 1 and"),
        ("llama.embedding_length", -4, "between 1 and"),
        ("llama.embedding_length", 2.0, "an integer, not 2.0"),
        ("llama.embedding_length", True, "an integer, not True"),
        ("llama.context_length", None, "missing"),
        ("llama.attention.head_count", 0, "between 1 and"),
        ("llama.attention.head_count", [4], "1 entries for 2 layers"),
        ("llama.attention.head_count", [4, 0], r"head_count\[1\] is 0"),
        ("llama.attention.head_count", [4.0, 4.0], r"head_count\[0\] is 4.0"),
        ("llama.attention.head_count_kv", 3, "4 heads are not a multiple of 3"),
        ("llama.attention.head_count_kv", [2, 8], "layer 1: 4 heads"),
        ("llama.attention.key_length", 0, "between 1 and"),
        ("llama.attention.layer_norm_rms_epsilon", None, "missing"),
        ("llama.attention.layer_norm_rms_epsilon", -1.0, "between 0 and 1"),
        ("llama.attention.layer_norm_rms_epsilon", float("nan"), "between 0 and 1"),
        ("llama.feed_forward_length", "wide", "an integer"),
        ("llama.rope.dimension_count", 7, "must be even"),
        ("llama.rope.dimension_count", 10, "between 2 and 8"),
        ("llama.rope.freq_base", 0.0, "between 1 and"),
        ("llama.rope.freq_base", float("inf"), "between 1 and"),
        ("llama.rope.scaling.factor", -2.0, "between 0 and"),
        ("llama.rope.scaling.type", 3, "a string"),
        ("tokenizer.ggml.tokens", ["t"] * 25, "25 tokens and token_embd.weight 24 rows"),
        ("general.architecture", None, "missing"),
    ],
)
def test_gguf_fields_are_checked(
    from_gguf: FromGGUF, tmp_path: Path, field: str, value: Any, message: str
) -> None:
    if field == "general.architecture":  # the writer always writes it
        data = write_gguf(tmp_path / "m.gguf").read_bytes()
        (tmp_path / "m.gguf").write_bytes(
            data.replace(b"general.architecture", b"general.architectura")
        )
        with pytest.raises(FileFormatError, match=message) as caught:
            config_from_gguf(GGUFFile(tmp_path / "m.gguf"))
    else:
        with pytest.raises(FileFormatError, match=message) as caught:
            from_gguf({field: value})
    assert caught.value.field == field


def test_yarn_stretches(from_gguf: FromGGUF) -> None:
    yarn = {"llama.rope.scaling.type": "yarn"}
    assert from_gguf(yarn).rope.factor == 1.0
    with pytest.raises(FileFormatError, match="at least 1"):
        from_gguf(yarn | {"llama.rope.scaling.factor": 0.5})
    with pytest.raises(FileFormatError, match=r"beta_slow 0\.0 of yarn must be at least 1e-06"):
        from_gguf(yarn | {"llama.rope.scaling.yarn_beta_slow": 0.0})
    with pytest.raises(FileFormatError, match=r"base 1\.0 of yarn's frequencies must exceed 1"):
        from_gguf(yarn | {"llama.rope.freq_base": 1.0})


def test_width_must_be_a_multiple_of_heads_or_the_head_size_given(from_gguf: FromGGUF) -> None:
    heads = {"llama.attention.head_count": 3, "llama.attention.head_count_kv": 3}
    with pytest.raises(FileFormatError, match=r"key_length is missing.*32 not a multiple of 3"):
        from_gguf(heads)
    sizes = {"llama.attention.key_length": 10, "llama.attention.value_length": 12}
    config = from_gguf(heads | sizes)
    assert (config.head_dim, config.head_dim_v) == (10, 12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"llama.attention.causal": False}, "causal"),
        ({"general.type": "adapter"}, "adapter"),
        ({"llama.rope.scaling.type": "su"}, "'su'"),
        ({"llama.rope.scaling.yarn_ext_factor": 0.5}, "yarn_ext_factor"),
        ({"llama.rope.scaling.yarn_attn_factor": 0.5}, "yarn_attn_factor"),
    ],
)
def test_gguf_features_not_supported(
    from_gguf: FromGGUF, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        from_gguf(changes)


def test_unsupported_architectures_name_those_supported(from_gguf: FromGGUF) -> None:
    with pytest.raises(UnsupportedModel, match=r"'rwkv6'.*llama, .*qwen2, qwen3,"):
        from_gguf(architecture="rwkv6")
    with pytest.raises(UnsupportedModel, match=r"'rwkv'.*llama, .*qwen2, qwen3,"):
        from_json(model_type="rwkv")


def test_vocabulary_without_weights(tmp_path: Path) -> None:
    tokens = {"tokenizer.ggml.tokens": ["a", "b", "c"]}
    path = tmp_path / "vocab.gguf"
    assert config_from_gguf(GGUFFile(write_gguf(path, model_metadata() | tokens, {}))).n_vocab == 3
    sized = model_metadata() | {"llama.vocab_size": 5}
    assert config_from_gguf(GGUFFile(write_gguf(path, sized, {}))).n_vocab == 5
    with pytest.raises(FileFormatError, match="missing") as caught:
        config_from_gguf(GGUFFile(write_gguf(path, tensors={})))
    assert caught.value.field == "llama.vocab_size"


def test_json() -> None:
    config = from_json()
    assert config.architecture == "llama"
    assert (config.n_vocab, config.n_layers, config.n_embd, config.context_length) == (
        24,
        2,
        32,
        128,
    )
    assert (config.n_heads, config.n_kv_heads, config.n_ff) == ((4, 4), (2, 2), (64, 64))
    assert (config.head_dim, config.head_dim_v, config.tied) == (8, 8, True)
    assert config.rope == RopeConfig(500000.0, 8, "neox", original_context=128)


def test_json_of_each_model_type() -> None:
    assert from_json(model_type="mistral").architecture == "llama"
    assert from_json(model_type="qwen2", sliding_window=64).architecture == "qwen2"
    assert from_json(model_type="qwen3").head_dim == 128
    assert from_json(model_type="qwen3", head_dim=16).head_dim == 16
    assert not from_json(tie_word_embeddings=None).tied


def test_json_rope_of_transformers_5() -> None:
    rope = from_json(
        rope_theta=None, rope_parameters={"rope_theta": 1e6, "rope_type": "default"}
    ).rope
    assert (rope.theta, rope.scaling) == (1e6, "none")


def test_json_llama3_scaling() -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    rope = from_json(rope_scaling=scaling).rope
    assert (rope.scaling, rope.factor, rope.original_context) == ("llama3", 8.0, 64)
    assert (rope.low_freq_factor, rope.high_freq_factor) == (1.0, 4.0)
    for field in ("factor", "low_freq_factor", "high_freq_factor"):
        with pytest.raises(FileFormatError) as caught:
            from_json(rope_scaling={k: v for k, v in scaling.items() if k != field})
        assert caught.value.field == field
    with pytest.raises(FileFormatError, match="must exceed"):
        from_json(rope_scaling=scaling | {"high_freq_factor": 1.0})


def test_json_yarn_scaling() -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    rope = from_json(rope_scaling=scaling).rope
    assert (rope.scaling, rope.factor, rope.attn_factor) == ("yarn", 4.0, 1.0)
    # 1 + 0.1 ln 4 is YaRN's own; the field replaces it, RopeConfig multiplies it.
    rope = from_json(rope_scaling=scaling | {"attention_factor": 1.1386294361119891}).rope
    assert rope.attn_factor == pytest.approx(1.0)
    with pytest.raises(FileFormatError, match=r"beta_fast .* must exceed beta_slow"):
        from_json(rope_scaling=scaling | {"beta_fast": 1, "beta_slow": 2})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model_type": None}, "model_type"),
        ({"model_type": 3}, "model_type"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "32"}, "hidden_size"),
        ({"hidden_size": 33}, "head_dim"),
        ({"num_hidden_layers": 10**30}, "num_hidden_layers"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"rms_norm_eps": True}, "rms_norm_eps"),
        ({"rope_theta": 10**400}, "rope_theta"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0.5}}, "factor"),
        ({"rope_scaling": {"attention_factor": float("nan")}}, "attention_factor"),
        ({"rope_scaling": {"attention_factor": float("inf")}}, "attention_factor"),
        ({"rope_scaling": {"attention_factor": -1}}, "attention_factor"),
        ({"model_type": "phi3", "partial_rotary_factor": 0.4}, "partial_rotary_factor"),
        ({"model_type": "mistral", "sliding_window": 0}, "sliding_window"),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}}, "short_factor"),
        (
            {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0] * 3 + [0.0]}},
            "short_factor",
        ),
        ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0] * 4}}, "long_factor"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
        ({"vocab_size": -1}, "vocab_size"),
    ],
)
def test_json_fields_are_checked(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(FileFormatError) as caught:
        from_json(**changes)
    assert caught.value.field == field
    assert "config.json" in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_act": "gelu"},
        {"num_experts": 8},
        {"num_local_experts": 8},
        {"quantization_config": {"quant_method": "hqq"}},
        {"model_type": "qwen2", "layer_types": ["full_attention", "sliding_attention"]},
        {"rope_scaling": {"rope_type": "proportional", "factor": 2.0}},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}},
    ],
)
def test_json_features_not_supported(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel, match=r"config\.json.*not supported"):
        from_json(**changes)


MAMBA = {
    "mamba.block_count": 2,
    "mamba.context_length": 1 << 20,
    "mamba.embedding_length": 32,
    "mamba.feed_forward_length": 0,
    "mamba.attention.head_count": 0,
    "mamba.attention.layer_norm_rms_epsilon": 1e-5,
    "mamba.ssm.conv_kernel": 4,
    "mamba.ssm.inner_size": 64,
    "mamba.ssm.state_size": 16,
    "mamba.ssm.time_step_rank": 2,
}


def mamba_from_gguf(folder: Path, **changes: Any) -> ModelConfig:
    values = MAMBA | {f"mamba.{key}": value for key, value in changes.items()}
    metadata = {key: value for key, value in values.items() if value is not None}
    return config_from_gguf(GGUFFile(write_gguf(folder / "m.gguf", metadata, architecture="mamba")))


def test_gguf_mamba(tmp_path: Path) -> None:
    config = mamba_from_gguf(tmp_path)
    assert config.ssm == SSMConfig(64, 4, 16, 2)
    assert (config.n_heads, config.n_ff, config.tied) == ((), (), True)
    config = mamba_from_gguf(tmp_path, **{"ssm.dt_b_c_rms": True})
    assert config.ssm == SSMConfig(64, 4, 16, 2, norm_eps=config.rms_eps)


def test_gguf_jamba(from_gguf: FromGGUF) -> None:
    ssm = {key.replace("mamba", "jamba"): value for key, value in MAMBA.items() if ".ssm." in key}
    config = from_gguf(ssm | {"jamba.attention.head_count_kv": [0, 2]}, "jamba")
    assert config.ssm == SSMConfig(64, 4, 16, 2)
    assert (config.n_kv_heads, config.n_ff) == ((0, 2), (64, 64))
    assert [config.keeps_state(layer) for layer in (0, 1)] == [True, False]
    # Layers without a router have no experts, whatever the file says of them.
    assert from_gguf(ssm | {"jamba.expert_count": 8}, "jamba").experts is None
    with pytest.raises(FileFormatError, match="head_count_kv"):
        from_gguf({"llama.attention.head_count_kv": [0, 2]}, "llama")


@pytest.mark.parametrize(
    ("key", "value"),
    [("conv_kernel", 1), ("conv_kernel", 65), ("state_size", 1 << 20), ("inner_size", 0),
     ("time_step_rank", None)],
)  # fmt: skip
def test_gguf_mamba_sizes_are_checked(tmp_path: Path, key: str, value: int | None) -> None:
    with pytest.raises(FileFormatError, match=f"mamba.ssm.{key}"):
        mamba_from_gguf(tmp_path, **{f"ssm.{key}": value})


def test_json_mamba() -> None:
    fields = {
        "model_type": "mamba",
        "vocab_size": 24,
        "hidden_size": 40,
        "num_hidden_layers": 2,
    }
    config = config_from_json(Fields("config.json", fields))
    assert config.ssm == SSMConfig(d_inner=80, d_conv=4, d_state=16, dt_rank=3)
    for width, rank in ((48, 3), (49, 4)):  # a sixteenth, rounded up
        sized = config_from_json(Fields("config.json", fields | {"hidden_size": width}))
        assert sized.ssm is not None
        assert sized.ssm.dt_rank == rank
    assert (config.tied, config.rms_eps, config.context_length) == (True, 1e-5, 1 << 20)
    more = {
        "expand": 3,
        "conv_kernel": 3,
        "state_size": 8,
        "time_step_rank": 7,
        "time_step_scale": 1,
    }
    config = config_from_json(Fields("config.json", fields | more))
    assert config.ssm == SSMConfig(d_inner=120, d_conv=3, d_state=8, dt_rank=7)
    falcon = fields | {"model_type": "falcon_mamba"}  # transformers' default, and a value
    for given, eps in (({}, 1e-6), ({"mixer_rms_eps": 0.5}, 0.5)):
        config = config_from_json(Fields("config.json", falcon | given))
        assert config.ssm is not None
        assert config.ssm.norm_eps == eps
    with pytest.raises(UnsupportedModel, match="use_bias"):
        config_from_json(Fields("config.json", fields | {"use_bias": True}))
    with pytest.raises(FileFormatError, match="expand"):
        config_from_json(Fields("config.json", fields | {"expand": 0.001}))


def test_gguf_gemma3(from_gguf: FromGGUF) -> None:
    rope = {"gemma3.rope.freq_base": 1e6, "gemma3.rope.scaling.factor": 8.0}
    plain = from_gguf(rope, "gemma3")
    assert plain.window is None
    assert plain.attention_scale == pytest.approx(8**-0.5)
    window = {"gemma3.attention.sliding_window": 5, "gemma3.block_count": 7}
    config = from_gguf(rope | window, "gemma3")
    local = RopeConfig(theta=10000.0, dim=8, style="neox", original_context=128)
    assert config.window == WindowConfig(5, (True,) * 5 + (False, True), local)
    assert (config.rope.theta, config.rope.scaling, config.rope.factor) == (1e6, "linear", 8.0)
    key = "gemma3.attention.sliding_window_pattern"
    for pattern, layers in ((2, (1, 0, 1, 0, 1, 0, 1)), (0, (1,) * 7), ([True] + [False] * 6,) * 2):
        config = from_gguf(window | {key: pattern, "gemma3.rope.freq_base_swa": 500.0}, "gemma3")
        assert config.window is not None
        assert config.window.layers == tuple(map(bool, layers))
        assert config.window.rope.theta == 500.0
    large = from_gguf({"gemma3.block_count": 62, "gemma3.attention.key_length": 16}, "gemma3")
    assert large.attention_scale == pytest.approx(8**-0.5)  # by the width, as in the 27B model
    wide = {"gemma3.attention.head_count": 64, "gemma3.attention.value_length": 16}
    few = wide | {"gemma3.attention.head_count_kv": 64, "gemma3.attention.key_length": 16}
    assert from_gguf(few, "gemma3").attention_scale == 0.25
    with pytest.raises(FileFormatError, match=r"embedding_length is 32; .* at least the 64 heads"):
        from_gguf(few | {"gemma3.block_count": 62}, "gemma3")
    assert from_gguf({"gemma3.final_logit_softcapping": 30.0}, "gemma3").logit_softcap == 30.0


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"attention.sliding_window_pattern": [True]}, FileFormatError),
        ({"attention.sliding_window_pattern": [1, 0]}, FileFormatError),
        ({"attention.sliding_window_pattern": 5000}, FileFormatError),
        ({"attention.sliding_window": -1}, FileFormatError),
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0}, UnsupportedModel),
    ],
)
def test_gguf_gemma3_windows_are_checked(
    from_gguf: FromGGUF, changes: dict[str, Any], error: type[Exception]
) -> None:
    window = {"attention.sliding_window": 5} | changes
    with pytest.raises(error):
        from_gguf({f"gemma3.{key}": value for key, value in window.items()}, "gemma3")


def gemma3_from_json(**changes: Any) -> ModelConfig:
    own = {"model_type": "gemma3_text", "hidden_act": None, "rope_theta": None, "head_dim": 8}
    return from_json(**own | {"tie_word_embeddings": None} | changes)


def test_json_gemma3() -> None:
    config = gemma3_from_json(num_hidden_layers=7, sliding_window=5)
    local = RopeConfig(theta=10000.0, dim=8, style="neox", original_context=128)
    assert config.window == WindowConfig(5, (True,) * 5 + (False, True), local)
    assert (config.rope.theta, config.tied, config.attention_scale) == (1e6, True, 256**-0.5)
    assert gemma3_from_json(head_dim=None).head_dim == 256
    kinds = ["full_attention", "sliding_attention"]
    config = gemma3_from_json(layer_types=kinds, query_pre_attn_scalar=64)
    assert config.window is not None
    assert config.window.layers == (False, True)
    assert (config.window.size, config.attention_scale) == (4096, 0.125)
    assert gemma3_from_json(layer_types=["full_attention"] * 2).window is None
    old = {"rope_theta": 5e5, "rope_local_base_freq": 2e4, "sliding_window_pattern": 2}
    scaling = {"rope_type": "linear", "factor": 8.0}
    config = gemma3_from_json(**old, rope_scaling=scaling)
    assert config.window is not None
    assert config.window.layers == (True, False)
    assert (config.rope.theta, config.rope.factor, config.window.rope.theta) == (5e5, 8.0, 2e4)
    new = {
        "full_attention": scaling | {"rope_theta": 5e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    }
    config = gemma3_from_json(rope_parameters=new)
    assert config.window is not None
    assert config.window.rope.theta == 2e4
    assert (config.rope.theta, config.rope.factor, config.rope.scaling) == (5e5, 8.0, "linear")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"layer_types": ["sliding_attention"]}, FileFormatError),
        ({"layer_types": ["sliding_attention", "chunked_attention"]}, FileFormatError),
        ({"sliding_window": -3}, FileFormatError),
        ({"hidden_activation": "silu"}, UnsupportedModel),
        ({"attn_logit_softcapping": 50.0}, UnsupportedModel),
        ({"use_bidirectional_attention": True}, UnsupportedModel),
    ],
)
def test_json_gemma3_is_checked(changes: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        gemma3_from_json(**changes)


def test_an_architecture_that_only_gguf_files_have_says_so() -> None:
    with pytest.raises(
        UnsupportedModel, match=r"'qwen3moe' are read from GGUF files only.*convert"
    ):
        from_json(model_type="qwen3moe")


@pytest.mark.parametrize("name", NEEDS)
def test_refusals_say_what_an_architecture_needs(name: str, tmp_path: Path) -> None:
    assert name not in ARCHITECTURES
    path = write_gguf(tmp_path / "m.gguf", architecture=name)
    with pytest.raises(UnsupportedModel, match=re.escape(f"{name!r} is not supported: it needs ")):
        open_weights(path)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("gemma4_assistant", "the Gemma 4 model that it drafts for"),
        ("gemma3n_text", "AltUp"),
    ],
)
def test_refusals_tell_gemmas_apart(name: str, what: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"{name!r} is not supported: it needs .*{what}"):
        from_json(model_type=name)


def test_fields_that_llama_cpp_does_not_use(from_gguf: FromGGUF) -> None:
    """Another base of exaone4's windows; granitemoe's switch of the rotation, which granite has."""
    layers = {f"exaone4.{key}": 64 for key in ("block_count", "attention.sliding_window")}
    config = from_gguf(layers | {"exaone4.rope.freq_base_swa": 500.0}, "exaone4")
    assert config.window is not None
    assert config.window.rope == config.rope
    for name, rotates in (("granitemoe", True), ("granite", False)):
        changes = {f"{name}.rope.scaling.finetuned": False, f"{name}.logit_scale": 1.0}
        changes |= {f"{name}.expert_{key}": 2 for key in ("count", "used_count") if rotates}
        assert from_gguf(changes, name).rotated(0) == rotates


@pytest.mark.parametrize(("pattern", "windows"), [
    ([True, False], (True, False)), (0, (True, True)), (2, (True, False)), (None, (True, False)),
])  # fmt: skip
def test_gpt_oss_windows(from_gguf: FromGGUF, pattern: Any, windows: tuple[bool, bool]) -> None:
    fields = {"expert_count": 4, "expert_used_count": 2, "attention.sliding_window": 8}
    fields["attention.sliding_window_pattern"] = pattern
    window = from_gguf({f"gpt-oss.{key}": value for key, value in fields.items()}, "gpt-oss").window
    assert window is not None
    assert (window.size, window.layers) == (8, windows)


@pytest.mark.parametrize("kinds", [[["full_attention"]] * 2, [{}, {}], [1, 2]])
@pytest.mark.parametrize("model_type", ["qwen2", "gpt_oss"])
def test_kinds_of_layers_that_are_no_names(model_type: str, kinds: list[Any]) -> None:
    with pytest.raises(FileFormatError, match="layer_types"):
        from_json(model_type=model_type, layer_types=kinds, num_local_experts=None)


def test_json_of_command_r_scales_its_logits_by_a_sixteenth() -> None:
    own: dict[str, Any] = {"model_type": "cohere", "rms_norm_eps": None, "layer_norm_eps": 1e-5}
    assert from_json(**own).logit_scale == 0.0625
    assert from_json(**own, logit_scale=0.5).logit_scale == 0.5


def test_json_of_qwen3next() -> None:
    own: dict[str, Any] = {"model_type": "qwen3_next", "num_experts": 16, "num_hidden_layers": 4}
    config = from_json(**own)
    assert config.delta is not None
    assert config.delta.unit_eps == 1e-6
    for n, given in ((10, {}), (1, {"num_experts_per_tok": 1}), (16, {"num_experts_per_tok": 16})):
        experts = from_json(**own, **given).experts
        assert experts is not None
        assert experts.n_used == n
    for n in (0, 17):
        with pytest.raises(FileFormatError, match="num_experts_per_tok"):
            from_json(**own, num_experts_per_tok=n)


def test_json_bounds_of_epsilons_and_soft_caps() -> None:
    assert gemma3_from_json(final_logit_softcapping=1e6).logit_softcap == 1e6
    with pytest.raises(FileFormatError, match="final_logit_softcapping"):
        gemma3_from_json(final_logit_softcapping=1.01e6)
    falcon: dict[str, Any] = {
        "model_type": "falcon_mamba",
        "vocab_size": 24,
        "hidden_size": 40,
        "num_hidden_layers": 2,
    }
    config = config_from_json(Fields("config.json", falcon | {"mixer_rms_eps": 1.0}))
    assert config.ssm is not None
    assert config.ssm.norm_eps == 1.0
    with pytest.raises(FileFormatError, match="mixer_rms_eps"):
        config_from_json(Fields("config.json", falcon | {"mixer_rms_eps": 1.01}))
