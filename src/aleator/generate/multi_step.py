"""Multi-step decoding: several decode steps with their draws before the host looks at any token.

Positions, counts and ends are kept in tensors on the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from aleator.cache.batches import Plan
from aleator.cache.pools.hybrid import HybridPool
from aleator.cache.storage.tensors import captured, current
from aleator.core.arrays import Int64s
from aleator.core.errors import ParameterError
from aleator.device.backends.backend import Launches
from aleator.device.chain import DeviceChain
from aleator.device.selection import captures_graphs
from aleator.generate.completion import Detokenizer
from aleator.generate.context import Batch, Context, Prefixes
from aleator.generate.decode_steps import DecodeResult, DecodeStart
from aleator.generate.device_token_sampler import DeviceTokenSampler, nothing_to_draw
from aleator.generate.model_runner import ModelRunner
from aleator.generate.prompt_chunks import Chunk
from aleator.generate.replayed_steps import ReplayLoop
from aleator.generate.request_state import Proposal, RequestState
from aleator.generate.reserved_cells import ReservedCells
from aleator.generate.token_sampler import TokenSampler
from aleator.models.layers.passes import Pass
from aleator.models.placement import EXACT
from aleator.models.torch_decoder import in_torch

MOST_STEPS = 4096
"""Most steps of a run."""


class DecodeLoop:
    """Decodes and draws up to ``multi_step`` tokens per sequence before the host sees any.

    The cells of all steps are reserved first: one by one they would cost a round trip each.  Tokens, positions,
    counts and end flags of rows are tensors that every step reads and writes.  A row that has ended repeats its
    last step, which changes nothing.  That needs neither a spare cell nor a branch, so a graph has one shape.
    Unused reserved cells are given back at the end.  With ``capture`` a step is captured in a CUDA graph once
    for every padded number of cells, and replayed.  Without it the same operations run one by one.

    For equal logits the tokens are those of single steps.  The logits may differ in their last bits, as between
    any batch shapes.

    Args:
        context: of a model whose layers all have full attention, on one device.
        chain: a row per sequence, none with a part on the host; its rows have accepted the texts.
        multi_step: most steps of a run, 1 to 4096.
        n_vocab: tokens, the first of a row of logits.
        ends: end-of-generation tokens.
        capture: None: where graphs have passed their checks (:mod:`aleator.device.selection`).

    Raises:
        ParameterError: the model, chain or cache is unsuitable.
    """

    def __init__(
        self,
        context: Context,
        chain: DeviceChain,
        multi_step: int,
        *,
        n_vocab: int,
        ends: Iterable[int] = (),
        capture: bool | None = None,
    ) -> None:
        if type(multi_step) is not int or not 1 <= multi_step <= MOST_STEPS:
            raise ParameterError(
                f"multi_step={multi_step!r} is out of range: give a number of steps, 1 to {MOST_STEPS}",
            )
        check_model(context)
        if chain.kernels == "host":
            raise ParameterError(
                "kernels",
                "multi_step needs a chain on the device: make it with kernels='torch' or 'triton', not 'host'",
            )
        cache, decoder = context.cache, in_torch(context.decoder)
        device, batch = decoder.where, chain.max_batch
        self.decoder = decoder
        self.context, self.chain = context, chain
        self.multi_step, self.n_vocab = multi_step, n_vocab
        self.capture = captures_graphs(device) if capture is None else capture
        self.cells = ReservedCells(cache, batch, decoder.shift_keys)
        self._highest = context.n_ctx - 1
        decoder.rotary_of(False).angles(
            torch.zeros(1, dtype=torch.int64, device=device), self._highest
        )

        def integers(*shape: int) -> torch.Tensor:
            return torch.zeros(*shape, dtype=torch.int64, device=device)

        self._cell_ids = integers(batch, multi_step)
        self._token, self._position, self._offset = (integers(batch) for _ in range(3))
        self._seen, self._left, self._drawn = (integers(batch) for _ in range(3))
        self._stopped, self._failed, self._heeds = (integers(batch).bool() for _ in range(3))
        self._is_end = torch.zeros(n_vocab, dtype=torch.bool, device=device)
        self._is_end[list(ends)] = True
        # Column multi_step receives the output of rows that have ended.
        self._out = integers(batch, multi_step + 1)
        report, top = chain.report, chain.report.top_ids.shape[1]
        self._reports = len(report.logprobs) > 0
        logged = multi_step + 1 if self._reports else 0
        self._logprobs = torch.zeros(batch, logged, dtype=torch.float64, device=device)
        self._top_ids = integers(batch, logged, top)
        self._top_logprobs = torch.zeros(batch, logged, top, dtype=torch.float64, device=device)
        self._graphs: dict[tuple[tuple[int, bool], Launches], torch.cuda.CUDAGraph] = {}
        self._read: list[torch.Tensor] = []  # by graphs; a longer context has a larger table

    def run(self, starts: Sequence[DecodeStart]) -> list[DecodeResult]:
        """Decode the starts' tokens and draw up to ``multi_step`` more each.

        A row may reach a step in which no token can be drawn.  It ends there, and keeps the tokens that it has
        drawn before: see :attr:`DecodeResult.failed`.

        Raises:
            CacheFull: not enough cells to reserve; after any error, cache and chain are unchanged.
        """
        if not starts:
            return []
        cache, steps = self.context.cache, [min(self.multi_step, start.limit) for start in starts]
        batch = Batch()
        for start, n in zip(starts, steps, strict=True):
            for pos in range(start.pos, start.pos + n):
                batch.add(start.token, pos, [start.seq], logits=False)
        mark = self.chain.mark()
        try:
            with torch.inference_mode():
                found: list[DecodeResult] = cache.journal.run(self._decode, starts, steps, batch)
        except BaseException:
            self.chain.back(mark)
            raise
        return found

    def _decode(
        self, starts: Sequence[DecodeStart], steps: Sequence[int], batch: Batch
    ) -> list[DecodeResult]:
        """Decode all steps and draw, then give back the unused cells."""
        cache, plan = self.context.cache, self._plan(batch)
        cache.pool.prepare(plan)
        cell_ids = np.empty(len(batch), np.int64)
        for part in cache.pool.micro_batches(plan):
            cell_ids[part.tokens] = part.cell_ids
        self.cells.clear(cell_ids)
        self._load(starts, steps, np.split(cell_ids, np.cumsum(steps)[:-1]))
        counts = [0] * self.chain.max_batch
        for start, n in zip(starts, steps, strict=True):
            counts[start.row] = n
        self._go(counts)
        found = self._found(starts)
        for start, drawn in zip(starts, found, strict=True):
            cache.seq_rm(start.seq, start.pos + len(drawn.tokens))
        return found

    def _plan(self, batch: Batch) -> Plan:
        plan = self.context.cache.plan(batch, n_ubatch=len(batch))
        if not isinstance(plan, Plan) or plan.extras is not None:
            raise ParameterError(
                "multi_step needs a cache that keeps nothing of a token but its position: give multi_step=1",
            )
        return plan

    def _load(
        self, starts: Sequence[DecodeStart], steps: Sequence[int], cell_ids: Sequence[Int64s]
    ) -> None:
        """Fill the tensors; rows without a start repeat the first one's."""
        size, lists = self.chain.max_batch, []
        source = [0] * size
        for i, start in enumerate(starts):
            source[start.row] = i
            lists.append(self.context.cache.cells.seq_cell_list(start.seq))
        rows = [start.row for start in starts]
        self.cells.take(lists, source)
        self.cells.source.copy_(torch.tensor([rows[i] for i in source]))
        table = np.zeros((size, self.multi_step), np.int64)
        for row, i in enumerate(source):
            table[row] = cell_ids[i][-1]
            table[row, : steps[i]] = cell_ids[i]
        self._cell_ids.copy_(torch.from_numpy(table))
        for tensor, values in (
            (self._token, [start.token for start in starts]),
            (self._position, [start.pos for start in starts]),
            (self._seen, [len(cells) - n + 1 for cells, n in zip(lists, steps, strict=True)]),
            (self._left, steps),
        ):
            tensor.copy_(torch.tensor([values[i] for i in source]))
        self._heeds.copy_(torch.tensor([starts[i].heeds_ends for i in source]))
        self._stopped.copy_(torch.tensor([row not in rows for row in range(size)]))
        for tensor in (self._offset, self._drawn, self._failed):
            tensor.zero_()

    def _go(self, counts: Sequence[int]) -> None:
        """Run as many steps as the row with the largest count needs."""
        if not self.capture:
            for _ in range(max(counts)):
                self._step()
            return
        launches = self.chain.launches(self.chain.max_batch)
        key = self.cells.shape, launches
        if key not in self._graphs:
            with current(self._token.device):
                self._graphs[key] = self._captured()
        graph = self._graphs[key]
        self.chain.before_replays(counts, launches=launches)
        with current(self._token.device):
            for _ in range(max(counts)):
                graph.replay()

    def _captured(self) -> torch.cuda.CUDAGraph:
        """A graph of one step."""
        stream = torch.cuda.current_stream(self._token.device)
        aside = torch.cuda.Stream(self._token.device)  # type: ignore[no-untyped-call]
        aside.wait_stream(stream)
        with torch.cuda.stream(aside):  # libraries initialize themselves; no row draws
            stopped = self._stopped.clone()
            self._stopped.fill_(True)
            self._step()
            self._stopped.copy_(stopped)
        stream.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with captured(graph, aside):
            self._step()
        self._read.append(self.decoder.rotary_of(False).table)
        return graph

    def _step(self) -> None:
        """Decode every row's token, draw the next, and advance: the same operations whatever is drawn."""
        cell_ids = self._cell_ids.gather(1, self._offset.unsqueeze(1)).squeeze(1)
        self.cells.begin(cell_ids, self._seen + self._offset)
        decoder, context = self.decoder, self.context
        batch = Pass(self._position, self._highest, self.cells, context.flash_attn)
        logits = decoder.compute(self._token, batch)[:, : self.n_vocab]
        live = ~self._stopped
        new = self.chain.sample(logits, live=live)
        drew = new >= 0
        at = torch.where(drew, self._drawn, self.multi_step)
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

    def _found(self, starts: Sequence[DecodeStart]) -> list[DecodeResult]:
        """Copy the results from the device, in a single transfer."""
        counts, out, failed = self._drawn.tolist(), self._out.tolist(), self._failed.tolist()
        logged = [t.tolist() for t in (self._logprobs, self._top_ids, self._top_logprobs)]
        found = []
        for row in (start.row for start in starts):
            n = counts[row]
            logprobs, ids, others = (each[row][:n] for each in logged)
            found.append(DecodeResult(out[row][:n], logprobs, ids, others, failed[row]))
        return found


