"""A decoder over its cache: embedding, layers, norm and output matrix; and the index of architectures.

An architecture's file says how its layers differ (:class:`Architecture`); everything else is here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from aleator.cache.cell_tensors import CellTensors
from aleator.cache.hybrid import HybridBatch
from aleator.cache.kv_cache import LayerShape
from aleator.cache.recurrent import RecurrentShape
from aleator.cache.recurrent_step import RecurrentBatch
from aleator.cache.step import MicroBatch
from aleator.core.errors import FileFormatError, UnsupportedModel
from aleator.models.layers.attention import attend
from aleator.models.layers.geglu import GeGLU
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
        post_norm: what attention and feed-forward give is normalised before it is added.
        activation: of the gate, "silu" or "gelu".
        scaled_embedding: embeddings of tokens are multiplied by sqrt(n_embd).
        rotary: queries and keys are turned by their positions.
        layer: makes a layer that keeps a state: ``layer(decoder, weights, index)``.
        state_norm: time step, B and C of such layers are RMS-normalised, with weights.

    """

    name: str
    qkv_bias: bool = False
    head_norm: bool = False
    post_norm: bool = False
    activation: str = "silu"
    scaled_embedding: bool = False
    rotary: bool = True
    layer: Callable[[Decoder, Weights, int], RecurrentLayer] | None = None
    state_norm: bool = False


class Layer(Protocol):
    """One layer of a decoder."""

    def __call__(self, x: torch.Tensor, batch: Pass, rows: torch.Tensor | None) -> torch.Tensor:
        """X [T, n_embd] -> [T, n_embd], or only ``rows`` of it."""
        ...


class RecurrentLayer(Layer, Protocol):
    """A layer that keeps a state of each sequence."""

    @property
    def shape(self) -> RecurrentShape:
        """What it keeps."""
        ...


class Pass:
    """What layers share while one micro-batch goes through them.

    Attributes:
        cells: what the cache gave the micro-batch.
        fused: whether attention may use torch's fused kernel.

    """

    def __init__(self, positions: torch.Tensor, highest: int, cells: Any, fused: bool) -> None:
        self._positions, self._highest = positions, highest
        self.cells, self.fused = cells, fused
        self._angles: dict[int, torch.Tensor] = {}
        self._tensors: dict[bool, CellTensors] = {}

    def angles(self, rotary: Rotary) -> torch.Tensor:
        """The rotations of the micro-batch's positions."""
        if id(rotary) not in self._angles:
            self._angles[id(rotary)] = rotary.angles(self._positions, self._highest)
        return self._angles[id(rotary)]

    @property
    def states(self) -> RecurrentBatch:
        """The states of layers that keep one."""
        cells = self.cells
        states: Any = cells.recurrent if isinstance(cells, HybridBatch) else cells
        return cast(RecurrentBatch, states)

    def tensors(self, windowed: bool) -> CellTensors:
        """The cells of layers that see everything, or of those with a window."""
        if windowed not in self._tensors:
            cells = self.cells.window if windowed else self.cells
            self._tensors[windowed] = cells.tensors()
        return self._tensors[windowed]


def feed_forward(decoder: Decoder, weights: Weights, layer: int) -> SwiGLU | GeGLU:
    """A layer's gated feed-forward part."""
    n_embd, n_ff = decoder.config.n_embd, decoder.config.n_ff[layer]

    def matrix(names: list[str], n_in: int, n_outs: list[int]) -> Linear:
        listed = [f"blk.{layer}.{name}" for name in names]
        return linear(weights, listed, n_in, n_outs, decoder.device, decoder.dtype)

    gate_up = matrix(["ffn_gate", "ffn_up"], n_embd, [n_ff, n_ff])
    down = matrix(["ffn_down"], n_ff, [n_embd])
    if decoder.architecture.activation == "silu":
        return SwiGLU(gate_up, down, n_ff)
    return GeGLU(gate_up, down, n_ff, rounded=weights.kind == "gguf")


