"""Small random draft heads, and models with layers that predict further tokens, for tests."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from delta_models import DELTAS
from dense_models import DENSE
from model_file import Array, Draws, add_tensors, write_file
from safetensors.numpy import save_file

import aleator._native as _native
from aleator.core.threads import pool as thread_pool
from aleator.models.draft_head import WINDOW, DraftHead
from aleator.models.hub.bundled import bundled_model
from aleator.models.weights import layer_of
from aleator.samplers import Greedy, SamplerChain

E, HEADS, KV, DIM, FF, DRAFT = 24, 4, 2, 8, 32, 40
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": E, "intermediate_size": FF,
    "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": DIM,
    "vocab_size": 2048, "draft_vocab_size": DRAFT, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "max_position_embeddings": 1024, "eagle_aux_hidden_state_layer_ids": [1, 3, 6],
}  # fmt: skip
"""Of a head for the bundled model, with embeddings of its own."""


def eagle3_tensors(n_embd: int = 256, n_vocab: int = 2048) -> dict[str, Any]:
    """A head for a model of this width and vocabulary."""
    rng = np.random.default_rng(5)

    def matrix(n: int, width: int) -> Array:
        made: Array = (rng.standard_normal((n, width)) / np.sqrt(width)).astype(np.float32)
        return made

    def norm(n: int) -> Array:
        return (1 + 0.2 * rng.standard_normal(n)).astype(np.float32)

    ids = np.sort(rng.choice(n_vocab, DRAFT, replace=False))
    known = np.zeros(n_vocab, bool)
    known[ids] = True
    made = {
        "fc.weight": matrix(E, 3 * n_embd), "norm.weight": norm(E), "lm_head.weight": matrix(DRAFT, E),
        "embed_tokens.weight": matrix(n_vocab, E), "d2t": ids - np.arange(DRAFT), "t2d": known,
        "midlayer.hidden_norm.weight": norm(E), "midlayer.input_layernorm.weight": norm(E),
        "midlayer.post_attention_layernorm.weight": norm(E),
    }  # fmt: skip
    for name, n, width in (
        ("self_attn.q_proj", HEADS * DIM, 2 * E), ("self_attn.k_proj", KV * DIM, 2 * E),
        ("self_attn.v_proj", KV * DIM, 2 * E), ("self_attn.o_proj", E, HEADS * DIM),
        ("mlp.gate_proj", FF, E), ("mlp.up_proj", FF, E), ("mlp.down_proj", E, FF),
    ):  # fmt: skip
        made[f"midlayer.{name}.weight"] = matrix(n, width)
    return made


def write_eagle3(
    folder: Path, tensors: dict[str, Any] | None = None, **config: Any
) -> dict[str, Any]:
    """Write a head; return its tensors.  ``config``: fields that differ, None for those that are missing."""
    folder.mkdir(exist_ok=True)
    made = eagle3_tensors() if tensors is None else tensors
    save_file(made, folder / "model.safetensors")
    fields = {k: v for k, v in {**CONFIG, **config}.items() if v is not None}
    (folder / "config.json").write_text(json.dumps(fields))
    return made


def rms(x: Any, weight: Any, eps: float = 1e-5) -> Any:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def eagle3_logits(t: dict[str, Any], features: Any, tokens: list[int], normed: bool = False) -> Any:
    """What the head's definition gives for tokens at positions 0, 1, ..., in float64.

    ``normed``: the layer's residual is normed.  Tokens behind those of ``features`` are guesses.
    """
    t = {name.removeprefix("midlayer."): np.asarray(each, np.float64) for name, each in t.items()}
    if "input_norm.weight" in t:
        features = rms(features, t["input_norm.weight"])
    hidden = features @ t["fc.weight"].T
    while True:
        given, made = _eagle3_layer(t, hidden, tokens[: len(hidden)], normed)
        if len(hidden) == len(tokens):
            return made
        hidden = np.concatenate((hidden, given[-1:]))


def _eagle3_layer(t: dict[str, Any], hidden: Any, tokens: list[int], normed: bool) -> Any:
    """The layer's own hidden states, and logits."""
    embedded = rms(t["embed_tokens.weight"][tokens], t["input_layernorm.weight"])
    state = rms(hidden, t["hidden_norm.weight"])
    x, n = np.concatenate((embedded, state), 1), len(tokens)
    angle = np.arange(n)[:, None] * 10000.0 ** (-np.arange(0, DIM, 2) / DIM)

    def heads(name: str, rotated: bool) -> Any:
        y = (x @ t[f"self_attn.{name}.weight"].T).reshape(n, -1, DIM).transpose(1, 0, 2)
        if rotated:
            a, b = y[..., : DIM // 2], y[..., DIM // 2 :]
            y = np.concatenate(
                (a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)), -1
            )
        return y.repeat(HEADS // len(y), 0)

    scores = heads("q_proj", True) @ heads("k_proj", True).transpose(0, 2, 1) / np.sqrt(DIM)
    scores += np.triu(np.full((n, n), -np.inf), 1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    seen = weights / weights.sum(-1, keepdims=True) @ heads("v_proj", False)
    made = state if normed else hidden
    made = made + seen.transpose(1, 0, 2).reshape(n, -1) @ t["self_attn.o_proj.weight"].T
    y = rms(made, t["post_attention_layernorm.weight"])
    gate, up = y @ t["mlp.gate_proj.weight"].T, y @ t["mlp.up_proj.weight"].T
    made = made + (gate / (1 + np.exp(-gate)) * up) @ t["mlp.down_proj.weight"].T
    return made, rms(made, t["norm.weight"]) @ t["lm_head.weight"].T


class Recorder:
    """A sampler that keeps the logits that it and its copies are given."""

    def __init__(self) -> None:
        self.rows: list[Array] = []

    def apply(self, candidates: Any) -> None:
        row = np.full(candidates.n_vocab, -np.inf, np.float32)
        row[candidates.ids] = candidates.logits
        self.rows.append(row)

    def clone(self) -> Recorder:
        return self


def head_rows(
    head: DraftHead, hidden: Any, tokens: list[int], n_tokens: int = 2048, n: int = 1
) -> list[Array]:
    """Logits of the head's ``n`` guesses for a text whose hidden states are known, and what follows these."""
    recorder = Recorder()
    chain = SamplerChain([recorder, Greedy()])
    given = [hidden], tokens, n, 0.0, [1.0] * _native.DRAFT_KINDS, chain.in_native
    ((found, _),) = head.over(1, n_tokens).guess(thread_pool(1), [(0, 0, *given)], WINDOW)
    assert [row.argmax() for row in recorder.rows] == found
    return recorder.rows


def write_mtp_directory(folder: Path, arch: str, own: bool = False) -> dict[str, Any]:
    """Such a model of transformers' as a directory; return the tensors.  ``own``: see :func:`write_mtp`."""
    import torch
    import transformers
    from safetensors.torch import load_file
    from safetensors.torch import save_file as save

    from tests.models.check_transformers import write

    name, sizes = DIRECTORIES[arch]
    config = getattr(transformers, f"{name}Config")(**SIZES | sizes)
    model_class = name.removesuffix("Text") + "ForCausalLM"
    folder.mkdir(exist_ok=True)
    write(getattr(transformers, model_class)(config), folder)
    file, n, e = folder / "model.safetensors", SIZES["num_hidden_layers"], SIZES["hidden_size"]
    tensors: dict[str, Any] = load_file(file)
    follows = arch in ("glm4moe", "deepseek2")
    last, at = f"model.layers.{n - 1}.", f"model.layers.{n}." if follows else "mtp."
    layer = at if follows else "mtp.layers.0."
    for key in list(tensors):
        if key.startswith(last):
            tensors[key.replace(last, layer)] = tensors[key] * 1.25
    new = {"eh_proj": (e, 2 * e), "enorm": (e,), "hnorm": (e,), "shared_head.norm": (e,)}
    if not follows:
        names = ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        new = dict(zip(names, new.values(), strict=True))
    elif own:
        new |= {"embed_tokens": (2048, e), "shared_head.head": (2048, e)}
    else:
        del new["shared_head.norm"]
    for key, shape in new.items():
        made = torch.randn(shape) / shape[-1] ** 0.5
        tensors[f"{at}{key}.weight"] = 1 + made if len(shape) == 1 else made
    save(tensors, file)
    return tensors


SIZES: dict[str, Any] = {
    "vocab_size": 2048, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}  # fmt: skip
_EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
_DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
}  # fmt: skip
_LATENT = {
    "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10,
    "num_key_value_heads": 4, "n_group": 1, "topk_group": 1,
}  # fmt: skip
DIRECTORIES: dict[str, tuple[str, dict[str, Any]]] = {
    "glm4moe": ("Glm4Moe", _EXPERTS | {"n_routed_experts": 4, "num_nextn_predict_layers": 1}),
    "deepseek2": (
        "DeepseekV3",
        _EXPERTS
        | _LATENT
        | {"n_routed_experts": 4, "num_nextn_predict_layers": 1, "head_dim": None},
    ),
    "qwen3next": ("Qwen3Next", _EXPERTS | _DELTA | {"num_experts": 4}),
    "qwen35": ("Qwen3_5Text", _DELTA),
}
"""Architectures whose files have such layers -> transformers' class and sizes."""


def write_mtp(folder: Path, arch: str, own: bool = False, kind: str = "F32") -> Path:
    """A model with the bundled model's tokenizer and one layer that predicts further tokens.

    ``own``: that layer has embeddings, a norm and an output matrix of its own.  ``kind``: its type.
    """
    path = folder / f"{arch}.gguf"
    spec: Any
    draws = Draws(5)
    if arch in DENSE:
        spec = replace(DENSE[arch], n_vocab=2048, n_layers=4)
        e, further, pairs = spec.n_embd, 3, list(spec.each_tensor())
        pairs += [
            ("blk.3.nextn.eh_proj.weight", draws.matrix(e, 2 * e)),
            ("blk.3.nextn.enorm.weight", draws.vector(e)),
            ("blk.3.nextn.hnorm.weight", draws.vector(e)),
        ]
    else:
        spec = replace(DELTAS["qwen35-further"], arch=arch, n_vocab=2048)
        if arch == "qwen3next":
            spec = replace(spec, sections=(), n_experts=4)
        e, further, pairs = spec.n_embd, spec.n_layers, list(spec.each_tensor())
    if own:
        at = f"blk.{further}.nextn."
        pairs += [
            (f"{at}embed_tokens.weight", draws.matrix(2048, e, gain=np.sqrt(e))),
            (f"{at}shared_head_head.weight", draws.matrix(2048, e, gain=2.0)),
            (f"{at}shared_head_norm.weight", draws.vector(e)),
        ]

    def metadata(w: Any) -> None:
        spec.write_metadata(w)
        if arch in DENSE:
            w.add_uint32(f"{arch}.nextn_predict_layers", 1)

    def tensors(w: Any) -> None:
        for name, values in dict(pairs).items():
            add_tensors(w, [(name, values)], kind if layer_of(name) == further else "F32")

    return write_file(path, arch, metadata, tensors, bundled_model())
