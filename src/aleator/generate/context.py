"""A model with its KV cache: batches of tokens in, rows of logits out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from aleator.cache.arguments import Uncopyable
from aleator.cache.devices import checked_device
from aleator.cache.hybrid import HybridCache
from aleator.cache.kv_cache import KVCache
from aleator.cache.prefix import PrefixConfig, require_config
from aleator.cache.recurrent import RecurrentCache
from aleator.cache.split import RULES
from aleator.cache.storage import storage_type
from aleator.cache.window import WindowCache, window_capacity
from aleator.core.errors import Aborted, InvalidBatch, ParameterError
from aleator.core.integers import integer_in
from aleator.core.threads import checked_threads
from aleator.generate.batch import Batch, checked_inputs
from aleator.models.decoder import Decoder
from aleator.models.layers.native_ssm import NativeSSM
from aleator.models.layers.native_step import NativeStep

log = logging.getLogger(__name__)


class Context(Uncopyable):
    """A decoder, a KV cache of ``n_ctx`` cells, and how to run batches through them.

    Args:
        model: a Decoder, or anything with an attribute ``decoder``.
        n_ctx: cells, shared by all sequences; 0 is the model's own context length.
        n_batch: batches are cut into pieces of at most this many tokens, and
        n_ubatch: those into micro-batches of at most this many, computed at once.
        n_seq_max: sequence ids lie in [0, n_seq_max).
        n_threads: torch's CPU threads while decoding one token, at most 16 per processor; None leaves
            torch's setting.  The setting is the process's, and stays.
        n_threads_batch: the same for more than one token; None is ``n_threads``.
        flash_attn: use torch's fused attention for several tokens, which never holds the scores.
        type_k: type keys are stored in: "f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"
            or "iq4_nl".
        type_v: the same for values.
        offload_kqv: keep the cache and do attention on the decoder's device; otherwise on the CPU.
        device: where logits are returned; None is the decoder's device.
        v_layout: "token" or "channel", how values are laid out; None is llama.cpp's choice, "token" with
            ``flash_attn`` and for types in blocks, else "channel".
        k_storage: "rotated", or "raw": keys are turned when they are read, which makes shifts exact for
            any type and costs time at every token.
        causal_attn: a token sees only those before it; otherwise every token of its sequence, and a
            batch must fit ``n_ubatch`` (not for models with windows or states).
        prefix: keep texts, so that others which begin like them need not compute the beginning again
            (``cache.keep``, ``cache.reuse``); None: do not.
        swa_full: window layers keep every position, so that any rewind and shift is possible; otherwise they
            have as many cells as llama.cpp gives them, and use them again as it does.
        swa_sinks: first positions that window layers keep, and every token sees there too (attention sinks);
            only for models with windows.  Such layers then compute with torch.
        n_rollback: tokens, 0 to 4096, by which a sequence of a recurrent model can be rewound (others: any
            number).
        policy: "unified" or "streams": see :class:`KVCache`.
        compat: None or "llama-2024": see :class:`KVCache`; ``cache.n`` is then padded to 32, or with
            ``flash_attn`` to 256.
        split: how batches are cut: "simple", "equal" or "sequence"; see aleator.cache.split.  None
            is llama.cpp's choice: "equal" with ``policy="streams"``, and for models with attention and
            states; else "simple".
        abort_callback: called before each micro-batch; if it returns True the decode raises Aborted.

    Attributes:
        cache: a KVCache, or of a model with states only a RecurrentCache, which has not all of its verbs.
        rows: logits of the last decode, float32 [rows, n_vocab].

    Raises:
        ParameterError: a value out of range.

    """

    def __init__(
        self,
        model: Any,
        n_ctx: int = 0,
        n_batch: int = 2048,
        n_ubatch: int = 512,
        n_seq_max: int = 1,
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
        flash_attn: bool = True,
        type_k: str = "f16",
        type_v: str = "f16",
        offload_kqv: bool = True,
        device: torch.device | str | None = None,
        v_layout: str | None = None,
        k_storage: str = "rotated",
        causal_attn: bool = True,
        prefix: PrefixConfig | None = None,
        n_rollback: int = 0,
        swa_full: bool = False,
        swa_sinks: int = 0,
        policy: str = "unified",
        compat: str | None = None,
        split: str | None = None,
        abort_callback: Callable[[], bool] | None = None,
    ) -> None:
        decoder = model if isinstance(model, Decoder) else getattr(model, "decoder", None)
        if not isinstance(decoder, Decoder):
            raise ParameterError("model", f"model must be a Decoder or have one, not {model!r}")
        self.decoder = decoder
        trained = decoder.config.context_length
        _at_least("n_seq_max", n_seq_max, 1, 4096)
        n_ctx = _at_least("n_ctx", n_ctx, 0) or trained
        if n_ctx > trained * n_seq_max:
            log.warning("n_ctx %d is more than the %d the model was made for", n_ctx, trained)
        self.n_ctx = n_ctx
        self.n_batch = min(_at_least("n_batch", n_batch, 1), n_ctx)
        self.n_ubatch = min(_at_least("n_ubatch", n_ubatch, 1), self.n_batch)
        self.n_seq_max = n_seq_max
        _at_least("n_rollback", n_rollback, 0, 4096)
        if not causal_attn and (decoder.recurrent or decoder.config.window is not None):
            why = "a state knows" if decoder.recurrent else "windows know"
            raise ParameterError(
                "causal_attn", f"causal_attn=False: {why} no later tokens; use causal_attn=True"
            )
        self.n_vocab = decoder.config.n_vocab
        if n_threads is not None:
            n_threads = checked_threads("n_threads", n_threads)
        if n_threads_batch is not None:
            n_threads_batch = checked_threads("n_threads_batch", n_threads_batch)
        require_config(prefix)
        if swa_sinks and decoder.config.window is None:
            raise ParameterError("swa_sinks", f"swa_sinks={swa_sinks}: this model has no windows")
        self.n_threads = n_threads
        self.n_threads_batch = n_threads if n_threads_batch is None else n_threads_batch
        self.flash_attn, self.causal_attn = flash_attn, causal_attn
        mixed = bool(decoder.recurrent and decoder.blocks)
        self.split = split or ("equal" if policy == "streams" or mixed else "simple")
        if self.split not in RULES:
            raise ParameterError("split", f"split must be one of {', '.join(RULES)}, not {split!r}")
        self.abort_callback = abort_callback
        self.device = decoder.device if device is None else checked_device("device", device)
        self._native: Any = None
        self.cache: KVCache
        states: RecurrentCache | None = None
        if decoder.recurrent:
            states = RecurrentCache(
                decoder.recurrent_shapes,
                n_seq_max=n_seq_max,
                rollback=n_rollback,
                device=decoder.device,
                prefix=prefix,
                architecture=decoder.config.architecture,
                n_layers=decoder.config.n_layers,
            )
        if states is not None and not decoder.blocks:
            if NativeSSM.supports(decoder, states):
                self._native = NativeSSM(decoder, states)
            self.cache = cast(Any, states)  # with the same verbs, but for those of cells
        else:
            by_token = flash_attn or storage_type("type_v", type_v).block > 1
            options: dict[str, Any] = {
                "n_seq_max": n_seq_max,
                "type_k": type_k,
                "type_v": type_v,
                "device": decoder.device if offload_kqv else "cpu",
                "rotate": decoder.shift_keys,
                "v_layout": v_layout or ("token" if by_token else "channel"),
                "k_storage": k_storage,
                "policy": policy,
                "compat": compat,
                "pad": 256 if flash_attn or compat is None else 32,
                "architecture": decoder.config.architecture,
            }
            shapes = decoder.cache_shapes
            if states is not None:
                self.cache = HybridCache(shapes, n_ctx, recurrent=states, prefix=prefix, **options)
            elif decoder.config.window is None:
                self.cache = KVCache(shapes, n_ctx, prefix=prefix, **options)
            else:
                self.cache = self._hybrid(decoder, prefix, swa_full, swa_sinks, options)
            if NativeStep.supports(decoder, self.cache):
                self._native = NativeStep(decoder, self.cache)
        self.rows: torch.Tensor | None = None  # also for SamplerChain.sample(ctx)
        self._wanted: list[int] = []  # batch indices of the rows

    def _hybrid(
        self,
        decoder: Decoder,
        prefix: PrefixConfig | None,
        full: bool,
        sinks: int,
        options: dict[str, Any],
    ) -> HybridCache:
        """Layers that see everything, and beside them those with a window."""
        window = decoder.config.window
        assert window is not None  # noqa: S101  the caller has looked
        capacity = self.n_ctx
        if not full:
            shares = self.n_seq_max if options["policy"] == "streams" else 1
            capacity = shares * window_capacity(
                window.size,
                self.n_ctx // shares,
                self.n_seq_max // shares,
                self.n_ubatch,
                sinks,
            )
            if prefix:
                cell = sum(
                    KVCache.bytes_for(
                        decoder.window_shapes, 1, options["type_k"], options["type_v"]
                    )
                )
                capacity = min(self.n_ctx, capacity + prefix.bytes // cell)
        own = {
            "rotate": decoder.shift_window_keys,
            "n_seq_max": self.n_seq_max + (prefix.texts if prefix else 0),
            "compat": None,
        }
        pool = WindowCache(
            decoder.window_shapes,
            capacity,
            window=window.size,
            sinks=sinks,
            ring=not (full or prefix),
            expendable=self.n_seq_max,
            **(options | own),
        )
        shapes = decoder.cache_shapes
        return HybridCache(shapes, self.n_ctx, window=pool, prefix=prefix, **options)

    def decode(self, batch: Batch) -> torch.Tensor:
        """Run a batch of any length and store its tokens in the cache.

        Whatever is raised, KeyboardInterrupt included, leaves the cache exactly as it was.

        Returns:
            Logits of the tokens that wanted them, float32 [rows, n_vocab], in batch order.

        Raises:
            InvalidBatch: a rule is broken; names the token.
            CacheFull: not enough free cells.
            Aborted: ``abort_callback`` said so.

        """
        if not isinstance(batch, Batch):
            raise InvalidBatch(-1, f"decode takes a Batch, not {batch!r}")
        with torch.inference_mode(), ExitStack() as stack:
            if self.cache.do_defrag:
                stack.enter_context(self.cache.step()).defrag_if_asked()
            return self._decode(batch)

    def _decode(self, batch: Batch) -> torch.Tensor:
        config = self.decoder.config
        plan = self.cache.plan(
            batch,
            n_ubatch=self.n_ubatch,
            n_batch=self.n_batch,
            rule=self.split,
            causal=self.causal_attn,
        )
        inputs = checked_inputs(batch, config.n_vocab, config.n_embd)
        self._set_threads(len(plan))
        rows: list[torch.Tensor] = []
        with self.cache.step(plan) as step:
            for part in step:
                if self.abort_callback is not None and self.abort_callback():
                    raise Aborted(len(rows))
                rows.append(self._compute(inputs[part.tokens], part))
            out = rows[0] if len(rows) == 1 else torch.cat(rows)
            if plan.rows is not None:
                out = out[torch.from_numpy(plan.rows).to(out.device)]
            self.rows, self._wanted = out.to(self.device), batch.wanted()
            return self.rows

    def logits(self, i: int) -> torch.Tensor:
        """Logits of one token of the last decoded batch, float32 [n_vocab].

        Args:
            i: its index in the batch; negative counts back from the last token that wanted logits.

        Raises:
            IndexError: there is no such token, or it wanted none.

        """
        if self.rows is None:
            raise IndexError("nothing has been decoded yet")
        n = len(self._wanted)
        if i < 0 and -i <= n:
            return self.rows[i]
        if i < 0 or i not in self._wanted:
            raise IndexError(
                f"token {i} of the last batch has no logits: {n} have, with the batch indices "
                f"{', '.join(map(str, self._wanted[:8]))}{', ...' if n > 8 else ''}"
            )
        return self.rows[self._wanted.index(i)]

    def rewindable(self, n_sequences: int) -> int:
        """Tokens by which each of so many sequences can be rewound after a decode that advances them together.

        Windows forget only what the first token of a micro-batch does not see any more, so one micro-batch can
        be taken back.
        """
        least = self.cache.rewindable
        if isinstance(self.cache, HybridCache):
            least = min(least, self.n_ubatch // n_sequences - 1)
        return max(0, least)

    def state_write(self, seq: int = -1, **options: Any) -> bytes:
        """``cache.state_write``: the logits of the last decode are not part of the state."""
        return self.cache.state_write(seq, **options)

    def state_read(self, blob: bytes | memoryview, seq: int = -1, **options: Any) -> int:
        """``cache.state_read``."""
        return self.cache.state_read(blob, seq, **options)

    def _compute(
        self, inputs: npt.NDArray[np.int64] | npt.NDArray[np.float32], part: Any
    ) -> torch.Tensor:
        if self._native is not None:
            logits: torch.Tensor = self._native.run(inputs, part.positions, part, part.wanted)
            return logits
        return self.decoder.forward(inputs, part.positions, part, part.wanted, self.flash_attn)

    def _set_threads(self, n_tokens: int) -> None:
        wanted = self.n_threads if n_tokens == 1 else self.n_threads_batch
        if wanted is not None and wanted != torch.get_num_threads():
            torch.set_num_threads(wanted)


def _at_least(name: str, value: int, low: int, high: int | None = None) -> int:
    return integer_in(name, value, low, 2**31 - 1 if high is None else high)
