"""Cells with their rows: how tokens find room in them, and what is stored there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aleator._native import Cells
from aleator.cache.cells.batch_rules import Tokens
from aleator.cache.cells.plan import Part, Plan, full, make_plan
from aleator.cache.cells.split import Cuts
from aleator.cache.devices import Device, checked_devices
from aleator.cache.journal import Journal
from aleator.cache.options import CacheOptions, check_options
from aleator.cache.pools.pool import AnyPool, Pool
from aleator.cache.prefix import PrefixIndex
from aleator.cache.rows import shift
from aleator.cache.rows.batch import MicroBatch
from aleator.cache.rows.defrag import Defragmented, moves_for
from aleator.cache.rows.rows import LayerShape, RotateKeys, Rows, bytes_for
from aleator.core.errors import CacheError, CacheFull, ParameterError
from aleator.core.memory import memory_limit


class Aside:
    """Which cells' rows the innermost frame of a journal has kept aside, so that none is kept twice.

    Args:
        cells: positions and owners.
        rows: what the cells store.

    """

    def __init__(self, cells: Cells, rows: Rows) -> None:
        self._cells, self._rows = cells, rows
        self._kept, self._frame = np.zeros(0, np.bool_), 0

    def keep(self, journal: Journal, cell_ids: npt.NDArray[np.int64]) -> None:
        """Keep what cells stored that were used before, as something else is about to be stored there.

        Outside of frames there is nothing to keep it for.
        """
        cells = self._cells.used_before(cell_ids)
        if len(cells) == 0:
            return
        if self._frame != journal.frame:
            self._kept = np.zeros(self._cells.size, np.bool_)
            self._frame = journal.frame
        cells = cells[~self._kept[cells]]
        if len(cells):
            self._rows.preserve(journal, cells)
            self._kept[cells] = True


class CellPool(Pool[Plan, MicroBatch, Any]):
    """``n_cells`` cells, each with the keys and values of one token in every layer.

    Arguments are those of :class:`aleator.cache.KVCache`; ``n_kept`` is the number of sequences beyond the
    numbered ones, which hold cached prefixes.

    Attributes:
        cells: positions and owners.
        rows: what the cells store.
        do_defrag: whether the next update or decode fills holes first.

    """

    def __init__(
        self,
        layers: Sequence[LayerShape],
        n_cells: int,
        *,
        n_seq_max: int = CacheOptions.n_seq_max,
        n_kept: int = 0,
        type_k: str = CacheOptions.type_k,
        type_v: str = CacheOptions.type_v,
        device: object = "cpu",
        rotate: RotateKeys | None = None,
        v_layout: str = "token",
        k_storage: str = CacheOptions.k_storage,
        hadamard: bool = True,
        policy: str = CacheOptions.policy,
        compat: str | None = CacheOptions.compat,
        pad: int | None = None,
        architecture: str = "",
        n_pos_per_embd: int = 1,
    ) -> None:
        check_options(
            n_cells,
            n_seq_max,
            k_storage=k_storage,
            policy=policy,
            compat=compat,
            pad=pad,
            n_pos_per_embd=n_pos_per_embd,
            rotates=rotate is not None,
            keeps=n_kept > 0,
        )
        devices = checked_devices("device", device, len(layers))
        k_bytes, v_bytes = bytes_for(layers, n_cells, type_k, type_v)
        where = ", ".join(dict.fromkeys(str(d) for d in devices)) or "cpu"
        too_much = (
            f"the KV cache does not fit: n_ctx {n_cells} needs {k_bytes / 2**20:,.0f} "
            f"MiB for K ({type_k}) and {v_bytes / 2**20:,.0f} MiB for V ({type_v}) on {where}"
        )
        on_host = [s for s, device in zip(layers, devices, strict=True) if device.type == "cpu"]
        limit = memory_limit() if on_host else None
        if limit is not None and sum(bytes_for(on_host, n_cells, type_k, type_v)) > limit:
            raise ParameterError(
                "n_ctx",
                f"{too_much}, and there are {limit / 2**20:,.0f} MiB; use a smaller n_ctx",
            )
        try:
            self.rows = Rows(
                layers,
                n_cells,
                devices,
                type_k=type_k,
                type_v=type_v,
                v_layout=v_layout,
                k_storage=k_storage,
                hadamard=hadamard,
                rotate=rotate,
            )
            self.cells = Cells(
                n_cells,
                n_seq_max + n_kept,
                policy == "streams",
                compat is not None,
                n_pos_per_embd > 1,
            )
        except (RuntimeError, MemoryError) as error:
            raise ParameterError("n_ctx", f"{too_much}; use a smaller n_ctx") from error
        self.n_seq_max, self.architecture = n_seq_max, architecture
        self.type_k, self.type_v, self.v_layout = type_k, type_v, v_layout
        self.policy, self.compat, self.n_pos_per_embd = policy, compat, n_pos_per_embd
        self.contiguous = compat is not None
        self.pad = pad or (32 if compat else 256)
        self.do_defrag = False
        self.texts: PrefixIndex | None = None
        self.journal = Journal()
        self.journal.enlist(self.cells)
        self._aside = Aside(self.cells, self.rows)

    def join(self, journal: Journal) -> None:
        journal.enlist(self.cells)
        self.journal = journal

    @property
    def leaves(self) -> list[AnyPool]:
        return [self]

    @property
    def used(self) -> int:
        """Cells that hold a token."""
        return self.cells.used

    @property
    def free(self) -> int:
        """Cells that hold no token."""
        return self.cells.size - self.cells.used

    @property
    def n(self) -> int:
        """How many leading cells llama.cpp would read: to the highest used one, and then to ``pad``."""
        if self.compat and not self.cells.used:
            return 0  # set by a decode then, and nothing has been decoded
        padded = -(-self.cells.top // self.pad) * self.pad
        return min(self.cells.size, max(self.pad, padded))

    @property
    def version(self) -> int:
        return self.cells.version

    @property
    def layer_bytes(self) -> list[tuple[Device, int]]:
        rows = self.rows
        sides = zip(rows.devices, rows.keys.parts, rows.values.parts, strict=True)
        return [(device, k.nbytes + v.nbytes) for device, k, v in sides]

    @property
    def bytes_k(self) -> int:
        return self.rows.keys.nbytes

    @property
    def bytes_v(self) -> int:
        return self.rows.values.nbytes

    def addresses(self) -> list[int]:
        return self.rows.keys.addresses() + self.rows.values.addresses()

    def check(self) -> None:
        self.cells.check()

    # Plan and step

    def plan(self, batch: Tokens, cuts: Cuts) -> Plan:
        return make_plan(self, batch, cuts)

    def prepare(self, plan: Plan) -> None:
        if plan.version != self.cells.version:
            raise CacheError("the cache has changed since the plan was made: plan again")
        self.make_room(len(plan))
        self.apply_shifts()

    def carried_out(self, plan: Plan) -> Iterator[MicroBatch]:
        for part in plan.parts:
            yield self.apply(plan, part)

    def apply(self, plan: Plan, part: Part) -> MicroBatch:
        """Place one micro-batch of a plan."""
        positions, owners, seqs = plan.positions, plan.owners, plan.seqs
        sections, extras = plan.sections, plan.extras
        at = part.tokens
        if len(part.cell_ids) < len(plan) or not isinstance(
            at, slice
        ):  # a part, or in another order
            positions, owners, seqs = positions[at], owners[at], seqs[at]
            if sections is not None and extras is not None:
                sections, extras = sections[at], extras[at]
        self.cells.put(part.cell_ids, positions, owners, extras)
        self.keep_rows(part.cell_ids)
        return MicroBatch(
            self.cells,
            self.rows,
            part.cell_ids,
            positions,
            seqs,
            plan.causal,
            part.tokens,
            part.wanted,
            sections,
        )

    def make_room(self, needed: int) -> None:
        """Give up cached prefixes until ``needed`` cells are free, or raise CacheFull."""
        if needed <= self.free:
            return
        free = self.free
        while self.texts is not None and self.texts.evict_block():
            if needed <= self.free:
                return
        raise CacheFull(needed, free, self.free - free)

    def apply_shifts(self) -> None:
        shift.settle(self.journal, self.cells, self.rows)

    def find(
        self,
        positions: npt.NDArray[np.int32],
        owners: npt.NDArray[np.uint64],
        extras: npt.NDArray[np.int32] | None = None,
    ) -> npt.NDArray[np.int64]:
        """Give T tokens cells and return them, int64 [T]; raises CacheFull.

        ``extras``: int32 [T, 3], y, x and token id of each, if the cells keep them.
        """
        try:
            return self.cells.place(positions, owners, self.contiguous, extras)
        except ValueError:
            raise full(self.contiguous, len(positions), self.free) from None

    def place(
        self,
        positions: npt.NDArray[np.int32],
        seqs: npt.NDArray[np.int32],
        owners: npt.NDArray[np.uint64],
        causal: bool = True,
    ) -> MicroBatch:
        cell_ids = self.find(positions, owners)
        self.keep_rows(cell_ids)
        return MicroBatch(self.cells, self.rows, cell_ids, positions, seqs, causal)

    def keep_rows(self, cell_ids: npt.NDArray[np.int64]) -> None:
        """Keep aside what cells stored before, as something else is about to be stored there."""
        self._aside.keep(self.journal, cell_ids)

    def clear(self, data: bool) -> None:
        self.cells.clear()
        self.journal.set(self, "do_defrag", False)
        if data:
            self.journal.after_commit(self._zero_free)

    def _zero_free(self) -> None:
        self.rows.zero(np.flatnonzero(self.cells.positions < 0))

    def defrag(self, threshold: float | None, max_moves: int | None) -> Defragmented:
        """Move the last cells into the holes before them, keys and values included."""
        done = moves_for(self.cells, self.n, threshold, max_moves)
        if done.moves:
            src, dst = done.cells()
            self.cells.move(list(done.moves))
            self.keep_rows(dst)
            self.rows.copy(src, dst)
        return done

    def defrag_if_asked(self) -> None:
        if self.do_defrag:
            self.journal.set(self, "do_defrag", False)
            self.defrag(None, None)
