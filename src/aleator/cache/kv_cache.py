"""The KV cache of one context: cells, stored keys and values, and exact undo."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from aleator._native import Cells
from aleator.cache.formats import llama
from aleator.cache.prefix import Match, PrefixConfig, PrefixIndex
from aleator.cache.shift import turned_keys
from aleator.cache.step import Step
from aleator.cache.storage import make_storage, side_bytes
from aleator.core.errors import CacheError, CannotShift, ParameterError

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


class KVCache:
    """Keys and values of ``n_cells`` tokens, shared by up to ``n_seq_max`` sequences.

    Ranges of positions are [p0, p1); p0 < 0 means 0, p1 < 0 means infinity.  Every method either
    does what it says or raises and changes nothing.

    Args:
        layers: what each layer stores.
        n_cells: capacity in tokens, over all sequences.
        n_seq_max: sequence ids lie in [0, n_seq_max).
        type_k: the type keys are stored in: "f32", "f16", "bf16", "q8_0" or "q4_0"; the last two
            need heads of a multiple of 32 elements.
        type_v: the same for values.
        device: where they are stored; a list has one device per layer.
        rotate: turns keys to new positions; None where positions cannot be shifted.
        v_layout: "token" keeps a cell's values together, "channel" a channel's, as llama.cpp does
            without flash attention; not in blocks.
        k_storage: "rotated", or "raw": keys as if at position 0, turned whenever they are read.
        hadamard: turn heads by a Hadamard matrix before they are rounded to blocks, where llama.cpp
            does.
        prefix: keep texts (:meth:`keep`); None: do not.
        architecture: the model's, as state files name it.

    Attributes:
        key_positions: int32 [n_cells], the position that a cell's stored key is turned to.  It is
            behind the cell's position after a shift, and attention makes up for the difference.

    """

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
        architecture: str = "",
    ) -> None:
        if not 1 <= n_cells < 2**31:
            raise ParameterError("n_ctx", f"n_ctx must lie in [1, 2^31), not {n_cells}")
        if not 1 <= n_seq_max <= 4096:
            raise ParameterError("n_seq_max", f"n_seq_max must lie in [1, 4096], not {n_seq_max}")
        if k_storage not in ("rotated", "raw"):
            raise ParameterError(
                "k_storage", f"k_storage must be rotated or raw, not {k_storage!r}"
            )
        if k_storage == "raw" and rotate is None:
            raise ParameterError(
                "k_storage", "k_storage='raw' needs a model whose keys can be turned"
            )
        given = [device] * len(layers) if isinstance(device, (str, torch.device)) else list(device)
        if len(given) != len(layers):
            raise ParameterError("device", f"{len(given)} devices for {len(layers)} layers")
        self.shapes, self.devices = list(layers), [torch.device(d) for d in given]
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
            self.cells = Cells(n_cells, n_seq_max + (prefix.texts if prefix else 0))
        except (RuntimeError, MemoryError) as error:
            raise ParameterError(
                "n_ctx",
                f"the KV cache does not fit: n_ctx {n_cells} needs {k_bytes / 2**20:,.0f} "
                f"MiB for K ({type_k}) and {v_bytes / 2**20:,.0f} MiB for V ({type_v}) on "
                f"{where}; use a smaller n_ctx",
            ) from error
        self.prefix = PrefixIndex(prefix, self.cells, n_seq_max) if prefix else None
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

    def read_keys(self, layer: int, cells: Sequence[int] | npt.NDArray[np.int64]) -> torch.Tensor:
        """What a layer stores as keys of the cells, turned to their positions: float32 [n, G, D]."""
        return turned_keys(self, layer, np.asarray(cells, np.int64))

    def read_values(self, layer: int, cells: Sequence[int] | npt.NDArray[np.int64]) -> torch.Tensor:
        """What a layer stores as values of the cells: float32 [n, G, Dv]."""
        index = torch.from_numpy(np.asarray(cells, np.int64)).to(self.devices[layer])
        return self.values.read(layer, index).float()

    def copy_rows(self, src: npt.NDArray[np.int64], dst: npt.NDArray[np.int64]) -> None:
        """Copy what the cells ``src`` store to ``dst``, as if all were read before any is written."""
        self.keys.copy(src, dst)
        self.values.copy(src, dst)
        self.key_positions[dst] = self.key_positions[src]

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

    def can_shift(self) -> bool:
        """Whether ``seq_add`` and ``seq_div`` are allowed."""
        return self.rotate is not None

    def step(self) -> Step:
        """A block that changes the cache, and changes nothing if it raises."""
        return Step(self)

    def map(self) -> str:
        """One character per cell up to the last used one.

        "." is a free cell, a digit its only owner ("+" above 9), "M" several owners.
        """
        return self.cells.map()

    # State; see aleator.cache.formats

    @property
    def n_streams(self) -> int:
        """Parts of the cells that sequences have to themselves; 1: they share all."""
        return int(getattr(self.cells, "n_streams", 1))

    def state_write(self, seq: int = -1, *, format: str = "llama") -> bytes:
        """What the cache holds, as bytes for :meth:`state_read` here or in llama.cpp.

        Args:
            seq: one sequence; -1: everything.
            format: "llama", llama.cpp's own layout (``llama_state_get_data``,
                ``llama_state_seq_get_data``).  Pending shifts are applied in what is written.

        """
        _format(format)
        if seq != -1:
            self._check("seq", seq)
        return llama.write(self, seq)

    def state_read(self, blob: bytes | memoryview, seq: int = -1, *, format: str = "llama") -> int:
        """Restore what :meth:`state_write` gave, or llama.cpp; returns how many cells it fills.

        Args:
            blob: the bytes.
            seq: the sequence that a sequence's state replaces, which need not be the one it was; -1: a
                whole state, which replaces everything.
            format: "llama".

        Raises:
            Corrupt: the bytes are damaged or no state; says where.
            Incompatible: a state of another kind of cache; says how they differ.
            CacheFull: it has more cells than are free.

        """
        _format(format)
        if seq != -1:
            self._check("seq", seq)
        return llama.read(self, blob, seq)

    def session_write(
        self, tokens: Sequence[int], seq: int = -1, *, format: str = "llama"
    ) -> bytes:
        """A session file's bytes: ``tokens``, the text, and the state of everything or one sequence.

        As ``llama_state_save_file`` and ``llama_state_seq_save_file`` write them.
        """
        _format(format)
        if seq != -1:
            self._check("seq", seq)
        return llama.write_session(self, tokens, seq)

    def session_read(
        self, data: bytes | memoryview, seq: int = -1, *, format: str = "llama"
    ) -> list[int]:
        """Restore a session file's bytes as :meth:`state_read` does; returns its tokens."""
        _format(format)
        if seq != -1:
            self._check("seq", seq)
        return llama.read_session(self, data, seq)[0]

    # Kept texts; see aleator.cache.prefix

    def match(self, tokens: Sequence[int], namespace: str = "") -> Match:
        """Find the longest beginning of ``tokens`` that is kept, and why it is not longer."""
        if self.prefix is None:
            return Match(0, 0, ("this cache keeps no texts: create it with prefix",), namespace)
        return self.prefix.match(tokens, namespace)

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

    def reuse(self, seq: int, tokens: Sequence[int], namespace: str = "") -> int:
        """:meth:`match` and :meth:`adopt`; returns how many tokens need not be computed."""
        match = self.match(tokens, namespace)
        self.adopt(seq, match)
        return match.length

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
        if self.prefix is None or len(tokens) == 0:
            return False
        last = len(tokens) - 1
        if self.cells.seq_pos_min(seq) != 0 or self.cells.seq_pos_max(seq) < last:
            raise ParameterError(
                "tokens", f"sequence {seq} does not hold positions 0 to {last}, which tokens names"
            )
        return self.prefix.keep(seq, tokens, namespace)

    def _leave_kept(self, seq: int, p0: int) -> None:
        """Make kept texts give up the cells from ``p0`` on that they share with a sequence."""
        if self.prefix is None:
            return
        for other in self.cells.sharers(seq, p0):
            self.prefix.shorten(other, max(p0, 0))

    # llama.cpp's verbs

    def seq_rm(self, seq: int, p0: int = -1, p1: int = -1) -> bool:
        """Remove a sequence from the cells in a range (seq -1: every sequence); True.

        A cell left without a sequence is free.
        """
        if seq != -1:
            self._check("seq", seq)
        elif self.prefix is not None:
            for text in list(self.prefix):
                self.prefix.shorten(text.seq, max(p0, 0))
        self.cells.seq_rm(seq, p0, p1)
        return True

    def seq_cp(self, src: int, dst: int, p0: int = -1, p1: int = -1) -> None:
        """Let ``dst`` own the cells of ``src`` in a range too; no data moves."""
        self._check("src", src)
        self._check("dst", dst)
        self.cells.seq_cp(src, dst, p0, p1)

    def seq_keep(self, seq: int) -> None:
        """Remove every other sequence, and what is kept."""
        self._check("seq", seq)
        if self.prefix is not None:
            self.prefix.clear()
        self.cells.seq_keep(seq)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Add ``delta`` to the positions in a range; a cell moved below 0 is freed.

        Positions live in the cells: a cell that several sequences own moves for all of them.  The
        stored keys are turned at the next decode.
        """
        self._check("seq", seq)
        self._require_shift()
        if not -(2**31) < delta < 2**31:
            raise ParameterError("delta", f"delta must lie in (-2^31, 2^31), not {delta}")
        try:
            with self.step():
                self._leave_kept(seq, p0)
                self.cells.seq_add(seq, p0, p1, delta)
        except ValueError as error:
            raise ParameterError("delta", str(error)) from None

    def seq_div(self, seq: int, p0: int, p1: int, divisor: int) -> None:
        """Divide the positions in a range by ``divisor`` (1 or more), rounding down."""
        self._check("seq", seq)
        self._require_shift()
        if not 1 <= divisor < 2**31:
            raise ParameterError("divisor", f"divisor must lie in [1, 2^31), not {divisor}")
        if divisor > 1:
            self._leave_kept(seq, p0)
        self.cells.seq_div(seq, p0, p1, divisor)

    def seq_pos_min(self, seq: int) -> int:
        """The sequence's lowest position, or -1 if it is empty."""
        self._check("seq", seq)
        return self.cells.seq_pos_min(seq)

    def seq_pos_max(self, seq: int) -> int:
        """The sequence's highest position, or -1 if it is empty."""
        self._check("seq", seq)
        return self.cells.seq_pos_max(seq)

    def clear(self, data: bool = True) -> None:
        """Free every cell; with ``data`` also zero what is stored."""
        if self.prefix is not None:
            self.prefix.clear()
        self.cells.clear()
        if data:
            self.keys.zero()
            self.values.zero()

    def _check(self, parameter: str, seq: int) -> None:
        if not 0 <= seq < self.n_seq_max:
            raise ParameterError(
                parameter,
                f"{parameter} must lie in [0, {self.n_seq_max}), not {seq}: create the context "
                "with a larger n_seq_max for more sequences",
            )

    def _require_shift(self) -> None:
        if self.rotate is None:
            raise CannotShift("this model's keys cannot be turned to new positions")


def _format(name: str) -> None:
    if name != "llama":
        raise ParameterError("format", f"format must be llama, not {name!r}")
