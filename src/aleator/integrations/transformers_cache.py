"""Aleator's KV cache in a model of transformers: it can be cut, forked, shifted, quantised and saved.

Each row of the batch is a sequence of one :class:`aleator.cache.KVCache`; rows of the same prompt share its
cells.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any

from aleator.core.arrays import Int64s
from aleator.integrations.versions import require

require("transformers", at_least="5.23", install="aleator[transformers]")
require("torch", at_least="2.8", install="aleator[transformers]")

import numpy as np
import torch
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from aleator.cache import KVCache
from aleator.cache.formats.state_file import Buffer
from aleator.cache.sequence import Sequence as Handle
from aleator.cache.sequence_verbs import Restored
from aleator.cache.storage.tensors import tensor_layers
from aleator.core.errors import CacheError, ParameterError
from aleator.generate.context import Batch
from aleator.integrations.transformers_layers import layers_of, rotation_of, windows_of


class AleatorCache(Cache):  # type: ignore[misc]  # transformers has no types
    """For ``model.generate(cache=AleatorCache(model, n_cells))`` and ``model(...)``; before transformers 5.24
    the argument was ``past_key_values``.

    With ``type_k`` and ``type_v`` "f32" (or the type that the model computes in) tokens are the same as with
    transformers' ``DynamicCache``, bit for bit.  Layers with a window are stored whole, so that rows can be cut
    and slid anywhere; attention gets only the window.

    Args:
        model: a decoder-only model in which each layer has keys and values.  It computes one token twice, to
            find the layers' shapes and whether keys can be rotated to other positions.
        n_cells: capacity in tokens, over all rows.
        max_batch: maximum number of rows.
        type_k: the type of stored keys: "f32", "f16", "bf16", "q8_0", "q4_0" and more.
        type_v: the type of stored values.

    Attributes:
        kv: the underlying cache.
        rows: the sequences of the batch's rows.

    Raises:
        UnsupportedModel: a layer has a state, or shares the keys and values of another.
        ParameterError: an argument is out of range.
    """

    def __init__(
        self,
        model: Any,
        n_cells: int,
        *,
        max_batch: int = 8,
        type_k: str = "f32",
        type_v: str = "f32",
    ) -> None:
        windows = windows_of(model)
        shapes, stored = layers_of(model)
        self.kv = KVCache(
            shapes,
            n_cells,
            n_seq_max=2 * max_batch,  # reordering rows needs free sequences
            type_k=type_k,
            type_v=type_v,
            device=str(model.device),
            rotate=rotation_of(model, stored),
            architecture=str(model.config.get_text_config(decoder=True).model_type),
        )
        self._begin(self.kv, max_batch, windows)

    def _begin(self, kv: KVCache, max_batch: int, windows: list[int | None]) -> None:
        self.kv, self.max_batch = kv, max_batch
        self.rows = []
        self._keys, self._values = tensor_layers(kv.keys.parts), tensor_layers(kv.values.parts)
        self._windows = windows
        self._stored = [0] * len(windows)
        self._cells: list[Int64s] = []
        super().__init__(layers=[AleatorLayer(self, i, window) for i, window in enumerate(windows)])

    rows: list[Handle] = []  # noqa: RUF012  # what __del__ sees of a cache that was refused

    def __del__(self) -> None:
        """Give up the rows, as forks and the first cache share sequences and cells."""
        for row in self.rows:
            row.close()

    def __repr__(self) -> str:
        return f"AleatorCache({len(self.rows)} rows of {self.get_seq_length()} tokens, {self.kv!r})"

    # What models call

    def update(
        self,
        key_states: torch.Tensor,  # [rows, heads, T, D]
        value_states: torch.Tensor,  # [rows, heads, T, Dv]
        layer_idx: int,  # the layer
        *args: Any,  # not used
        **kwargs: Any,  # not used
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store a layer's keys and values of new tokens, and return those that attention sees.

        Returns:
            [rows, heads, tokens, D] and [..., Dv], in the given types: of all tokens, or of the new ones and
            those before them in the first one's window.

        Raises:
            CacheFull: no cells for the tokens.
            ParameterError: the rows are not the same as before.
        """
        n_rows, new = key_states.shape[0], key_states.shape[2]
        self._require_rows(n_rows)
        begin = self._stored[layer_idx]
        end = begin + new
        if end > self.length:
            self._place(end - self.length)
        for row, cells in enumerate(self._cells):
            index = torch.from_numpy(cells[begin:end]).to(key_states.device)
            self._keys[layer_idx].store(index, key_states[row].transpose(0, 1))
            self._values[layer_idx].store(index, value_states[row].transpose(0, 1))
        self._stored[layer_idx] = end
        seen = self._before(layer_idx, begin)
        return self._read(layer_idx, slice(seen, end), key_states.dtype, value_states.dtype)

    def _before(self, layer: int, position: int) -> int:
        """The first position that a token at ``position`` sees."""
        window = self._windows[layer]
        return 0 if window is None else max(0, position - window + 1)

    def _read(
        self, layer: int, which: slice, key_type: torch.dtype, value_type: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = [], []
        rows = self.kv.first.rows
        for cells in self._cells:
            part = cells[which]
            index = torch.from_numpy(part).to(self._keys[layer].data.device)
            k = self._keys[layer].load(index)
            behind = self.kv.cells.positions[part] - rows.key_positions[part]
            if behind.any() and rows.rotate is not None:
                k = rows.rotate(layer, k.to(torch.float32, copy=True), behind.astype(np.int64))
            keys.append(k.to(key_type))
            values.append(self._values[layer].load(index).to(value_type))
        return torch.stack(keys).transpose(1, 2), torch.stack(values).transpose(1, 2)

    def _require_rows(self, n: int) -> None:
        if self.rows and not self.length and n != len(self.rows):
            self.reset()
        if not self.rows:
            self._require_room(n)
            self.rows = [self.kv.sequence() for _ in range(n)]
            self._refresh()
        if n != len(self.rows):
            raise ParameterError("key_states", f"{n} rows in a cache of {len(self.rows)}")

    def _require_room(self, n: int) -> None:
        if n > self.max_batch:
            raise ParameterError(
                "max_batch", f"{n} rows: make the AleatorCache with max_batch={n} or more"
            )

    def _place(self, n: int) -> None:
        """Assign cells to the next ``n`` tokens of each row."""
        batch, start = Batch(), self.length
        for row in self.rows:
            for i in range(n):
                batch.add(0, start + i, [row.id], logits=False)
        with self.kv.step(self.kv.plan(batch, n_ubatch=len(batch.tokens))) as step:
            for _ in step:
                pass
        self._refresh()

    def _refresh(self) -> None:
        self._cells = [row.cells for row in self.rows]

    @property
    def length(self) -> int:
        """Number of tokens in each row."""
        return self.rows[0].next if self.rows else 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Number of tokens that a layer holds of each row."""
        return self._stored[layer_idx] if layer_idx < len(self._stored) else 0

    # Cutting, copying, shifting

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens of each row.

        Args:
            tokens_to_remove: how many, as 0 or a negative number, as in transformers.
        """
        if tokens_to_remove > 0:
            raise ParameterError(
                f"tokens_to_remove={tokens_to_remove}: give the number to remove as -{tokens_to_remove}"
            )
        self.truncate(max(0, self.length + tokens_to_remove))

    def truncate(self, n: int) -> None:
        """Keep the first ``n`` tokens of each row."""
        if not 0 <= n <= self.length:
            raise ParameterError(f"n={n}: the rows have {self.length} tokens")
        for row in self.rows:
            row.truncate(n)
        self._stored = [min(stored, n) for stored in self._stored]
        self._refresh()

    def slide(self, keep: int = 4, discard: int | None = None) -> int:
        """Forget tokens after the first ``keep`` of each row and move the later ones up: a context shift.

        Args:
            keep: number of tokens that stay where they are.
            discard: how many to forget; None forgets half of those after ``keep``.

        Returns:
            How many were forgotten.

        Raises:
            CannotShift: the model's keys cannot be rotated.
            CacheError: a forward pass has not ended.
        """
        self._require_whole()
        removed = 0
        with self.kv.step():
            for row in self.rows:
                removed = row.slide(keep, discard).removed
        self._stored = [self.length] * len(self._stored)
        self._refresh()
        return removed

    def fork(self) -> AleatorCache:
        """Make an independent cache with the same text in the same cells.

        Raises:
            CacheFull: no sequence is free; make the first cache with a larger ``max_batch``.
        """
        made = object.__new__(AleatorCache)
        made._begin(self.kv, self.max_batch, self._windows)
        for row in self.rows:
            made.rows.append(row.fork())
        made._stored = list(self._stored)
        made._refresh()
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> AleatorCache:
        return self.fork()

    def _rearrange(self, of: Sequence[int]) -> None:
        """Let row i become what row ``of[i]`` was."""
        self._require_room(len(of))
        before, free = self.rows, list(self.rows)
        rows: list[Handle] = []
        for i in of:  # the first to want a row gets it, others a copy that shares its cells
            if before[i] in free:
                free.remove(before[i])
                rows.append(before[i])
            else:
                rows.append(before[i].fork())
        for row in free:
            row.close()
        self.rows = rows
        self._refresh()

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Let row i become what row ``beam_idx[i]`` was."""
        self._rearrange(beam_idx.tolist())

    def batch_select_indices(self, indices: torch.Tensor | Sequence[int]) -> None:
        """Keep these rows, in this order."""
        chosen = torch.arange(len(self.rows))[torch.as_tensor(indices).cpu()]
        self._rearrange(chosen.tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row; the copies share its cells."""
        self._rearrange([i for i in range(len(self.rows)) for _ in range(repeats)])

    def reset(self) -> None:
        """Forget everything."""
        for row in self.rows:
            row.close()
        self.rows, self._stored = [], [0] * len(self._stored)
        self._refresh()

    # Files

    def save(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        row: int = 0,
        tokens: Sequence[int] = (),
        model: str = "",
    ) -> bytes | None:
        """Write a row to a file, or return its bytes; see :meth:`aleator.cache.Sequence.save`."""
        self._require_whole()
        return self.rows[row].save(path, tokens=tokens, model=model)

    def load(
        self, source: str | os.PathLike[str] | Buffer, *, rows: int = 1, model: str = ""
    ) -> Restored:
        """Load what :meth:`save` wrote into each of ``rows`` rows, which share its cells.

        Raises:
            FileFormatError: the file is of another kind, or damaged.
            Incompatible: it is of another model, or another kind of cache.
        """
        self.reset()
        first = self.kv.sequence()
        try:
            found = first.load(source, model=model)
        except BaseException:
            first.close()
            raise
        self.rows = [first]
        self._stored = [first.next] * len(self._stored)
        self._rearrange([0] * rows)
        return found

    def _require_whole(self) -> None:
        if any(stored != self.length for stored in self._stored):
            raise CacheError("a forward pass was not ended: crop() what some layers do not have")


class AleatorLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer of an :class:`AleatorCache`, as transformers uses it."""

    is_croppable = True
    supports_early_init = False

    def __init__(self, cache: AleatorCache, layer: int, window: int | None) -> None:
        # The cache holds its layers: a cycle would keep a fork's rows until the next garbage collection.
        self._held_by = weakref.ref(cache)
        self._layer = layer
        self.is_sliding = window is not None

    @property
    def _cache(self) -> AleatorCache:
        cache = self._held_by()
        if cache is None:
            raise CacheError("the AleatorCache of this layer is gone: hold on to it")
        return cache

    @property
    def is_initialized(self) -> bool:
        """Whether it holds any tokens."""
        return self.get_seq_length() > 0

    @property
    def keys(self) -> torch.Tensor:
        """Keys that the next token sees, float32 [rows, heads, tokens, D]; a copy."""
        return self._tensors()[0]

    @property
    def values(self) -> torch.Tensor:
        """Values that the next token sees, float32 [rows, heads, tokens, Dv]; a copy."""
        return self._tensors()[1]

    def _tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        cache, n = self._cache, self.get_seq_length()
        which = slice(cache._before(self._layer, n), n)
        return cache._read(self._layer, which, torch.float32, torch.float32)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing: memory is allocated when the cache is made."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See :meth:`AleatorCache.update`."""
        return self._cache.update(key_states, value_states, self._layer)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys that attention sees."""
        n = self.get_seq_length()
        first = self._cache._before(self._layer, n)
        return n - first + query_length, first

    def get_seq_length(self) -> int:
        """Number of tokens of each row."""
        return self._cache.get_seq_length(self._layer)

    def get_max_length(self) -> int:
        """Return -1: rows share the cells, so none has its own limit."""
        return -1
