"""A model with its KV cache: batches of tokens in, logits out."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Unpack, runtime_checkable

import numpy as np

from aleator.cache.batches import Cuts
from aleator.cache.devices import checked_device
from aleator.cache.kv_cache import build_cache
from aleator.cache.options import HoldsCells
from aleator.cache.pools.hybrid import HybridPool
from aleator.cache.prefix_index import Match, PrefixConfig
from aleator.core.arrays import Floats, Int64s
from aleator.core.errors import (
    Aborted,
    CacheBusy,
    InvalidBatch,
    NoLogits,
    ParameterError,
)
from aleator.core.integers import exact, first_inexact, integer
from aleator.core.options import declarations, takes
from aleator.core.threads import MAX_THREADS
from aleator.generate.options import ContextOptions
from aleator.generate.sequence_adapters import SequenceAdapters
from aleator.models.decoder import Decoder
from aleator.models.step import Draw

if TYPE_CHECKING:
    from aleator.keywords import ContextKeywords


class Batch:
    """A list of tokens for :meth:`Context.decode`.

    Positions left out (None) continue their sequence; sequences left out are [0]; if no token says
    whether its logits are wanted, only the last one's are.
    """

    __slots__ = ("embeddings", "logits", "positions", "sequences", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.embeddings: list[Floats] = []
        self.positions: list[int | tuple[int, ...] | None] = []
        self.sequences: list[Sequence[int]] = []
        self.logits: list[bool | None] = []

    @classmethod
    def one(
        cls, tokens: Iterable[int], pos: int | None = None, seq: int = 0, logits: bool | None = None
    ) -> Batch:
        """A batch of consecutive tokens of one sequence.

        Args:
            tokens: token ids.
            pos: position of the first; None continues the sequence.
            seq: sequence id.
            logits: True or False for every token; None wants only the last one's.

        Raises:
            InvalidBatch: a token, the position or the sequence is not an integer.
        """
        batch = cls()
        if not isinstance(tokens, Iterable):
            raise InvalidBatch(-1, f"tokens must be a list of token ids, not {tokens!r}")
        given = list(tokens)
        wrong = first_inexact(given)
        if wrong is not None:
            raise InvalidBatch(wrong, f"token {given[wrong]!r} is not an integer")
        batch.tokens = list(map(int, given))
        if pos is not None:
            pos = _integer(0, "position", pos)
        seq = _integer(0, "sequence", seq)
        n = len(batch.tokens)
        batch.positions = [None] * n if pos is None else list(range(pos, pos + n))
        batch.sequences = [(seq,)] * n
        batch.logits = [logits] * n
        return batch

    def add(
        self,
        token: int,
        pos: int | None = None,
        seqs: Sequence[int] = (0,),
        logits: bool | None = None,
    ) -> None:
        """Append one token that all of ``seqs`` share.

        Raises:
            InvalidBatch: the token, a position or a sequence is not an integer, or a sequence is named twice.
        """
        number = _integer(len(self), "token", token)
        self._append(pos, seqs, logits)
        self.tokens.append(number)

    def add_run(self, tokens: Sequence[int], pos: int, seq: int) -> None:
        """Append tokens of one sequence from ``pos`` on, all with logits; nothing is checked here."""
        n = len(tokens)
        self.tokens += tokens
        self.positions += range(pos, pos + n)
        self.sequences += [(seq,)] * n
        self.logits += [True] * n

    def add_embedding(
        self,
        embedding: Any,
        pos: int | Sequence[int] | None = None,
        seqs: Sequence[int] = (0,),
        logits: bool | None = None,
    ) -> None:
        """Append one input vector [n_embd] in place of a token's embedding.

        ``pos``: (t, y, x, z) where the cache keeps four positions per token (M-RoPE).
        """
        try:
            vector = np.asarray(embedding, dtype=np.float32)
        except (ValueError, TypeError):
            raise InvalidBatch(len(self), "an embedding is a list of numbers, [n_embd]") from None
        if vector.ndim != 1:
            raise InvalidBatch(len(self), f"an embedding is [n_embd], not {list(vector.shape)}")
        self._append(pos, seqs, logits)
        self.embeddings.append(vector)

    def _append(
        self, pos: int | Sequence[int] | None, seqs: Sequence[int], logits: bool | None
    ) -> None:
        i = len(self)
        if not isinstance(seqs, Iterable):
            raise InvalidBatch(i, f"sequences must be a list of ids, not {seqs!r}")
        ids = tuple(_integer(i, "sequence", s) for s in seqs)
        if len(set(ids)) < len(ids):
            raise InvalidBatch(i, f"sequences {list(ids)} name one twice")
        place: int | tuple[int, ...] | None = None
        if isinstance(pos, Sequence):
            place = tuple(_integer(i, "position", p) for p in pos)
        elif pos is not None:
            place = _integer(i, "position", pos)
        self.positions.append(place)
        self.sequences.append(ids)
        self.logits.append(logits)

    def __len__(self) -> int:
        return len(self.positions)

    def outputs(self) -> list[int]:
        """Indices of the tokens whose logits are computed, ascending."""
        if all(flag is None for flag in self.logits):
            return [len(self) - 1] if len(self) else []
        return [i for i, flag in enumerate(self.logits) if flag]


def _integer(i: int, what: str, value: object) -> int:
    """``value`` of token ``i`` as an int; InvalidBatch if it is none."""
    number = exact(value)
    if number is None:
        raise InvalidBatch(i, f"{what} {value!r} is not an integer")
    return number


def checked_inputs(batch: Batch, n_vocab: int, n_embd: int) -> Int64s | Floats:
    """What the batch's tokens are: ids, int64 [T], or input vectors, float32 [T, n_embd]."""
    if batch.tokens and batch.embeddings:
        raise InvalidBatch(-1, "a batch holds either tokens or embeddings, not both")
    if batch.embeddings:
        return _checked_embeddings(batch.embeddings, n_embd)
    wrong = first_inexact(batch.tokens)
    if wrong is not None:
        raise InvalidBatch(wrong, f"token {batch.tokens[wrong]!r} is not an integer")
    for i, token in enumerate(batch.tokens):
        if not 0 <= token < n_vocab:
            raise InvalidBatch(i, f"token {token} is outside the vocabulary [0, {n_vocab})")
    return np.array(batch.tokens, dtype=np.int64)


