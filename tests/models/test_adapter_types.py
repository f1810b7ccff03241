"""In which types an adapter's numbers are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from aleator.core.errors import ParameterError
from aleator.models import adapter_files, adapter_memory
from aleator.models.decoder import Decoder
from tests.models.adapters import ALPHA, Floats, pairs_of, write_adapter
from tests.models.builders import model_metadata, model_tensors, write_gguf
from tests.models.test_adapters import TOKENS, Rows, adapted, logits


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
    assert {each.a.type for each in whole.adapters.loaded[0].matrices.values()} == {"F32"}
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


Q8_0 = GGMLQuantizationType.Q8_0


@pytest.mark.parametrize("rank", [6, 32, 96])
def test_numbers_in_q8_0_stay_so(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    """Rows of B that have no whole blocks are in float16 then, as llama.cpp's converter writes them."""
    parts = {
        f"{name}.lora_{side}": part
        for name, pair in pairs_of(1, rank=rank, size=0.1).items()
        for side, part in zip("ab", pair, strict=True)
    }
    whole_rows = [name for name, part in parts.items() if part.shape[1] % 32 == 0]
    stored = {name: part.astype(np.float16) for name, part in parts.items()}
    stored |= {name: gguf.quants.quantize(parts[name], Q8_0) for name in whole_rows}
    about = {"general.type": "adapter", "adapter.type": "lora"}
    file = write_gguf(tmp_path / "a.gguf", about, stored, dict.fromkeys(whole_rows, Q8_0))
    decoder = adapted(base, file)
    matrices = decoder.adapters.loaded[0].matrices.values()
    of_b = "F16" if rank % 32 else "Q8_0"
    assert {(pair.a.type, pair.b.type) for pair in matrices} == {("Q8_0", of_b)}
    beside = adapted(in_blocks(tmp_path, layer=1), file).adapters.loaded[0].matrices.items()
    assert {pair.b.type for name, pair in beside if name.startswith("blk.1.")} == {"Q8_0"}
    monkeypatch.setattr(adapter_files, "KEPT", ("F32",))
    whole = adapted(base, file)
    assert {each.a.type for each in whole.adapters.loaded[0].matrices.values()} == {"F32"}
    same_logits(decoder, whole)


def same_logits(one: Decoder, other: Decoder) -> None:
    """Of several tokens together, and of one, which other kernels compute."""
    for tokens in (TOKENS, TOKENS[:1]):
        rows, wanted = (logits(each, "a", tokens) for each in (one, other))
        assert rows.tobytes() == wanted.tobytes()


def in_q8_0(x: Floats) -> Floats:
    """The numbers after rounding to Q8_0, rows being filled up to whole blocks with zeros."""
    high = np.float32(2**10)  # for scales of which float16 holds 11 bits
    more = np.pad(x * high, ((0, 0), (0, -x.shape[1] % 32)))
    whole: Floats = gguf.quants.dequantize(gguf.quants.quantize(more, Q8_0), Q8_0)
    return whole[:, : x.shape[1]] / high


@pytest.mark.parametrize("rank", [1, 6, 32, 40])
@pytest.mark.parametrize("bits", [0, 16])
def test_numbers_can_be_rounded_to_q8_0(base: Path, tmp_path: Path, rank: int, bits: int) -> None:
    """However small they are: a scale of Q8_0 would have few of float16's bits."""
    pairs, small = pairs_of(1, rank=rank, size=0.1), np.float32(2.0**-bits)
    rounded = {name: (in_q8_0(a), in_q8_0(b)) for name, (a, b) in pairs.items()}
    given = {name: (a, b * small) for name, (a, b) in pairs.items()}
    file = write_adapter(tmp_path / "a", given, {"adapter.lora.alpha": ALPHA * 2**bits})
    decoder = adapted(base, file, kind="q8_0")
    matrices = decoder.adapters.loaded[0].matrices.values()
    assert {each.type for pair in matrices for each in (pair.a, pair.b)} == {"Q8_0"}
    same_logits(decoder, adapted(base, write_adapter(tmp_path / "b", rounded)))


