"""In which types an adapter's numbers are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aleator.core.errors import ParameterError
from aleator.models import adapter_memory
from tests.models.adapters import pairs_of, write_adapter
from tests.models.builders import write_gguf
from tests.models.test_adapters import Rows, adapted, logits


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "base.gguf")


@pytest.mark.parametrize("kind", ["BF16", "F16"])
def test_numbers_that_need_half_the_bytes(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def shorter(x: Rows) -> Rows:
        if kind == "F16":
            return x.astype(np.float16).astype(np.float32)
        return (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)

    pairs = {name: (shorter(a), shorter(b)) for name, (a, b) in pairs_of(1).items()}
    file = write_adapter(tmp_path / "a.gguf", pairs)
    decoder = adapted(base, file)
    assert {each.b.type for each in decoder.adapters.loaded[0].matrices.values()} == {kind}
    monkeypatch.setattr(adapter_memory, "_narrowed", lambda tensor: tensor)
    whole = adapted(base, file)
    assert {each.b.type for each in whole.adapters.loaded[0].matrices.values()} == {"F32"}
    assert (logits(decoder, "a") == logits(whole, "a")).all()


def test_numbers_can_be_rounded_to_float16(base: Path, tmp_path: Path) -> None:
    pairs = pairs_of(1)
    halves = {n: (a.astype(np.float16), b.astype(np.float16)) for n, (a, b) in pairs.items()}
    file, half = write_adapter(tmp_path / "a", pairs), write_adapter(tmp_path / "b", halves)  # type: ignore[arg-type]
    decoder, expected = adapted(base, file, kind="f16"), adapted(base, half)
    matrices = decoder.adapters.loaded[0].matrices.values()
    assert {each.type for pair in matrices for each in (pair.a, pair.b)} == {"F16"}
    assert decoder.adapters.loaded[0].digest == expected.adapters.loaded[0].digest
    assert logits(decoder, "a").tobytes() == logits(expected, "a").tobytes()


def test_numbers_of_16_bits_are_not_rounded(base: Path, tmp_path: Path) -> None:
    """Beyond float16's range, but bfloat16 holds them."""
    pairs = {name: (a * 0 + np.float32(2**17), b * 0) for name, (a, b) in pairs_of(1).items()}
    matrices = adapted(base, write_adapter(tmp_path / "a", pairs), kind="f16").adapters.loaded[0]
    assert {each.a.type for each in matrices.matrices.values()} == {"BF16"}


def test_numbers_beyond_float16_are_refused(base: Path, tmp_path: Path) -> None:
    pairs = {name: (a * np.float32(1e6), b) for name, (a, b) in pairs_of(1).items()}
    file = write_adapter(tmp_path / "a", pairs)
    with pytest.raises(ParameterError, match=r"adapter_type='f16': .*/a: numbers of 'blk.*65504"):
        adapted(base, file, kind="f16")