def _checked_embeddings(vectors: list[Floats], n_embd: int) -> Floats:
    for i, vector in enumerate(vectors):
        if len(vector) != n_embd:
            raise InvalidBatch(i, f"the embedding has {len(vector)} values, the model {n_embd}")
    made = np.array(vectors)
    finite = np.isfinite(made)
    if not finite.all():
        raise InvalidBatch(int(finite.all(1).argmin()), "the embedding holds NaN or infinity")
    return made


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
class Context(HoldsCells):
    """A decoder, a KV cache of ``n_ctx`` cells, and how to run batches through them.

    Args:
        model: a Decoder, or what has one as its attribute ``decoder``.
        prefix: cache prefixes, so that texts with the same beginning need not compute it again
            (``cache.keep``, ``cache.reuse``); None: do not.
        abort_callback: called before each micro-batch; if it returns True the decode raises Aborted.
        options: fields of :class:`aleator.generate.options.ContextOptions`.

    Attributes:
        decoder: the model's.
        device: where logits arrive.
        adapters: which adapters each sequence has.
        hidden: what the decoder's ``tapped`` layers took of the last batch, float32 [tokens, layers, n_embd].
        cache: a KVCache, a HybridCache or a RecurrentCache, as the model needs it.
        idle_chains: device chains of runs that are over, whose graphs of steps the next run can replay.

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
        decoder = model.decoder if isinstance(model, HasDecoder) else model
        if not isinstance(decoder, Decoder):
            raise ParameterError(f"model must be a Decoder or have one, not {model!r}")
        trained = decoder.config.context_length
        n_ctx, n_seq_max = chosen.n_ctx or trained, chosen.n_seq_max
        self.decoder = decoder = decoder.in_context(n_ctx)
        if n_ctx > trained * n_seq_max:
            log.warning("n_ctx=%d: the model was trained with %d positions", n_ctx, trained)
        self.n_ctx, self.n_batch = n_ctx, min(chosen.n_batch, n_ctx)
        self.n_ubatch = min(chosen.n_ubatch, self.n_batch)
        self.flash_attn, self.causal_attn = chosen.flash_attn, chosen.causal_attn
        self.n_seq_max, self.policy = n_seq_max, chosen.policy
        if not self.causal_attn and (decoder.recurrent_shapes or decoder.config.window is not None):
            why = "a state knows" if decoder.recurrent_shapes else "windows know"
            raise ParameterError(f"causal_attn=False: {why} no later tokens; use causal_attn=True")
        self.n_vocab = decoder.config.n_vocab
        self.n_threads, batch = chosen.n_threads, chosen.n_threads_batch
        self.n_threads_batch = self.n_threads if batch is None else batch
        mixed = bool(decoder.recurrent_shapes and decoder.cache_shapes)
        self.split = chosen.split or ("equal" if chosen.policy == "streams" or mixed else "simple")
        self.abort_callback, self._process = abort_callback, os.getpid()
        self.adapters = SequenceAdapters(decoder.adapters)
        self.device = (
            decoder.device if chosen.device is None else checked_device("device", chosen.device)
        )
        computed = decoder.hidden() if chosen.embeddings else decoder
        self.cache = build_cache(decoder.cache_layers, chosen, n_ctx, self.n_ubatch, prefix)
        self.cache.arithmetic = decoder.weights.arithmetic
        self._step = computed.over(self.cache.pool, self.flash_attn)
        self.cache.journal.lock_timeout = chosen.lock_timeout
        self.idle_chains: dict[Hashable, Any] = {}
        self._last: tuple[Any, list[int]] = (None, [])  # logits, and their tokens' batch indices
        # What the decoder's `tapped` layers took of the last batch, [tokens, layers, n_embd], if there are any
        self.hidden: Floats | None = None

    def decode(self, batch: Batch, draw: Draw | None = None) -> Any:
        """Run a batch of any length and store its tokens in the cache.

        Any exception, KeyboardInterrupt included, leaves the cache exactly as it was.  ``draw`` gets the logits
        if those of all tokens are wanted, and one micro-batch has them in order.

        Returns:
            Logits of the tokens that wanted them, float32 [rows, n_vocab], in batch order; with
            ``embeddings`` their hidden states after the last norm, [rows, n_embd].  A NumPy array if
            :attr:`device` is the CPU, else a PyTorch tensor on it.

        Raises:
            InvalidBatch: a rule is broken; names the token.
            CacheFull: not enough free cells.
            Aborted: ``abort_callback`` said so.
            CacheBusy: another thread has used the cache for longer than ``lock_timeout``.
            FileFormatError: a matrix holds NaN or an infinity.  Matrices of a large file are checked while
                the first tokens are computed.
        """
        if not isinstance(batch, Batch):
            raise InvalidBatch(-1, f"decode takes a Batch, not {batch!r}")
        return self.cache.journal.run(self._decode, batch, draw)

    def _decode(self, batch: Batch, draw: Draw | None) -> Any:
        pool, config, check = self.cache.pool, self.decoder.config, self.decoder.weights.check
        check.raise_found()
        pool.defrag_if_asked()
        cuts = Cuts(self.n_ubatch, self.n_batch, self.split, causal=self.causal_attn)
        plan = pool.plan(batch, cuts)
        inputs = checked_inputs(batch, config.n_vocab, self.decoder.n_input)
        adapters = self.adapters.of(batch.sequences)
        threads = self.n_threads if len(plan) == 1 else self.n_threads_batch
        if threads is not None:
            threads = min(threads, MAX_THREADS)
        rows: list[Any] = []
        hidden: Floats | None = None
        n_taps = len(self.decoder.tapped)
        pool.prepare(plan)
        for part in pool.micro_batches(plan):
            if self.abort_callback is not None and self.abort_callback():
                raise Aborted(len(rows))
            given = inputs[part.tokens]
            whole = draw if len(part.outputs) == len(plan) and plan.rows is None else None
            own = adapters(part.tokens, part.positions)
            about = part.positions, part, part.outputs, threads, whole, own
            rows.append(self._step.run(given, *about))
            if n_taps and len(given) == len(batch) and isinstance(part.tokens, slice):
                hidden = self._step.taps
            elif n_taps:
                if hidden is None:
                    hidden = np.empty((len(batch), n_taps, config.n_embd), np.float32)
                hidden[part.tokens] = self._step.taps
        out = self._step.joined(rows, plan.rows, self.device)
        if isinstance(out, np.ndarray):
            check.raise_found(out)
        pool.journal.set(self, "_last", (out, batch.outputs()))
        pool.journal.set(self, "hidden", hidden)
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
        rows, outputs = self._last
        index = integer("i", i)
        if rows is None:
            raise NoLogits("i", index, None)
        if -len(outputs) <= index < 0:
            return rows[index]
        if index not in outputs:
            raise NoLogits("i", index, outputs)
        return rows[outputs.index(index)]

    def unusable_after_fork(self) -> bool:
        """Whether another thread was changing the cache when this process was forked, so it is useless here."""
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
        """How many tokens each sequence can be rewound after a decode that advances ``n_sequences`` together.

        Windows forget only what the first token of a micro-batch no longer sees, so one micro-batch can be
        taken back.
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


class Prefixes(Protocol):
    """The prompt cache of a run: :class:`Cache`, :class:`CopiedPrefixes`, or what stands before one of them."""

    def match(self, tokens: Sequence[int], namespace: str = "") -> Match:
        """The longest cached beginning of ``tokens``."""

    def reuse(self, seq: int, tokens: Sequence[int], namespace: str = "") -> int:
        """Give an empty sequence the longest cached beginning of ``tokens``; returns its length."""

    def keep(self, seq: int, tokens: Sequence[int], namespace: str = "") -> bool:
        """Keep the beginning that a sequence holds; returns whether it is kept."""
