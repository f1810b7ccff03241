"""A decoder-only transformer over the KV cache, and the index of architectures.

An architecture's file says how its layers differ (:class:`Architecture`); everything else is here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from aleator.cache.cell_tensors import CellTensors
from aleator.cache.kv_cache import LayerShape
from aleator.cache.step import MicroBatch
from aleator.core.errors import FileFormatError, UnsupportedModel
from aleator.models.layers.attention import attend
from aleator.models.layers.linear import Linear, embedding, linear
from aleator.models.layers.parameters import parameter
from aleator.models.layers.rms_norm import RMSNorm
from aleator.models.layers.rotary import Rotary
from aleator.models.layers.swiglu import SwiGLU

if TYPE_CHECKING:
    from aleator.models.weights import Weights


@dataclass(frozen=True)
class Architecture:
    """How one architecture differs from the plain pre-norm transformer with rotary and SwiGLU.

    Attributes:
        name: as in ``general.architecture``.
        qkv_bias: query, key and value projections have a bias.
        head_norm: every query and key head is RMS-normalised before the rotation.

    """

    name: str
    qkv_bias: bool = False
    head_norm: bool = False


class Block:
    """One layer: attention, then feed-forward, each on the normalised input and added to it."""

    def __init__(self, decoder: Decoder, weights: Weights, layer: int) -> None:
        config, device, dtype = decoder.config, decoder.device, decoder.dtype
        self.layer, self.rotary = layer, decoder.rotary
        self.n_heads, self.n_kv_heads = config.n_heads[layer], config.n_kv_heads[layer]
        self.head_dim, self.head_dim_v = config.head_dim, config.head_dim_v
        self.n_turned = self.n_heads + self.n_kv_heads
        self.scale = 1.0 / math.sqrt(self.head_dim)
        n_embd, n_ff = config.n_embd, config.n_ff[layer]
        at = f"blk.{layer}."

        def vector(name: str, n: int) -> torch.Tensor:
            return parameter(weights, at + name, (n,), device, dtype)

        def matrix(names: list[str], n_in: int, n_outs: list[int], bias: bool = False) -> Linear:
            return linear(weights, [at + n for n in names], n_in, n_outs, device, dtype, bias=bias)

        self.attn_norm = RMSNorm(vector("attn_norm.weight", n_embd), config.rms_eps)
        self.qkv = matrix(
            ["attn_q", "attn_k", "attn_v"],
            n_embd,
            [
                self.n_heads * self.head_dim,
                self.n_kv_heads * self.head_dim,
                self.n_kv_heads * self.head_dim_v,
            ],
            decoder.architecture.qkv_bias,
        )
        self.head_weights: torch.Tensor | None = None
        if decoder.architecture.head_norm:
            q_norm = vector("attn_q_norm.weight", self.head_dim).expand(self.n_heads, -1)
            k_norm = vector("attn_k_norm.weight", self.head_dim).expand(self.n_kv_heads, -1)
            self.head_weights = torch.cat((q_norm, k_norm))
            self.head_eps = config.rms_eps
        self.output = matrix(["attn_output"], self.n_heads * self.head_dim_v, [n_embd])
        self.ffn_norm = RMSNorm(vector("ffn_norm.weight", n_embd), config.rms_eps)
        self.ffn = SwiGLU(
            matrix(["ffn_gate", "ffn_up"], n_embd, [n_ff, n_ff]),
            matrix(["ffn_down"], n_ff, [n_embd]),
            n_ff,
        )

    def __call__(
        self,
        x: torch.Tensor,
        angles: torch.Tensor,
        cells: CellTensors,
        fused: bool,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        """X [T, n_embd] -> [T, n_embd], or only ``rows`` of it; stores all T keys and values."""
        t = x.shape[0]
        qkv = self.qkv(self.attn_norm(x))
        n_qk = self.n_turned * self.head_dim
        qk = qkv[:, :n_qk].view(t, self.n_turned, self.head_dim)
        if self.head_weights is not None:
            qk = F.rms_norm(qk, (self.head_dim,), None, self.head_eps).mul_(self.head_weights)
        qk = qk.float()
        if cells.raw:
            k = qk[:, self.n_heads :] * self.rotary.magnitude_over(self.head_dim)
            q = self.rotary.turn(qk[:, : self.n_heads].contiguous(), angles)
        else:
            qk = self.rotary.turn(qk, angles)
            q, k = qk[:, : self.n_heads], qk[:, self.n_heads :]
        cells.write(
            self.layer,
            k,
            qkv[:, n_qk:].view(t, self.n_kv_heads, self.head_dim_v),
        )
        if rows is not None and len(rows) == 0:
            return x[:0]
        attended = attend(q.to(cells.device(self.layer)), self.layer, cells, self.scale, fused).to(
            x
        )
        if rows is not None:
            x, attended = x.index_select(0, rows), attended.index_select(0, rows)
        x = x + self.output(attended)
        return x + self.ffn(self.ffn_norm(x))


class Decoder:
    """Weights and what to compute with them; holds no state between calls.

    Attributes:
        config: the model's dimensions.
        device: where the weights are and the work is done.
        dtype: type of weights and activations; attention and logits are float32.

    """

    def __init__(
        self,
        architecture: Architecture,
        weights: Weights,
        device: torch.device,
        dtype: torch.dtype,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        config = weights.config
        if config.expert_count:
            raise UnsupportedModel(f"{weights.path}: mixtures of experts are not supported")
        if config.rope.scaling == "longrope":
            raise UnsupportedModel(f"{weights.path}: rope scaling 'longrope' is not supported")
        self.architecture, self.config = architecture, config
        self.device, self.dtype = device, dtype
        self.rotary = Rotary(config.rope, device, _divisors(weights))
        shape = (config.n_vocab, config.n_embd)
        self.embedding = embedding(weights, shape, device, dtype)
        self.blocks: list[Block] = []
        for layer in range(config.n_layers):
            if progress is not None:
                progress(layer, config.n_layers)
            self.blocks.append(Block(self, weights, layer))
        self.output_norm = RMSNorm(
            parameter(weights, "output_norm.weight", shape[1:], device, dtype), config.rms_eps
        )
        self.head = linear(
            weights,
            ["token_embd" if config.tied else "output"],
            config.n_embd,
            [config.n_vocab],
            device,
            dtype,
        )
        if progress is not None:
            progress(config.n_layers, config.n_layers)

    @property
    def cache_shapes(self) -> list[LayerShape]:
        """What each layer stores in the KV cache."""
        return [LayerShape(b.n_kv_heads, b.head_dim, b.head_dim_v) for b in self.blocks]

    def shift_keys(self, layer: int, keys: torch.Tensor, deltas: torch.Tensor) -> torch.Tensor:
        """Stored keys of a layer (float32 [n, G, D], overwritten) turned by ``deltas``."""
        return self.rotary.shift(keys, deltas)

    def forward(
        self,
        inputs: npt.NDArray[np.int64] | npt.NDArray[np.float32],
        positions: npt.NDArray[np.int32],
        cells: MicroBatch,
        wanted: npt.NDArray[np.int64],
        fused: bool = True,
    ) -> torch.Tensor:
        """One micro-batch of T tokens.

        Args:
            inputs: token ids [T], or input vectors [T, n_embd].
            positions: [T].
            cells: where the tokens are stored and what they attend to.
            wanted: ascending indices of the tokens whose logits are computed.
            fused: whether attention may use torch's fused kernel.

        Returns:
            Logits, float32 [len(wanted), n_vocab], on the decoder's device.

        """
        x = torch.from_numpy(inputs).to(self.device)
        x = self.embedding(x) if x.dim() == 1 else x.to(self.dtype)
        angles = self.rotary.angles(
            torch.from_numpy(positions).to(self.device), int(positions.max())
        )
        tensors = cells.tensors()
        rows = None
        if len(wanted) < len(x):
            rows = torch.from_numpy(wanted).to(self.device)
        for block in self.blocks[:-1]:
            x = block(x, angles, tensors, fused, None)
        # After the last layer's attention only the wanted rows matter.
        x = self.blocks[-1](x, angles, tensors, fused, rows)
        return self.head(self.output_norm(x)).float()


def _divisors(weights: Weights) -> npt.NDArray[np.float64] | None:
    """The file's per-pair divisors of the rotary frequencies, if it has them."""
    name = "rope_freqs.weight"
    if name not in weights:
        return None
    weights.expect(name, (weights.config.rope.dim // 2,))
    divisors = weights.tensor(name, torch.float64).numpy()
    if not (divisors > 0).all():
        raise FileFormatError(weights.path, f"tensor {name} must be positive", field=name)
    return divisors


def _architectures() -> dict[str, Architecture]:
    from aleator.models import llama, qwen2, qwen3

    return {a.name: a for a in (llama.ARCHITECTURE, qwen2.ARCHITECTURE, qwen3.ARCHITECTURE)}


def build_decoder(
    weights: Weights,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    progress: Callable[[int, int], None] | None = None,
) -> Decoder:
    """The decoder for a model file, its weights read and checked.

    ``progress`` is called with (layers done, layers).

    Raises:
        UnsupportedModel: an architecture that is not supported.
        FileFormatError: a tensor is missing, of the wrong shape, or not finite; names it.

    """
    known = _architectures()
    name = weights.config.architecture
    if name not in known:
        raise UnsupportedModel(
            f"{weights.path}: architecture {name!r} is not supported; supported: {', '.join(known)}"
        )
    return Decoder(known[name], weights, torch.device(device), dtype, progress)
