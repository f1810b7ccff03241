"""What every cache offers: verbs, handles, prefix reuse and state, over one pool.

Here arguments are checked, checkpoints told of changes, and each method is all or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import ref

from aleator.cache.arguments import Uncopyable
from aleator.cache.cells.batch_rules import Tokens
from aleator.cache.cells.split import Cuts
from aleator.cache.devices import sizes_by_device
from aleator.cache.handle.sequence import Sequence as Handle
from aleator.cache.journal import atomic
from aleator.cache.options import CacheOptions
from aleator.cache.pools.pool import AnyPool
from aleator.cache.pools.recurrent import RecurrentPool
from aleator.cache.pools.step import Step
from aleator.cache.pools.window import WindowPool
from aleator.cache.prefix import Match, PrefixConfig, PrefixIndex, checked_text, require_config
from aleator.cache.state_verbs import StateVerbs
from aleator.core.errors import CacheError, CacheFull


class Cache(StateVerbs, Uncopyable):
    """Sequences in a pool, by llama.cpp's verbs and by handles.

    Ranges of positions are [p0, p1); p0 < 0 means 0, p1 < 0 means infinity.  Every method either
    does what it says or raises and changes nothing.

    Args:
        pool: what holds the sequences.
        prefix: cache prefixes (:meth:`keep`); None: do not.
        in_parts: a cached prefix may be of use in part only; otherwise any beginning of it is.

    Attributes:
        pool: what holds the sequences.
        prefix: the index of cached prefixes; None: there are none.
        recurrent: the pool of recurrent layers; None: there are none.
        window: the pool of window layers; None: there are none.

    """

    def __init__(
        self, pool: AnyPool, prefix: PrefixConfig | None = None, in_parts: bool = False
    ) -> None:
        require_config(prefix)
        super().__init__(pool)
        self.prefix = None
        if prefix is not None:
            serves = pool.serves if in_parts else None
            self.prefix = PrefixIndex(prefix, pool.journal, pool, pool.n_seq_max, serves)
        self.recurrent: RecurrentPool | None = None
        self.window: WindowPool | None = None
        for leaf in pool.leaves:
            leaf.texts = self.prefix
            if isinstance(leaf, RecurrentPool):
                self.recurrent = leaf
            elif isinstance(leaf, WindowPool):
                self.window = leaf
        self._handles: dict[int, ref[Handle]] = {}

    @property
    def architecture(self) -> str:
        """The model's, as state files name it."""
        return self.pool.architecture

    @property
    def pools(self) -> list[AnyPool]:
        """The pools that this cache is made of."""
        return self.pool.leaves

    @property
    def bytes_k(self) -> int:
        """Bytes allocated for keys, and for the convolutions' values of recurrent layers."""
        return self.pool.bytes_k

    @property
    def bytes_v(self) -> int:
        """Bytes allocated for values, and for states of recurrent layers."""
        return self.pool.bytes_v

    @property
    def total_size(self) -> int:
        """Bytes allocated for what layers store: :attr:`bytes_k` and :attr:`bytes_v`."""
        return self.bytes_k + self.bytes_v

    @property
    def device_bytes(self) -> dict[str, int]:
        """Bytes allocated for what layers store, on each device by its name."""
        return sizes_by_device(self.pool.layer_bytes)

    def addresses(self) -> list[int]:
        """Where what layers store begins in memory: of each pool keys, then values."""
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
        """Check a batch, cut it into micro-batches and choose where they go, without changing anything.

        Args:
            batch: positions and sequences of its tokens.
            n_ubatch: tokens per micro-batch.
            n_batch: cut into pieces of so many before that; None: not.
            rule: how to cut: see :func:`aleator.cache.cells.split.split`.
            keep_tail: with rule "equal", the last so many tokens of a sequence stay in one micro-batch.
            causal: whether a token sees only positions up to its own; otherwise all must fit one micro-batch.

        Returns:
            What :meth:`step` carries out.

        Raises:
            InvalidBatch: a rule is broken; names the token.
            CacheFull: not enough free cells.

        """
        pieces = len(batch.positions) if n_batch is None else n_batch
        return self.pool.plan(batch, Cuts(n_ubatch, pieces, rule, keep_tail, causal))

    def step(self, plan: Any = None) -> Step[Any, Any]:
        """A block that changes the cache, and changes nothing if it raises; see :class:`Step`."""
        return Step(self.pool, plan)

    # Handles

    @atomic
    def sequence(self, id: int | None = None) -> Handle:
        """A handle on a sequence; see :class:`aleator.cache.Sequence`.

        Args:
            id: which; None is the lowest that is empty and has no handle.

        Raises:
            CacheFull: every sequence is in use.

        """
        if id is None:
            for seq in range(self.n_seq_max):
                if self.pool.seq_pos_max(seq) < 0 and not self._has_handle(seq):
                    id = seq
                    break
            else:
                raise CacheFull(
                    0,
                    0,
                    message=f"all {self.n_seq_max} sequences are in use: close one, or create the "
                    "context with a larger n_seq_max",
                )
        self._check("id", id)
        if self._has_handle(id):
            raise CacheError(f"sequence {id} has a handle already: use that, or close it")
        made = self._handle(id)
        self.journal.put(self._handles, id, ref(made))
        return made

    def _handle(self, id: int) -> Handle:
        return Handle(self, id)

    def _has_handle(self, id: int) -> bool:
        handle = self._handles.get(id)
        return handle is not None and handle() is not None

    def forget(self, id: int) -> None:
        """Take back a sequence's handle."""
        self.journal.drop(self._handles, id)

    # Cached prefixes; see aleator.cache.prefix

    @atomic
    def match(self, tokens: Sequence[int], namespace: str = "") -> Match:
        """Find the longest beginning of ``tokens`` that is cached, and why it is not longer."""
        text = checked_text(tokens, namespace)
        if self.prefix is None:
            return Match(
                0,
                0,
                ("this cache caches no prefixes: create it with prefix=PrefixConfig()",),
                namespace,
            )
        return self.prefix.match(text, namespace)

    @atomic
    def adopt(self, seq: int, match: Match) -> None:
        """Let an empty sequence hold what was found, at positions 0 to ``match.length`` - 1."""
        self._check("seq", seq)
        if self.pool.seq_pos_max(seq) >= 0:
            raise CacheError(f"sequence {seq} is not empty: remove it with seq_rm first")
        if match.length == 0:
            return
        if self.prefix is None or match.text is None or not self.prefix.holds(match):
            raise CacheError("what was matched is not kept any more: match again")
        if self.pool.serves(match.text.seq, match.length) != match.length:
            raise CacheError("what was matched is not kept any more: match again")
        self.pool.adopt(match.text.seq, seq, match.length)

    @atomic
    def reuse(self, seq: int, tokens: Sequence[int], namespace: str = "") -> int:
        """:meth:`match` and :meth:`adopt`; returns how many tokens need not be computed."""
        match = self.match(tokens, namespace)
        self.adopt(seq, match)
        return match.length

    @atomic
    def keep(self, seq: int, tokens: Sequence[int], namespace: str = "") -> bool:
        """Keep the text that a sequence holds, for later ones that begin like it.

        It stays, also after ``seq_rm``, until there is no room for something else.

        Args:
            seq: the sequence.
            tokens: what positions 0, 1, ... were computed from, and nothing else: not what is left after
                something before them was removed.
            namespace: texts of one namespace are never found in another.

        Returns:
            Whether it is kept: not without ``prefix``, nor if all that is kept is pinned, nor of recurrent
            layers if no state of just these tokens is held.

        """
        self._check("seq", seq)
        text = checked_text(tokens, namespace)
        if self.prefix is None or len(text) == 0 or not self.pool.holds(seq, len(text)):
            return False
        return self.prefix.keep(seq, text, namespace)

    @atomic
    def give_up(self, namespace: str) -> int:
        """Forget what is kept in a namespace; what is pinned, and what sequences hold, stays.

        Returns:
            How many cached prefixes there were.

        """
        checked_text((), namespace)
        return 0 if self.prefix is None else self.prefix.give_up(namespace)
