"""A micro-batch through a whole mamba decoder in one native call, for weights on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from aleator import _native
from aleator.models.layers.mamba import MambaLayer
from aleator.models.layers.native_linear import StoredEmbedding, StoredLinear, torch_pool

if TYPE_CHECKING:
    from aleator.cache.pools.recurrent import RecurrentPool
    from aleator.cache.pools.recurrent_batch import RecurrentBatch
    from aleator.models.decoder import Decoder
    from aleator.models.layers.linear import Linear


class NativeSSM:
    """The decoder's native form over one pool, whose states it reads and writes in place.

    Same arithmetic as :meth:`Decoder.forward` in float32, in another order.  A token's logits have the same
    bits for any number of threads, and in micro-batches of up to 8 tokens for any company.  Use
    :meth:`supports` first.
    """

    def __init__(self, decoder: Decoder, pool: RecurrentPool) -> None:
        self.n_vocab = decoder.config.n_vocab
        self._decoder = decoder
        self._build(pool.conv, pool.ssm)

    def _build(
        self, convs: list[npt.NDArray[np.float32]], states: list[npt.NDArray[np.float32]]
    ) -> None:
        decoder, self._states = self._decoder, states[0]
        embedding, ssm = decoder.embedding, decoder.config.ssm
        if not isinstance(embedding, StoredEmbedding) or ssm is None:
            raise TypeError("NativeSSM needs a decoder for which NativeSSM.supports is true")
        self._step = _native.SSMStep(
            embedding.weight.matrix,
            _matrix(decoder.head),
            decoder.output_norm.weight.numpy(),
            decoder.config.rms_eps,
            ssm.norm_eps,
        )
        for layer, conv, state in zip(decoder.recurrent, convs, states, strict=True):
            if not isinstance(layer, MambaLayer):
                raise TypeError("NativeSSM needs a decoder for which NativeSSM.supports is true")
            self._step.add_layer(
                _matrix(layer.project),
                _matrix(layer.select),
                _matrix(layer.time_step),
                _matrix(layer.output),
                layer.norm.weight.numpy(),
                layer.conv_weight.T.contiguous().numpy(),
                layer.conv_bias.numpy(),
                layer.a.numpy(),
                layer.d.numpy(),
                conv,
                state,
            )

    @staticmethod
    def supports(decoder: Decoder, pool: RecurrentPool) -> bool:
        """Whether weights (in float32 arithmetic) and states are where native code can use them."""
        return (
            isinstance(decoder.embedding, StoredEmbedding)
            and all(isinstance(layer, MambaLayer) for layer in decoder.layers)
            and not decoder.config.n_ff
            and not decoder.architecture.state_norm
            and pool.device.type == "cpu"
        )

    def run(
        self,
        inputs: npt.NDArray[np.int64] | npt.NDArray[np.float32],
        positions: npt.NDArray[np.int32],
        states: RecurrentBatch,
        wanted: npt.NDArray[np.int64],
    ) -> torch.Tensor:
        """One micro-batch of T tokens, on as many threads as torch uses.

        Args:
            inputs: token ids [T], or input vectors [T, n_embd].
            positions: not used.
            states: where the tokens' states come from and go to.
            wanted: indices of the tokens whose logits are computed.

        Returns:
            Logits, float32 [len(wanted), n_vocab].

        """
        if states.ssm[0] is not self._states:  # the cache has got more rows
            self._build(states.conv, states.ssm)
        logits = np.empty((len(wanted), self.n_vocab), np.float32)
        vectors = inputs.ndim == 2
        self._step.run(
            torch_pool(),
            None if vectors else inputs.astype(np.int64, copy=False),
            inputs.astype(np.float32, copy=False) if vectors else None,
            states.starts,
            states.sources,
            states.order,
            states.stores,
            wanted,
            logits,
        )
        return torch.from_numpy(logits)


def _matrix(linear: Linear) -> _native.StoredMatrix:
    if not isinstance(linear, StoredLinear) or len(linear.parts) != 1:
        raise TypeError("NativeSSM needs a decoder for which NativeSSM.supports is true")
    return linear.parts[0].matrix
