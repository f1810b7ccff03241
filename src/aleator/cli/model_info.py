"""``aleator model-info``: the contents of a model file."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from aleator.cache.devices import Device, sizes_by_device
from aleator.cli.arguments import Parser
from aleator.cli.declared import add_declared, given
from aleator.cli.options import add_cache_types, add_model, pick, weights_named
from aleator.cli.terminal import write, write_json
from aleator.core.errors import ParameterError
from aleator.generate.options import ModelOptions
from aleator.language_model import load_vocabulary
from aleator.models import sizes
from aleator.models.placement import Placement, checked_dtype, weight_bytes
from aleator.models.score_head import has_head

EXAMPLES = """\
examples:
  aleator model-info
  aleator model-info model.gguf --all
  aleator model-info model.gguf -c 32768 --json
  aleator model-info model.gguf --device-map cpu=0:20,cuda:0=20:32
"""

PLACING = pick(("dtype", "n_gpu_layers", "device_map"), ModelOptions)
"""Options that place layers; here they only affect sizes."""


def add_arguments(parser: Parser) -> None:
    parser.positional(
        "path", "a GGUF file or a Hugging Face directory (default: the bundled model)"
    )
    group = parser.group("what to show")
    add_model(group)
    group.switch("--all", "also all metadata and all tensors")
    group.switch("--json", "write JSON")
    group.number(
        "-c, --ctx-size N", "positions to compute the cache's size for (default: as trained)"
    )
    add_cache_types(group, "type in the cache to compute its size for")
    add_declared(parser.group("sizes on devices, which need not be here"), PLACING)


def run(arguments: argparse.Namespace) -> None:
    weights = weights_named(arguments)
    vocab = load_vocabulary(weights)
    info = {
        **about_weights(weights),
        "tokenizer": about_vocabulary(vocab),
        "cache": about_cache(weights.config, arguments),
    }
    if devices := about_devices(weights, arguments):
        info["devices"] = devices
    if arguments.all:
        info["metadata"] = metadata(weights)
        info["tensors"] = {
            name: [weights.stored(name).type, *weights.stored(name).shape]
            for name in weights.names()
        }
    if arguments.json:
        write_json(info, ensure_ascii=False)
    else:
        for title, value in info.items():
            show(title, value)


def about_weights(weights: Any) -> dict[str, Any]:
    config = weights.config
    types = Counter(weights.stored(name).type for name in weights.names())
    return {
        "path": str(weights.path),
        "kind": weights.kind,
        "name": config.name,
        "architecture": config.architecture,
        "parameters": weights.n_parameters,
        "bytes": weights.size_bytes,
        "tensor types": dict(types.most_common()),
        "context": config.context_length,
        "vocabulary": config.n_vocab,
        "layers": config.n_layers,
        "width": config.n_embd,
        **(about_attention(config) if config.ssm is None else about_states(config.ssm)),
        **({} if config.experts is None else {"experts": about_experts(config.experts)}),
        **({} if config.delta is None else {"delta nets": about_delta_nets(config.delta)}),
        **about_output(weights),
    }


def about_output(weights: Any) -> dict[str, Any]:
    """What hidden states become: logits, or vectors and scores."""
    config, made = weights.config, dict[str, Any]()
    if weights.architecture.causal:
        made["output matrix"] = "the token embedding" if config.tied else "its own"
    if config.pooling:
        made["pooling"] = config.pooling
    if config.dense:
        made["dense layers"] = " ".join(f"{each.n_in}x{each.n_out}" for each in config.dense)
    if has_head(weights):
        made["scores"] = "of documents (aleator.LanguageModel.rerank)"
    return made


def about_attention(config: Any) -> dict[str, Any]:
    info: dict[str, Any] = {
        "heads": per_layer(config.n_heads),
        "key-value heads": per_layer(config.n_kv_heads),
        "head size": config.head_dim,
        "feed-forward": per_layer(config.n_ff),
        "rope": {
            "base": config.rope.theta,
            "channels": config.rope.dim,
            "style": config.rope.style,
            "scaling": config.rope.scaling,
        },
    }
    if config.window is not None:
        info["window"] = {
            "positions": config.window.size,
            "layers": sum(config.window.layers),
            "rope base": config.window.rope.theta,
            **({"head size": config.window.head_dim} if config.window.head_dim else {}),
        }
    return info


def about_experts(experts: Any) -> dict[str, Any]:
    return {
        "in a layer": experts.n_experts,
        "used for a token": experts.n_used,
        "width": experts.n_ff,
        **({"width of the shared one": experts.n_ff_shared} if experts.n_ff_shared else {}),
        "layers": sum(experts.layers),
    }


def about_states(ssm: Any) -> dict[str, Any]:
    return {
        "inner channels": ssm.d_inner,
        "convolution": ssm.d_conv,
        "state": ssm.d_state,
        **({"heads of states": ssm.heads, "groups": ssm.groups} if ssm.heads else {}),
        **({"time step rank": ssm.dt_rank} if ssm.dt_rank else {}),
    }


def about_delta_nets(net: Any) -> dict[str, Any]:
    return {
        "heads of keys": net.n_key_heads,
        "heads of values": net.n_heads,
        "head sizes": [net.head_dim, net.head_dim_v],
        "convolution": net.d_conv,
    }


def per_layer(values: tuple[int, ...]) -> int | list[int]:
    """A single number if all layers agree."""
    return values[0] if len(set(values)) == 1 else list(values)


def about_vocabulary(vocab: Any) -> dict[str, Any]:
    special = {name: getattr(vocab, name) for name in ("bos", "eos", "eot", "unk", "pad")}
    return {
        "tokens": len(vocab),
        **{name: f"{i} {vocab.text(i)}" for name, i in special.items() if i is not None},
        "adds": " and ".join(
            name for name, adds in (("bos", vocab.add_bos), ("eos", vocab.add_eos)) if adds
        )
        or "nothing",
        "ends at": [f"{i} {vocab.text(i)}" for i in sorted(vocab.eog)],
        "chat template": vocab.chat_template is not None,
    }


def about_cache(config: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """Bytes of the KV cache, or of a recurrent model's states."""
    k, v, states = (sum(each) for each in zip(*cache_of_layers(config, arguments), strict=True))
    if not any(map(config.stores_keys, range(config.n_layers))):
        return {"sequences": 1, "bytes": states}
    return {
        "positions": arguments.ctx_size or config.context_length,
        f"keys ({arguments.cache_type_k})": size(k),
        f"values ({arguments.cache_type_v})": size(v),
        **({"states of a sequence": size(states)} if states else {}),
        "bytes": k + v + states,
    }


