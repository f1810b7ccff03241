"""Many decode steps with their draws and no word between host and device: positions and ends are kept there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from aleator.cache.hybrid import HybridCache
from aleator.cache.kv_cache import KVCache
from aleator.core.errors import LogitsError, ParameterError
from aleator.device.chain import DeviceChain
from aleator.generate.batch import Batch
from aleator.generate.context import Context
from aleator.generate.logprobs import Logprobs, LogprobsOf, reported_logprobs
from aleator.models.layers.layer import Pass

BUCKET = 256
"""Cells that attention reads are padded to a multiple of this, so that few shapes occur."""

_NEVER = 2**31 - 1


def _no_logprobs(token: int, top: int, token_bytes: Callable[[int], bytes]) -> Logprobs:
    raise ParameterError("logprobs", "the device chain was made without logprobs")


@dataclass(frozen=True)
class Feed:
    """Where one sequence stands.

    Attributes:
        row: of the chain.
        seq: of the cache, which holds positions 0 to ``pos`` - 1.
        token: the token drawn last, not decoded yet.
        pos: its position.
        limit: tokens to draw at most, 1 or more.
        heeds_ends: an end-of-generation token ends it.

    """

    row: int
    seq: int
    token: int
    pos: int
    limit: int
    heeds_ends: bool = True


@dataclass
class Drawn:
    """What came of a feed: the tokens drawn, each with what the chain's report says of it.

    All but the last are in the cache, and so is the feed's own.
    """

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_ids: list[list[int]] = field(default_factory=list)
    top_logprobs: list[list[float]] = field(default_factory=list)

    def logprobs_of(self, i: int) -> LogprobsOf:
        """Those of token ``i``, where the chain reports them."""
        if not self.logprobs:
            return _no_logprobs
        return partial(reported_logprobs, self.logprobs[i], self.top_ids[i], self.top_logprobs[i])


class ReservedCells:
    """Cells taken for a run of tokens ahead, as layers see them: each row writes the next of its own.

    Shapes depend on nothing but the number of rows and the padded number of cells; what changes from step
    to step is in tensors.  Takes the place of :class:`aleator.cache.cell_tensors.CellTensors`.

    Attributes:
        slot: int64 [B], where each row's key and value go in this step.
        count: int64 [B], how many of its sequence's cells each row sees in this step.
        source: int64 [B], each row itself, or the row that it repeats because it has nothing to do.

    """

    blind = causal = False

    def __init__(self, cache: KVCache, batch: int) -> None:
        self._cache, device = cache, cache.devices[0]
        self.raw = cache.k_storage == "raw"
        most = -(-cache.size // BUCKET) * BUCKET
        self._all_rows = torch.zeros(most, dtype=torch.int64, device=device)
        self._all_ranks = torch.zeros(batch, most, dtype=torch.int64, device=device)
        self._all_distances = torch.zeros(most, dtype=torch.int64, device=device)
        self.slot = torch.zeros(batch, dtype=torch.int64, device=device)
        self.count = torch.zeros(batch, dtype=torch.int64, device=device)
        self.source = torch.zeros(batch, dtype=torch.int64, device=device)
        self.n, self._shifted = 0, False
        self._mask: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, bool]:
        """What a captured graph depends on."""
        return self.n, self._shifted

    def take(self, lists: Sequence[npt.NDArray[np.int64]], source: Sequence[int]) -> None:
        """See to it that row i attends to a beginning of ``lists[source[i]]``, cells in the order of a text."""
        device, cache = self.slot.device, self._cache
        cells = lists[0] if len(lists) == 1 else np.unique(np.concatenate(lists))
        n = len(cells)
        self.n = -(-n // BUCKET) * BUCKET
        rows = np.full(self.n, cells[0])
        rows[:n] = cells
        ranks = np.full((len(lists), self.n), _NEVER)
        for rank, own in zip(ranks, lists, strict=True):
            at = np.arange(n) if len(lists) == 1 else np.searchsorted(cells, own)
            rank[at] = np.arange(len(own))
        moved = cache.cells.positions[rows].astype(np.int64) - cache.key_positions[rows]
        self._shifted = bool(moved.any())
        self._all_rows[: self.n] = torch.from_numpy(rows).to(device)
        self._all_distances[: self.n] = torch.from_numpy(moved).to(device)
        self._all_ranks[:, : self.n] = torch.from_numpy(ranks[list(source)]).to(device)
        self.source.copy_(torch.tensor(source))

    def clear(self, cells: npt.NDArray[np.int64]) -> None:
        """Store zeros: cells are read before they are written, with weight 0, and 0 * NaN is NaN."""
        for layer, shape in enumerate(self._cache.shapes):
            at = torch.from_numpy(cells).to(self.slot.device)
            for side, dim in (
                (self._cache.keys, shape.head_dim),
                (self._cache.values, shape.head_dim_v),
            ):
                side.write(
                    layer, at, torch.zeros(len(cells), shape.kv_heads, dim, device=at.device)
                )

    def begin(self, slot: torch.Tensor, count: torch.Tensor) -> None:
        """The next step."""
        self.slot.copy_(slot)
        self.count.copy_(count)
        hidden = self._all_ranks[:, : self.n] >= self.count.unsqueeze(1)
        self._mask = torch.zeros(hidden.shape, device=hidden.device).masked_fill_(
            hidden, -torch.inf
        )

    def tensors(self) -> Any:
        """As :class:`aleator.cache.step.MicroBatch`."""
        return self

    def device(self, layer: int) -> torch.device:
        """Where a layer's keys and values are."""
        return self._cache.devices[layer]

    def mask(self, layer: int) -> torch.Tensor | None:
        """float32 [B, n], 0 or -inf."""
        return self._mask

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store keys [B, G, D] and values [B, G, Dv]; a row that repeats another stores the same bits."""
        self._cache.keys.write(layer, self.slot, k.index_select(0, self.source))
        self._cache.values.write(layer, self.slot, v.index_select(0, self.source))

    def read(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys [n, G, D] and values [n, G, Dv]."""
        cache, rows = self._cache, self._all_rows[: self.n]
        k = cache.keys.read(layer, rows)
        if self._shifted and cache.rotate is not None:
            k = k.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
            k = cache.rotate(layer, k, self._all_distances[: self.n])
        return k, cache.values.read(layer, rows)


