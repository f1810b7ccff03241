"""Steps compute micro-batches over one cache, whatever the decoder's form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy.typing as npt

from aleator.cache.devices import Device
from aleator.core.arrays import Floats, Int32s, Int64s
from aleator.models.adapters import Rows

Inputs = Int64s | Floats
"""Token ids [T], or input vectors [T, n_embd]."""


class Draw(ABC):
    """Draws the next tokens from a step's logits on their device, within the step's graph.

    Attributes:
        device: where it draws, as PyTorch names it; a step elsewhere returns only logits.
        made: the result of the draw; None: there are only logits.
    """

    device: Any
    made: Any = None

    @property
    @abstractmethod
    def owner(self) -> Any:
        """The owner of the memory that its operations read: a graph is kept no longer than this."""

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """A key of its operations on that memory: a graph stays valid while this is equal."""

    @abstractmethod
    def arrays(self, n: int) -> dict[str, npt.NDArray[Any]]:
        """The arrays that it reads from the host in a step of ``n`` tokens, always of the same sizes."""

    @abstractmethod
    def inputs(self, ids: Any, arrays: Mapping[Any, Any]) -> Any:
        """The ids of the step's tokens, on the device; ``ids`` are the host's, which may be outdated."""

    @abstractmethod
    def compute(self, logits: Any, arrays: Mapping[Any, Any]) -> Any:
        """Draw from logits [n, n_vocab], without waiting for the device."""

    @abstractmethod
    def begin(self) -> None:
        """Note on the host that a draw follows, by :meth:`compute` or by a replay of its graph."""


class Step(ABC):
    """A decoder bound to one cache.

    Attributes:
        taps: what the decoder's ``tapped`` layers took of the last micro-batch, float32 [T, layers, n_embd];
            None: there are none.
    """

    taps: Floats | None = None

    @abstractmethod
    def run(
        self,
        inputs: Inputs,
        positions: Int32s,
        cells: Any,
        outputs: Int64s,
        n_threads: int | None = None,
        draw: Draw | None = None,
        adapters: Rows | None = None,
    ) -> Any:
        """Compute one micro-batch of T tokens.

        Args:
            inputs: token ids [T], or input vectors [T, n_embd].
            positions: [T].
            cells: the cache's cells for the micro-batch: where tokens are stored and what they attend to.
            outputs: ascending indices of the tokens whose logits are computed.
            n_threads: threads to use, 1 to 256; None: as many as there are cores.
            draw: draws from the logits of a step in which all tokens want theirs.  It is ignored if steps are
                not captured.
            adapters: the tokens' adapters; None: no token has one.

        Returns:
            Logits, float32 [len(outputs), n_vocab], as :meth:`joined` takes them.
        """

    @abstractmethod
    def joined(self, parts: Sequence[Any], order: Int64s | None, device: Device) -> Any:
        """Logits of several micro-batches as one array.

        Args:
            parts: results of :meth:`run`.
            order: row i of the result is row ``order[i]`` of all; None: they stay in order.
            device: where the result goes.

        Returns:
            float32 [rows, n_vocab]: NumPy's array on the CPU, torch's tensor on a device.
        """
