"""A device chain in Triton: the tokens of the PyTorch form from one read of the logits.

The sweep reads the logits and keeps the largest of each tile; all that follows works on few candidates (data
path: docs/device.md).  The host knows from the rows' chains, without asking the device, what has to be
launched; that is a :class:`Plan`, and a graph stays valid as long as its plan does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
from torch import Tensor

from aleator.core.contract import LOG2_E
from aleator.core.errors import ParameterError
from aleator.device.arguments import ChainOptions
from aleator.device.backends.torch.bans import DeviceDRY
from aleator.device.backends.torch.logits import MAX_BIASES, DeviceLogitBias, DevicePenalties
from aleator.device.backends.triton import places as triton_places
from aleator.device.backends.triton import report as triton_report
from aleator.device.backends.triton import rows as triton_rows
from aleator.device.backends.triton import sparse as triton_sparse
from aleator.device.backends.triton.layout import History, Logits, Sizes, Wanted, Work, named
from aleator.device.backends.triton.past import PAST, look_back, seen
from aleator.device.backends.triton.path import (
    KINDS,
    LONGEST,
    MOVED,
    WRITERS,
    Path,
    Plan,
    list_size,
    path_of,
    plan_of,
    slots,
)
from aleator.device.backends.triton.tiles import block_of, tile_maxima
from aleator.device.device_sampler import DeviceSampler, DeviceStep
from aleator.device.report import Report
from aleator.samplers.base import Sampler

CAPACITY = 2048
"""Candidates that reach the threshold of the tiles; more are bisected."""
BUSY = 512  # programs that keep a device busy
MAX_REGISTERS = 255  # of `choose` and `whole`; ptxas, left alone, takes fewer and spills


class TritonChain:
    """The kernels of a device chain and what they need besides its places; see :class:`DeviceChain`.

    Triton launches on the current device, which is the caller's to choose.  ``report``: every step fills
    what :meth:`listed` gives.  Refused on a CPU if Triton's interpreter is not on.
    """

    def __init__(
        self, places: Sequence[DeviceSampler], options: ChainOptions, report: bool
    ) -> None:
        max_batch, n_vocab, device = options.max_batch, options.n_vocab, options.device
        self.max_tokens, self.device, self._report = options.max_tokens, device, report
        if device.type == "cpu" and not triton.knobs.runtime.interpret:
            raise ParameterError(
                "kernels='triton' is for CUDA devices: choose 'host' on the CPU, or set TRITON_INTERPRET=1 "
                "before the start to try the kernels there",
            )
        self._kinds = [type(place) for place in places]
        self._places = tuple(named(type(p).__name__, seen(p, options)) for p in places)
        self._past = [i for i, kind in enumerate(self._kinds) if kind in PAST]
        self._past_places = tuple(
            named(f"Past{self._kinds[i].__name__}", places[i].rows) for i in self._past
        )
        # States that only the PyTorch form moves.
        self._by_torch = [p for p in places if p.stateful and type(p) not in MOVED]
        writers = [i for i, kind in enumerate(self._kinds) if kind in WRITERS]
        self._n_writers = max(writers, default=-1) + 1
        self._sizes = Sizes(
            n_vocab, triton.cdiv(n_vocab, 128), triton.cdiv(n_vocab, 32), triton.cdiv(n_vocab, 1024),
            max_batch, options.max_tokens,
        )  # fmt: skip
        table = 16
        if writers:
            biases = sum(self._kinds[i] is DeviceLogitBias for i in writers) * MAX_BIASES
            in_window = {DevicePenalties, DeviceDRY} & {*self._kinds}
            tokens = options.max_tokens if in_window else 0
            table = slots(biases + tokens)

        def tensor(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(max_batch, *shape, dtype=dtype, device=device)

        words = triton.cdiv(max(1, len(places)), 32)
        self._wanted = Wanted(
            start=tensor(dtype=torch.int32),
            size=tensor(dtype=torch.int32),
            path=tensor(dtype=torch.int32),
            scale=tensor(dtype=torch.float32),
            active=tensor(words, dtype=torch.int32),
        )
        self.torch_rows = tensor(dtype=torch.bool)
        n_groups = self._sizes.n_groups
        self._work = Work(
            maxima=tensor(self._sizes.n_tiles, dtype=torch.float32),
            tiles=tensor(self._sizes.n_tiles, dtype=torch.int32),
            masses=tensor(n_groups),
            buffers=tensor(CAPACITY),
            firsts=tensor(),
            tops=tensor(dtype=torch.float32),
            flags=tensor(dtype=torch.int32),
            words=tensor(self._sizes.n_words, dtype=torch.int32),
            table_ids=tensor(table, dtype=torch.int32),
            table_logits=tensor(table, dtype=torch.float32),
            table_data=tensor(self._n_writers * table * 2, dtype=torch.int32),
            sums=tensor(n_groups if report else 0, dtype=torch.float64),
            listed=tensor(2 * LONGEST if report else 0),
            paths=torch.zeros(len(triton_rows.PATHS), dtype=torch.int64, device=device),
        )
        self._paths = [Path(triton_rows.AT_TORCH.value)] * max_batch

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        made = (tensor for i in self._past for tensor in self._places[i])
        return sum(t.nbytes for t in (*self._of_rows, *self._work, *made))

    @property
    def _of_rows(self) -> list[Tensor]:
        """What is written when a row's chain is set."""
        return [*self._wanted, self.torch_rows]

    def set(self, row: int, samplers: Sequence[Sampler | None], tail: bool) -> None:
        """Take note of a row's chain: the samplers at the template's places."""
        path = path_of(self._kinds, samplers, self.max_tokens, tail, self._report)
        self._paths[row] = path
        wanted = self._wanted
        wanted.start[row], wanted.size[row], wanted.path[row] = path.start, path.size, path.want
        wanted.scale[row] = LOG2_E / path.temperature if path.temperature else 0.0
        bits = np.zeros(4 * wanted.active.shape[1], np.uint8)
        for i, sampler in enumerate(samplers):
            bits[i // 8] |= (sampler is not None) << i % 8
        wanted.active[row] = torch.from_numpy(bits.view("<i4").astype(np.int32))
        self.torch_rows[row] = path.want == triton_rows.AT_TORCH.value

    def permute(self, rows: Sequence[int], index: Tensor) -> None:
        """Let row i be what row ``rows[i]`` was."""
        for tensor in self._of_rows:
            tensor.copy_(tensor[index])
        self._paths = [self._paths[row] for row in rows]

    def paths(self, reset: bool = False) -> dict[str, int]:
        """How many rows took each path since the start or the last reset; waits for the device."""
        counts = dict(zip(triton_rows.PATHS, self._work.paths.tolist(), strict=True))
        if reset:
            self._work.paths.zero_()
        return counts

    def plan(self, batch: int, allowed: bool) -> Plan:
        """What the first ``batch`` rows need."""
        return plan_of(self._paths[:batch], allowed)

    def sample(
        self, plan: Plan, logits: Tensor, allowed: Tensor | None, step: DeviceStep
    ) -> Tensor:
        """A token for each row, -1 where there is none or the row is PyTorch's; accepts nothing."""
        batch, options = step.batch, {"enable_fp_fusion": False}
        tokens = torch.empty(batch, dtype=torch.int64, device=self.device)
        wanted, work, sizes = self._wanted, self._work, self._sizes
        rows, history = _rows_of(logits), _history_of(step)
        block_t, block_g = block_of(sizes.n_tiles), block_of(sizes.n_groups)
        kinds = tuple(
            triton_places.SKIPPED.value
            if kind in WRITERS and i not in plan.late
            else KINDS.get(kind, triton_places.SKIPPED).value
            for i, kind in enumerate(self._kinds)
        )
        writers = tuple(
            WRITERS[kind].value
            if kind in WRITERS and (plan.past or kind not in PAST)
            else triton_sparse.NOTHING_TO_DO.value
            for kind in self._kinds[: self._n_writers]
        )
        masks = triton_sparse.MASK.value in writers
        own_places = self._places[: self._n_writers]
        entry = work.words if allowed is None else allowed.contiguous()
        # Few rows are cut finer, so that every processor has work.
        cut = 64 if batch * triton.cdiv(sizes.n_tiles, 64) >= BUSY else 8
        slices = (batch, triton.cdiv(sizes.n_tiles, cut))
        if plan.past:
            made = tuple(self._places[i] for i in self._past)
            past = tuple(PAST[self._kinds[i]].value for i in self._past)
            look_back[(batch,)](
                self._past_places, made, history, sizes, KINDS=past, num_warps=8, **options
            )
        if plan.table:
            triton_sparse.mark[(batch,)](
                own_places, wanted, history, entry, work, sizes, WRITERS=writers, ALLOWED=plan.allowed,
                BIASES=MAX_BIASES, H=plan.table, num_warps=8, **options,
            )  # fmt: skip
            triton_sparse.masked_maxima[slices](
                rows, entry, work, sizes, ALLOWED=plan.allowed, MASKS=masks, TILES=cut, num_warps=4,
                **options,
            )  # fmt: skip
            triton_sparse.settle[(batch,)](
                rows, own_places, wanted, entry, work, sizes, WRITERS=writers, ALLOWED=plan.allowed,
                H=plan.table, BLOCK_T=block_t, num_warps=8, **options,
            )  # fmt: skip
        else:
            tile_maxima[slices](
                *rows, work.maxima, sizes.n_vocab, sizes.n_tiles, LOGITS=True, TILES=cut, num_warps=4,
                **options,
            )  # fmt: skip
        if plan.masses:
            triton_rows.group_masses[slices](
                rows, wanted, work, sizes, H=plan.table, BLOCK_T=block_t, TILES=cut, num_warps=4,
                **options,
            )  # fmt: skip
        triton_rows.choose[(batch,)](
            rows, wanted, work, self._places, history, tokens, sizes, KINDS=kinds, H=plan.table,
            BIASES=MAX_BIASES, SIZE=plan.size, CAP=CAPACITY, BLOCK_T=block_t, BLOCK_G=block_g,
            REPORT=self._report, num_warps=8, maxnreg=MAX_REGISTERS, **options,
        )  # fmt: skip
        if plan.whole:
            triton_rows.whole[(batch,)](
                rows, wanted, work, self._places, history, tokens, sizes, KINDS=kinds, H=plan.table,
                CAP=CAPACITY, BLOCK_T=block_t, BLOCK_G=block_g, num_warps=8,
                maxnreg=MAX_REGISTERS, **options,
            )  # fmt: skip
        return tokens

    def listed(self, plan: Plan, batch: int) -> tuple[Tensor, Tensor]:
        """Keys [B, N] of what is left of each row, no candidate where they are least, and Q40 weights."""
        both = self._work.listed.view(-1)[: batch * 2 * plan.size].view(batch, 2, plan.size)
        return both[:, 0], both[:, 1]

    def describe(self, plan: Plan, logits: Tensor, tokens: Tensor, report: Report) -> None:
        """Fill a report's log-probabilities of the logits as they were given, after :meth:`sample`."""
        batch, n = len(tokens), report.top_ids.shape[1]
        if not len(report.logprobs) or n > LONGEST:
            report.before(logits, tokens)
            return
        options = {"enable_fp_fusion": False, "num_warps": 4}
        rows, work, sizes = _rows_of(logits), self._work, self._sizes
        slices = (batch, triton.cdiv(sizes.n_tiles, 8))
        block_t = block_of(sizes.n_tiles)
        if plan.table:  # the delegates are of other logits
            tile_maxima[slices](
                *rows, work.maxima, sizes.n_vocab, sizes.n_tiles, LOGITS=True, TILES=8, **options
            )
        triton_report.exp_sums[slices](rows, work, sizes, BLOCK_T=block_t, TILES=8, **options)
        triton_report.describe[(batch,)](
            rows, work, tokens, report.logprobs, report.top_ids, report.top_logprobs, sizes, n,
            TOP=n > 0, SIZE=list_size(n), CAP=CAPACITY, BLOCK_T=block_t,
            BLOCK_G=block_of(sizes.n_groups), enable_fp_fusion=False, num_warps=8,
            maxnreg=MAX_REGISTERS,
        )  # fmt: skip

    def accept(self, tokens: Tensor, step: DeviceStep) -> None:
        """Append each row's token to its history, unless it is -1."""
        kinds = tuple(KINDS.get(kind, triton_places.SKIPPED).value for kind in self._kinds)
        triton_rows.accept[(step.batch,)](
            tokens, _history_of(step), self._places, self._sizes, KINDS=kinds, num_warps=1,
        )  # fmt: skip
        for place in self._by_torch:
            place.accepted(tokens >= 0, step)


def _rows_of(logits: Tensor) -> Logits:
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    return Logits(logits, logits.stride(0))


def _history_of(step: DeviceStep) -> History:
    return History(step.position, step.history, step.generated, step.length)
