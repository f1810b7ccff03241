"""Queries, keys and values of layers that compress the latter (arXiv:2405.04434), in PyTorch."""

from __future__ import annotations

import torch

from aleator.models.layers.linear import Linear
from aleator.models.layers.ops import TorchOps
from aleator.models.layers.parts import Latent


class LatentHeads:
    """What takes a layer's input to queries, keys and values, and what attention gives to its heads' outputs.

    Attributes:
        values_in_keys: values are so many first channels of the keys; 0: there are values.
    """

    def __init__(
        self, parts: Latent[Linear, torch.Tensor], n_heads: int, eps: float, ops: TorchOps
    ) -> None:
        self._parts, self._n_heads = parts, n_heads
        self._query_norm = ops.norm("rms", parts.query_norm, eps)
        self._norm = ops.norm("rms", parts.norm, eps)
        self._key_up, self._value_up = ops.each_head(parts.key_up), ops.each_head(parts.value_up)
        self.values_in_keys = parts.config.rank if parts.config.compressed else 0

    def heads(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries [T, H, D], keys [T, G, D] and values [T, G, Dv] of x [T, n_embd], not rotated yet."""
        parts, config, t = self._parts, self._parts.config, x.shape[0]
        q = parts.query(x)
        if parts.query_up is not None:
            q = parts.query_up(self._query_norm(q))
        q = q.view(t, self._n_heads, config.head_dim)
        low = parts.compress(x)
        compressed, rotated = self._norm(low[:, : config.rank]), low[:, config.rank :]
        plain = config.head_dim - parts.rotated
        if parts.expand is None:
            taken = self._key_up(q[:, :, :plain])
            key = torch.cat((compressed, rotated), -1)[:, None]
            return torch.cat((taken, q[:, :, plain:]), -1), key, key[:, :, :0]
        both = parts.expand(compressed).view(t, self._n_heads, plain + config.head_dim_v)
        shared = rotated[:, None].expand(t, self._n_heads, parts.rotated)
        return q, torch.cat((both[:, :, :plain], shared), -1), both[:, :, plain:]

    def given(self, attended: torch.Tensor) -> torch.Tensor:
        """The heads' outputs [T, H * Dv] of what attention gives."""
        if not self.values_in_keys:
            return attended
        t = attended.shape[0]
        heads = attended.view(t, self._n_heads, self.values_in_keys)
        return self._value_up(heads).reshape(t, -1)