class DecodeLoop:
    """Decodes and draws up to ``steps_ahead`` tokens per sequence before the host hears of any.

    The cells of all steps are taken beforehand.  Tokens, positions, counts, and whether a row has ended, are
    tensors that every step reads and writes; a row that has ended repeats its last step, which changes
    nothing.  What was taken and not used is given back at the end.  With ``capture`` a step is captured in a
    CUDA graph once for every padded number of cells, and replayed; without it the same operations run one by
    one.

    Tokens are those of single steps for equal logits; the logits may differ in their last bits, as between any
    batch shapes.

    Args:
        context: of a model whose layers have attention over everything, all on one device.
        chain: a row per sequence, none with a part on the host; its rows have accepted the texts.
        steps_ahead: steps of a run at most.
        n_vocab: tokens, the first of a row of logits.
        ends: end-of-generation tokens.
        capture: None: where the device is a CUDA one.

    Raises:
        ParameterError: a model or a chain with which this cannot be.

    """

    def __init__(
        self,
        context: Context,
        chain: DeviceChain,
        steps_ahead: int,
        *,
        n_vocab: int,
        ends: Iterable[int] = (),
        capture: bool | None = None,
    ) -> None:
        if (
            isinstance(steps_ahead, bool)
            or not isinstance(steps_ahead, int)
            or not 1 <= steps_ahead <= 4096
        ):
            raise ParameterError(
                "steps_ahead", f"steps_ahead={steps_ahead!r} is out of range: give 1 to 4096"
            )
        cache, decoder = context.cache, context.decoder
        if decoder.recurrent or isinstance(cache, HybridCache):
            raise ParameterError(
                "steps_ahead",
                "steps ahead need a model whose layers all see everything: this one has windows or states",
            )
        if any(device != decoder.device for device in cache.devices):
            raise ParameterError(
                "offload_kqv", "steps ahead need the cache on the model's device: offload_kqv=True"
            )
        device, batch = decoder.device, chain.max_batch
        self.context, self.chain, self.steps_ahead, self.n_vocab = (
            context,
            chain,
            steps_ahead,
            n_vocab,
        )
        self.capture = device.type == "cuda" if capture is None else capture
        self.cells = ReservedCells(cache, batch)
        self._highest = context.n_ctx - 1
        decoder.rotary.angles(torch.zeros(1, dtype=torch.int64, device=device), self._highest)

        def integers(*shape: int) -> torch.Tensor:
            return torch.zeros(*shape, dtype=torch.int64, device=device)

        self._slots = integers(batch, steps_ahead)
        self._token, self._position, self._offset = (integers(batch) for _ in range(3))
        self._seen, self._left, self._drawn = (integers(batch) for _ in range(3))
        self._stopped, self._failed, self._heeds = (integers(batch).bool() for _ in range(3))
        self._is_end = torch.zeros(n_vocab, dtype=torch.bool, device=device)
        self._is_end[list(ends)] = True
        # Column steps_ahead takes what rows say that have ended.
        self._out = integers(batch, steps_ahead + 1)
        report, top = chain.report, chain.report.top_ids.shape[1]
        self._reports = len(report.logprobs) > 0
        logged = steps_ahead + 1 if self._reports else 0
        self._logprobs = torch.zeros(batch, logged, dtype=torch.float64, device=device)
        self._top_ids = integers(batch, logged, top)
        self._top_logprobs = torch.zeros(batch, logged, top, dtype=torch.float64, device=device)
        self._graphs: dict[Any, Any] = {}  # by the cells' shape and what the chain launches

    def run(self, feeds: Sequence[Feed]) -> list[Drawn]:
        """Decode the feeds' tokens and draw up to ``steps_ahead`` more each.

        Whatever is raised leaves cache and chain as they were.

        Raises:
            CacheFull: not enough cells to take beforehand.
            LogitsError: a row without a token that may be drawn.

        """
        if not feeds:
            return []
        cache, steps = self.context.cache, [min(self.steps_ahead, feed.limit) for feed in feeds]
        batch = Batch()
        for feed, n in zip(feeds, steps, strict=True):
            for pos in range(feed.pos, feed.pos + n):
                batch.add(feed.token, pos, [feed.seq], logits=False)
        mark = self.chain.mark()
        try:
            with torch.inference_mode(), cache.step(self._plan(batch)) as step:
                slots = np.empty(len(batch), np.int64)
                for part in step:
                    slots[part.tokens] = part.slots
                self.cells.clear(slots)
                self._load(feeds, steps, np.split(slots, np.cumsum(steps)[:-1]))
                counts = [0] * self.chain.max_batch
                for feed, n in zip(feeds, steps, strict=True):
                    counts[feed.row] = n
                self._go(counts)
                found = self._found(feeds)
        except BaseException:
            self.chain.back(mark)
            raise
        for feed, drawn in zip(feeds, found, strict=True):
            cache.seq_rm(feed.seq, feed.pos + len(drawn.tokens), -1)
        return found

    def _plan(self, batch: Batch) -> Any:
        plan = self.context.cache.plan(batch, n_ubatch=len(batch))
        if getattr(plan, "extras", None) is not None:
            raise ParameterError(
                "steps_ahead",
                "steps ahead are not for caches that keep more of a token than its position",
            )
        return plan

    def _load(
        self, feeds: Sequence[Feed], steps: Sequence[int], slots: Sequence[npt.NDArray[np.int64]]
    ) -> None:
        """Fill the tensors; rows without a feed repeat the first one's."""
        size, lists = self.chain.max_batch, []
        source = [0] * size
        for i, feed in enumerate(feeds):
            source[feed.row] = i
            lists.append(self.context.cache.cells.seq_cell_list(feed.seq))
        rows = [feed.row for feed in feeds]
        self.cells.take(lists, source)
        self.cells.source.copy_(torch.tensor([rows[i] for i in source]))
        table = np.zeros((size, self.steps_ahead), np.int64)
        for row, i in enumerate(source):
            table[row] = slots[i][-1]
            table[row, : steps[i]] = slots[i]
        self._slots.copy_(torch.from_numpy(table))
        for tensor, values in (
            (self._token, [feed.token for feed in feeds]),
            (self._position, [feed.pos for feed in feeds]),
            (self._seen, [len(cells) - n + 1 for cells, n in zip(lists, steps, strict=True)]),
            (self._left, steps),
        ):
            tensor.copy_(torch.tensor([values[i] for i in source]))
        self._heeds.copy_(torch.tensor([feeds[i].heeds_ends for i in source]))
        self._stopped.copy_(torch.tensor([row not in rows for row in range(size)]))
        for tensor in (self._offset, self._drawn, self._failed):
            tensor.zero_()

    def _go(self, counts: Sequence[int]) -> None:
        """As many steps as the row with the most tokens to come needs."""
        if not self.capture:
            for _ in range(max(counts)):
                self._step()
            return
        launches = self.chain.launches(self.chain.max_batch)
        key = self.cells.shape, launches
        if key not in self._graphs:
            with self._current():
                self._graphs[key] = self._captured()
        graph = self._graphs[key]
        self.chain.before_replays(counts, launches=launches)
        with self._current():
            for _ in range(max(counts)):
                graph.replay()

    def _current(self) -> AbstractContextManager[Any]:
        """Makes the model's device the current one, on which graphs are captured."""
        device = self._token.device
        return torch.cuda.device(device) if device.type == "cuda" else nullcontext()

    def _captured(self) -> Any:
        """A graph of one step.  Not run yet: no GPU was there when this was written."""
        current = torch.cuda.current_stream(self._token.device)
        aside = torch.cuda.Stream(self._token.device)  # type: ignore[no-untyped-call]
        aside.wait_stream(current)
        with torch.cuda.stream(aside):  # libraries set themselves up; no row draws
            stopped = self._stopped.clone()
            self._stopped.fill_(True)
            self._step()
            self._stopped.copy_(stopped)
        current.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        return graph

    def _step(self) -> None:
        """Decode every row's token, draw the next, and move on: the same operations whatever comes of it."""
        slot = self._slots.gather(1, self._offset.unsqueeze(1)).squeeze(1)
        self.cells.begin(slot, self._seen + self._offset)
        decoder, context = self.context.decoder, self.context
        batch = Pass(self._position, self._highest, self.cells, context.flash_attn)
        logits = decoder.compute(self._token, batch)[:, : self.n_vocab]
        live = ~self._stopped
        new = self.chain.sample(logits, live=live)
        drew = new >= 0
        at = torch.where(drew, self._drawn, self.steps_ahead)
        self._log(at, new)
        self._failed.logical_or_(live & ~drew)
        self._drawn.add_(drew)
        self._left.sub_(drew.to(torch.int64))
        ended = self._is_end[new.clamp(min=0)] & self._heeds
        self._stopped.logical_or_(~drew | ended | (self._left <= 0))
        moves = ~self._stopped
        self._token.copy_(torch.where(moves, new, self._token))
        self._position.add_(moves)
        self._offset.add_(moves)
        for tensor in (self._token, self._position, self._offset):
            tensor.copy_(tensor.index_select(0, self.cells.source))

    def _log(self, at: torch.Tensor, new: torch.Tensor) -> None:
        at = at.unsqueeze(1)
        self._out.scatter_(1, at, new.unsqueeze(1))
        if self._reports:
            report = self.chain.report
            self._logprobs.scatter_(1, at, report.logprobs.unsqueeze(1))
            wide = at.unsqueeze(2).expand(-1, -1, self._top_ids.shape[2])
            self._top_ids.scatter_(1, wide, report.top_ids.unsqueeze(1))
            self._top_logprobs.scatter_(1, wide, report.top_logprobs.unsqueeze(1))

    def _found(self, feeds: Sequence[Feed]) -> list[Drawn]:
        """The one time that something comes from the device."""
        if any(self._failed.tolist()):
            row = self._failed.tolist().index(True)
            raise LogitsError(f"row {row}: no token that may be drawn has a finite logit")
        counts, out = self._drawn.tolist(), self._out.tolist()
        logged = [t.tolist() for t in (self._logprobs, self._top_ids, self._top_logprobs)]
        found = []
        for row in (feed.row for feed in feeds):
            n = counts[row]
            found.append(Drawn(out[row][:n], *(each[row][:n] for each in logged)))
        return found
