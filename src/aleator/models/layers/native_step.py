"""A micro-batch through a whole decoder in one native call, for decoders whose weights are on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from aleator import _native
from aleator.cache.pools.hybrid import HybridPool
from aleator.cache.pools.hybrid_batch import HybridBatch
from aleator.cache.storage.host import HostLayer
from aleator.models.layers.geglu import GeGLU
from aleator.models.layers.native_linear import StoredEmbedding, StoredLinear, torch_pool
from aleator.models.layers.swiglu import SwiGLU

if TYPE_CHECKING:
    from aleator.cache.pools.pool import AnyPool
    from aleator.cache.pools.window import WindowPool
    from aleator.cache.rows.batch import MicroBatch
    from aleator.cache.storage.storage import Storage
    from aleator.models.decoder import Decoder
    from aleator.models.layers.linear import Linear


class NativeStep:
    """The decoder's native form over one pool, whose storage it reads and writes in place.

    Same arithmetic as :meth:`Decoder.forward` in float32, in another order.  A token's logits have the same
    bits for any number of threads, and in micro-batches of up to 8 tokens for any company.  Use
    :meth:`supports` first.
    """

    def __init__(self, decoder: Decoder, pool: AnyPool) -> None:
        config, rotary = decoder.config, decoder.rotary
        self.n_vocab = config.n_vocab
        embedding = decoder.embedding
        if not isinstance(embedding, StoredEmbedding):
            raise TypeError("NativeStep needs a decoder for which NativeStep.supports is true")
        (output,) = _matrices(decoder.head)
        self._step = _native.DecoderStep(
            embedding.weight.matrix,
            output,
            decoder.output_norm.weight.numpy(),
            config.rms_eps,
            decoder.blocks[0].scale,
            rotary.frequencies,
            rotary.magnitude,
            rotary.interleaved,
            decoder.embedding_scale,
            _gate(decoder.blocks[0].ffn),
            decoder.window_rotary.frequencies,
            decoder.window_rotary.magnitude,
            pool.first.rows.k_storage == "raw",
        )
        self._softcap = config.logit_softcap
        window = _window(pool)
        for block in decoder.blocks:
            rows = (window if block.windowed and window is not None else pool.first).rows
            post = block.post_norms
            heads = block.head_weights
            (q, k, v), (o,) = _matrices(block.qkv), _matrices(block.output)
            (gate, up), (down,) = _matrices(block.ffn.gate_up), _matrices(block.ffn.down)
            self._step.add_layer(
                q,
                k,
                v,
                o,
                gate,
                up,
                down,
                block.attn_norm.weight.numpy(),
                block.ffn_norm.weight.numpy(),
                None if heads is None else heads[0].numpy(),
                None if heads is None else heads[block.n_heads].numpy(),
                _memory(rows.keys, block.layer),
                _memory(rows.values, block.layer),
                None if post is None else post[0].weight.numpy(),
                None if post is None else post[1].weight.numpy(),
                block.windowed,
            )

    @staticmethod
    def supports(decoder: Decoder, pool: AnyPool) -> bool:
        """Whether weights (in float32 arithmetic) and cache are where native code can use them."""
        return (
            isinstance(decoder.embedding, StoredEmbedding)
            and not decoder.recurrent
            and all(device.type == "cpu" for device in pool.first.rows.devices)
        )

    def run(
        self,
        inputs: npt.NDArray[np.int64] | npt.NDArray[np.float32],
        positions: npt.NDArray[np.int32],
        cells: MicroBatch | HybridBatch,
        wanted: npt.NDArray[np.int64],
    ) -> torch.Tensor:
        """One micro-batch of T tokens, on as many threads as torch uses.

        Args:
            inputs: token ids [T], or input vectors [T, n_embd].
            positions: [T].
            cells: where the tokens are stored and what they attend to.
            wanted: indices of the tokens whose logits are computed.

        Returns:
            Logits, float32 [len(wanted), n_vocab].

        """
        logits = np.empty((len(wanted), self.n_vocab), np.float32)
        vectors = inputs.ndim == 2
        window = cells.window if isinstance(cells, HybridBatch) else None
        base = cells.base if isinstance(cells, HybridBatch) else cells
        self._step.run(
            torch_pool(),
            None if vectors else inputs.astype(np.int64, copy=False),
            inputs.astype(np.float32, copy=False) if vectors else None,
            positions,
            base.slots,
            *base.seen,
            wanted,
            logits,
            None if window is None else (window.slots, *window.seen, window.first, window.sunk),
        )
        if self._softcap:
            _native.soften_logits(logits, self._softcap)
        return torch.from_numpy(logits)


def _window(pool: AnyPool) -> WindowPool | None:
    """The pool of layers with a window, if there are any."""
    return pool.window if isinstance(pool, HybridPool) else None


def _gate(ffn: SwiGLU | GeGLU) -> str:
    if isinstance(ffn, SwiGLU):
        return "silu"
    return "gelu_rounded" if ffn.rounded else "gelu"


def _matrices(linear: Linear) -> list[_native.StoredMatrix]:
    if not isinstance(linear, StoredLinear):
        raise TypeError("NativeStep needs a decoder for which NativeStep.supports is true")
    return [part.matrix for part in linear.parts]


def _memory(side: Storage, layer: int) -> _native.CacheMemory:
    """A layer's keys or values, shared, not copied."""
    part = side.parts[layer]
    if not isinstance(part, HostLayer):
        raise TypeError("NativeStep needs a decoder for which NativeStep.supports is true")
    return _native.CacheMemory(
        part.bytes,
        side.type.native,
        side.n_cells,
        *side.shapes[layer],
        side.by_channel,
        side.rotation,
    )
