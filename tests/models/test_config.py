from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aleator.core.errors import FileFormatError, UnsupportedModel
from aleator.models import index, open_weights
from aleator.models.config import ModelConfig, RopeConfig, SSMConfig, WindowConfig
from aleator.models.files.gguf import GGUFFile
from aleator.models.index import ARCHITECTURES
from aleator.models.refused import NEEDS
from tests.models.builders import model_metadata, write_gguf
from tests.models.test_config_json import from_json

FromGGUF = Callable[..., ModelConfig]


def config_from_gguf(file: GGUFFile) -> ModelConfig:
    return index.read_gguf(file)[1]


@pytest.fixture
def from_gguf(tmp_path: Path) -> FromGGUF:
    def config(changes: dict[str, Any] | None = None, architecture: str = "llama") -> ModelConfig:
        metadata = model_metadata(architecture) | (changes or {})
        metadata = {key: value for key, value in metadata.items() if value is not None}
        return config_from_gguf(
            GGUFFile(write_gguf(tmp_path / "m.gguf", metadata, architecture=architecture))
        )

    return config


def test_gguf_defaults(from_gguf: FromGGUF) -> None:
    config = from_gguf()
    assert config.rms_eps == pytest.approx(1e-5)
    assert config == ModelConfig(
        architecture="llama", name="", n_vocab=24, n_layers=2, n_embd=32, n_heads=(4, 4), n_kv_heads=(2, 2),
        n_ff=(64, 64), head_dim=8, head_dim_v=8, rms_eps=config.rms_eps, context_length=128, tied=True,
        rope=RopeConfig(theta=10000.0, dim=8, style="norm", original_context=128),
    )  # fmt: skip


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
    ("field", "value", "message"),
    [
        ("llama.block_count", None, "missing"),
        ("llama.block_count", "2", "an integer"),
        ("llama.block_count", 0, "between 1 and"),
        ("llama.embedding_length", True, "an integer, not True"),
        ("llama.attention.head_count", [4], "1 entries for 2 layers"),
        ("llama.attention.head_count", [4, 0], r"head_count\[1\] is 0"),
        ("llama.attention.head_count_kv", 3, "4 heads are not a multiple of 3"),
        ("llama.attention.head_count_kv", [2, 8], "layer 1: 4 heads"),
        ("llama.attention.layer_norm_rms_epsilon", float("nan"), "between 0 and 1"),
        ("llama.rope.dimension_count", 7, "must be even"),
        ("llama.rope.freq_base", float("inf"), "between 1 and"),
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


@pytest.mark.parametrize("pattern", [[True], [1, 0], 5000])
def test_a_gguf_pattern_of_windows_is_checked(from_gguf: FromGGUF, pattern: Any) -> None:
    window = {"sliding_window": 5, "sliding_window_pattern": pattern}
    with pytest.raises(FileFormatError, match="sliding_window_pattern"):
        from_gguf({f"gemma3.attention.{key}": value for key, value in window.items()}, "gemma3")


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
    [("gemma4_assistant", "the Gemma 4 model that it drafts for"), ("gemma3n_text", "AltUp")],
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