def test_rows_without_whole_blocks_are_rounded_to_float16(tmp_path: Path) -> None:
    """Those of A of embeddings have the rank's length."""
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((24, 6), (32, 6)))
    base = write_gguf(tmp_path / "base.gguf", model_metadata())
    halves = a.astype(np.float16).astype(np.float32)
    files = [
        write_adapter(tmp_path / name, {"token_embd.weight": pair})
        for name, pair in (("a", (a, b)), ("b", (halves, in_q8_0(b))))
    ]
    decoder = adapted(base, files[0], kind="q8_0")
    pair = decoder.adapters.loaded[0].matrices["token_embd.weight"]
    assert (pair.a.type, pair.b.type) == ("F16", "Q8_0")
    same_logits(decoder, adapted(base, files[1]))


def in_blocks(tmp_path: Path, layer: int) -> Path:
    """The small model with one layer's matrices in Q4_0."""
    kind, tensors = GGMLQuantizationType.Q4_0, dict(model_tensors())
    names = [name for name in tensors if name.startswith(f"blk.{layer}.") and "norm" not in name]
    tensors |= {name: gguf.quants.quantize(tensors[name], kind) for name in names}
    return write_gguf(tmp_path / "blocks.gguf", None, tensors, dict.fromkeys(names, kind))


def rounded_in_blocks(pairs: Mapping[str, Any], kept: Sequence[int] = ()) -> dict[str, Any]:
    """The numbers beside such matrices rounded to Q8_0, but these sides."""
    return {
        name: tuple(
            each if i in kept or name.startswith("blk.0.") else in_q8_0(each)
            for i, each in enumerate(pair)
        )
        for name, pair in pairs.items()
    }


@pytest.mark.parametrize("kind", ["auto", "stored"])
def test_by_default_the_type_follows_the_base(tmp_path: Path, kind: str) -> None:
    path, pairs = in_blocks(tmp_path, layer=1), pairs_of(1)
    for a, b in pairs.values():
        a[2, :32], b[3] = 0, 0  # Q8_0 holds blocks of zeros
    decoder = adapted(path, write_adapter(tmp_path / "a", pairs), kind=kind)
    of_layers: list[set[str]] = [set(), set()]
    for name, pair in decoder.adapters.loaded[0].matrices.items():
        of_layers[name.startswith("blk.1.")] |= {pair.a.type, pair.b.type}
    assert of_layers == [{"F32"}, {"Q8_0" if kind == "auto" else "F32"}]
    wanted = rounded_in_blocks(pairs) if kind == "auto" else pairs
    same_logits(decoder, adapted(path, write_adapter(tmp_path / "b", wanted), kind="stored"))


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("small", [True, False])
def test_what_q8_0_does_not_hold_stays_as_it_is(tmp_path: Path, side: int, small: bool) -> None:
    """A block that is too small beside the largest number; numbers that a float32 cannot divide."""
    path, high, pairs = in_blocks(tmp_path, layer=1), np.float32(2**116), {}
    for name, pair in pairs_of(1).items():
        parts = [each.copy() for each in pair]
        if small:
            parts[side][2, :32] *= np.float32(2**-24)
        else:
            parts[side], parts[1 - side] = parts[side] * high, parts[1 - side] / high
        pairs[name] = parts[0], parts[1]
    decoder = adapted(path, write_adapter(tmp_path / "a", pairs))
    wanted = rounded_in_blocks(pairs, [side] if small else [0, 1])
    assert np.isfinite(logits(decoder, "a")).all()
    same_logits(decoder, adapted(path, write_adapter(tmp_path / "b", wanted), kind="stored"))


@pytest.mark.parametrize("high", [1.0, 16.0])
def test_small_columns_of_b_that_count_are_not_lost(tmp_path: Path, high: float) -> None:
    """Where A's numbers are the larger, a block of B would round away what both add."""
    pairs = pairs_of(1)
    for a, b in pairs.values():
        a[3:] *= high
        b[:, 3:] /= high
    decoder = adapted(in_blocks(tmp_path, layer=1), write_adapter(tmp_path / "a", pairs))
    made = [
        pair
        for name, pair in decoder.adapters.loaded[0].matrices.items()
        if name.startswith("blk.1.")
    ]
    assert {pair.a.type for pair in made} == {"Q8_0"}
    assert {pair.b.type for pair in made} == {"Q8_0" if high == 1 else "F32"}