def check_model(context: Context) -> None:
    """Refuse a model whose steps cannot be run ahead."""
    cache, decoder = context.cache, context.decoder
    exact = decoder.dtype == EXACT  # the host knows all of a step but its tokens
    what = "recurrent states" if decoder.recurrent_shapes else ""
    if not what and isinstance(cache.pool, HybridPool):
        what = "sliding windows or recurrent states in some of its layers"
    if not what and decoder.uses_positions and not exact:
        what = "positions besides rotation"
    if not what and exact and getattr(cache.pool, "n_pos_per_embd", 1) > 1:
        what = "cells that keep token ids"
    if decoder.config.experts is not None and not exact:
        raise ParameterError(
            f"multi_step records a step's operations on the device, and which experts of "
            f"{decoder.config.architecture} they read depends on the token: give multi_step=1",
        )
    if what:
        raise ParameterError(
            f"multi_step needs a model whose layers all have attention over the whole text, and whose "
            f"positions only rotate; this one ({decoder.config.architecture}) has {what}: give "
            "multi_step=1",
        )
    if len(set(decoder.places)) > 1:
        raise ParameterError(
            "multi_step needs all layers on one device: give multi_step=1, or load the model without "
            "n_gpu_layers and device_map",
        )
    if any(device != decoder.device for device in cache.devices):
        raise ParameterError(
            "offload_kqv", "multi_step needs the cache on the model's device: give offload_kqv=True"
        )


