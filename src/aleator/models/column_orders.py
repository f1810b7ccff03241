"""Which matrices keep their columns in the order in which they are stored.

A product has that order where it rounds its input (docs/numerics.md, part 2), once for all matrices of that
input: so these must share it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from aleator.models.config import ModelConfig
from aleator.models.files.tensor_types import StoredTensor


def shared_orders(
    tensors: Mapping[str, StoredTensor], config: ModelConfig
) -> dict[str, StoredTensor]:
    """A model's tensors, those that cannot keep an order without it."""
    if all(each.order is None for each in tensors.values()):
        return dict(tensors)
    made: dict[str, StoredTensor] = {}
    for names in _with_one_input(config):
        own = {name: tensors[name] for name in names if name in tensors}
        orders = [each.order for each in own.values() if each.order is not None]
        if len(orders) == len(own) and all(np.array_equal(orders[0], each) for each in orders):
            made |= {name: replace(each, order=orders[0]) for name, each in own.items()}
    return {name: made[name] if name in made else each.in_order() for name, each in tensors.items()}


def _with_one_input(config: ModelConfig) -> Iterator[list[str]]:
    """The names of the matrices that may have an order, those with the same input together."""
    for layer in range(config.n_layers):
        groups = []
        if config.latent is None and not config.keeps_state(layer):
            groups += [["attn_qkv", "attn_q", "attn_gate", "attn_k", "attn_v"], ["attn_output"]]
        if not config.has_experts(layer):
            groups += [["ffn_gate", "ffn_up"], ["ffn_down"]]
        if config.parallel and len(groups) == 4:
            groups = [groups[0] + groups[2], groups[1], groups[3]]
        for group in groups:
            yield [f"blk.{layer}.{name}.weight" for name in group]
