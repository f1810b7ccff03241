"""Tensors of selective state spaces in Hugging Face's files and in GGUF."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from aleator.models import json_config
from aleator.models.architecture import Architecture, outside
from aleator.models.config import (
    MAX_CONV,
    MAX_STATE,
    ModelConfig,
    SSMConfig,
    checked_heads,
    refuse,
    unsupported,
    without_attention,
)
from aleator.models.files.fields import MAX_WIDTH, Fields
from aleator.models.files.tensor_types import StoredTensor

# The context length in GGUF files of models without attention; the state itself has no length.
CONTEXT_LENGTH = 1 << 20

OUTER = outside("backbone.embeddings", "backbone.norm_f")
"""Hugging Face's names of the tensors outside the layers -> GGUF's."""

SELECTIVE = {
    "in_proj": "ssm_in",
    "conv1d": "ssm_conv1d",
    "x_proj": "ssm_x",
    "dt_proj": "ssm_dt",
    "out_proj": "ssm_out",
}
"""Hugging Face's names of the tensors of a selective state space -> GGUF's."""

MIXER = {
    "in_proj": "ssm_in",
    "conv1d": "ssm_conv1d",
    "norm": "ssm_norm",
    "out_proj": "ssm_out",
}
"""Hugging Face's names of the tensors of a state space whose heads have one decay each -> GGUF's."""

BARE = {"A_log": "ssm_a", "D": "ssm_d", "dt_bias": "ssm_dt.bias"}
"""Like :data:`MIXER`, for names that have no ".weight" at the end."""


def read_heads(
    fields: Fields,
    inner: int,
    *,
    heads: str,
    head_dim: str,
    state: str,
    groups: str,
    conv: str,
    least_step: bool = False,
) -> SSMConfig:
    """The sizes of a state space of ``inner`` channels whose heads have one decay each.

    The other arguments name the fields of config.json: the number of heads, their size, the numbers in a
    channel's state, the groups that share B and C, the width of the convolution.  ``least_step``:
    ``time_step_min`` applies.
    """
    n = fields.width(heads)
    size = fields.values.get(head_dim)
    if size not in (None, "auto") and n * fields.width(head_dim) != inner:
        raise fields.error(head_dim, f"{n} heads of {size} are not {inner} channels")
    limit = fields.get("time_step_limit", kind=list)
    # transformers writes infinity as {"__float__": "Infinity"}.
    endless = (float("inf"), "Infinity", {"__float__": "Infinity"})
    if limit is not None and (len(limit) != 2 or limit[0] != 0 or limit[1] not in endless):
        raise unsupported(fields.path, f"time steps within {limit} (time_step_limit)")
    return checked_heads(
        fields,
        heads,
        SSMConfig(
            d_inner=inner,
            d_conv=fields.integer(conv, 2, MAX_CONV, 4),
            d_state=fields.integer(state, 1, MAX_STATE),
            heads=n,
            groups=fields.width(groups),
            least_step=fields.number("time_step_min", 0.0, 1e6, 0.001) if least_step else 0.0,
        ),
    )


read_mamba_heads = partial(
    read_heads,
    heads="mamba_n_heads",
    head_dim="mamba_d_head",
    state="mamba_d_state",
    groups="mamba_n_groups",
    conv="mamba_d_conv",
)
""":func:`read_heads` with the field names of models that have both states and attention."""


def checked_inner(fields: Fields, inner: int) -> int:
    """Return the channels of the states after checking their bounds."""
    if not 1 <= inner <= MAX_WIDTH:
        raise fields.error("expand", f"{inner} inner channels; they must be 1 to {MAX_WIDTH}")
    return inner


def states_alone(
    fields: Fields, architecture: Architecture, ssm: SSMConfig, *, tied: bool
) -> ModelConfig:
    """The dimensions in config.json except those of the states; ``tied`` is the default."""
    json_config.refuse_features(fields, architecture)
    refuse(fields, "biases of the projections", "use_bias")
    return without_attention(
        architecture.name,
        name=fields.get("_name_or_path", ""),
        n_vocab=fields.length("vocab_size"),
        n_layers=fields.layers("num_hidden_layers"),
        n_embd=fields.width("hidden_size"),
        rms_eps=fields.number("layer_norm_epsilon", 0.0, 1.0, 1e-5),
        context_length=fields.length("max_position_embeddings", CONTEXT_LENGTH),
        tied=fields.get("tie_word_embeddings", tied),
        ssm=ssm,
    )


def as_gguf(name: str, tensor: StoredTensor) -> StoredTensor:
    """Convert a tensor to GGUF's form: A, not log(-A); the convolution without its middle dimension."""
    if name.endswith("ssm_a"):
        # In float64, so that differences in the C library's last bits vanish in rounding.
        return StoredTensor.of(-np.exp(tensor.floats().astype(np.float64)).astype(np.float32))
    if (
        name.endswith(("ssm_conv1d.weight", "shortconv.conv.weight"))
        and len(tensor.shape) == 3
        and tensor.shape[1] == 1
    ):
        return replace(tensor, shape=(tensor.shape[0], tensor.shape[2]))
    return tensor
