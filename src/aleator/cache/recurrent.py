"""The cache of layers that sum a sequence up in a state: convolution windows and state spaces.

A *row* holds one state of every layer, as it was after one token, and is never changed once a step is
over.  A sequence is a list of rows, newest last: the state to continue from, and behind it those of up
to ``rollback`` tokens before.  Sequences share rows, so a fork copies nothing, and a step that fails leaves
the old rows where they were.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet, ref

import numpy as np
import numpy.typing as npt
import torch

from aleator._native import States
from aleator.cache.arguments import (
    END,
    Uncopyable,
    check_sequence,
    check_sequence_or_all,
    checked_delta,
    checked_divisor,
    position_range,
)
from aleator.cache.batch_rules import Tokens, checked_positions, owner_bits
from aleator.cache.devices import checked_device
from aleator.cache.formats.source import require_format
from aleator.cache.journal import Journal, atomic
from aleator.cache.kept_states import KeptStates, kept_rows
from aleator.cache.prefix import Match, PrefixConfig, PrefixIndex, checked_text, require_config
from aleator.cache.recurrent_step import Placement, RecurrentBatch, RecurrentPlan, RecurrentStep
from aleator.core.errors import CacheError, CacheFull, CannotRewind, InvalidBatch, ParameterError
from aleator.core.integers import integer_in

if TYPE_CHECKING:
    from aleator.cache.recurrent_sequence import RecurrentSequence
    from aleator.cache.sequence import Checkpoint

log = logging.getLogger(__name__)

History = tuple[tuple[int, int], ...]
"""(row, position) of a sequence's states, oldest first."""


@dataclass(frozen=True)
class RecurrentShape:
    """What a layer keeps: ``conv`` values of each channel before the next, and ``state`` numbers."""

    channels: int
    conv: int
    state: int