class MultiStepRunner(ModelRunner):
    """Samples several tokens of each request at once, where the host need not look at any of them.

    ``states`` are all requests that will ever take part; ``multi_step`` of the first gives the number of
    tokens.

    Raises:
        ParameterError: tokens are drawn on the host; or see :class:`DecodeLoop`.
    """

    def __init__(
        self,
        context: Context,
        sampler: TokenSampler,
        detokenizer: Detokenizer,
        prefixes: Prefixes,
        states: Sequence[RequestState],
    ) -> None:
        n_tokens, multi_step = len(detokenizer), states[0].request.options.multi_step
        super().__init__(context, sampler, n_tokens, prefixes)
        if not isinstance(sampler, DeviceTokenSampler):
            raise ParameterError(
                f"multi_step={multi_step}: several steps are drawn on the device: give "
                "sampling_device='device'",
            )
        self._states, self._on_device = states, sampler
        ends = [token for token in detokenizer.eog if token < n_tokens]
        self._loop: DecodeLoop | ReplayLoop
        if context.decoder.dtype == EXACT:
            check_model(context)
            self._loop = ReplayLoop(context, sampler, multi_step, ends)
        else:
            self._loop = DecodeLoop(context, sampler.chain, multi_step, n_vocab=n_tokens, ends=ends)

    def step(self, rows: Sequence[Proposal], chunks: Sequence[Chunk] = ()) -> None:
        """Sample several tokens of each request before the host looks at any of them.

        With prompts to compute, or if the host must look at some request's tokens, do what
        :meth:`ModelRunner.step` does.
        """
        if chunks or not all(map(self._on_device.runs_on_device, self._states)):
            super().step(rows, chunks)
            return
        states = [state for state, _ in rows]
        starts = []
        for state in states:
            limit, wanted = state.n_ctx - len(state.tokens), state.request.options.max_tokens
            if wanted is not None:
                limit = min(limit, wanted - len(state.completion.tokens))
            heeds = not state.request.params.ignore_eos
            row = self._on_device.row_of(state)
            starts.append(DecodeStart(row, state.seq, state.drawn, len(state.tokens), limit, heeds))
        found = self._loop.run(starts)
        for state, start, drawn in zip(states, starts, found, strict=True):
            for i, token in enumerate(drawn.tokens):
                if state.completion.done:  # by a stop string
                    self._on_device.chain.rollback(start.row, len(drawn.tokens) - i)
                    self.context.cache.seq_rm(state.seq, len(state.tokens))
                    break
                state.tokens.append(state.drawn)
                state.stats.decode_tokens += 1
                state.chain.accept(token, generated=True)
                self.feed(state, token, drawn.logprobs_of(i))
        for state, drawn in zip(states, found, strict=True):
            if drawn.failed and not state.completion.done:
                self.errors.fail(state, nothing_to_draw(state))
