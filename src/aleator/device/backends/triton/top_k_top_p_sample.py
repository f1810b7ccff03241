"""The operator in Triton (contract: docs/operator.md): its memory and its launches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import triton
from torch import Tensor

from aleator.device.backends.triton import top_k_top_p_kernels as kernels
from aleator.device.backends.triton.candidates import PADDED, PROBABILITIES
from aleator.device.backends.triton.layout import Filters, Listed, Logits, Noise, Scratch, Widths
from aleator.device.backends.triton.tiles import STEP, TILE, WIDTH, block_of, tile_maxima
from aleator.device.backends.triton.top_k_top_p_list import DRAW, LIST, NONE, RACE

SMALL, LARGE = 256, 2048  # lists up to here are sorted in registers
FULL = 512  # enough programs to keep a device busy
MAX_REGISTERS = 255  # of `choose`; by default ptxas takes 80 and spills
PATHS = kernels.PATHS

_counters: dict[torch.device, Tensor] = {}


def counters(device: torch.device) -> Tensor:
    """The number of rows that took each of ``PATHS`` on this device; int64, allocated once."""
    if device not in _counters:
        _counters[device] = torch.zeros(len(PATHS), dtype=torch.int64, device=device)
    return _counters[device]


def scratch(rows: int, sizes: Widths, in_order: bool, device: torch.device) -> Scratch:
    """Memory of a call besides its outputs; ``in_order`` says whether lists of any length are wanted."""

    def empty(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.empty(rows, *shape, dtype=dtype, device=device)

    buffers = empty(LARGE)
    return Scratch(
        maxima=empty(sizes.n_tiles, dtype=torch.float32),
        masses=torch.zeros(rows, sizes.n_groups, dtype=torch.int64, device=device),
        tiles=empty(sizes.n_tiles, dtype=torch.int32),
        buffers=buffers,
        long=empty(2, sizes.n_vocab) if in_order and sizes.n_vocab > SMALL else buffers,
        last=empty(),
        tops=empty(dtype=torch.float32),
        races=torch.full((rows,), -(2**63), dtype=torch.int64, device=device),
        paths=counters(device),
    )


def run(call: Any, outputs: Iterable[Tensor | None]) -> None:
    """Write the outputs that are not ``None``; no host synchronisation, so a CUDA graph can capture it.

    The arguments (``aleator.ops.arguments.Call``) are already checked; rows of ``logits`` and ``q`` are
    contiguous.
    """
    x, q, seeds = call.logits, call.q, call.seeds
    indices, selected, listed, probs = outputs
    rows, n_vocab = x.shape
    device = x.device
    wanted = (
        LIST if listed is not None else RACE if q is not None else NONE if seeds is None else DRAW
    )
    mode, in_order = wanted.value, listed is not None or q is not None
    need_list = 2 if in_order else int(selected is not None or seeds is not None)
    kind = (PADDED if call.input_is_logits else PROBABILITIES).value
    n_tiles, n_groups = triton.cdiv(n_vocab, TILE.value), triton.cdiv(n_vocab, WIDTH.value)
    sizes = Widths(n_vocab, n_tiles, n_groups)
    work = scratch(rows, sizes, in_order, device)
    if listed is not None and probs is not None:
        listed.zero_()
        probs.zero_()

    def per_row(given: Tensor | None, other: Tensor) -> Tensor:
        return other if given is None else given.reshape(-1).contiguous()

    filters = Filters(
        per_row(call.top_k, work.last), per_row(call.top_p, work.maxima), per_row(call.min_p, work.maxima),
        call.limit, max(0, min(call.top_k_guess, n_vocab)),
    )  # fmt: skip
    noise = work.maxima if q is None else q
    logits = Logits(x, x.stride(0))
    keys = per_row(seeds, work.last), per_row(call.positions, work.last)
    given = Noise(noise, noise.stride(0), call.eps, *keys)
    out = Listed(
        torch.empty(rows, dtype=torch.int64, device=device) if indices is None else indices,
        work.buffers if listed is None else listed,
        work.maxima if probs is None else probs,
    )
    blocks = {"BLOCK_T": block_of(n_tiles), "BLOCK_G": block_of(n_groups)}
    options = {"num_warps": 4, "enable_fp_fusion": False}
    has_min_p = call.min_p is not None
    # Programs of the sweeps take 64 tiles; few rows are cut finer, so that every processor has work.
    cut = 64 if rows * triton.cdiv(n_tiles, 64) >= FULL else 8
    sweep, slices = (rows, triton.cdiv(n_tiles, cut)), (rows, triton.cdiv(n_tiles, STEP.value))
    tile_maxima[sweep](
        *logits, work.maxima, n_vocab, n_tiles, LOGITS=call.input_is_logits, TILES=cut, **options
    )
    if call.input_is_logits and need_list:
        kernels.row_masses[sweep](
            logits, filters, work, sizes, PROBS=in_order, KIND=kind, BLOCK_T=blocks["BLOCK_T"], TILES=cut,
            **options,
        )  # fmt: skip
    if in_order:
        kernels.emit_rows[slices](
            logits, filters, given, work, out, sizes, HAS_MIN_P=has_min_p, MODE=mode, KIND=kind,
            **blocks, **options,
        )  # fmt: skip
    kernels.choose[(rows,)](
        logits, filters, given, work, out, sizes, HAS_MIN_P=has_min_p, MODE=mode,
        NEED_LIST=need_list, KIND=kind, CAP_SMALL=SMALL, CAP_LARGE=LARGE, **blocks, num_warps=8,
        maxnreg=MAX_REGISTERS, enable_fp_fusion=False,
    )  # fmt: skip
    if selected is not None:
        kernels.select[slices](logits, work, selected, n_vocab, KIND=kind, **options)


def paths(device: Any, reset: bool) -> dict[str, int]:
    """The counters by name; waits for the device."""
    counts = counters(torch.device(device))
    result = dict(zip(PATHS, counts.tolist(), strict=True))
    if reset:
        counts.zero_()
    return result
