"""The methods of caches that concern cells, over the pool whose cells know every position.

A cache that has only recurrent states refuses them all with NoCells.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np

from aleator._native import Cells
from aleator.cache.devices import Device
from aleator.cache.journal import Journal, atomic
from aleator.cache.options import check_sequence
from aleator.cache.pools.attention import AttentionPool, first_of
from aleator.cache.pools.cell_pool import Defragmented
from aleator.cache.pools.pool import Pool
from aleator.cache.rows.rows import LayerShape, RotateKeys, read_keys
from aleator.cache.storage.storage import Storage
from aleator.cache.view import Frame, plot_frames, take_frame
from aleator.core.arrays import Int32s, Int64s
from aleator.core.forwarded import forwarded
from aleator.core.integers import UNBOUNDED, integer_in


class CellVerbs(ABC):
    """Cells of ``pool``, which holds the sequences, and what they store; ``journal`` records all changes."""

    pool: Pool
    journal: Journal

    @property
    def first(self) -> AttentionPool:
        """The pool whose cells know every position; NoCells if there is none."""
        return first_of(self.pool)

    cells: Cells = forwarded("first.cells", "Positions and owners of the cells.")
    keys: Storage = forwarded("first.rows.keys", "The storage of keys.")
    values: Storage = forwarded("first.rows.values", "The storage of values.")
    shapes: list[LayerShape] = forwarded("first.rows.shapes", "What each layer stores.")
    devices: list[Device] = forwarded(
        "first.rows.devices", "Where each layer's keys and values are."
    )
    rotate: RotateKeys | None = forwarded(
        "first.rows.rotate",
        "Rotates keys to new positions; None where positions cannot be shifted.",
    )
    k_storage: str = forwarded("first.rows.k_storage", 'How keys are stored: "rotated" or "raw".')
    type_k: str = forwarded("first.type_k", "The type keys are stored in.")
    type_v: str = forwarded("first.type_v", "The type values are stored in.")
    v_layout: str = forwarded("first.v_layout", 'How values are laid out: "token" or "channel".')
    policy: str = forwarded(
        "first.policy", 'How sequences share the cells: "unified" or "streams".'
    )
    compat: str | None = forwarded(
        "first.compat", 'Whose placement is followed: "llama-2024" or None.'
    )
    pad: int = forwarded("first.pad", ":attr:`n` is a multiple of this.")
    n_pos_per_embd: int = forwarded(
        "first.n_pos_per_embd", "4 if a token has positions (t, y, x, z), else 1."
    )
    n_streams: int = forwarded(
        "first.cells.n_streams",
        "Parts of the cells that sequences have to themselves; 1: they share all.",
    )
    size: int = forwarded("first.cells.size", "Capacity in cells.")
    free: int = forwarded("first.free", "Cells that hold none.")
    has_shift: bool = forwarded(
        "first.cells.has_shift", "Whether a cell's position has moved since the last update."
    )

    @property
    def key_positions(self) -> Int32s:
        """Int32 [n_cells], the position that a cell's stored key is rotated to.

        After a shift it lags behind the cell's position, and attention corrects for the difference.
        """
        return self.first.rows.key_positions

    @property
    def used(self) -> int:
        """Cells that hold a token."""
        return self.first.cells.used

    @property
    def head(self) -> int:
        """The cell at which the next search for free cells starts; may equal ``size``.

        It is the cell after the last placed one, or the first freed cell if that is lower; after ``seq_add``
        it is the first freed cell, or 0.  A search begins at 0 if the head is further ahead than the used cells
        plus 2n.  With ``compat="llama-2024"`` two differences from that struct remain: a failed search does not
        move the head, and :attr:`n` follows the cells at once, not only at a decode.
        """
        return self.first.cells.head

    @property
    def n(self) -> int:
        """The number of leading cells that llama.cpp would read: up to the highest used one, padded.

        It is a multiple of :attr:`pad` and not 0, except in an empty cache with ``compat="llama-2024"``.
        """
        return self.first.n

    @property
    def do_copy(self) -> bool:
        """Whether rows wait to be copied: never, as they are copied at once."""
        return False

    @property
    def v_trans(self) -> bool:
        """Whether values are stored by channel."""
        return self.v_layout == "channel"

    @property
    def do_defrag(self) -> bool:
        """Whether the next :meth:`update` or decode defragments first."""
        return self.first.do_defrag

    @do_defrag.setter
    def do_defrag(self, value: bool) -> None:
        self.first.do_defrag = value

    def read_keys(self, layer: int, cells: Sequence[int] | Int64s) -> Any:
        """Read a layer's keys of the cells, rotated to their positions, float32 [n, G, D].

        A NumPy array on the CPU, a torch tensor on a device.
        """
        return read_keys(self.cells, self.first.rows, layer, np.asarray(cells, np.int64))

    def read_values(self, layer: int, cells: Sequence[int] | Int64s) -> Any:
        """Read a layer's values of the cells, float32 [n, G, Dv].

        A NumPy array on the CPU, a torch tensor on a device.
        """
        return self.values.parts[layer].read(np.asarray(cells, np.int64))

    def find_slot(self, n: int, *, contiguous: bool | None = None, seq: int = 0) -> Int64s | None:
        """Find the cells that the next ``n`` tokens would get, int64 [n]; None if there are not enough.

        Args:
            n: how many tokens, 1 or more.
            contiguous: only contiguous cells, without wrapping; None follows ``compat``.
            seq: the tokens' sequence, which only matters with ``policy="streams"``.

        """
        first = self.first
        check_sequence("seq", seq, first.n_seq_max)
        n = integer_in("n", n, 1, UNBOUNDED)
        stream = seq if first.policy == "streams" else 0
        wanted = first.contiguous if contiguous is None else contiguous
        if n > first.free:
            return None
        cells = first.cells.find(n, wanted, stream)
        return cells if len(cells) else None

    @atomic
    def update(self) -> bool:
        """Do pending work now instead of at the next decode; return whether there was any."""
        pending = self.has_shift or self.do_defrag
        self.pool.apply_shifts()
        self.pool.defrag_if_asked()
        return pending

    @atomic
    def defrag(self, threshold: float | None = None, max_moves: int | None = None) -> Defragmented:
        """Move the last cells into the holes before them, keys and values included.

        The plan is llama.cpp's of 2024: each hole is filled in order from the last used cells.

        Args:
            threshold: do nothing unless more than this share of the :attr:`n` cells is unused (and n is
                at least 128); None always defragments.
            max_moves: the most runs of cells to move; None moves all that are needed.

        Returns:
            The moves.
        """
        if max_moves is not None:
            max_moves = integer_in("max_moves", max_moves, 0, UNBOUNDED)
        return self.first.defrag(threshold, max_moves)

    def map(self) -> str:
        """One character per cell up to the last used one.

        "." is a free cell, a digit its only owner ("+" above 9), "M" several owners.
        """
        return self.cells.map()

    def frame(self, label: str = "") -> Frame:
        """A snapshot of the cells, to show; see aleator.cache.view."""
        return take_frame(self.cells, label)

    def plot(self, path: str | PathLike[str], frames: Sequence[Frame] = ()) -> None:
        """Draw cells by owner and position as PNG; needs matplotlib.

        Args:
            path: the file.
            frames: snapshots from :meth:`frame`, oldest first; without any, one is taken now.
        """
        plot_frames(frames or [self.frame()], path)