@dataclass(frozen=True)
class RecurrentCheckpoint:
    """A sequence's state after its token at ``position``, copied: per layer conv and ssm."""

    position: int
    conv: tuple[torch.Tensor, ...]
    ssm: tuple[torch.Tensor, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the copies."""
        return sum(t.nbytes for t in self.conv + self.ssm)


class RecurrentCache(Uncopyable):
    """States of up to ``n_seq_max`` sequences, with the verbs of :class:`KVCache` but for those of cells.

    What is of cells is not there: ``find_slot``, ``update``, ``defrag``, ``unshare``, ``head``, ``n``,
    ``free``, ``has_shift``, ``do_copy``, ``v_trans``, ``map``, ``frame``, ``plot``, ``read_keys``,
    ``read_values``.

    Ranges of positions are [p0, p1); p0 < 0 means 0, p1 < 0 means infinity.  A state has no parts, so:

    - Removing a range that ends with the newest position is a rewind: exact while the state before ``p0``
      is still held (``rollback`` tokens back), refused with :class:`CannotRewind` beyond.  Removing
      everything is always allowed.  A range without the newest position changes nothing, as in
      llama.cpp: what was read stays in the summary.
    - A copy is of the whole sequence, and replaces what the copy held.
    - Positions are labels: ``seq_add`` and ``seq_div`` move the newest one, for every sequence that
      shares the state.

    Every method either does what it says or raises and changes nothing.

    Attributes:
        kept: the states of kept texts; None without ``prefix``.

    Args:
        layers: what each layer keeps.
        n_seq_max: sequence ids lie in [0, n_seq_max).
        rollback: tokens that every sequence can be rewound by.
        device: where the states are.
        prefix: keep states of texts (:meth:`keep`), at boundaries and at their ends; None: do not.
        architecture: the model's, as state files name it.
        n_layers: all layers of the model, which state files name too; None: these are all.

    """

    def __init__(
        self,
        layers: Sequence[RecurrentShape],
        *,
        n_seq_max: int = 1,
        rollback: int = 0,
        device: torch.device | str = "cpu",
        prefix: PrefixConfig | None = None,
        architecture: str = "",
        n_layers: int | None = None,
    ) -> None:
        require_config(prefix)
        n_seq_max = integer_in("n_seq_max", n_seq_max, 1, 4096)
        rollback = integer_in("rollback", rollback, 0, 4096)
        self.device = checked_device("device", device)
        self.n_seq_max, self.rollback = n_seq_max, rollback
        own, kept, row = _rows(layers, n_seq_max, rollback, prefix)
        n_rows, needed = own + kept, (own + kept) * row
        self.architecture = architecture
        self.n_layers = len(layers) if n_layers is None else n_layers
        self.journal, self.rows = Journal(), States(n_rows)
        self.journal.enlist(self.rows)
        self.kept = KeptStates(self, prefix, kept) if prefix else None
        try:
            with torch.inference_mode(False):  # they are written in and outside of that mode
                self.conv = [
                    torch.zeros(n_rows, s.channels, s.conv, device=self.device) for s in layers
                ]
                self.ssm = [
                    torch.zeros(n_rows, s.channels, s.state, device=self.device) for s in layers
                ]
        except (RuntimeError, MemoryError) as error:
            raise ParameterError(
                "n_seq_max",
                f"the recurrent states do not fit: {n_seq_max} sequences with rollback {rollback} need "
                f"{needed / 2**20:,.0f} MiB on {self.device}; use fewer sequences or a smaller n_rollback",
            ) from error
        self._handles: dict[int, ref[Any]] = {}
        self._marks: WeakSet[Checkpoint] = WeakSet()
        log.info(
            "recurrent states: %d sequences, %d layers, %s: %.2f MiB",
            n_seq_max,
            len(layers),
            self.device,
            needed / 2**20,
        )

    @staticmethod
    def bytes_for(
        layers: Iterable[RecurrentShape],
        *,
        n_seq_max: int = 1,
        rollback: int = 0,
        prefix: PrefixConfig | None = None,
    ) -> int:
        """Bytes that the states will take, without allocating them."""
        own, kept, row = _rows(layers, n_seq_max, rollback, prefix)
        return (own + kept) * row

    def __repr__(self) -> str:
        return f"RecurrentCache({self.used}/{self.n_seq_max} sequences used)"

    @property
    def prefix(self) -> PrefixIndex | None:
        """Finds kept texts."""
        return self.kept.index if self.kept is not None else None

    @property
    def states(self) -> dict[int, History]:
        """Per sequence that is not empty (row, position) of its states, oldest first; a copy."""
        return self.rows.book()

    @property
    def n_rows(self) -> int:
        """Rows, free ones included."""
        return self.rows.n_rows

    @property
    def version(self) -> int:
        """Changes with every change."""
        return self.rows.version

    @property
    def current_step(self) -> object | None:
        """The innermost block ``with cache.step()`` that is under way; None: there is none."""
        return self.journal.current

    def join(self, journal: Journal) -> None:
        """Become part of a cache: record changes with its others."""
        journal.enlist(self.rows)
        self.journal = journal
        if self.kept is not None:
            self.kept.index.journal = journal

    @property
    def cells(self) -> RecurrentCache:
        """What knows the sequences' positions: this."""
        return self

    do_defrag = False
    """Whether holes are to be filled: there are none."""

    def defrag_if_asked(self) -> None:
        """Nothing: there are no holes."""

    @property
    def n_streams(self) -> int:
        """Parts that sequences have to themselves: all share one."""
        return 1

    @property
    def rewindable(self) -> int:
        """Tokens by which a sequence can be rewound at least, once it has so many."""
        return self.rollback

    @property
    def words(self) -> int:
        """64-bit words in a set of sequences."""
        return (self.n_seq_max + 63) // 64

    @property
    def size(self) -> int:
        """How many sequences can be held."""
        return self.n_seq_max

    @property
    def used(self) -> int:
        """How many sequences are held."""
        return sum(self.rows.newest(seq) is not None for seq in range(self.n_seq_max))

    @property
    def recurrent(self) -> RecurrentCache:
        """The pool of recurrent states: this."""
        return self

    @property
    def bytes_k(self) -> int:
        """Bytes allocated for the convolutions' values, which take the place of keys."""
        return sum(t.nbytes for t in self.conv)

    @property
    def bytes_v(self) -> int:
        """Bytes allocated for the states, which take the place of values."""
        return sum(t.nbytes for t in self.ssm)

    @property
    def total_size(self) -> int:
        """Bytes allocated for what layers store: :attr:`bytes_k` and :attr:`bytes_v`."""
        return self.bytes_k + self.bytes_v

    def addresses(self) -> list[int]:
        """Where each layer's convolution and then its state begin in memory.

        That changes only when a step within a step needs more rows than there are.
        """
        return [t.data_ptr() for t in self.conv + self.ssm]

    def can_shift(self) -> bool:
        """Whether ``seq_add`` and ``seq_div`` are allowed: always, positions are labels."""
        return True

    def same_cells(self, a: int, b: int) -> bool:
        """Whether two sequences continue from the same state."""
        return self.newest_row(a) == self.newest_row(b)

    def plan(
        self,
        batch: Tokens,
        *,
        n_ubatch: int = 512,
        n_batch: int | None = None,
        rule: str = "simple",
        keep_tail: int = 0,
        causal: bool = True,
    ) -> RecurrentPlan:
        """Check a batch and cut it into micro-batches, without changing anything.

        Arguments are those of :meth:`KVCache.plan`; of the rules only the order of the batch is needed here,
        where a micro-batch may hold any tokens of any sequences, and no cut harms a rewind.

        Raises:
            InvalidBatch: a rule is broken; names the token.

        """
        if not causal:
            raise ParameterError("causal_attn", "causal_attn=False: a state knows no later tokens")
        n = len(batch.positions)
        if n == 0:
            raise InvalidBatch(-1, "the batch is empty: add at least one token")
        positions = np.array(checked_positions(batch, self, self.n_seq_max), dtype=np.int32)
        owners = owner_bits(batch, self.words, self.n_seq_max)
        wanted = np.array(batch.wanted(), dtype=np.int64)
        size = min(n_ubatch, n_batch or n_ubatch)
        parts = tuple(slice(at, min(at + size, n)) for at in range(0, n, size))
        return RecurrentPlan(positions, owners, wanted, parts, self.version)

    @atomic
    def sequence(self, id: int | None = None) -> RecurrentSequence:
        """A handle on a sequence; see :class:`RecurrentSequence`.

        Args:
            id: which; None is the lowest that is empty and has no handle.

        Raises:
            CacheFull: every sequence is in use.

        """
        from aleator.cache.recurrent_sequence import RecurrentSequence

        def has_handle(seq: int) -> bool:
            handle = self._handles.get(seq)
            return handle is not None and handle() is not None

        if id is None:
            ids = (
                s
                for s in range(self.n_seq_max)
                if self.rows.newest(s) is None and not has_handle(s)
            )
            id = next(ids, None)
            if id is None:
                raise CacheFull(
                    0,
                    0,
                    message=f"all {self.n_seq_max} sequences are in use: close one, or create the context "
                    "with a larger n_seq_max",
                )
        self._check("id", id)
        if has_handle(id):
            raise CacheError(f"sequence {id} has a handle already: use that, or close it")
        made = RecurrentSequence(self, id)
        self.journal.put(self._handles, id, ref(made))
        return made

    def history(self, seq: int) -> History:
        """(row, position) of the states that are held of a sequence, oldest first."""
        self._check("seq", seq)
        return self.rows.history(seq)

    def history_of(self, number: int) -> History:
        """The same of any number, those of kept texts included."""
        return self.rows.history(number)

    def step(self, plan: RecurrentPlan | None = None) -> RecurrentStep:
        """A block that changes the states, and changes nothing if it raises."""
        return RecurrentStep(self, plan)

    def prepare(self, plan: RecurrentPlan) -> None:
        """Raise CacheError if a plan is void."""
        if plan.version != self.version:
            raise CacheError("the cache has changed since the plan was made: plan again")

    def carried_out(self, plan: RecurrentPlan) -> Iterator[RecurrentBatch]:
        """The micro-batches of a plan, each placed when it is asked for."""
        for part in plan.parts:
            low, high = np.searchsorted(plan.wanted, (part.start, part.stop))
            wanted = plan.wanted[low:high] - part.start
            positions = plan.positions[part]
            runs = Placement(self).runs(positions, plan.owners[part])
            yield RecurrentBatch(self, runs, positions, part, wanted)

    def place(
        self, positions: npt.NDArray[np.int32], owners: npt.NDArray[np.uint64]
    ) -> RecurrentBatch:
        """Within a frame, give T tokens rows to start from and rows to leave their states in.

        ``owners`` [T, words]: the sequences of each token, as bits.
        """
        return RecurrentBatch(self, Placement(self).runs(positions, owners), positions)

    def check(self) -> None:
        """Raise AssertionError or RuntimeError if the bookkeeping contradicts itself."""
        self.rows.check()
        for seq, history in self.states.items():
            if not history or (seq < self.n_seq_max and len(history) > self.rollback + 1):
                raise AssertionError("a history is empty or too long")
            if history[0][1] < 0 or any(a[1] >= b[1] for a, b in pairwise(history)):
                raise AssertionError("a history is not in order")

    # Kept texts; see aleator.cache.prefix and aleator.cache.kept_states

    @atomic
    def match(self, tokens: Sequence[int], namespace: str = "") -> Match:
        """Find the longest beginning of ``tokens`` after which a state is kept, and why it is not longer."""
        text = checked_text(tokens, namespace)
        if self.prefix is None:
            return Match(0, 0, ("this cache keeps no texts: create it with prefix",), namespace)
        return self.prefix.match(text, namespace)

    @atomic
    def adopt(self, seq: int, match: Match) -> None:
        """Let an empty sequence continue from what was found."""
        self._check("seq", seq)
        if self.rows.newest(seq) is not None:
            raise CacheError(f"sequence {seq} is not empty: remove it with seq_rm first")
        if match.length == 0:
            return
        if self.kept is None or match.text is None or not self.kept.index.holds(match):
            raise CacheError("what was matched is not kept any more: match again")
        if self.kept.length(match.text.seq, match.length) != match.length:
            raise CacheError("the state that was matched is not kept any more: match again")
        self.kept.adopt(match.text.seq, seq, match.length)

    @atomic
    def reuse(self, seq: int, tokens: Sequence[int], namespace: str = "") -> int:
        """:meth:`match` and :meth:`adopt`; returns how many tokens need not be computed."""
        match = self.match(tokens, namespace)
        self.adopt(seq, match)
        return match.length

    @atomic
    def keep(self, seq: int, tokens: Sequence[int], namespace: str = "") -> bool:
        """Keep the states that the sequence holds of a text, for later texts that begin like it.

        Args:
            seq: the sequence.
            tokens: what its state was computed from, or a beginning of that.
            namespace: texts of one namespace are never found in another.

        Returns:
            Whether it is kept: not without ``prefix``, nor if no state of just these tokens is held.

        """
        self._check("seq", seq)
        text = checked_text(tokens, namespace)
        if self.kept is None or len(text) == 0 or not self.kept.can_keep(seq, len(text)):
            return False
        return self.kept.index.keep(seq, text, namespace)

    # State; see aleator.cache.formats

    @property
    def pools(self) -> list[Any]:
        """The pools whose states make up this one's."""
        return [self]

    def require_complete(self) -> None:
        """Nothing: there is one pool."""

    def stands_for(self, seq: int, n: int) -> bool:
        """Whether a sequence is at position ``n`` - 1."""
        return self.seq_pos_max(seq) == n - 1

    @atomic
    def state_write(self, seq: int = -1, *, format: str = "llama", partial: bool = False) -> bytes:
        """As :meth:`KVCache.state_write`: the newest state of everything (-1) or of one sequence.

        ``partial`` makes no difference: there is nothing else.
        """
        from aleator.cache.formats import llama

        require_format(format)
        check_sequence_or_all("seq", seq, self.n_seq_max)
        return llama.write(cast(Any, self), seq)

    @atomic
    def state_read(
        self,
        blob: bytes | memoryview,
        seq: int = -1,
        *,
        format: str = "llama",
        partial: bool = False,
    ) -> int:
        """As :meth:`KVCache.state_read`; returns how many states there were."""
        from aleator.cache.formats import llama

        require_format(format)
        check_sequence_or_all("seq", seq, self.n_seq_max)
        return llama.read(cast(Any, self), blob, seq)

    @atomic
    def session_write(
        self, tokens: Sequence[int], seq: int = -1, *, format: str = "llama"
    ) -> bytes:
        """As :meth:`KVCache.session_write`."""
        from aleator.cache.formats import llama

        require_format(format)
        check_sequence_or_all("seq", seq, self.n_seq_max)
        return llama.write_session(cast(Any, self), tokens, seq)

    @atomic
    def session_read(
        self, data: bytes | memoryview, seq: int = -1, *, format: str = "llama"
    ) -> list[int]:
        """As :meth:`KVCache.session_read`."""
        from aleator.cache.formats import llama

        require_format(format)
        check_sequence_or_all("seq", seq, self.n_seq_max)
        return llama.read_session(cast(Any, self), data, seq)[0]

    # llama.cpp's verbs

    @atomic
    def seq_rm(self, seq: int, p0: int = -1, p1: int = -1) -> bool:
        """Remove positions [p0, p1) of a sequence (seq -1: of every sequence); True.

        Raises:
            CannotRewind: the state before ``p0`` is not held any more; names the oldest legal position.

        """
        check_sequence_or_all("seq", seq, self.n_seq_max)
        p0, p1 = position_range(p0, p1)
        changes: dict[int, History] = {}
        for each in [seq] if seq != -1 else range(self.n_seq_max):
            history = self.rows.history(each)
            if history and p0 <= history[-1][1] < p1:
                changes[each] = self._rewound(each, history, p0)
                if self.kept is not None:
                    at = self.kept.of(each)
                    changes[self.kept.number(each)] = tuple(m for m in at if m[1] < p0)
        self.change(changes)
        return True

    def oldest_rewind(self, seq: int) -> int:
        """The lowest position, but 0, from which ``seq_rm(seq, position, -1)`` is exact."""
        self._check("seq", seq)
        history = self.rows.history(seq)
        return history[0][1] + 1 if history else 0

    @atomic
    def seq_cp(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None:
        """Let ``dst`` continue from the state of ``src``, instead of its own; no data moves.

        Raises:
            ParameterError: the range is not the whole sequence.

        """
        self._check("src", src)
        self._check("dst", dst)
        p0, p1 = position_range(p0, p1)
        history = self.rows.history(src)
        if history and (p0 > 0 or p1 <= history[-1][1]):
            raise ParameterError(
                "p1" if p0 == 0 else "p0",
                f"positions [{p0}, {p1}) are a part of sequence {src}, and its state has no parts: copy "
                "all of it with p0=0 and p1=-1",
            )
        if src != dst:
            self.change({dst: history} | self._at_boundaries(dst, src))

    @atomic
    def seq_keep(self, seq: int) -> None:
        """Remove every other sequence."""
        self._check("seq", seq)
        if self.prefix is not None:
            self.prefix.clear()
        own = (seq, self.kept.number(seq) if self.kept is not None else seq)
        self.change({each: () for each in self.states if each not in own})

    @atomic
    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Add ``delta`` to the newest position if it is in the range, for all that share the state."""
        delta = checked_delta(delta)
        self._relabel("delta", seq, p0, p1, lambda position: position + delta)

    @atomic
    def seq_div(self, seq: int, p0: int, p1: int, divisor: int) -> None:
        """Divide the newest position if it is in the range by ``divisor`` (1 or more), rounding down."""
        divisor = checked_divisor(divisor)
        self._relabel("divisor", seq, p0, p1, lambda position: position // divisor)

    def seq_pos_min(self, seq: int) -> int:
        """The sequence's newest position, as its state cannot be taken apart; -1 if it is empty."""
        return self.seq_pos_max(seq)

    def seq_pos_max(self, seq: int) -> int:
        """The sequence's newest position, or -1 if it is empty."""
        self._check("seq", seq)
        newest = self.rows.newest(seq)
        return newest[1] if newest else -1

    @atomic
    def clear(self, data: bool = True) -> None:
        """Drop every sequence; with ``data`` also zero what is stored, when the outermost step ends."""
        if self.prefix is not None:
            self.prefix.clear()
        self.change(dict.fromkeys(self.states, ()))
        if data:
            self.journal.after_commit(self._zero_free)

    def _zero_free(self) -> None:
        rows = torch.tensor(self.rows.free_rows(self.n_rows), device=self.device)
        for t in self.conv + self.ssm:
            t.index_fill_(0, rows, 0)

    # Checkpoints

    def checkpoint(self, seq: int) -> RecurrentCheckpoint:
        """A copy of the sequence's state; ParameterError if it is empty."""
        self._check("seq", seq)
        history = self.rows.history(seq)
        if not history:
            raise ParameterError("seq", f"sequence {seq} is empty: there is no state to keep")
        row, position = history[-1]
        return RecurrentCheckpoint(
            position,
            tuple(t[row].clone() for t in self.conv),
            tuple(t[row].clone() for t in self.ssm),
        )

    @atomic
    def restore(self, seq: int, checkpoint: RecurrentCheckpoint) -> None:
        """Let the sequence continue from a checkpoint, of this cache or one of equal layers."""
        self._check("seq", seq)
        pairs = [
            *zip(self.conv, checkpoint.conv, strict=True),
            *zip(self.ssm, checkpoint.ssm, strict=True),
        ]
        if any(ours.shape[1:] != theirs.shape for ours, theirs in pairs):
            raise ParameterError("checkpoint", "checkpoint: it is of a model of another shape")
        self.put((seq,), checkpoint.position, checkpoint.conv, checkpoint.ssm)

    @atomic
    def put(
        self,
        seqs: Sequence[int],
        position: int,
        conv: Sequence[torch.Tensor],
        ssm: Sequence[torch.Tensor],
    ) -> None:
        """Let sequences share a state that is given: per layer [channels, conv] and [channels, state]."""
        if not self.rows.free_rows(1):  # a step that has changed everything; its old rows are kept
            self.change(dict.fromkeys(seqs, ()))
        (row,) = self.free_rows(1)
        for tensors, values in ((self.conv, conv), (self.ssm, ssm)):
            for ours, theirs in zip(tensors, values, strict=True):
                ours[row] = theirs
        changes: dict[int, History] = dict.fromkeys(seqs, ((row, position),))
        for seq in seqs:
            changes |= self._at_boundaries(seq)
        self.change(changes)

    # Bookkeeping

    def newest(self, seq: int) -> tuple[int, int] | None:
        """(row, position) of the state that a sequence continues from; None if it is empty."""
        return self.rows.newest(seq)

    def newest_row(self, seq: int) -> int:
        """The row that a sequence continues from, or -1."""
        newest = self.rows.newest(seq)
        return newest[0] if newest else -1

    def _rewound(self, seq: int, history: History, p0: int) -> History:
        kept = history
        while kept and (kept[-1][1] >= p0 or p0 == 0):
            kept = kept[:-1]
        if not kept and p0 > 0:
            oldest = history[0][1] + 1
            raise CannotRewind(
                f"sequence {seq} cannot be rewound to position {p0}: the oldest legal position is {oldest}, "
                f"or 0 to remove all of it; create the context with a larger n_rollback (now {self.rollback})",
                oldest,
            )
        return kept

    def free_rows(self, n: int) -> list[int]:
        """The next ``n`` rows that nobody holds.

        A step within a step keeps what the outer one made, which may take more rows than there are: then
        the states get more, and keep them.

        Raises:
            CacheFull: there is no memory for them.

        """
        rows = self.rows.free_rows(n)
        if len(rows) < n:
            self._grow(n - len(rows), len(rows))
            rows = self.rows.free_rows(n)
        return rows

    def _grow(self, n: int, free: int) -> None:
        size = self.n_rows + n
        try:
            with torch.inference_mode(False):
                # Of what an interrupt left half done, some have their rows already.
                grown = [
                    [
                        t
                        if len(t) >= size
                        else torch.cat((t, t.new_zeros(size - len(t), *t.shape[1:])))
                        for t in side
                    ]
                    for side in (self.conv, self.ssm)
                ]
        except (RuntimeError, MemoryError) as error:
            message = (
                f"no memory for {n} more recurrent states, which a step within a step needs: end the "
                "outer step first, or create the context with a smaller n_rollback or n_seq_max"
            )
            raise CacheFull(n, free, message=message) from error
        self.conv[:], self.ssm[:] = grown  # in place: micro-batches have the lists
        self.rows.grow(n)

    def _at_boundaries(self, seq: int, like: int | None = None) -> dict[int, History]:
        """The change that gives a sequence the kept states at boundaries of another's text, or none."""
        if self.kept is None:
            return {}
        return {self.kept.number(seq): () if like is None else self.kept.of(like)}

    @atomic
    def relabel(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """``seq_add`` for one sequence alone, whoever shares its state."""
        self._relabel("delta", seq, p0, p1, lambda position: position + delta, alone=True)

    def _relabel(
        self,
        name: str,
        seq: int,
        p0: int,
        p1: int,
        move: Callable[[int], int],
        alone: bool = False,
    ) -> None:
        self._check("seq", seq)
        p0, p1 = position_range(p0, p1)
        row = self.newest_row(seq)
        if row < 0 or not p0 <= self.seq_pos_max(seq) < p1:
            return
        changes: dict[int, History] = {}
        for each in [seq] if alone else range(self.n_seq_max):
            history = self.rows.history(each)
            if not history or history[-1][0] != row:
                continue
            if not 0 <= move(history[-1][1]) < END:
                raise ParameterError(
                    name,
                    f"{name}: position {history[-1][1]} of sequence {each} would become "
                    f"{move(history[-1][1])}; it must lie in [0, 2^31 - 1)",
                )
            moved: list[tuple[int, int]] = []
            for held, position in reversed(
                history
            ):  # older states whose position stays below, and not below 0
                to = move(position)
                if not (p0 <= position < p1 and to >= 0 and (not moved or to < moved[-1][1])):
                    break
                moved.append((held, to))
            changes[each] = tuple(reversed(moved))
            changes |= self._at_boundaries(each)
        self.change(changes)

    def change(self, changes: dict[int, History]) -> None:
        """Replace histories; within a frame the old ones are kept until the outermost one ends."""
        self.rows.change(changes)

    def _check(self, parameter: str, seq: int) -> None:
        check_sequence(parameter, seq, self.n_seq_max)


def _rows(
    layers: Iterable[RecurrentShape], n_seq_max: int, rollback: int, prefix: PrefixConfig | None
) -> tuple[int, int, int]:
    """Rows of the sequences, rows of kept texts, and the bytes of one.

    A sequence has ``rollback`` + 1 rows, and a step under way writes as many more; a step within one takes
    further ones when it needs them.
    """
    row = sum(4 * s.channels * (s.conv + s.state) for s in layers)
    return 2 * n_seq_max * (rollback + 1), kept_rows(prefix, n_seq_max, row), row
