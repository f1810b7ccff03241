"""A model with its KV cache: batches of tokens in, rows of logits out; and prefixes lent to another one."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Unpack, runtime_checkable

import numpy as np

from aleator.cache.arguments import Uncopyable
from aleator.cache.builder import build_cache
from aleator.cache.cells.split import Cuts
from aleator.cache.devices import checked_device
from aleator.cache.pools.hybrid import HybridPool
from aleator.cache.prefix import PrefixConfig
from aleator.core.errors import (
    Aborted,
    CacheBusy,
    CacheError,
    InvalidBatch,
    NoLogits,
    ParameterError,
)
from aleator.core.integers import integer
from aleator.core.options import declarations, takes
from aleator.core.threads import MAX_THREADS
from aleator.generate.batch import Batch, checked_inputs
from aleator.generate.options import ContextOptions
from aleator.models.decoder import Decoder

if TYPE_CHECKING:
    from aleator.keywords import ContextKeywords


log = logging.getLogger(__name__)


@runtime_checkable
class HasDecoder(Protocol):
    """What a context can be made of besides a decoder, such as :class:`aleator.LanguageModel`."""

    @property
    def decoder(self) -> Decoder:
        """The network."""
        ...


_left: list[Context] = []
# Contexts of a forked process's parent that a thread was using there; they are never freed.


@takes(declarations(ContextOptions).values())
class Context(Uncopyable):
    """A decoder, a KV cache of ``n_ctx`` cells, and how to run batches through them.

    Args:
        model: a Decoder, or what has one as its attribute ``decoder``.
        prefix: cache prefixes, so that others which begin like them need not compute the beginning again
            (``cache.keep``, ``cache.reuse``); None: do not.
        abort_callback: called before each micro-batch; if it returns True the decode raises Aborted.
        options: fields of :class:`aleator.generate.options.ContextOptions`.

    Attributes:
        decoder: the model's.
        device: where logits arrive.
        cache: a KVCache, a HybridCache or a RecurrentCache, as the model needs it.

    Raises:
        ParameterError: a value out of range.
    """

    def __init__(
        self,
        model: Decoder | HasDecoder,
        *,
        prefix: PrefixConfig | None = None,
        abort_callback: Callable[[], bool] | None = None,
        **options: Unpack[ContextKeywords],
    ) -> None:
        chosen = ContextOptions.of(options)
        n_ctx, n_seq_max, flash_attn = chosen.n_ctx, chosen.n_seq_max, chosen.flash_attn
        policy, causal_attn = chosen.policy, chosen.causal_attn
        decoder = model.decoder if isinstance(model, HasDecoder) else model
        if not isinstance(decoder, Decoder):
            raise ParameterError("model", f"model must be a Decoder or have one, not {model!r}")
        trained = decoder.config.context_length
        n_ctx = n_ctx or trained
        self.decoder = decoder = decoder.in_context(n_ctx)
        if n_ctx > trained * n_seq_max:
            log.warning("n_ctx=%d: the model was trained with %d positions", n_ctx, trained)
        self.n_ctx = n_ctx
        self.n_batch = min(chosen.n_batch, n_ctx)
        self.n_ubatch = min(chosen.n_ubatch, self.n_batch)
        self.n_seq_max = n_seq_max
        if not causal_attn and (decoder.recurrent_shapes or decoder.config.window is not None):
            why = "a state knows" if decoder.recurrent_shapes else "windows know"
            raise ParameterError(
                "causal_attn", f"causal_attn=False: {why} no later tokens; use causal_attn=True"
            )
        self.n_vocab = decoder.config.n_vocab
        n_threads, n_threads_batch = chosen.n_threads, chosen.n_threads_batch
        self.n_threads = n_threads
        self.n_threads_batch = n_threads if n_threads_batch is None else n_threads_batch
        self.flash_attn, self.causal_attn = flash_attn, causal_attn
        mixed = bool(decoder.recurrent_shapes and decoder.cache_shapes)
        self.split = chosen.split or ("equal" if policy == "streams" or mixed else "simple")
        self.abort_callback = abort_callback
        self.device = (
            decoder.device if chosen.device is None else checked_device("device", chosen.device)
        )
        computed = decoder.hidden() if chosen.embeddings else decoder
        self.cache = build_cache(decoder.cache_layers, chosen, n_ctx, self.n_ubatch, prefix)
        self._step = computed.over(self.cache.pool, flash_attn)
        self.cache.journal.lock_timeout = chosen.lock_timeout
        self._process = os.getpid()
        # The last decode's logits and their tokens' batch indices.
        self._last: tuple[Any, list[int]] = (None, [])

    def decode(self, batch: Batch) -> Any:
        """Run a batch of any length and store its tokens in the cache.

        Whatever is raised, KeyboardInterrupt included, leaves the cache exactly as it was.

        Returns:
            Logits of the tokens that wanted them, float32 [rows, n_vocab], in batch order; with
            ``embeddings`` their hidden states after the last norm, [rows, n_embd].  NumPy's array where
            :attr:`device` is the CPU, else a tensor of PyTorch's on it.

        Raises:
            InvalidBatch: a rule is broken; names the token.
            CacheFull: not enough free cells.
            Aborted: ``abort_callback`` said so.
            CacheBusy: another thread has used the cache for longer than ``lock_timeout``.
            FileFormatError: a matrix of a large file, whose bytes are looked at while the first tokens are
                made, holds NaN or an infinity.
        """
        if not isinstance(batch, Batch):
            raise InvalidBatch(-1, f"decode takes a Batch, not {batch!r}")
        return self.cache.journal.run(self._decode, batch)

    def _decode(self, batch: Batch) -> Any:
        pool, config, check = self.cache.pool, self.decoder.config, self.decoder.weights.check
        check.raise_found()
        pool.defrag_if_asked()
        cuts = Cuts(self.n_ubatch, self.n_batch, self.split, causal=self.causal_attn)
        plan = pool.plan(batch, cuts)
        inputs = checked_inputs(batch, config.n_vocab, config.n_embd)
        threads = self.n_threads if len(plan) == 1 else self.n_threads_batch
        if threads is not None:
            threads = min(threads, MAX_THREADS)
        rows: list[Any] = []
        pool.prepare(plan)
        for part in pool.carried_out(plan):
            if self.abort_callback is not None and self.abort_callback():
                raise Aborted(len(rows))
            given = inputs[part.tokens]
            rows.append(self._step.run(given, part.positions, part, part.wanted, threads))
        out = self._step.joined(rows, plan.rows, self.device)
        if isinstance(out, np.ndarray):
            check.raise_found(out)
        pool.journal.set(self, "_last", (out, batch.wanted()))
        return out

    @property
    def rows(self) -> Any:
        """Logits of the last decode as :meth:`decode` gave them; None before the first."""
        return self._last[0]

    def logits(self, i: int) -> Any:
        """Logits of one token of the last decoded batch, float32 [n_vocab], as :meth:`decode` gave them.

        Args:
            i: its index in the batch, as for llama.cpp's ``llama_get_logits_ith``; negative counts back from
                the last token that wanted logits.  A decode that fails leaves the batch before it the last.

        Raises:
            NoLogits: there is no such token, it wanted none, or nothing was decoded.  It is an IndexError too.
            ParameterError: ``i`` is not an integer.
        """
        rows, wanted = self._last
        index = integer("i", i)
        if rows is None:
            raise NoLogits("i", index, None)
        if -len(wanted) <= index < 0:
            return rows[index]
        if index not in wanted:
            raise NoLogits("i", index, wanted)
        return rows[wanted.index(index)]

    def stayed_behind(self) -> bool:
        """Whether this is a fork's child, and another thread was changing the cache: nothing can use it."""
        if self._process == os.getpid():
            return False
        journal = self.cache.journal
        timeout, journal.lock_timeout = journal.lock_timeout, 0.0
        try:
            journal.run(bool)
        except CacheBusy:
            _left.append(self)
            return True
        finally:
            journal.lock_timeout = timeout
        self._process = os.getpid()
        return False

    def rewindable(self, n_sequences: int) -> int:
        """Tokens by which each of so many sequences can be rewound after a decode that advances them together.

        Windows forget only what the first token of a micro-batch does not see any more, so one micro-batch can
        be taken back.
        """
        least = self.cache.rewindable
        if isinstance(self.cache.pool, HybridPool):
            least = min(least, self.n_ubatch // n_sequences - 1)
        return max(0, least)

    def state_write(self, seq: int = -1, **options: Any) -> bytes:
        """``cache.state_write``: the logits of the last decode are not part of the state."""
        return self.cache.state_write(seq, **options)

    def state_read(self, blob: bytes | memoryview, seq: int = -1, **options: Any) -> int:
        """``cache.state_read``."""
        return self.cache.state_read(blob, seq, **options)


SPARE = 1
"""The sequence of a lending context that is empty but while rows are copied."""


LEAST = 16
"""Tokens from which on copying is worth its while."""


class Prefixes(Protocol):
    """What a run needs of the prompt cache; a cache that keeps prefixes is one."""

    def reuse(self, seq: int, tokens: Sequence[int], namespace: str = "") -> int:
        """Give an empty sequence the longest cached beginning of ``tokens``; returns its length."""

    def keep(self, seq: int, tokens: Sequence[int], namespace: str = "") -> bool:
        """Keep the beginning that a sequence holds; returns whether it is kept."""


class LentPrefixes:
    """The prefixes that one context keeps, for a run in another one of the same model.

    One context for all would reserve the most that a batch may ever need.  Rows are copied bit for bit,
    both ways.  Where there is no room for them, nothing is found or kept.  What a run computes is kept
    where at least a quarter of it is new, since a copy shares no cells; and of one run at most as many
    tokens as the owner has cells, prompts first.  The owner's sequence ``SPARE`` is empty.
    """

    def __init__(self, owner: Context, borrower: Context) -> None:
        self._owner, self._borrower = owner.cache, borrower.cache
        self._left = owner.n_ctx

    def reuse(self, seq: int, tokens: Sequence[int], namespace: str = "") -> int:
        """See :class:`Prefixes`."""
        if self._owner.match(tokens, namespace).length < LEAST:
            return 0
        try:
            held = self._owner.reuse(SPARE, tokens, namespace)
            self._borrower.state_read(self._owner.state_write(SPARE), seq)
        except CacheError:
            return 0
        finally:
            self._owner.seq_rm(SPARE, -1, -1)
        return held

    def keep(self, seq: int, tokens: Sequence[int], namespace: str = "") -> bool:
        """See :class:`Prefixes`."""
        missing = len(tokens) - self._owner.match([*tokens, 0], namespace).length
        if missing < max(LEAST, len(tokens) // 4) or len(tokens) > self._left:
            return False
        self._left -= len(tokens)
        try:
            self._owner.state_read(self._borrower.state_write(seq), SPARE)
            return self._owner.keep(SPARE, tokens, namespace)
        except CacheError:
            return False
        finally:
            self._owner.seq_rm(SPARE, -1, -1)
