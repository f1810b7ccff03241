"""A model with its KV cache: batches of tokens in, rows of logits out."""

from __future__ import annotations

import logging
from typing import Any

import torch

from aleator.cache.kv_cache import KVCache
from aleator.cache.prefix import PrefixConfig
from aleator.cache.step import Step
from aleator.cache.storage import storage_type
from aleator.core.errors import InvalidBatch, ParameterError
from aleator.generate.batch import Batch, CheckedBatch
from aleator.models.decoder import Decoder
from aleator.models.layers.native_step import NativeStep

log = logging.getLogger(__name__)


class Context:
    """A decoder, a KV cache of ``n_ctx`` cells, and how to run batches through them.

    Args:
        model: a Decoder, or anything with an attribute ``decoder``.
        n_ctx: cells, shared by all sequences; 0 is the model's own context length.
        n_batch: batches are cut into pieces of at most this many tokens, and
        n_ubatch: those into micro-batches of at most this many, computed at once.
        n_seq_max: sequence ids lie in [0, n_seq_max).
        n_threads: torch's CPU threads while decoding one token; None leaves torch's setting.  The
            setting is the process's, and stays.
        n_threads_batch: the same for more than one token; None is ``n_threads``.
        flash_attn: use torch's fused attention for several tokens, which never holds the scores.
        type_k: type keys are stored in: "f32", "f16", "bf16", "q8_0" or "q4_0".
        type_v: the same for values.
        offload_kqv: keep the cache and do attention on the decoder's device; otherwise on the CPU.
        device: where logits are returned; None is the decoder's device.
        v_layout: "token" or "channel", how values are laid out; None is llama.cpp's choice, "token" with
            ``flash_attn`` and for q8_0 and q4_0, else "channel".
        k_storage: "rotated", or "raw": keys are turned when they are read, which makes shifts exact for
            any type and costs time at every token.
        causal_attn: a token sees only those before it; otherwise every token of its sequence, and a
            batch must fit ``n_ubatch``.
        prefix: keep texts, so that others which begin like them need not compute the beginning again
            (``cache.keep``, ``cache.reuse``); None: do not.

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
    ) -> None:
        decoder = model if isinstance(model, Decoder) else getattr(model, "decoder", None)
        if not isinstance(decoder, Decoder):
            raise ParameterError("model", f"model must be a Decoder or have one, not {model!r}")
        self.decoder = decoder
        trained = decoder.config.context_length
        n_ctx = _at_least("n_ctx", n_ctx, 0) or trained
        if n_ctx > trained * n_seq_max:
            log.warning("n_ctx %d is more than the %d the model was made for", n_ctx, trained)
        self.n_ctx = n_ctx
        self.n_batch = min(_at_least("n_batch", n_batch, 1), n_ctx)
        self.n_ubatch = min(_at_least("n_ubatch", n_ubatch, 1), self.n_batch)
        self.n_seq_max = n_seq_max
        self.n_vocab = decoder.config.n_vocab
        if n_threads is not None:
            _at_least("n_threads", n_threads, 1)
        if n_threads_batch is not None:
            _at_least("n_threads_batch", n_threads_batch, 1)
        self.n_threads = n_threads
        self.n_threads_batch = n_threads if n_threads_batch is None else n_threads_batch
        self.flash_attn, self.causal_attn = flash_attn, causal_attn
        self.device = decoder.device if device is None else torch.device(device)
        self.cache = KVCache(
            decoder.cache_shapes,
            n_ctx,
            n_seq_max=n_seq_max,
            type_k=type_k,
            type_v=type_v,
            device=decoder.device if offload_kqv else "cpu",
            rotate=decoder.shift_keys,
            v_layout=v_layout
            or ("token" if flash_attn or storage_type("type_v", type_v).block > 1 else "channel"),
            k_storage=k_storage,
            prefix=prefix,
            architecture=decoder.config.architecture,
        )
        self.rows: torch.Tensor | None = (
            None  # logits of the last decode, for SamplerChain.sample(ctx)
        )
        self._native = (
            NativeStep(decoder, self.cache) if NativeStep.supports(decoder, self.cache) else None
        )

    def decode(self, batch: Batch) -> torch.Tensor:
        """Run a batch of any length and store its tokens in the cache.

        Whatever is raised, KeyboardInterrupt included, leaves the cache exactly as it was.

        Returns:
            Logits of the tokens that wanted them, float32 [rows, n_vocab], in batch order.

        Raises:
            InvalidBatch: a rule is broken; names the token.
            CacheFull: not enough free cells.

        """
        config = self.decoder.config
        checked = CheckedBatch(
            batch, self.cache.cells, self.n_seq_max, config.n_vocab, config.n_embd
        )
        n = len(checked.positions)
        if not self.causal_attn and n > self.n_ubatch:
            raise InvalidBatch(
                -1,
                f"{n} tokens that see each other must be computed at once, and n_ubatch is "
                f"{self.n_ubatch}: pass fewer, or create the context with a larger n_ubatch",
            )
        self._set_threads(n)
        rows: list[torch.Tensor] = []
        with torch.inference_mode(), self.cache.step() as step:
            step.make_room(n)
            step.apply_shifts()
            for piece in range(0, n, self.n_batch):
                end = min(piece + self.n_batch, n)
                for start in range(piece, end, self.n_ubatch):
                    part = slice(start, min(start + self.n_ubatch, end))
                    rows.append(self._micro_batch(checked, part, step))
            out = rows[0] if len(rows) == 1 else torch.cat(rows)
            self.rows = out.to(self.device)
            return self.rows

    def state_write(self, seq: int = -1, *, format: str = "llama") -> bytes:
        """``cache.state_write``: the logits of the last decode are not part of the state."""
        return self.cache.state_write(seq, format=format)

    def state_read(self, blob: bytes | memoryview, seq: int = -1, *, format: str = "llama") -> int:
        """``cache.state_read``."""
        return self.cache.state_read(blob, seq, format=format)

    def _micro_batch(self, batch: CheckedBatch, part: slice, step: Step) -> torch.Tensor:
        positions = batch.positions[part]
        cells = step.place(positions, batch.seqs[part], batch.owners[part], self.causal_attn)
        inputs, wanted = batch.inputs[part], batch.rows(part)
        if self._native is not None:
            return self._native.run(inputs, positions, cells, wanted)
        return self.decoder.forward(inputs, positions, cells, wanted, self.flash_attn)

    def _set_threads(self, n_tokens: int) -> None:
        wanted = self.n_threads if n_tokens == 1 else self.n_threads_batch
        if wanted is not None and wanted != torch.get_num_threads():
            torch.set_num_threads(wanted)


def _at_least(name: str, value: int, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value < 2**31:
        raise ParameterError(name, f"{name} must be an integer in [{low}, 2^31), not {value!r}")
    return value
