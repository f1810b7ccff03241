"""The base of all caches: operations, handles, prefix reuse and state, over one pool."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aleator.cache.batches import Cuts, Tokens
from aleator.cache.devices import sizes_by_device
from aleator.cache.journal import Transaction
from aleator.cache.options import CacheOptions, HoldsCells
from aleator.cache.pools.attention import first_of
from aleator.cache.pools.kept_states import KeptStates
from aleator.cache.pools.pool import Pool
from aleator.cache.pools.recurrent import RecurrentPool
from aleator.cache.pools.window import WindowPool
from aleator.cache.prefix_index import PrefixConfig, PrefixIndex
from aleator.cache.sequence import Handles
from aleator.core.arrays import Int32s, Int64s, UInt64s
from aleator.core.forwarded import forwarded


class Step(Transaction):
    """A change that is undone exactly if the ``with`` block raises any exception.

    With a plan, iterating places its micro-batches and yields them one by one::

        with cache.step(plan) as step:
            for part in step:
                rows = model(tokens[part.tokens], part.positions, part, part.outputs)

    Steps can be nested; changes of an inner step then also belong to the outer one.
    """

    def __init__(self, pool: Pool, plan: Any = None) -> None:
        super().__init__(pool.journal)
        self._pool, self._plan = pool, plan

    def _entered(self) -> None:
        if self._plan is not None:
            self._pool.prepare(self._plan)

    def __iter__(self) -> Iterator[Any]:
        return iter(()) if self._plan is None else self._pool.micro_batches(self._plan)

    def place(self, positions: Int32s, seqs: Int32s, owners: UInt64s, causal: bool = True) -> Any:
        """Place tokens without a plan; see :meth:`Pool.place`."""
        return self._pool.place(positions, seqs, owners, causal)

    def make_room(self, needed: int) -> None:
        """Evict cached prefixes until ``needed`` cells are free, or raise CacheFull."""
        first_of(self._pool).make_room(needed)

    def find(self, positions: Int32s, owners: UInt64s) -> Int64s:
        """Assign cells to T tokens and return them, int64 [T]; or raise CacheFull."""
        return first_of(self._pool).find(positions, owners)

    def apply_shifts(self) -> None:
        """Apply pending shifts; see :mod:`aleator.cache.rows.rows`."""
        self._pool.apply_shifts()


class Cache(Handles, HoldsCells):
    """Sequences in a pool, by llama.cpp's verbs and by handles.

    Ranges of positions are [p0, p1); p0 < 0 means 0, p1 < 0 means infinity.  Every method either
    does what it says or raises and changes nothing.

    Args:
        pool: the pool that holds the sequences.
        prefix: how to cache prefixes (:meth:`keep`); None does not cache them.
        partial_prefixes: whether a cached prefix may be usable only up to certain lengths, not up to any.

    Attributes:
        pool: the pool that holds the sequences.
        prefix: the index of cached prefixes; None if they are not cached.
        kept: the states of cached prefixes; None without recurrent layers or ``prefix``.
        recurrent: the pool of recurrent layers, or None.
        window: the pool of window layers, or None.
    """

    def __init__(
        self, pool: Pool, prefix: PrefixConfig | None = None, partial_prefixes: bool = False
    ) -> None:
        super().__init__(pool)
        self.prefix = None
        if prefix is not None:
            usable_length = pool.usable_length if partial_prefixes else None
            self.prefix = PrefixIndex(prefix, pool.journal, pool, pool.n_seq_max, usable_length)
        self.kept: KeptStates | None = None
        self.recurrent: RecurrentPool | None = None
        self.window: WindowPool | None = None
        for leaf in pool.leaves:
            leaf.texts = self.prefix
            if isinstance(leaf, RecurrentPool):
                self.recurrent = leaf
                if self.prefix is not None:
                    self.kept = leaf.keeper = KeptStates(leaf.rows, self.prefix, leaf.kept_rows)
            elif isinstance(leaf, WindowPool):
                self.window = leaf

    architecture: str = forwarded("pool.architecture", "The model's, as state files name it.")
    pools: list[Pool] = forwarded("pool.leaves", "The pools that this cache is made of.")
    bytes_k: int = forwarded(
        "pool.bytes_k",
        "Bytes allocated for keys, and for the convolutions' values of recurrent layers.",
    )
    bytes_v: int = forwarded(
        "pool.bytes_v", "Bytes allocated for values, and for states of recurrent layers."
    )

    @property
    def total_size(self) -> int:
        """Bytes allocated for all layers: :attr:`bytes_k` plus :attr:`bytes_v`."""
        return self.bytes_k + self.bytes_v

    @property
    def device_bytes(self) -> dict[str, int]:
        """Bytes allocated for the layers of each device, by its name."""
        return sizes_by_device(self.pool.layer_bytes)

    def addresses(self) -> list[int]:
        """Memory addresses of what layers store: for each pool keys, then values."""
        return self.pool.addresses()

    def check(self) -> None:
        """Raise an error if the bookkeeping contradicts itself; O(size)."""
        self.pool.check()

    # Plan and step

    def plan(
        self,
        batch: Tokens,
        *,
        n_ubatch: int = CacheOptions.n_ubatch,
        n_batch: int | None = None,
        rule: str = "simple",
        keep_tail: int = 0,
        causal: bool = True,
    ) -> Any:
        """Check a batch, cut it into micro-batches and choose their cells, without changing anything.

        Args:
            batch: positions and sequences of its tokens.
            n_ubatch: tokens per micro-batch.
            n_batch: first cut into chunks of this many tokens; None does not.
            rule: how to cut: see :func:`aleator.cache.batches.split`.
            keep_tail: with rule "equal", this many last tokens of a sequence stay in one micro-batch.
            causal: whether a token sees only positions up to its own; otherwise all must fit one micro-batch.

        Returns:
            The plan that :meth:`step` carries out.

        Raises:
            InvalidBatch: a rule is broken; names the token.
            CacheFull: not enough free cells.
        """
        pieces = len(batch.positions) if n_batch is None else n_batch
        return self.pool.plan(batch, Cuts(n_ubatch, pieces, rule, keep_tail, causal))

    def step(self, plan: Any = None) -> Step:
        """Open a block that changes the cache, or changes nothing if it raises; see :class:`Step`."""
        return Step(self.pool, plan)
