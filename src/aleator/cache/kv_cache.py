"""The KV cache of one context: cells, stored keys and values, and exact undo."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

import numpy as np
import numpy.typing as npt
import torch

from aleator._native import Cells, StoredRows
from aleator.cache.arguments import (
    END,
    Uncopyable,
    check_sequence,
    check_sequence_or_all,
    checked_delta,
    checked_divisor,
    position_range,
)
from aleator.cache.batch_rules import Tokens
from aleator.cache.defrag import Defragmented, defragment
from aleator.cache.devices import checked_device
from aleator.cache.formats import llama
from aleator.cache.formats.source import require_format
from aleator.cache.journal import Journal, atomic
from aleator.cache.options import check_options
from aleator.cache.plan import Part, Plan, full, make_plan
from aleator.cache.prefix import Match, PrefixConfig, PrefixIndex, checked_text, require_config
from aleator.cache.sequence import Checkpoint
from aleator.cache.sequence import Sequence as Sequence_
from aleator.cache.shift import settle, turned_keys
from aleator.cache.step import MicroBatch, Step
from aleator.cache.storage import make_storage, side_bytes
from aleator.cache.view import Frame, take_frame
from aleator.core.errors import CacheError, CacheFull, CannotShift, ParameterError
from aleator.core.integers import UNBOUNDED, integer_in

if TYPE_CHECKING:
    from aleator.cache.recurrent import RecurrentCache

log = logging.getLogger(__name__)

RotateKeys = Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]
"""``rotate(layer, keys, deltas)``: float32 keys [n, G, D] of any number of heads, which it may
overwrite, turned by int64 [n] positions."""


@dataclass(frozen=True)
class LayerShape:
    """What a layer stores per cell: ``kv_heads`` keys of ``head_dim``, values of ``head_dim_v``.

    Layers whose keys are turned alike have the same number ``rope``.
    """

    kv_heads: int
    head_dim: int
    head_dim_v: int
    rope: int = 0


class KVCache(Uncopyable):
    """Keys and values of ``n_cells`` tokens, shared by up to ``n_seq_max`` sequences.

    Ranges of positions are [p0, p1); p0 < 0 means 0, p1 < 0 means infinity.  Every method either
    does what it says or raises and changes nothing.

    Args:
        layers: what each layer stores.
        n_cells: capacity in tokens, over all sequences.
        n_seq_max: sequence ids lie in [0, n_seq_max).
        type_k: the type keys are stored in: "f32", "f16", "bf16", or in blocks "q8_0", "q5_1", "q5_0",
            "q4_1", "q4_0", "iq4_nl", which need heads of a multiple of 32 elements.
        type_v: the same for values.
        device: where they are stored; a list has one device per layer.
        rotate: turns keys to new positions; None where positions cannot be shifted.
        v_layout: "token" keeps a cell's values together, "channel" a channel's, as llama.cpp does
            without flash attention; not in blocks.
        k_storage: "rotated", or "raw": keys as if at position 0, turned whenever they are read.
        hadamard: turn heads by a Hadamard matrix before they are rounded to blocks, where llama.cpp
            does.
        prefix: keep texts (:meth:`keep`); None: do not.
        policy: "unified": all sequences share one pool of cells; "streams": each has an equal share
            of them to itself.
        compat: "llama-2024": tokens of a micro-batch lie in a row, and the head moves, as in llama.cpp's
            struct of 2024; None: any free cells, as in llama.cpp today.
        pad: :attr:`n` is a multiple of this; None is 256 (32 with "llama-2024").
        architecture: the model's, as state files name it.
        n_pos_per_embd: 4 for M-RoPE: a token has positions (t, y, x, z), and the cells keep y, x and its
            id; at equal t a token does not see what is after it in (y, x).  Such a cache cannot shift.  1:
            none of that, and no memory for it.

    Attributes:
        recurrent: the pool of recurrent states, if layers have any; None here.
        do_defrag: whether the next :meth:`update` or decode fills holes first.
        key_positions: int32 [n_cells], the position that a cell's stored key is turned to.  It is
            behind the cell's position after a shift, and attention makes up for the difference.

    """

    recurrent: RecurrentCache | None = None

    def __init__(
        self,
        layers: Sequence[LayerShape],
        n_cells: int,
        *,
        n_seq_max: int = 1,
        type_k: str = "f16",
        type_v: str = "f16",
        device: torch.device | str | Sequence[torch.device | str] = "cpu",
        rotate: RotateKeys | None = None,
        v_layout: str = "token",
        k_storage: str = "rotated",
        hadamard: bool = True,
        prefix: PrefixConfig | None = None,
        policy: str = "unified",
        compat: str | None = None,
        pad: int | None = None,
        architecture: str = "",
        n_pos_per_embd: int = 1,
    ) -> None:
        require_config(prefix)
        check_options(
            n_cells,
            n_seq_max,
            k_storage=k_storage,
            policy=policy,
            compat=compat,
            pad=pad,
            n_pos_per_embd=n_pos_per_embd,
            turns=rotate is not None,
            keeps=prefix is not None,
        )
        given = [device] * len(layers) if isinstance(device, (str, torch.device)) else list(device)
        if len(given) != len(layers):
            raise ParameterError("device", f"{len(given)} devices for {len(layers)} layers")
        self.shapes, self.devices = list(layers), [checked_device("device", d) for d in given]
        self.rotate, self.architecture = rotate, architecture
        self.type_k, self.type_v = type_k, type_v
        self.v_layout, self.k_storage = v_layout, k_storage
        self.n_seq_max = n_seq_max
        k_bytes, v_bytes = self.bytes_for(layers, n_cells, type_k, type_v)
        where = ", ".join(dict.fromkeys(str(d) for d in self.devices)) or "cpu"
        try:
            self.keys = make_storage(
                "type_k",
                type_k,
                [(s.kv_heads, s.head_dim) for s in layers],
                n_cells,
                self.devices,
                keys=True,
                hadamard=hadamard,
            )
            self.values = make_storage(
                "type_v",
                type_v,
                [(s.kv_heads, s.head_dim_v) for s in layers],
                n_cells,
                self.devices,
                layout=v_layout,
                hadamard=hadamard,
            )
            self.key_positions = np.zeros(n_cells, np.int32)
            self.cells = Cells(
                n_cells,
                n_seq_max + (prefix.texts if prefix else 0),
                policy == "streams",
                compat is not None,
                n_pos_per_embd > 1,
            )
        except (RuntimeError, MemoryError) as error:
            raise ParameterError(
                "n_ctx",
                f"the KV cache does not fit: n_ctx {n_cells} needs {k_bytes / 2**20:,.0f} "
                f"MiB for K ({type_k}) and {v_bytes / 2**20:,.0f} MiB for V ({type_v}) on "
                f"{where}; use a smaller n_ctx",
            ) from error
        self.journal = Journal()
        self.journal.enlist(self.cells)
        self.prefix = PrefixIndex(prefix, self.journal, self.cells, n_seq_max) if prefix else None
        self.policy, self.compat, self.n_pos_per_embd = policy, compat, n_pos_per_embd
        self.contiguous = compat is not None
        self.pad = pad or (32 if compat else 256)
        self.do_defrag = False
        # Cells whose rows the innermost frame has kept aside, and which frame that was.
        self._aside, self._aside_in = np.zeros(0, np.bool_), 0
        self._marks: WeakSet[Checkpoint] = WeakSet()
        self._handles: dict[int, ref[Sequence_]] = {}
        log.info(
            "KV cache: %d cells, %d layers, %s: K (%s) %.2f MiB, V (%s) %.2f MiB, sum %.2f MiB",
            n_cells,
            len(layers),
            where,
            type_k,
            k_bytes / 2**20,
            type_v,
            v_bytes / 2**20,
            (k_bytes + v_bytes) / 2**20,
        )

    @staticmethod
    def bytes_for(
        layers: Sequence[LayerShape], n_cells: int, type_k: str = "f16", type_v: str = "f16"
    ) -> tuple[int, int]:
        """Bytes that K and V will take, without allocating them."""
        return (
            side_bytes("type_k", type_k, [(s.kv_heads, s.head_dim) for s in layers], n_cells),
            side_bytes("type_v", type_v, [(s.kv_heads, s.head_dim_v) for s in layers], n_cells),
        )

    @property
    def bytes_k(self) -> int:
        """Bytes allocated for keys."""
        return self.keys.nbytes

    @property
    def bytes_v(self) -> int:
        """Bytes allocated for values."""
        return self.values.nbytes

    @property
    def total_size(self) -> int:
        """Bytes allocated for what layers store: :attr:`bytes_k` and :attr:`bytes_v`."""
        return self.bytes_k + self.bytes_v

    def read_keys(self, layer: int, cells: Sequence[int] | npt.NDArray[np.int64]) -> torch.Tensor:
        """What a layer stores as keys of the cells, turned to their positions: float32 [n, G, D]."""
        return turned_keys(self, layer, np.asarray(cells, np.int64))

    def read_values(self, layer: int, cells: Sequence[int] | npt.NDArray[np.int64]) -> torch.Tensor:
        """What a layer stores as values of the cells: float32 [n, G, Dv]."""
        index = torch.from_numpy(np.asarray(cells, np.int64)).to(self.devices[layer])
        return self.values.read(layer, index).float()

    @cached_property
    def stored_rows(self) -> StoredRows | None:
        """Copies what cells store in every layer at once; None where that is not possible."""
        keys, values = self.keys.rows(), self.values.rows()
        return None if keys is None or values is None else StoredRows([*keys, *values])

    def copy_rows(self, src: npt.NDArray[np.int64], dst: npt.NDArray[np.int64]) -> None:
        """Copy what the cells ``src`` store to ``dst``, as if all were read before any is written."""
        self.keys.copy(src, dst)
        self.values.copy(src, dst)
        self.key_positions[dst] = self.key_positions[src]

    @property
    def current_step(self) -> object | None:
        """The innermost block ``with cache.step()`` that is under way; None: there is none."""
        return self.journal.current

    def join(self, journal: Journal) -> None:
        """Become part of a cache: record changes with its others."""
        journal.enlist(self.cells)
        self.journal = journal

    def __repr__(self) -> str:
        c = self.cells
        return f"KVCache({c.used}/{c.size} cells used, K {self.type_k}, V {self.type_v})"

    @property
    def size(self) -> int:
        """Capacity in cells."""
        return self.cells.size

    @property
    def used(self) -> int:
        """Cells that hold a token."""
        return self.cells.used

    @property
    def free(self) -> int:
        """Cells that hold none."""
        return self.cells.size - self.cells.used

    @property
    def head(self) -> int:
        """Where the next search for free cells starts; may equal ``size``."""
        return self.cells.head

    @property
    def n(self) -> int:
        """How many leading cells llama.cpp would read: to the highest used one, and then to :attr:`pad`."""
        padded = -(-self.cells.top // self.pad) * self.pad
        return min(self.size, max(self.pad, padded))

    @property
    def has_shift(self) -> bool:
        """Whether a cell's position has moved since the last update."""
        return self.cells.has_shift

    @property
    def do_copy(self) -> bool:
        """Whether rows wait to be copied: never, they are copied at once."""
        return False

    @property
    def v_trans(self) -> bool:
        """Whether a channel's values lie side by side."""
        return self.v_layout == "channel"

    def addresses(self) -> list[int]:
        """Where each layer's keys and then values begin in memory; never changes."""
        return self.keys.addresses() + self.values.addresses()

    def oldest_rewind(self, seq: int) -> int:
        """The lowest position, but 0, from which ``seq_rm(seq, position, -1)`` works: any."""
        self._check("seq", seq)
        return 0

    def checkpoint(self, seq: int) -> Any:
        """What must be copied of a sequence to rewind it later: nothing, here."""
        self._check("seq", seq)
        return None

    def restore(self, seq: int, checkpoint: Any) -> None:
        """Rewind a sequence to what :meth:`checkpoint` copied."""
        raise CacheError("this cache makes no checkpoints: every rewind is possible without")

    @property
    def rewindable(self) -> int:
        """Tokens by which a sequence can be rewound: any number."""
        return END

    def can_shift(self) -> bool:
        """Whether ``seq_add`` and ``seq_div`` are allowed."""
        return self.rotate is not None

    def check(self) -> None:
        """Raise RuntimeError if the indexes of the cells and the cells disagree; O(size)."""
        self.cells.check()

    def plan(
        self,
        batch: Tokens,
        *,
        n_ubatch: int = 512,
        n_batch: int | None = None,
        rule: str = "simple",
        keep_tail: int = 0,
        causal: bool = True,
    ) -> Plan:
        """Check a batch, cut it into micro-batches and choose their cells, without changing anything.

        Args:
            batch: positions and sequences of its tokens.
            n_ubatch: tokens per micro-batch.
            n_batch: cut into pieces of so many before that; None: not.
            rule: how to cut: see :func:`aleator.cache.split.split`.
            keep_tail: the same.
            causal: whether a token sees only positions up to its own; otherwise all must fit one micro-batch.

        Returns:
            What :meth:`step` carries out.

        Raises:
            InvalidBatch: a rule is broken; names the token.
            CacheFull: not enough free cells.

        """
        return make_plan(
            self,
            batch,
            n_ubatch=n_ubatch,
            n_batch=len(batch.positions) if n_batch is None else n_batch,
            rule=rule,
            keep_tail=keep_tail,
            causal=causal,
        )

    def prepare(self, plan: Plan) -> None:
        """Within a frame, make room for a plan and settle shifts; CacheError if it is void."""
        if plan.version != self.cells.version:
            raise CacheError("the cache has changed since the plan was made: plan again")
        self.make_room(len(plan))
        self.apply_shifts()

    def carried_out(self, plan: Plan) -> Iterator[Any]:
        """The micro-batches of a plan that was prepared, each placed when it is asked for."""
        for part in plan.parts:
            yield self._apply(plan, part)

    def make_room(self, needed: int) -> None:
        """See to it that so many cells are free: kept texts go first, then CacheFull is raised."""
        if needed <= self.free:
            return
        free = self.free
        while self.prefix is not None and self.prefix.evict_block():
            if needed <= self.free:
                return
        raise CacheFull(needed, free, self.free - free)

    def apply_shifts(self) -> None:
        """Settle pending shifts: see :mod:`aleator.cache.shift`."""
        if self.cells.has_shift:
            settle(self)
            self.cells.clear_shifts()

    def find(
        self,
        positions: npt.NDArray[np.int32],
        owners: npt.NDArray[np.uint64],
        extras: npt.NDArray[np.int32] | None = None,
    ) -> npt.NDArray[np.int64]:
        """Within a frame, give T tokens cells and return them, int64 [T]; raises CacheFull.

        ``extras``: int32 [T, 3], y, x and token id of each, if the cells keep them.
        """
        try:
            return self.cells.place(positions, owners, self.contiguous, extras)
        except ValueError:
            raise full(self, len(positions), self.free) from None

    def place(
        self,
        positions: npt.NDArray[np.int32],
        seqs: npt.NDArray[np.int32],
        owners: npt.NDArray[np.uint64],
        causal: bool = True,
    ) -> MicroBatch:
        """Within a frame, give T tokens cells: ``seqs`` each one's first sequence, ``owners`` all, as bits.

        ``causal``: a token sees its sequence's cells at positions not after its own, else all of them.
        """
        slots = self.find(positions, owners)
        self.keep_rows(slots)
        return MicroBatch(self, slots, positions, seqs, causal)

    def _apply(self, plan: Plan, part: Part) -> MicroBatch:
        positions, owners, seqs = plan.positions, plan.owners, plan.seqs
        sections, extras = plan.sections, plan.extras
        at = part.tokens
        if len(part.slots) < len(plan) or not isinstance(at, slice):  # a part, or in another order
            positions, owners, seqs = positions[at], owners[at], seqs[at]
            if sections is not None and extras is not None:
                sections, extras = sections[at], extras[at]
        self.cells.put(part.slots, positions, owners, extras)
        self.keep_rows(part.slots)
        return MicroBatch(
            self,
            part.slots,
            positions,
            seqs,
            plan.causal,
            part.tokens,
            part.wanted,
            sections,
        )

    def keep_rows(self, slots: npt.NDArray[np.int64]) -> None:
        """Keep aside what cells stored that were used before, as something else is about to be stored there.

        Outside of frames there is nothing to keep it for.
        """
        cells = self.cells.used_before(slots)
        if len(cells) == 0:
            return
        if self._aside_in != self.journal.frame:
            self._aside = np.zeros(self.size, np.bool_)
            self._aside_in = self.journal.frame
        cells = cells[~self._aside[cells]]
        if len(cells):
            self.preserve(cells)
            self._aside[cells] = True

    def preserve(self, cells: npt.NDArray[np.int64]) -> None:
        """Keep what these cells store now, for the case that the frame is taken back."""
        undo, rows = self.journal.undo, self.stored_rows
        undo(self.key_positions.__setitem__, cells, self.key_positions[cells])
        if rows is not None:
            undo(rows.put, cells, rows.take(cells))
            return
        for side in (self.keys, self.values):
            for layer, device in enumerate(self.devices):
                undo(*side.put_back(layer, torch.from_numpy(cells).to(device)))

    def step(self, plan: Plan | None = None) -> Step:
        """A block that changes the cache, and changes nothing if it raises; see :class:`Step`."""
        return Step(self, plan)

    @atomic
    def sequence(self, id: int | None = None) -> Sequence_:
        """A handle on a sequence; see :class:`aleator.cache.Sequence`.

        Args:
            id: which; None is the lowest that is empty and has no handle.

        Raises:
            CacheFull: every sequence is in use.

        """
        if id is None:
            for seq in range(self.n_seq_max):
                handle = self._handles.get(seq)
                if self.cells.seq_cells(seq) == 0 and (handle is None or handle() is None):
                    id = seq
                    break
            else:
                raise CacheFull(
                    0,
                    self.free,
                    message=f"all {self.n_seq_max} sequences are in use: close one, or create the "
                    "context with a larger n_seq_max",
                )
        self._check("id", id)
        handle = self._handles.get(id)
        if handle is not None and handle() is not None:
            raise CacheError(f"sequence {id} has a handle already: use that, or close it")
        made = Sequence_(self, id)
        self.journal.put(self._handles, id, ref(made))
        return made

    @atomic
    def unshare(self, seq: int, p0: int = -1, p1: int = -1) -> None:
        """Give a sequence copies of those of its cells in a range that others own too.

        Kept texts give such cells up instead.

        Raises:
            CacheFull: no cells for the copies.

        """
        self._check("seq", seq)
        p0, p1 = position_range(p0, p1)
        self._leave_kept(seq, p0)
        shared = self.cells.shared(seq, p0, p1)
        if len(shared) == 0:
            return
        own = self.cells.find(len(shared))
        if len(own) < len(shared):
            raise CacheFull(
                len(shared),
                self.free,
                message=f"{len(shared)} of the cells are shared and {self.free} are free to copy them "
                "to: close a sequence, or create the context with a larger n_ctx",
            )
        self.keep_rows(own)
        self.copy_rows(shared, own)
        self.cells.duplicate(shared, own, seq, True)

    def find_slot(
        self, n: int, *, contiguous: bool | None = None, seq: int = 0
    ) -> npt.NDArray[np.int64] | None:
        """The cells that the next ``n`` tokens would get, int64 [n]; None: there are not so many.

        Args:
            n: how many tokens, 1 or more.
            contiguous: only cells in a row, which do not wrap; None as ``compat`` says.
            seq: whose; it only matters with ``policy="streams"``.

        """
        self._check("seq", seq)
        n = integer_in("n", n, 1, UNBOUNDED)
        stream = seq if self.policy == "streams" else 0
        wanted = self.contiguous if contiguous is None else contiguous
        cells = self.cells.find(min(n, self.size + 1), wanted, stream)
        return cells if len(cells) else None

    @atomic
    def update(self) -> bool:
        """Do pending work now instead of at the next decode; whether there was any."""
        pending = self.has_shift or self.do_defrag
        self.apply_shifts()
        self.defrag_if_asked()
        return pending

    def defrag_if_asked(self) -> None:
        """Fill the holes if :attr:`do_defrag` says so."""
        if self.do_defrag:
            self.journal.set(self, "do_defrag", False)
            self.defrag()

    @atomic
    def defrag(self, threshold: float | None = None, max_moves: int | None = None) -> Defragmented:
        """Move the last cells into the holes before them, keys and values included.

        The plan is llama.cpp's of 2024: each hole is filled with as many of the last used cells, in order.

        Args:
            threshold: do nothing unless more than this share of the :attr:`n` cells is unused (and n is
                at least 128); None: always do it.
            max_moves: at most so many runs of cells; None: all that are needed.

        Returns:
            The moves.

        """
        return defragment(self, threshold, max_moves)

    def map(self) -> str:
        """One character per cell up to the last used one.

        "." is a free cell, a digit its only owner ("+" above 9), "M" several owners.
        """
        return self.cells.map()

    def frame(self, label: str = "") -> Frame:
        """What the cells hold now, to be shown; see aleator.cache.view."""
        return take_frame(self.cells, label)

    def plot(self, path: str | PathLike[str], frames: Sequence[Frame] = ()) -> None:
        """Draw cells by owner and position as PNG; needs matplotlib.

        Args:
            path: the file.
            frames: what :meth:`frame` gave over time, oldest first; without any, what the cells hold now.

        """
        from aleator.cache.view_plot import plot_frames

        plot_frames(frames or [self.frame()], path)

    # State; see aleator.cache.formats

    @property
    def followers(self) -> list[Any]:
        """Pools beside this one, for layers that forget: none."""
        return []

    @property
    def pools(self) -> list[Any]:
        """The pools whose states make up this one's."""
        return [self]

    def require_complete(self) -> None:
        """Raise unless every pool holds what the next tokens see: there is one, which does."""

    def in_state(self, seq: int, positions: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Which positions a sequence's state holds: all."""
        return np.ones(len(positions), np.bool_)

    def stands_for(self, seq: int, n: int) -> bool:
        """Whether a sequence holds positions 0 to ``n`` - 1, and no others."""
        low, high = self.cells.seq_pos_min(seq), self.cells.seq_pos_max(seq)
        return (low, high, self.cells.seq_cells(seq)) == (0, n - 1, n)

    @property
    def n_streams(self) -> int:
        """Parts of the cells that sequences have to themselves; 1: they share all."""
        return self.cells.n_streams

    @atomic
    def state_write(self, seq: int = -1, *, format: str = "llama", partial: bool = False) -> bytes:
        """What the cache holds, as bytes for :meth:`state_read` here or in llama.cpp.

        Args:
            seq: one sequence; -1: everything.
            format: "llama", llama.cpp's own layout (``llama_state_get_data``,
                ``llama_state_seq_get_data``).  Pending shifts are applied in what is written.
            partial: of one sequence, only what layers with windows or states hold, if others do not
                (``LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY``): a checkpoint, for the same text.

        """
        require_format(format)
        if partial:
            self._check("seq", seq)
        check_sequence_or_all("seq", seq, self.n_seq_max)
        return llama.write(self, seq, partial and bool(self.followers))

    @atomic
    def state_read(
        self,
        blob: bytes | memoryview,
        seq: int = -1,
        *,
        format: str = "llama",
        partial: bool = False,
    ) -> int:
        """Restore what :meth:`state_write` gave, or llama.cpp; returns how many cells it fills.

        Args:
            blob: the bytes.
            seq: the sequence that a sequence's state replaces, which need not be the one it was (that of an
                empty one replaces nothing, as in llama.cpp); -1: a whole state, which replaces everything.
            format: "llama".
            partial: the bytes were written so; the sequence is rewound to where they end.

        Raises:
            Corrupt: the bytes are damaged or no state; says where.
            Incompatible: a state of another kind of cache; says how they differ.
            CacheFull: it has more cells than are free.

        """
        require_format(format)
        if partial:
            self._check("seq", seq)
        check_sequence_or_all("seq", seq, self.n_seq_max)
        partial = partial and bool(self.followers)
        cells = llama.read(self, blob, seq, partial)
        if not partial:
            self._edited(None if seq == -1 else [seq], 0)
        return cells

    @atomic
    def session_write(
        self, tokens: Sequence[int], seq: int = -1, *, format: str = "llama"
    ) -> bytes:
        """A session file's bytes: ``tokens``, the text, and the state of everything or one sequence.

        As ``llama_state_save_file`` and ``llama_state_seq_save_file`` write them.
        """
        require_format(format)
        check_sequence_or_all("seq", seq, self.n_seq_max)
        return llama.write_session(self, tokens, seq)

    @atomic
    def session_read(
        self, data: bytes | memoryview, seq: int = -1, *, format: str = "llama"
    ) -> list[int]:
        """Restore a session file's bytes as :meth:`state_read` does; returns its tokens."""
        require_format(format)
        check_sequence_or_all("seq", seq, self.n_seq_max)
        tokens = llama.read_session(self, data, seq)[0]
        self._edited(None if seq == -1 else [seq], 0)
        return tokens

    # Kept texts; see aleator.cache.prefix

    @atomic
    def match(self, tokens: Sequence[int], namespace: str = "") -> Match:
        """Find the longest beginning of ``tokens`` that is kept, and why it is not longer."""
        text = checked_text(tokens, namespace)
        if self.prefix is None:
            return Match(0, 0, ("this cache keeps no texts: create it with prefix",), namespace)
        return self.prefix.match(text, namespace)

    @atomic
    def adopt(self, seq: int, match: Match) -> None:
        """Let an empty sequence own what was found, at positions 0 to ``match.length`` - 1."""
        self._check("seq", seq)
        if self.cells.seq_pos_max(seq) >= 0:
            raise CacheError(f"sequence {seq} is not empty: remove it with seq_rm first")
        if match.length == 0:
            return
        if self.prefix is None or match.text is None or not self.prefix.holds(match):
            raise CacheError("what was matched is not kept any more: match again")
        self.cells.seq_cp(match.text.seq, seq, 0, match.length)

    @atomic
    def reuse(self, seq: int, tokens: Sequence[int], namespace: str = "") -> int:
        """:meth:`match` and :meth:`adopt`; returns how many tokens need not be computed."""
        match = self.match(tokens, namespace)
        self.adopt(seq, match)
        return match.length

    @atomic
    def keep(self, seq: int, tokens: Sequence[int], namespace: str = "") -> bool:
        """Keep the text that a sequence holds, for later ones that begin like it.

        Its cells stay, also after ``seq_rm``, until there is no room for something else.

        Args:
            seq: the sequence.
            tokens: what the cells at positions 0, 1, ... were computed from, and nothing else: not what
                is left after something before them was removed.
            namespace: texts of one namespace are never found in another.

        Returns:
            Whether it is kept: not without ``prefix``, nor if all that is kept is pinned.

        """
        self._check("seq", seq)
        text = checked_text(tokens, namespace)
        if self.prefix is None or len(text) == 0:
            return False
        last = len(text) - 1
        if self.cells.seq_pos_min(seq) != 0 or self.cells.seq_pos_max(seq) < last:
            raise ParameterError(
                "tokens", f"sequence {seq} does not hold positions 0 to {last}, which tokens names"
            )
        return self.prefix.keep(seq, text, namespace)

    def _leave_kept(self, seq: int, p0: int) -> None:
        """Make kept texts give up the cells from ``p0`` on that they share with a sequence."""
        if self.prefix is None:
            return
        for other in self.cells.sharers(seq, p0):
            self.prefix.shorten(other, max(p0, 0))

    # llama.cpp's verbs

    @atomic
    def seq_rm(self, seq: int, p0: int = -1, p1: int = -1) -> bool:
        """Remove a sequence from the cells in a range (seq -1: every sequence); True.

        A cell left without a sequence is free.
        """
        check_sequence_or_all("seq", seq, self.n_seq_max)
        p0, p1 = position_range(p0, p1)
        if seq == -1 and self.prefix is not None:
            for text in list(self.prefix):
                self.prefix.shorten(text.seq, p0)
        self.cells.seq_rm(seq, p0, p1)
        self._edited(None if seq == -1 else [seq], p0)
        return True

    @atomic
    def seq_cp(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None:
        """Let ``dst`` own the cells of ``src`` in a range too; no data moves.

        With ``policy="streams"`` nothing can be shared: ``dst`` becomes a copy of ``src``, at once.

        Raises:
            ParameterError: with ``policy="streams"`` the range is not all that ``src`` has.

        """
        self._check("src", src)
        self._check("dst", dst)
        p0, p1 = position_range(p0, p1)
        if src == dst:
            return
        if self.policy == "unified":
            self.cells.seq_cp(src, dst, p0, p1)
            self._edited([dst], p0)
            return
        cells = self.cells.seq_cell_list(src)
        if len(cells) and (p0 > self.seq_pos_min(src) or p1 <= self.seq_pos_max(src)):
            raise ParameterError(
                "p0",
                "with policy='streams' a sequence is copied whole: leave p0 and p1 out, or use "
                "policy='unified'",
            )
        share = self.size // self.n_seq_max
        target = cells + (dst - src) * share
        self.cells.seq_rm(dst)
        self.keep_rows(target)
        self.copy_rows(cells, target)
        self.cells.duplicate(cells, target, dst, False)
        self.cells.follow_head(dst, src)
        self._edited([dst], 0)

    @atomic
    def seq_keep(self, seq: int) -> None:
        """Remove every other sequence, and what is kept."""
        self._check("seq", seq)
        if self.prefix is not None:
            self.prefix.clear()
        self.cells.seq_keep(seq)
        self._edited([s for s in range(self.n_seq_max) if s != seq], 0)

    @atomic
    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Add ``delta`` to the positions in a range; a cell moved below 0 is freed.

        Positions live in the cells: a cell that several sequences own moves for all of them.  The
        stored keys are turned at the next decode.
        """
        self._check("seq", seq)
        self._require_shift()
        p0, p1 = position_range(p0, p1)
        delta = checked_delta(delta)
        moved = [seq, *self.cells.sharers(seq, p0, p1)] if delta else []
        try:
            if delta and p0 < p1:
                self._leave_kept(seq, p0)
            self.cells.seq_add(seq, p0, p1, delta)
        except ValueError as error:
            raise ParameterError("delta", str(error)) from None
        self._edited(moved, min(p0, p0 + delta))

    @atomic
    def seq_div(self, seq: int, p0: int, p1: int, divisor: int) -> None:
        """Divide the positions in a range by ``divisor`` (1 or more), rounding down."""
        self._check("seq", seq)
        self._require_shift()
        p0, p1 = position_range(p0, p1)
        divisor = checked_divisor(divisor)
        moved = [seq, *self.cells.sharers(seq, p0, p1)] if divisor > 1 else []
        if divisor > 1 and p0 < p1:
            self._leave_kept(seq, p0)
        self.cells.seq_div(seq, p0, p1, divisor)
        self._edited(moved, p0 // divisor)

    def seq_pos_min(self, seq: int) -> int:
        """The sequence's lowest position, or -1 if it is empty."""
        self._check("seq", seq)
        return self.cells.seq_pos_min(seq)

    def seq_pos_max(self, seq: int) -> int:
        """The sequence's highest position, or -1 if it is empty."""
        self._check("seq", seq)
        return self.cells.seq_pos_max(seq)

    @atomic
    def clear(self, data: bool = True) -> None:
        """Free every cell; with ``data`` also zero what is stored."""
        if self.prefix is not None:
            self.prefix.clear()
        self.cells.clear()
        self.journal.set(self, "do_defrag", False)
        self._edited(None, 0)
        if data:
            self.journal.after_commit(self._zero_free)

    def _zero_free(self) -> None:
        """Zero what free cells store: all, unless more was done in the step that cleared them."""
        if self.cells.used == 0:
            self.keys.zero()
            self.values.zero()
            return
        free = np.flatnonzero(self.cells.positions < 0)
        for side in (self.keys, self.values):
            for layer, device in enumerate(self.devices):
                side.zero_cells(layer, torch.from_numpy(free).to(device))

    def _check(self, parameter: str, seq: int) -> None:
        check_sequence(parameter, seq, self.n_seq_max)

    def _edited(self, seqs: Sequence[int] | None, p0: int) -> None:
        """Tell checkpoints that sequences (None: all) have changed from position ``p0`` on."""
        for mark in self._marks:
            if mark.length > p0 and (seqs is None or mark.seq in seqs):
                self.journal.set(mark, "valid_to", min(mark.valid_to, p0))

    def _require_shift(self) -> None:
        if self.rotate is None:
            raise CannotShift("this model's keys cannot be turned to new positions")
