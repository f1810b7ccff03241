"""A micro-batch through a whole decoder of states alone in one native call, for weights on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

import aleator._native as _native
from aleator.core.threads import pool as thread_pool
from aleator.models.layers.head_parts import HeadSpace, ShortConvolution
from aleator.models.layers.native_recurrent import Rows, head_space, same_rows, space_arguments
from aleator.models.layers.recurrent_parts import DeltaNet, state_space
from aleator.models.step import HostStep, Inputs

if TYPE_CHECKING:
    from aleator.cache.pools.recurrent import RecurrentPool
    from aleator.cache.pools.recurrent_batch import RecurrentBatch
    from aleator.models.native_decoder import NativeDecoder


class NativeSSM(HostStep):
    """The decoder's native form over one pool, whose states it reads and writes in place.

    A token's logits have the same bits for any number of threads, beside any other tokens, and on every
    instruction set (docs/numerics.md, part 2).
    """

    def __init__(self, decoder: NativeDecoder, pool: RecurrentPool) -> None:
        super().__init__()
        self.n_vocab = decoder.config.n_vocab
        self._decoder = decoder
        self._build(pool.conv, pool.ssm)

    def _build(
        self, convs: list[npt.NDArray[np.float32]], states: list[npt.NDArray[np.float32]]
    ) -> None:
        decoder = self._decoder
        step = _native.SSMStep(
            decoder.embedding.matrix,
            decoder.head.matrix if decoder.head is not None else None,
            decoder.output_norm,
            decoder.config.rms_eps,
            state_space(decoder.config).norm_eps,
        )
        for layer, conv, state in zip(decoder.recurrent, convs, states, strict=True):
            if isinstance(layer, HeadSpace):
                step.add_head_space(head_space(layer, conv, state))
            elif not isinstance(layer, ShortConvolution | DeltaNet):  # no model has these alone
                step.add_layer(*space_arguments(layer, conv, state)[:11])
        # Together, and last: what interrupts leaves the step before, or none that is believed.
        self._rows: tuple[Rows, Rows] | None = None
        self._step, self._rows = step, (convs[0], states[0])

    def run(
        self,
        inputs: Inputs,
        positions: npt.NDArray[np.int32],
        cells: RecurrentBatch,
        wanted: npt.NDArray[np.int64],
        n_threads: int | None = None,
    ) -> npt.NDArray[np.float32]:
        """See :class:`~aleator.models.step.Step`; positions are not used."""
        states = cells
        if self._inherits(self._step) or not same_rows(self._rows, states.conv, states.ssm):
            self._build(states.conv, states.ssm)
        logits = np.empty((len(wanted), self.n_vocab), np.float32)
        vectors = inputs.ndim == 2
        self._step.run(
            thread_pool(n_threads),
            None if vectors else inputs.astype(np.int64, copy=False),
            inputs.astype(np.float32, copy=False) if vectors else None,
            states.starts,
            states.sources,
            states.order,
            states.stores,
            wanted,
            logits,
        )
        return logits
