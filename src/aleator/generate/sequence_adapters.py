"""Which adapters the sequences of a context have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aleator.core.arrays import Int32s
from aleator.core.errors import InvalidBatch
from aleator.models.adapters import Adapters, Chosen, Rows, held_at


class SequenceAdapters:
    """The adapters of a decoder by the sequences of a context; one that says nothing has those of all."""

    def __init__(self, adapters: Adapters) -> None:
        self._adapters = adapters
        self._own: dict[int, Chosen] = {}

    def set(self, seq: int, chosen: Chosen | None) -> None:
        """Say which the tokens of a sequence have from now on.

        Args:
            seq: its number.  It should be empty: what is in the cache stays as it was computed.
            chosen: as a text's options have them (``adapters``); None: those that hold for all.

        Raises:
            ParameterError: an adapter that is not loaded.
        """
        if chosen is None:
            self._own.pop(seq, None)
        else:
            self._own[seq] = self._adapters.chosen(chosen)

    def of(self, sequences: Sequence[Sequence[int]]) -> Callable[[Any, Int32s], Rows | None]:
        """What gives the adapters of some tokens of a batch at these positions, from the sequences of each.

        InvalidBatch: a token's sequences have different ones.
        """
        if not self._adapters:
            return lambda *_: None
        usual = self._adapters.chosen(None)
        of_tokens: list[Chosen] = []
        for i, seqs in enumerate(sequences):
            own = {self._own.get(seq, usual) for seq in seqs} or {usual}
            if len(own) > 1:
                raise InvalidBatch(i, f"sequences {list(seqs)} share it and have other adapters")
            of_tokens.append(own.pop())
        numbers = np.arange(len(of_tokens))

        def rows(tokens: Any, positions: Int32s) -> Rows | None:
            at = zip(numbers[tokens], positions, strict=True)
            return self._adapters.rows([held_at(of_tokens[i], int(position)) for i, position in at])

        return rows
