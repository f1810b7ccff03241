"""Gated delta nets (Yang et al. 2024, arXiv:2412.06464): their sizes, and how files store them.

Qwen3-Next and its successors have one in most layers and attention in the others.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from aleator.core.records import dataclass
from aleator.models.files.fields import Fields
from aleator.models.files.tensor_types import StoredTensor

MAX_HEADS = 1 << 16
MAX_CONV = 64
MAX_HEAD_DIM = 1 << 12
UNIT_EPS = 1e-6
"""What transformers adds to the sum of squares of a query or key, whatever config.json says."""


@dataclass(frozen=True)
class DeltaNetConfig:
    """The gated delta nets of a model."""

    n_key_heads: int  # heads of queries and keys
    n_heads: int  # heads of values, a multiple of ``n_key_heads``
    head_dim: int  # size of a query and key head
    head_dim_v: int  # size of a value head
    d_conv: int  # latest values that the convolution of a channel reads
    # What is added to the sum of squares of a query or key before the root is taken
    unit_eps: float
    # Value head h uses key head h modulo ``n_key_heads``; otherwise neighbouring value heads share a key head
    tiled: bool = False
    # A decay for each channel of a head's keys, not for each head (Kimi Team 2025, arXiv:2510.26692);
    # decays and gates are computed from a few numbers, and gates are sigmoids
    channel_decays: bool = False

    @property
    def keys(self) -> int:
        """Channels of all keys."""
        return self.n_key_heads * self.head_dim

    @property
    def values(self) -> int:
        """Channels of all values."""
        return self.n_heads * self.head_dim_v

    @property
    def channels(self) -> int:
        """Channels that are convolved: queries, keys and values."""
        return 2 * self.keys + self.values


def read_gguf(fields: Fields, name: str, eps: float, tiled: bool) -> DeltaNetConfig:
    """The sizes in a GGUF file, where the norms' ``eps`` is added to the sum of squares."""
    key_heads = fields.integer(f"{name}.ssm.group_count", 1, MAX_HEADS)
    heads = fields.integer(f"{name}.ssm.time_step_rank", 1, MAX_HEADS)
    dim = fields.integer(f"{name}.ssm.state_size", 1, MAX_HEAD_DIM)
    inner = fields.integer(f"{name}.ssm.inner_size", 1, MAX_HEADS * MAX_HEAD_DIM)
    if inner != heads * dim:
        raise fields.error(f"{name}.ssm.inner_size", f"{inner} channels for {heads} heads of {dim}")
    conv = fields.integer(f"{name}.ssm.conv_kernel", 2, MAX_CONV)
    return _checked(
        fields,
        f"{name}.ssm.time_step_rank",
        DeltaNetConfig(key_heads, heads, dim, dim, conv, eps, tiled),
    )


def read_json(fields: Fields) -> DeltaNetConfig:
    """The sizes in config.json; these files store the value heads of a key head side by side."""
    return _checked(
        fields,
        "linear_num_value_heads",
        DeltaNetConfig(
            n_key_heads=fields.integer("linear_num_key_heads", 1, MAX_HEADS, 16),
            n_heads=fields.integer("linear_num_value_heads", 1, MAX_HEADS, 32),
            head_dim=fields.integer("linear_key_head_dim", 1, MAX_HEAD_DIM, 128),
            head_dim_v=fields.integer("linear_value_head_dim", 1, MAX_HEAD_DIM, 128),
            d_conv=fields.integer("linear_conv_kernel_dim", 2, MAX_CONV, 4),
            unit_eps=UNIT_EPS,
        ),
    )


def _checked(fields: Fields, key: str, config: DeltaNetConfig) -> DeltaNetConfig:
    if config.n_heads % config.n_key_heads:
        raise fields.error(
            key,
            f"{config.n_heads} heads of values are not a multiple of {config.n_key_heads} of keys",
        )
    return config


