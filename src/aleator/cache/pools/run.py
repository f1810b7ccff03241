"""What a micro-batch does to the states of recurrent layers, a run of tokens at a time."""

from __future__ import annotations

from aleator.core.records import dataclass


@dataclass
class Run:
    """Tokens of one micro-batch that continue one state, one after the other.

    Attributes:
        source: the row to start from, or -1 for the state of nothing.
        tokens: indices in the micro-batch, ascending.
        stores: (index in ``tokens``, row): after which tokens the state is kept, and where.

    """

    source: int
    owners: tuple[int, ...]
    tokens: list[int]
    positions: list[int]
    stores: list[tuple[int, int]]