def cache_of_layers(config: Any, arguments: argparse.Namespace) -> list[tuple[int, int, int]]:
    """Bytes of each layer's keys, values, and states of one sequence."""
    n_ctx = arguments.ctx_size or config.context_length
    return sizes.cache_of_layers(config, n_ctx, arguments.cache_type_k, arguments.cache_type_v, 1)


def about_devices(weights: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """Layers, weights and cache of each device, present or not; {} if no option divides layers."""
    chosen = given(arguments, PLACING)
    divides = {name: chosen.get(name) for name in ("n_gpu_layers", "device_map")}
    if None not in divides.values():
        raise ParameterError("device_map", "-ngl and --device-map are both given: choose one")
    if not any(value is not None for value in divides.values()):
        return {}
    at = Placement(Device("cuda"), checked_dtype(chosen.get("dtype")), **divides)
    places = at.places(weights.config.n_layers)
    cache = sizes_by_device(
        (place.device, sum(sizes))
        for place, sizes in zip(places, cache_of_layers(weights.config, arguments), strict=True)
    )
    return {
        device: {
            "layers": sum(str(place.device) == device for place in places),
            "weights": n_bytes,
            "cache": cache[device],
            "bytes": n_bytes + cache[device],
        }
        for device, n_bytes in weight_bytes(weights, places).items()
    }


def metadata(weights: Any) -> dict[str, Any]:
    """All metadata of a GGUF file, with long arrays cut."""
    if weights.gguf is None:
        return {}
    return {key: shortened(value) for key, value in weights.gguf.metadata.items()}


def shortened(value: Any) -> Any:
    """A value shortened to fit on a line."""
    if isinstance(value, list | tuple) and len(value) > 8:
        return [*value[:8], f"... {len(value)} in all"]
    return list(value) if isinstance(value, tuple) else value


def show(title: str, value: Any) -> None:
    """Print a finding, with nested ones on lines of their own."""
    if isinstance(value, dict):
        write(f"{title}\n")
        for name, inner in value.items():
            write(f"  {name:<22} {shown(name, inner)}\n")
    else:
        write(f"{title:<24} {shown(title, value)}\n")


def shown(name: str, value: Any) -> str:
    """A value for display; its name tells whether it is in bytes."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {shown(key, inner)}" for key, inner in value.items())
    return size(value) if name in ("bytes", "weights", "cache") else readable(value)


def readable(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return repr(value) if isinstance(value, str) and not value.isprintable() else str(value)


def size(n_bytes: int) -> str:
    """Bytes as text, in mebibytes."""
    return f"{n_bytes / 2**20:,.2f} MiB"
