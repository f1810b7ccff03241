"""Where the form of Triton's kernels computes."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton")

from aleator.cache.devices import CPU, Device
from aleator.core.errors import ParameterError
from aleator.models import build, triton_decoder
from aleator.models.placement import Place


def test_float32_means_the_cpu_s_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is computed in any case, and weights stay as they are stored."""
    monkeypatch.setattr(build, "exact_form", lambda *_: None)
    monkeypatch.setattr(triton_decoder, "TritonDecoder", lambda _, places, __: places)
    weights: Any = None
    in_triton: Any = build._in_triton
    gpu = Device("cuda", 0)
    for given in (
        [Place(gpu, "float32")] * 2,
        [Place(gpu, "exact")] * 2,
        [Place(CPU, "float32"), Place(gpu, "float32")],
    ):
        made = in_triton(weights, given, None)
        assert made == [Place(each.device, "exact") for each in given]
    mixed = [Place(CPU, "float32"), Place(gpu, "exact")]
    assert in_triton(weights, mixed, None) == mixed
    with pytest.raises(ParameterError, match="dtype='bfloat16': form='triton'"):
        in_triton(weights, [Place(gpu, "bfloat16")], None)
