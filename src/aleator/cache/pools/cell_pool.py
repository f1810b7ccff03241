"""Cells with their rows: how tokens get cells, and what these store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from aleator._native import Cells
from aleator.cache import batches
from aleator.cache.devices import Device, checked_devices
from aleator.cache.journal import Journal
from aleator.cache.options import CacheOptions, checked
from aleator.cache.pools.pool import Pool
from aleator.cache.prefix_index import PrefixIndex
from aleator.cache.rows.batch import MicroBatch
from aleator.cache.rows.rows import LayerShape, RotateKeys, Rows, bytes_for, settle, unbroken
from aleator.core.arrays import Int32s, Int64s, UInt64s
from aleator.core.errors import CacheError, CacheFull, InvalidBatch, ParameterError
from aleator.core.forwarded import forwarded
from aleator.core.integers import UNBOUNDED, integer_in
from aleator.core.memory import memory_limit
from aleator.core.records import dataclass


@dataclass(frozen=True)
class Defragmented:
    """The moves of :meth:`KVCache.defrag`: runs (from, to, length), and the number of cells before."""

    moves: tuple[tuple[int, int, int], ...]
    n_cells: int

    def cells(self) -> tuple[Int64s, Int64s]:
        """The moved cells and their destinations, int64 each."""
        src = [np.arange(a, a + n) for a, _, n in self.moves]
        dst = [np.arange(b, b + n) for _, b, n in self.moves]
        return np.concatenate([[], *src]).astype(np.int64), np.concatenate([[], *dst]).astype(
            np.int64
        )


class CellPool(Pool):
    """``n_cells`` cells, each with the keys and values of one token in every layer.

    Arguments are those of :class:`aleator.cache.KVCache`; ``n_kept`` further sequences, beyond those that
    users number, hold cached prefixes.
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
        self.n_seq_max, self.architecture = n_seq_max, architecture
        self.type_k, self.type_v, self.v_layout = type_k, type_v, v_layout
        self.policy, self.compat, self.n_pos_per_embd = policy, compat, n_pos_per_embd
        self._check_options(n_cells, k_storage, pad, rotate is not None, n_kept > 0)
        devices = checked_devices(device, len(layers))
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
                "n_ctx", f"{too_much}, and there are {limit / 2**20:,.0f} MiB; use a smaller n_ctx"
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
                n_pos_per_embd == 4,
            )
        except (RuntimeError, MemoryError) as error:
            raise ParameterError("n_ctx", f"{too_much}; use a smaller n_ctx") from error
        self.contiguous = compat is not None
        self.pad = pad or (32 if compat else 256)
        self.do_defrag = False
        self.texts: PrefixIndex | None = None
        self.journal = Journal()
        self.journal.enlist(self.cells)
        self._aside, self._frame = np.zeros(0, np.bool_), 0  # the cells that this frame has saved

    def _check_options(
        self, n_cells: int, k_storage: str, pad: int | None, rotates: bool, keeps: bool
    ) -> None:
        """Raise ParameterError unless the options are in range and go together.

        ``rotates``: whether keys can be rotated to other positions; ``keeps``: whether prefixes are cached.
        """
        integer_in("n_ctx", n_cells, 1, 2**31 - 1)
        checked("n_seq_max", self.n_seq_max)
        checked("k_storage", k_storage)
        checked("policy", self.policy)
        checked("compat", self.compat)
        if k_storage == "raw" and not rotates:
            raise ParameterError("k_storage='raw' needs a model whose keys can be rotated")
        if self.policy == "streams" and (keeps or self.compat is not None):
            raise ParameterError("policy='streams' has neither prefix nor compat")
        if self.policy == "streams" and n_cells % self.n_seq_max:
            raise ParameterError(
                "n_ctx",
                f"with policy='streams' n_ctx must be a multiple of n_seq_max = {self.n_seq_max}, "
                f"not {n_cells}",
            )
        if self.n_pos_per_embd not in (1, 4):
            raise ParameterError(f"n_pos_per_embd must be 1 or 4, not {self.n_pos_per_embd}")
        if self.n_pos_per_embd == 4 and (keeps or rotates):
            raise ParameterError("n_pos_per_embd=4 has neither prefix nor rotate: its cells stay")
        if pad is not None:
            integer_in("pad", pad, 1, 2**20)

    def join(self, journal: Journal) -> None:
        journal.enlist(self.cells)
        self.journal = journal

    used: int = forwarded("cells.used", "Cells that hold a token.")
    version: int = forwarded("cells.version", "A number that differs after every change of a cell.")

    @property
    def free(self) -> int:
        """Cells that hold no token."""
        return self.cells.size - self.cells.used

    @property
    def n(self) -> int:
        """The number of leading cells that llama.cpp would read: up to the highest used one, padded."""
        if self.compat and not self.cells.used:
            return 0  # a decode would set it, and nothing has been decoded
        padded = -(-self.cells.top // self.pad) * self.pad
        return min(self.cells.size, max(self.pad, padded))

    @property
    def sides(self) -> list[tuple[Device, int, int]]:
        rows = self.rows
        parts = zip(rows.devices, rows.keys.parts, rows.values.parts, strict=True)
        return [(device, k.nbytes, v.nbytes) for device, k, v in parts]

    def addresses(self) -> list[int]:
        return [part.address for part in self.rows.parts]

    def check(self) -> None:
        self.cells.check()

    # Plan and step

    def plan(self, batch: batches.Tokens, cuts: batches.Cuts) -> batches.Plan:
        cells, n = self.cells, len(batch.positions)
        if n == 0:
            raise InvalidBatch(-1, "the batch is empty: add at least one token")
        if not cuts.causal and n > cuts.n_ubatch:
            raise InvalidBatch(
                -1,
                f"{n} tokens that see each other must be computed at once, and n_ubatch is {cuts.n_ubatch}: "
                "pass fewer, or create the context with a larger n_ubatch",
            )
        sections = extras = None
        if self.n_pos_per_embd == 1:
            given = batches.checked_positions(
                batch.positions, batch.sequences, cells, self.n_seq_max
            )
        else:
            given, sections = batches.checked_sections(batch, cells, self.n_seq_max)
            extras = np.full((n, 3), -1, np.int32)
            extras[:, :2] = sections[:, 1:3]
            if len(batch.tokens):
                extras[:, 2] = batch.tokens
        positions = np.array(given, dtype=np.int32)
        # Which sequence matters only if later tokens are seen; llama.cpp takes the last.
        seqs = np.array([s[0 if cuts.causal else -1] for s in batch.sequences], dtype=np.int32)
        owners = batches.owner_bits(batch, cells.words, self.n_seq_max)
        outputs = np.array(batch.outputs(), dtype=np.int64)
        version = cells.version
        at_once = n <= min(cuts.n_ubatch, cuts.n_batch) and cuts.rule == "simple"
        if at_once and cells.n_streams == 1:
            cell_ids = cells.find(n, self.contiguous)
            if len(cell_ids) == n:
                part = batches.Part(slice(0, n), cell_ids, outputs)
                return batches.Plan(
                    positions, seqs, owners, (part,), version, None, cuts.causal, sections, extras
                )
        tokens = [
            [start + i for i in part]
            for start in range(0, n, cuts.n_batch)
            for part in batches.split(
                batch.sequences[start : start + cuts.n_batch],
                cuts.n_ubatch,
                cuts.rule,
                sequential=cells.n_streams > 1,
                keep_tail=cuts.keep_tail,
            )
        ]
        is_output = np.zeros(n, np.bool_)
        is_output[outputs] = True

        def trial() -> tuple[list[batches.Part], list[Int64s]]:
            parts, order = [], []
            self.make_room(n)
            for members in tokens:
                index = np.array(members, np.int64)
                cell_ids = self.find(
                    positions[index], owners[index], None if extras is None else extras[index]
                )
                outputs_here = np.flatnonzero(is_output[index])
                parts.append(batches.Part(unbroken(index) or index, cell_ids, outputs_here))
                order.append(index[is_output[index]])
            return parts, order

        parts, order = self.journal.attempt(trial)  # the trial is undone
        flat = np.concatenate(order)
        rows = None if np.array_equal(flat, outputs) else np.argsort(flat)
        return batches.Plan(
            positions, seqs, owners, tuple(parts), version, rows, cuts.causal, sections, extras
        )

    def prepare(self, plan: batches.Plan) -> None:
        if plan.version != self.cells.version:
            raise CacheError("the cache has changed since the plan was made: plan again")
        self.make_room(len(plan))
        self.apply_shifts()

    def micro_batches(self, plan: batches.Plan) -> Iterator[MicroBatch]:
        for part in plan.parts:
            yield self.apply(plan, part)

    def apply(self, plan: batches.Plan, part: batches.Part) -> MicroBatch:
        """Place a micro-batch of a plan."""
        at, sections, extras = part.tokens, plan.sections, plan.extras
        positions, owners, seqs = plan.positions[at], plan.owners[at], plan.seqs[at]
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
            part.outputs,
            sections,
        )

    def make_room(self, needed: int) -> None:
        """Evict cached prefixes until ``needed`` cells are free, or raise CacheFull."""
        if needed <= self.free:
            return
        free = self.free
        while self.texts is not None and self.texts.evict_block():
            if needed <= self.free:
                return
        raise CacheFull(needed, free, self.free - free)

    def apply_shifts(self) -> None:
        settle(self.journal, self.cells, self.rows)

    def find(self, positions: Int32s, owners: UInt64s, extras: Int32s | None = None) -> Int64s:
        """Assign cells to T tokens and return them, int64 [T]; or raise CacheFull.

        ``extras``: int32 [T, 3], y, x and token id of each, if the cells store them.
        """
        try:
            return self.cells.place(positions, owners, self.contiguous, extras)
        except ValueError:
            needed, free, message = len(positions), self.free, ""
        if needed <= free:
            why = "in the share that each sequence has to itself: remove or shift the sequence"
            if self.contiguous:
                why = "in a row: defrag() it"
            message = f"the KV cache has {free} free cells, but not {needed} {why}"
        raise CacheFull(needed, free, message=message)

    def place(
        self, positions: Int32s, seqs: Int32s, owners: UInt64s, causal: bool = True
    ) -> MicroBatch:
        cell_ids = self.find(positions, owners)
        self.keep_rows(cell_ids)
        return MicroBatch(self.cells, self.rows, cell_ids, positions, seqs, causal)

    def keep_rows(self, cell_ids: Int64s) -> None:
        """Save the rows of cells that were used before, because new rows are about to overwrite them.

        A frame of the journal saves each once; outside of frames nothing is saved.
        """
        cells = self.cells.used_before(cell_ids)
        if len(cells) == 0:
            return
        if self._frame != self.journal.frame:
            self._aside = np.zeros(self.cells.size, np.bool_)
            self._frame = self.journal.frame
        cells = cells[~self._aside[cells]]
        if len(cells):
            self.rows.preserve(self.journal, cells)
            self._aside[cells] = True

    def clear(self, data: bool) -> None:
        self.cells.clear()
        self.journal.set(self, "do_defrag", False)
        if data:
            self.journal.after_commit(self._zero_free)

    def _zero_free(self) -> None:
        self.rows.zero(np.flatnonzero(self.cells.positions < 0))

    def defrag(self, threshold: float | None, max_moves: int | None) -> Defragmented:
        """Move the last cells into the holes before them, keys and values included."""
        cells, n = self.cells, self.n
        done = Defragmented((), cells.top)
        if threshold is None or (1 - cells.used / n if n >= 128 else 0) > threshold:
            moves = cells.defrag_plan(UNBOUNDED if max_moves is None else max_moves)
            done = Defragmented(tuple(moves), cells.top)
        if done.moves:
            src, dst = done.cells()
            cells.move(list(done.moves))
            self.keep_rows(dst)
            self.rows.copy(src, dst)
        return done

    def defrag_if_asked(self) -> None:
        if self.do_defrag:
            self.journal.set(self, "do_defrag", False)
            self.defrag(None, None)