class Block:
    """One layer: attention, then feed-forward, each on the normalised input and added to it."""

    def __init__(self, decoder: Decoder, weights: Weights, layer: int) -> None:
        config, device, dtype = decoder.config, decoder.device, decoder.dtype
        architecture = decoder.architecture
        windowed: bool = config.window is not None and config.window.layers[layer]
        # Layers with a window and those without are counted apart: each kind has a cache of its own.
        same_kind = [block for block in decoder.blocks if block.windowed == windowed]
        self.windowed: bool = windowed
        self.layer: int = len(same_kind)
        self.rotary = decoder.window_rotary if windowed else decoder.rotary
        self.n_heads, self.n_kv_heads = config.n_heads[layer], config.n_kv_heads[layer]
        self.head_dim, self.head_dim_v = config.head_dim, config.head_dim_v
        self.n_turned = self.n_heads + self.n_kv_heads
        self.scale = config.attention_scale or 1.0 / math.sqrt(self.head_dim)
        n_embd = config.n_embd
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
            architecture.qkv_bias,
        )
        self.head_weights: torch.Tensor | None = None
        if architecture.head_norm:
            q_norm = vector("attn_q_norm.weight", self.head_dim).expand(self.n_heads, -1)
            k_norm = vector("attn_k_norm.weight", self.head_dim).expand(self.n_kv_heads, -1)
            self.head_weights = torch.cat((q_norm, k_norm))
            self.head_eps = config.rms_eps
        self.output = matrix(["attn_output"], self.n_heads * self.head_dim_v, [n_embd])
        self.ffn_norm = RMSNorm(vector("ffn_norm.weight", n_embd), config.rms_eps)
        self.post_norms: tuple[RMSNorm, RMSNorm] | None = None
        if architecture.post_norm:
            post_attention, post_ffn = (
                RMSNorm(vector(name, n_embd), config.rms_eps)
                for name in ("post_attention_norm.weight", "post_ffw_norm.weight")
            )
            self.post_norms = post_attention, post_ffn
        self.ffn = feed_forward(decoder, weights, layer)

    @property
    def shape(self) -> LayerShape:
        """What the layer stores per cell."""
        return LayerShape(self.n_kv_heads, self.head_dim, self.head_dim_v)

    def __call__(self, x: torch.Tensor, batch: Pass, rows: torch.Tensor | None) -> torch.Tensor:
        """X [T, n_embd] -> [T, n_embd], or only ``rows`` of it; stores all T keys and values."""
        t = x.shape[0]
        cells = batch.tensors(self.windowed)
        qkv = self.qkv(self.attn_norm(x))
        n_qk = self.n_turned * self.head_dim
        qk = qkv[:, :n_qk].view(t, self.n_turned, self.head_dim)
        if self.head_weights is not None:
            qk = F.rms_norm(qk, (self.head_dim,), None, self.head_eps).mul_(self.head_weights)
        qk = qk.float()
        if cells.raw:
            k = qk[:, self.n_heads :] * self.rotary.magnitude_over(self.head_dim)
            q = self.rotary.turn(qk[:, : self.n_heads].contiguous(), batch.angles(self.rotary))
        else:
            qk = self.rotary.turn(qk, batch.angles(self.rotary))
            q, k = qk[:, : self.n_heads], qk[:, self.n_heads :]
        cells.write(
            self.layer,
            k,
            qkv[:, n_qk:].view(t, self.n_kv_heads, self.head_dim_v),
        )
        if rows is not None and len(rows) == 0:
            return x[:0]
        q = q.to(cells.device(self.layer))
        attended = attend(q, self.layer, cells, self.scale, batch.fused).to(x)
        if rows is not None:
            x, attended = x.index_select(0, rows), attended.index_select(0, rows)
        if self.post_norms is None:
            x = x + self.output(attended)
            return x + self.ffn(self.ffn_norm(x))
        x = x + self.post_norms[0](self.output(attended))
        return x + self.post_norms[1](self.ffn(self.ffn_norm(x)))