def tiled_order(config: DeltaNetConfig, stem: str, n: int) -> NDArray[np.intp] | None:
    """The places in a directory of a tensor's n rows (of ``ssm_out``: columns) in the order of tiled heads.

    The heads that share a key head are side by side in the directory.  Tiled, the first head of each comes
    first, then the second of each.  None: all stay in their places, or are refused for their number.
    """
    mixed, single = ("attn_qkv.", "ssm_conv1d."), ("ssm_beta.", "ssm_alpha.", "ssm_a", "ssm_dt.")
    first = 2 * config.keys if stem.startswith(mixed) else 0
    size = 1 if stem.startswith(single) else config.head_dim_v
    shared = config.n_heads // config.n_key_heads
    named = stem.startswith((*mixed, *single, "attn_gate.", "ssm_out."))
    if shared == 1 or not named or n != first + config.n_heads * size:
        return None
    heads = np.arange(config.n_heads * size).reshape(config.n_key_heads, shared, size)
    return np.concatenate([np.arange(first), first + heads.swapaxes(0, 1).reshape(-1)])


JOINT = {"ssm_beta.weight": "ssm_ba.weight", "attn_gate.weight": "ssm_in.weight"}
"""A part -> the joint projection that :func:`separated` takes it from, which has the same inputs."""


def separated(tensors: dict[str, StoredTensor], layer: int, config: DeltaNetConfig) -> None:
    """Replace the joint projections of a layer by ``attn_qkv``, ``attn_gate``, ``ssm_beta`` and ``ssm_alpha``,
    and the convolutions of queries, keys and values by one.

    ``ssm_in`` has, for each key head, rows of its query, its key, its values and their gates; ``ssm_ba`` has
    rows of beta and of the decay.  Rows are copied into the order of the parts.
    """
    shared, at = config.n_heads // config.n_key_heads, f"blk.{layer}."
    if config.channel_decays:
        _join_convolutions(tensors, at, config)
        return
    values = shared * config.head_dim_v
    sizes = [config.head_dim, config.head_dim, values, values]
    joint = _of_heads(tensors, at + "ssm_in.weight", config.n_key_heads, sizes)
    if joint:
        tensors[at + "attn_qkv.weight"] = _stacked(joint[:3])
        tensors[at + "attn_gate.weight"] = joint[3]
    joint = _of_heads(tensors, at + "ssm_ba.weight", config.n_key_heads, [shared, shared])
    if joint:
        tensors[at + "ssm_beta.weight"], tensors[at + "ssm_alpha.weight"] = joint


def _join_convolutions(tensors: dict[str, StoredTensor], at: str, config: DeltaNetConfig) -> None:
    """Replace ``ssm_conv1d_q``, ``_k`` and ``_v`` by ``ssm_conv1d``; those of other sizes stay."""
    sizes = {"q": config.keys, "k": config.keys, "v": config.values}
    names = {f"{at}ssm_conv1d_{part}.weight": n * config.d_conv for part, n in sizes.items()}
    if all(name in tensors and tensors[name].n_elements == n for name, n in names.items()):
        parts = [tensors.pop(name).floats().reshape(-1, config.d_conv) for name in names]
        tensors[at + "ssm_conv1d.weight"] = StoredTensor.of(np.concatenate(parts))


def _of_heads(
    tensors: dict[str, StoredTensor], name: str, n_heads: int, sizes: list[int]
) -> list[StoredTensor]:
    """Take out a tensor and split its heads' rows into parts; [] if there is no tensor of that size."""
    whole = tensors.get(name)
    if whole is None or whole.shape[0] != n_heads * sum(sizes):
        return []
    del tensors[name]
    heads = whole.data.reshape(n_heads, sum(sizes), -1)
    return [
        replace(
            whole,
            shape=(n_heads * size, *whole.shape[1:]),
            data=np.ascontiguousarray(part).reshape(-1),
        )
        for size, part in zip(sizes, np.split(heads, np.cumsum(sizes)[:-1], axis=1), strict=True)
    ]


def _stacked(parts: list[StoredTensor]) -> StoredTensor:
    """Stack matrices of one type and width."""
    rows = sum(part.shape[0] for part in parts)
    data = np.concatenate([part.data for part in parts])
    return replace(parts[0], shape=(rows, *parts[0].shape[1:]), data=data)
