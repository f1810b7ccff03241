"""Small model files for tests: sound ones by the gguf package, hostile ones byte by byte."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

N_VOCAB, N_EMBD, N_FF, N_HEADS, N_KV_HEADS, N_LAYERS = 24, 32, 64, 4, 2, 2


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def entry(key: str | bytes, kind: int, value: bytes) -> bytes:
    """A metadata entry; ``value`` is what follows the value type."""
    return string(key) + struct.pack("<I", kind) + value


def array(kind: int, count: int, values: bytes) -> bytes:
    """The value of an entry of type 9."""
    return struct.pack("<IQ", kind, count) + values


def tensor(
    name: str, dims: list[int], kind: int = 0, offset: int = 0, n_dims: int | None = None
) -> bytes:
    """An item of the list of tensors."""
    count = len(dims) if n_dims is None else n_dims
    return (
        string(name)
        + struct.pack("<I", count)
        + struct.pack(f"<{len(dims)}Q", *dims)
        + struct.pack("<IQ", kind, offset)
    )


def raw_gguf(
    entries: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_entries: int | None = None,
    n_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    entries, tensors = entries or [], tensors or []
    head = magic + struct.pack(
        "<IQQ",
        version,
        len(tensors) if n_tensors is None else n_tensors,
        len(entries) if n_entries is None else n_entries,
    )
    head += b"".join(entries) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data


def model_tensors(seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Every tensor of a small llama, by GGUF name."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (N_VOCAB, N_EMBD)}
    kv = N_EMBD // N_HEADS * N_KV_HEADS
    for layer in range(N_LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (N_EMBD,),
            f"blk.{layer}.attn_q.weight": (N_EMBD, N_EMBD),
            f"blk.{layer}.attn_k.weight": (kv, N_EMBD),
            f"blk.{layer}.attn_v.weight": (kv, N_EMBD),
            f"blk.{layer}.attn_output.weight": (N_EMBD, N_EMBD),
            f"blk.{layer}.ffn_norm.weight": (N_EMBD,),
            f"blk.{layer}.ffn_gate.weight": (N_FF, N_EMBD),
            f"blk.{layer}.ffn_up.weight": (N_FF, N_EMBD),
            f"blk.{layer}.ffn_down.weight": (N_EMBD, N_FF),
        }
    shapes["output_norm.weight"] = (N_EMBD,)
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def model_metadata(architecture: str = "llama") -> dict[str, Any]:
    """The smallest metadata that open_weights takes; str, int, float and lists of them."""
    return {
        f"{architecture}.block_count": N_LAYERS,
        f"{architecture}.context_length": 128,
        f"{architecture}.embedding_length": N_EMBD,
        f"{architecture}.feed_forward_length": N_FF,
        f"{architecture}.attention.head_count": N_HEADS,
        f"{architecture}.attention.head_count_kv": N_KV_HEADS,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
    }


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, NDArray[Any]] | None = None,
    types: Mapping[str, GGMLQuantizationType] | None = None,
    architecture: str = "llama",
    endianess: Any = gguf.GGUFEndian.LITTLE,
    alignment: int = 32,
) -> Path:
    """A file by gguf.GGUFWriter.  ``types`` names the tensors that are blocks of bytes already."""
    writer = gguf.GGUFWriter(path, architecture, endianess=endianess)
    if alignment != 32:
        writer.add_custom_alignment(alignment)
    for key, value in (model_metadata() if metadata is None else metadata).items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                (writer.add_uint32 if value >= 0 else writer.add_int32)(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                writer.add_array(key, value)
    for name, values in (model_tensors() if tensors is None else tensors).items():
        writer.add_tensor(name, values, raw_dtype=(types or {}).get(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def model_json(**changes: Any) -> dict[str, Any]:
    """The config.json of the same small llama; a change to None takes the field out."""
    values = {
        "model_type": "llama", "hidden_act": "silu", "hidden_size": N_EMBD, "intermediate_size": N_FF,
        "max_position_embeddings": 128, "num_attention_heads": N_HEADS, "num_hidden_layers": N_LAYERS,
        "num_key_value_heads": N_KV_HEADS, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "tie_word_embeddings": True, "vocab_size": N_VOCAB,
    }  # fmt: skip
    return {key: value for key, value in (values | changes).items() if value is not None}


_HUGGING_FACE = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip


def hugging_face_tensors() -> dict[str, torch.Tensor]:
    """The tensors of :func:`model_tensors` under their Hugging Face names."""
    import torch

    named = {}
    for name, values in model_tensors().items():
        if name.startswith("blk."):
            _, layer, stem, part = name.split(".")
            name = f"model.layers.{layer}.{_HUGGING_FACE[stem]}.{part}"
        name = name.replace("token_embd", "model.embed_tokens").replace("output_norm", "model.norm")
        named[name] = torch.from_numpy(values)
    return named


def write_directory(
    path: Path,
    config: Mapping[str, Any] | None = None,
    tensors: Mapping[str, torch.Tensor] | None = None,
    shards: int = 1,
) -> Path:
    """A Hugging Face directory, its tensors dealt to ``shards`` files."""
    pytest.importorskip("safetensors.torch")
    from safetensors.torch import save_file

    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(model_json() if config is None else config))
    named = dict(hugging_face_tensors() if tensors is None else tensors)
    if shards == 1:
        save_file(named, path / "model.safetensors")
        return path
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(named.items())[shard::shards])
        save_file(part, path / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path