class Decoder:
    """Weights and what to compute with them; holds no state between calls.

    Attributes:
        config: the model's dimensions.
        device: where the weights are and the work is done.
        dtype: type of weights and activations; attention, states and logits are float32.
        blocks: the layers with attention.
        recurrent: the layers that keep a state.
        layers: all of them, in order.

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
        # Without a rotary embedding every frequency is 0, and nothing turns.
        still = np.full(config.rope.dim // 2, np.inf)
        divisors = _divisors(weights) if architecture.rotary else still
        self.rotary = self.window_rotary = Rotary(config.rope, device, divisors)
        if config.window is not None:
            self.window_rotary = Rotary(config.window.rope, device)
        shape = (config.n_vocab, config.n_embd)
        self.embedding = embedding(weights, shape, device, dtype)
        self.embedding_scale = math.sqrt(config.n_embd) if architecture.scaled_embedding else 1.0
        self.blocks: list[Block] = []
        self.recurrent: list[RecurrentLayer] = []
        self.layers: list[Layer] = []
        for layer in range(config.n_layers):
            if progress is not None:
                progress(layer, config.n_layers)
            if architecture.layer is not None and config.keeps_state(layer):
                self.recurrent.append(architecture.layer(self, weights, layer))
                self.layers.append(self.recurrent[-1])
            else:
                self.blocks.append(Block(self, weights, layer))
                self.layers.append(self.blocks[-1])
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
        """What each layer that sees everything stores in the KV cache."""
        return [block.shape for block in self.blocks if not block.windowed]

    @property
    def window_shapes(self) -> list[LayerShape]:
        """What each layer with a window stores in its own."""
        return [block.shape for block in self.blocks if block.windowed]

    @property
    def recurrent_shapes(self) -> list[RecurrentShape]:
        """What each layer with a state keeps of a sequence."""
        return [layer.shape for layer in self.recurrent]

    def shift_keys(self, layer: int, keys: torch.Tensor, deltas: torch.Tensor) -> torch.Tensor:
        """Stored keys of layers that see everything (float32 [n, G, D], overwritten) turned by ``deltas``."""
        return self.rotary.shift(keys, deltas)

    def shift_window_keys(
        self, layer: int, keys: torch.Tensor, deltas: torch.Tensor
    ) -> torch.Tensor:
        """The same for layers with a window."""
        return self.window_rotary.shift(keys, deltas)

    def forward(
        self,
        inputs: npt.NDArray[np.int64] | npt.NDArray[np.float32],
        positions: npt.NDArray[np.int32],
        cells: MicroBatch | RecurrentBatch,
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
        batch = Pass(
            torch.from_numpy(positions).to(self.device), int(positions.max()), cells, fused
        )
        rows = None
        if len(wanted) < len(inputs):
            rows = torch.from_numpy(wanted).to(self.device)
        return self.compute(torch.from_numpy(inputs).to(self.device), batch, rows)

    def compute(
        self, inputs: torch.Tensor, batch: Pass, rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The same from tensors on the device; does not wait for it.

        Args:
            inputs: token ids int64 [T], or input vectors [T, n_embd].
            batch: what layers share.
            rows: ascending indices of the tokens whose logits are computed; None: all.

        """
        if inputs.dim() == 2:
            x = inputs.to(self.dtype)
        else:
            x = self.embedding(inputs)
            if self.embedding_scale != 1.0:
                x = x * self.embedding_scale
        for layer in self.layers[:-1]:
            x = layer(x, batch, None)
        # After the last layer has stored what it must only the wanted rows matter.
        x = self.layers[-1](x, batch, rows)
        logits = self.head(self.output_norm(x)).float()
        cap = self.config.logit_softcap
        return logits.div_(cap).tanh_().mul_(cap) if cap else logits


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
    from aleator.models import gemma3, jamba, llama, mamba, qwen2, qwen3

    known = (llama, qwen2, qwen3, gemma3, mamba, jamba)
    return {each.ARCHITECTURE.name: each.ARCHITECTURE for each in known}


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
