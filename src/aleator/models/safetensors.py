"""Reads the weights of a Hugging Face directory: ``*.safetensors``, one file or several."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aleator.core.errors import FileFormatError, UnsupportedModel
from aleator.models.config import ModelConfig
from aleator.models.fields import Fields
from aleator.models.gguf import map_file
from aleator.models.tensor_types import StoredTensor

if TYPE_CHECKING:
    import torch

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_MAX_JSON = 1 << 26  # bytes; the index of a model with 10,000 tensors has one million
_TYPES = ("F32", "F16", "BF16")

# Names without ".weight" or ".bias"; {} is the layer.  Rows keep Hugging Face's order, in which the
# rotated pairs are those of style "neox".
_LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_QWEN3_LAYER = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
_GEMMA3_LAYER = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_MAMBA_LAYER = {
    "norm": "attn_norm",
    "mixer.in_proj": "ssm_in",
    "mixer.conv1d": "ssm_conv1d",
    "mixer.x_proj": "ssm_x",
    "mixer.dt_proj": "ssm_dt",
    "mixer.out_proj": "ssm_out",
}
_LAYERS = {
    "llama": _LAYER,
    "qwen2": _LAYER,
    "qwen3": _LAYER | _QWEN3_LAYER,
    "gemma3": _LAYER | _QWEN3_LAYER | _GEMMA3_LAYER,
    "mamba": _MAMBA_LAYER,
}
_GLOBAL = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_MAMBA_GLOBAL = {
    "backbone.embeddings": "token_embd",
    "backbone.norm_f": "output_norm",
    "lm_head": "output",
}


def gguf_names(config: ModelConfig) -> dict[str, str]:
    """Hugging Face tensor name -> GGUF name, for every tensor such a model can have."""
    mamba = config.architecture == "mamba"
    stems = dict(_MAMBA_GLOBAL if mamba else _GLOBAL)
    stack = "backbone" if mamba else "model"
    for layer in range(config.n_layers):
        for theirs, ours in _LAYERS[config.architecture].items():
            stems[f"{stack}.layers.{layer}.{theirs}"] = f"blk.{layer}.{ours}"
    names = {
        f"{theirs}.{part}": f"{ours}.{part}"
        for theirs, ours in stems.items()
        for part in ("weight", "bias")
    }
    if mamba:
        for layer in range(config.n_layers):
            names[f"backbone.layers.{layer}.mixer.A_log"] = f"blk.{layer}.ssm_a"
            names[f"backbone.layers.{layer}.mixer.D"] = f"blk.{layer}.ssm_d"
    return names


def _in_text_model(name: str) -> str:
    """A tensor's name in the text part of a model with pictures; "" for one of the other parts.

    transformers has written them as language_model.model... and as model.language_model...
    """
    plain = name.removeprefix("model.")
    if plain.startswith(("vision_tower.", "multi_modal_projector.")):
        return ""
    if name.startswith("model.language_model."):
        return "model." + name.removeprefix("model.language_model.")
    return name.removeprefix("language_model.")


def _as_gguf(architecture: str, name: str, tensor: StoredTensor) -> StoredTensor:
    """The tensor as GGUF files hold it, where that is not what Hugging Face holds."""
    import torch

    if architecture == "gemma3" and name.endswith("norm.weight"):
        return _float32(1.0 + tensor.to_torch(torch.float32))  # the file has the weight less one
    if architecture == "mamba" and name.endswith("ssm_a"):
        return _float32(-torch.exp(tensor.to_torch(torch.float32)))
    if name.endswith("ssm_conv1d.weight") and len(tensor.shape) == 3 and tensor.shape[1] == 1:
        return replace(tensor, shape=(tensor.shape[0], tensor.shape[2]))
    return tensor


def _float32(values: torch.Tensor) -> StoredTensor:
    import torch

    data = values.contiguous().view(-1).view(torch.uint8).numpy()
    data.flags.writeable = False
    return StoredTensor("F32", tuple(values.shape), data)


def read_json(path: Path) -> Fields:
    """The JSON object in a file, as checked fields."""
    data = map_file(path)
    if data.size > _MAX_JSON:
        raise FileFormatError(path, f"{data.size} bytes; at most {_MAX_JSON} are read as JSON")
    try:
        values = json.loads(bytes(data).decode())
    except (ValueError, RecursionError) as error:
        raise FileFormatError(path, f"is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise FileFormatError(path, f"holds a JSON {type(values).__name__} instead of an object")
    return Fields(path, values)


def stored_tensors(directory: Path, config: ModelConfig) -> dict[str, StoredTensor]:
    """The directory's tensors by GGUF name, memory-mapped.

    Raises FileFormatError if a shard, or a tensor that the index names, is missing or damaged;
    UnsupportedModel for a tensor of an unsupported type, or that the architecture does not have.
    """
    names = gguf_names(config)
    tensors: dict[str, StoredTensor] = {}
    for file, theirs, tensor in _all_tensors(directory):
        if theirs.endswith("rotary_emb.inv_freq"):
            continue  # saved by old versions of transformers; computed from the configuration
        if config.architecture == "gemma3":
            theirs = _in_text_model(theirs)
        if not theirs or (config.tied and theirs == "lm_head.weight"):
            continue
        if theirs not in names:
            raise UnsupportedModel(
                f"{file}: the tensor {theirs!r} is not part of the architecture "
                f"{config.architecture!r} with {config.n_layers} layers"
            )
        tensors[names[theirs]] = _as_gguf(config.architecture, names[theirs], tensor)
    return tensors


def _all_tensors(directory: Path) -> Iterator[tuple[Path, str, StoredTensor]]:
    index = directory / _INDEX
    if not index.exists():
        file = directory / _SINGLE
        if not file.exists():
            raise FileFormatError(directory, f"the directory has neither {_SINGLE} nor {_INDEX}")
        for name, tensor in _read_file(file).items():
            yield file, name, tensor
        return
    fields = read_json(index)
    shards: dict[str, list[str]] = {}
    for name, shard in fields.require("weight_map", dict).items():
        if not isinstance(shard, str) or not _is_plain_name(shard):
            raise fields.error(
                "weight_map", f"{shard!r} is not the name of a file beside the index"
            )
        shards.setdefault(shard, []).append(name)
    for shard, wanted in shards.items():
        file = directory / shard
        if not file.exists():
            raise FileFormatError(file, f"the shard is missing; {_INDEX} names it")
        found = _read_file(file)
        for name in wanted:
            if name not in found:
                raise FileFormatError(
                    file, f"the tensor {name!r} is missing; {_INDEX} places it here", field=name
                )
            yield file, name, found[name]


def _is_plain_name(name: str) -> bool:
    """Whether ``name`` stays inside the directory that it is joined to."""
    return (
        name not in ("", ".", "..")
        and not set(name) & {"/", "\\", ":", "\0"}
        and (os.path.basename(name) == name)
    )


def _read_file(file: Path) -> dict[str, StoredTensor]:
    """All tensors of one file; the safetensors package checks its header and maps the data."""
    import torch
    from safetensors import SafetensorError, safe_open

    map_file(file)  # refuses pipes, empty and unreadable files, with the reason
    tensors: dict[str, StoredTensor] = {}
    try:
        handle: Any
        with safe_open(str(file), framework="pt") as handle:
            for name in handle.keys():  # noqa: SIM118 - it is no dict
                part = handle.get_slice(name)
                kind, shape = part.get_dtype(), tuple(part.get_shape())
                if kind not in _TYPES:
                    raise UnsupportedModel(
                        f"{file}: tensor {name!r} has the type {kind}, which is not supported; "
                        f"supported are {', '.join(_TYPES)}"
                    )
                if not shape or 0 in shape:
                    raise FileFormatError(file, f"has the shape {list(shape)}", field=name)
                data = handle.get_tensor(name).reshape(-1).view(torch.uint8).numpy()
                data.flags.writeable = False
                tensors[name] = StoredTensor(kind, shape, data)
    except (SafetensorError, OSError) as error:
        raise FileFormatError(file, f"not a sound safetensors file: {error}") from None
    return tensors
