"""Blocks taken apart by bytes: put together again they are the numbers of native code."""

from __future__ import annotations

import numpy as np
import torch
from decoder_numerics.blocks import FORMATS, Floats

from aleator import _native
from aleator.core.threads import pool
from aleator.models.kernels.planes import FORMS
from aleator.models.kernels.unpacking import UNPACKERS
from tests.models.test_block_numerics import random_rows

TABLES = {
    "IQ4": [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113],
    "MXFP4": [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12],
}


def put_together(kind: str, data: np.ndarray) -> Floats:
    """The numbers of blocks, in double precision."""
    form, (elements, size) = FORMS[kind], FORMATS[kind][:2]
    blocks = torch.from_numpy(data).reshape(-1, size)
    parts = UNPACKERS[kind](blocks)
    assert parts.u.shape == (len(blocks), elements)
    u = (parts.u.view(torch.int8) if form.low == 8 else parts.u).double()
    table = torch.tensor(TABLES.get(form.table, []), dtype=torch.float64)
    u = table[parts.u.long()] if form.table else u - form.offset

    def number(part: torch.Tensor) -> torch.Tensor:
        if part.shape[1] == 1:
            return torch.pow(2.0, part.double() - 128)
        return part.contiguous().view(torch.float16).double()

    made = number(parts.d) * form.d_factor * u
    if parts.scale is not None:
        scale, least = parts.scale, parts.least
        if form.least == 4:
            scale, least = scale & 15, scale >> 4
        scale = scale.contiguous().view(torch.int8)
        groups = elements // scale.shape[1]
        made = made * scale.double().repeat_interleave(groups, 1)
        if least is not None and parts.m is not None:
            made = made - number(parts.m) * least.double().repeat_interleave(groups, 1)
    elif parts.m is not None:
        made = made + number(parts.m)
    return made.reshape(len(data), -1).numpy()


def test_every_type_is_that_of_native_code() -> None:
    for kind in FORMATS:
        n_in = 2 * FORMATS[kind][0]
        data = random_rows(kind, 4, n_in)
        expected = np.empty((4, n_in), np.float32)
        stored = _native.StoredMatrix(data.reshape(-1), kind, 4, n_in)
        _native.read_rows(pool(1), stored, np.arange(4), expected)
        if kind in UNPACKERS:
            made = put_together(kind, data)
            finite = np.isfinite(expected) & np.isfinite(made)
            assert finite.mean() > 0.5, kind
            scale = np.abs(expected[finite]).max()
            np.testing.assert_allclose(
                made[finite], expected[finite], rtol=1e-5, atol=1e-6 * scale, err_msg=kind
            )
