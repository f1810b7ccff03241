"""The file that is chosen is the one that llama.cpp chooses."""

from __future__ import annotations

import pytest

from aleator.core.errors import HubError, ParameterError
from aleator.models.hub.choice import CONFIGURATION, GGUFName, gguf_files, safetensors_files
from aleator.models.hub.fetching import chosen
from aleator.models.hub.names import HubName
from aleator.models.prequantised.directories import _FORMER_FILES

FILES = [
    "README.md", "m-F16.gguf", "m-Q4_0.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "m.IQ2_XS.gguf",
    "mmproj-m-Q4_K_M.gguf",
]  # fmt: skip
SPLIT = [f"Q6_K/m-Q6_K-0000{i}-of-00003.gguf" for i in (1, 2, 3)]


@pytest.mark.parametrize(
    ("files", "quant", "wanted"),
    [
        (FILES, "", ["m-Q4_K_M.gguf"]),
        (FILES, "q8_0", ["m-Q8_0.gguf"]),
        (FILES, "IQ2_XS", ["m.IQ2_XS.gguf"]),
        (FILES, "Q5_K_M", []),
        (["m-F16.gguf", "m-Q8_0.gguf"], "", ["m-Q8_0.gguf"]),
        (["m-F16.gguf", "m-Q4_0.gguf"], "", ["m-F16.gguf"]),
        (["mmproj-m-F16.gguf", "imatrix.gguf"], "", []),
        (SPLIT, "", SPLIT),
        (SPLIT[::-1], "Q6_K", SPLIT),
        ([*SPLIT, "m-Q4_K_M-00001-of-00001.gguf"], "", ["m-Q4_K_M-00001-of-00001.gguf"]),
    ],
)
def test_the_gguf_file(files: list[str], quant: str, wanted: list[str]) -> None:
    assert gguf_files(files, quant) == wanted


def test_names_of_gguf_files() -> None:
    assert GGUFName.of("a/m-Q4_K_M.gguf") == GGUFName("a/m-Q4_K_M", "Q4_K_M")
    assert GGUFName.of(SPLIT[1]) == GGUFName("Q6_K/m-Q6_K", "Q6_K", 2, 3)
    assert GGUFName.of("model.gguf").type == ""


def test_the_files_of_a_safetensors_model() -> None:
    files = ["README.md", "config.json", "model.safetensors", "onnx/model.onnx", "tokenizer.json"]
    assert safetensors_files(files) == ["config.json", "tokenizer.json", "model.safetensors"]
    assert set(_FORMER_FILES) <= set(CONFIGURATION)
    index = "model.safetensors.index.json"
    for prefix in ("model", "model.safetensors"):  # the second is Qwen3.5's
        shards = [f"{prefix}-0000{i}-of-00002.safetensors" for i in (1, 2)]
        found = safetensors_files(["config.json", "consolidated.safetensors", index, *shards])
        assert found == ["config.json", index, *shards]
    assert safetensors_files(["config.json", "adapter_model.safetensors"]) == []
    assert safetensors_files(["config.json", index]) == []
    modules = [
        "chat_template.json", "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json",
        "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors",
        "additional_chat_templates/tool_use.jinja",
    ]  # fmt: skip
    files = ["config.json", "2_Normalize/config.json", "model.safetensors", *modules]
    assert safetensors_files(files) == ["config.json", *modules, "model.safetensors"]
    whole = ["config.json", index, "model.safetensors"]
    assert safetensors_files(["model.safetensors", "config.json", index]) == whole


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("hf:a/b", HubName("a/b")),
        ("a/b:Q4_K_M", HubName("a/b", "Q4_K_M")),
        ("hf:a/b.c-d_e/sub/m-Q8_0.gguf", HubName("a/b.c-d_e", file="sub/m-Q8_0.gguf")),
        ("hf:a/b@refs/pr/1:q8_0", HubName("a/b", "q8_0", revision="refs/pr/1")),
    ],
)
def test_names_of_the_hub(text: str, name: HubName) -> None:
    assert HubName.read(text) == name
    assert HubName.read(str(name)) == name


@pytest.mark.parametrize(
    "text", ["hf:a", "hf:", "hf:a/b:", "hf:a/../b", "hf:a/b c", "hf:/etc/passwd"]
)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ParameterError, match="hf:ORG/NAME"):
        HubName.read(text)


def test_what_is_not_there_is_told_with_what_is() -> None:
    with pytest.raises(HubError, match="there are F16, Q4_0, Q4_K_M, Q8_0, IQ2_XS"):
        chosen(HubName("a/b", "Q3_K_S"), FILES)
    with pytest.raises(HubError, match="neither a GGUF file nor"):
        chosen(HubName("a/b"), ["pytorch_model.bin", "config.json"])
