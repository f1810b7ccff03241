"""llama4's text part: attention within chunks, norms without weights, experts whose weights scale the input.

Three of four layers rotate queries and keys, normalise them without weights, and see their own chunk of 8192
positions. The fourth rotates nothing, sees everything, and has queries that grow with the position (Nakanishi
2025, arXiv:2501.19399). The norm comes before the rotation, which does not change lengths; llama.cpp takes it
after. When positions are shifted llama.cpp also rotates the keys of the fourth layers; here they stay
unrotated, as in a sequence computed afresh.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from aleator.models import gguf_config, json_config
from aleator.models.architecture import (
    GATED,
    STACKED,
    WITHOUT_MLP,
    Architecture,
    HuggingFace,
    shared_mlp,
    under,
)
from aleator.models.config import ModelConfig, QueryGrowth, WindowConfig, present, unsupported
from aleator.models.conversion.gguf_form import sparse_layers
from aleator.models.conversions import in_text_model, text_part
from aleator.models.experts import in_gguf, in_json
from aleator.models.files.fields import Fields
from aleator.models.files.gguf import GGUFFile
from aleator.models.files.tensor_types import StoredTensor

EVERY = 4
CHUNK = 8192
RATE = 0.1
"""The growth rate of queries; llama.cpp supports only this rate and this chunk."""
WITHOUT_NORM = 128
"""Experts of Llama 4 Maverick, whose GGUF files do not say that heads are not normalised."""
THETA = 500000.0


def read_gguf(gguf: GGUFFile, architecture: Architecture) -> ModelConfig:
    config, fields = gguf_config.transformer(gguf, architecture, experts=True), gguf.fields
    name, n = architecture.name, config.n_layers
    if fields.length(f"{name}.attention.sliding_window", CHUNK, low=0) == 0:
        raise unsupported(fields.path, f"layers without chunks ({name}.attention.sliding_window)")
    window = gguf_config.read_windows(fields, config, size=CHUNK, every=EVERY)
    if window is not None:  # llama.cpp reads the size in the file but does not use it
        window = replace(window, size=CHUNK, chunked=True)
    step = fields.layers(f"{name}.interleave_moe_layer_step", low=0)
    sparse = tuple(step > 0 and (layer + 1) % step == 0 for layer in range(n))
    config = in_gguf(config, fields, sparse, scores="chosen sigmoid", weighs_input=True)
    mixtures = present(config.experts)
    growth = QueryGrowth(float(np.float32(RATE)), CHUNK, ahead=1, unrotated=True)
    return _checked(
        fields,
        replace(
            config,
            window=window,
            unrotated=tuple((layer + 1) % EVERY == 0 for layer in range(n)),
            normalised_heads=mixtures.n_experts != WITHOUT_NORM,
            query_growth=growth,
            experts=replace(mixtures, n_ff_shared=mixtures.n_ff),
        ),
    )


def read_json(fields: Fields, architecture: Architecture) -> ModelConfig:
    """The dimensions in config.json; of the text part if the model also reads pictures."""
    fields = text_part(fields, "llama4_text")
    width = fields.width("intermediate_size")
    dense = fields.width("intermediate_size_mlp", 16384)
    given = {key: value for key, value in fields.values.items() if value not in (None, [])}
    given = {"rope_theta": THETA} | given | {"intermediate_size": dense}
    sizes = Fields(fields.path, given)
    config = json_config.transformer(sizes, architecture, experts=True)
    n = config.n_layers
    unrotated = json_config.unrotated_layers(sizes, n, EVERY)
    growth = None
    if fields.get("attn_temperature_tuning") not in (False, 0):
        length = fields.length("floor_scale", CHUNK)
        growth = QueryGrowth(fields.number("attn_scale", 0.0, 1e6, RATE), length, 1, True)
    config = in_json(
        config,
        fields,
        (16, 1),
        layers=_sparse(fields, n),
        n_ff=width,
        scores="chosen sigmoid",
        n_ff_shared=width,
        weighs_input=True,
    )
    return _checked(
        fields,
        replace(
            config,
            window=_chunks(fields, config, unrotated),
            unrotated=unrotated,
            normalised_heads=fields.get("use_qk_norm", True),
            query_growth=growth,
        ),
    )


def _chunks(
    fields: Fields, config: ModelConfig, unrotated: tuple[bool, ...]
) -> WindowConfig | None:
    """The chunks and the layers that have them: by default the layers that rotate."""
    layers = tuple(not each for each in unrotated)
    kinds = ("chunked_attention",), ("full_attention",)
    listed = json_config.listed_kinds(fields, config.n_layers, *kinds)
    layers = layers if listed is None else listed
    if not any(layers):
        return None
    if "attention_chunk_size" in fields and fields.get("attention_chunk_size") is None:
        raise unsupported(fields.path, "chunks of no size (attention_chunk_size)")
    size = fields.length("attention_chunk_size", CHUNK)
    return WindowConfig(size, layers, config.rope, chunked=True)


def _sparse(fields: Fields, n: int) -> tuple[bool, ...]:
    """Which layers have experts."""
    listed = fields.get("moe_layers", kind=list)
    if listed is None:
        step = fields.layers("interleave_moe_layer_step", 1)
        return tuple((layer + 1) % step == 0 for layer in range(n))
    return tuple(layer in listed for layer in range(n))


def _checked(fields: Fields, config: ModelConfig) -> ModelConfig:
    """Check that the rotation keeps lengths, so that the norm of heads may come before it."""
    if config.rope.scaling in ("yarn", "longrope"):
        raise unsupported(fields.path, f"rotary scaling of type {config.rope.scaling!r} in llama4")
    return config


def as_gguf(name: str, tensor: StoredTensor) -> StoredTensor:
    """Convert a tensor to GGUF's form: experts' matrices [experts, n_out, n_in], a copy in the same type."""
    if "_exps" not in name:
        return tensor
    return tensor.moved(lambda values: values.swapaxes(1, 2))


LLAMA4 = Architecture(
    "llama4",
    rope_style="norm",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(
        ("llama4_text", "llama4"),
        read_json,
        rope_style="norm",
        layer=WITHOUT_MLP
        | under("feed_forward", GATED | {"router": "ffn_gate_inp"})
        | shared_mlp("feed_forward.shared_expert"),
        bare=under("feed_forward", STACKED),
        usual_name=in_text_model,
        convert=as_gguf,
        gguf_fields=lambda config, _: sparse_layers(config),
    ),
)
