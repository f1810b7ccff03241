"""Where the form of Triton's kernels computes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from aleator.cache.devices import CPU, Device
from aleator.core.errors import ParameterError
from aleator.models import build, open_weights
from aleator.models.placement import Place
from aleator.models.triton import decoder
from tests.models.builders import model_tensors, write_gguf


def test_float32_means_the_cpu_s_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is computed in any case, and weights stay as they are stored."""
    monkeypatch.setattr(build, "exact_form", lambda *_: None)
    monkeypatch.setattr(decoder, "TritonDecoder", lambda _, places, __: places)
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


def test_what_weights_take_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    weights = open_weights(write_gguf(tmp_path / "m.gguf"))
    size = sum(values.nbytes for values in model_tensors().values())
    for level, lines in (
        (logging.INFO, [f"weights: 2 layers, cpu: {size / 2**20:.2f} MiB"]),
        (logging.WARNING, []),
    ):
        caplog.clear()
        with caplog.at_level(level, "aleator.models.build"):
            build.build_decoder(weights)
        told = [each.getMessage() for each in caplog.records if each.name == "aleator.models.build"]
        assert told == lines


def test_progress_is_told_layer_by_layer(tmp_path: Path) -> None:
    weights = open_weights(write_gguf(tmp_path / "m.gguf"))
    for form in ("native", "torch"):
        seen: list[tuple[int, int]] = []
        build.build_decoder(weights, form=form, progress=lambda *done, to=seen: to.append(done))
        assert seen == [(0, 2), (1, 2), (2, 2)]
