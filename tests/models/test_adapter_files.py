"""Files of adapters: what is just allowed, how matrices lie in memory, and which adapters go together."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from aleator.core.errors import FileFormatError, ParameterError, UnsupportedModel
from aleator.models import adapter_memory
from aleator.models.adapters import Adapters, adapter_files, chosen_adapters, read_words
from tests.models.adapters import RANK, pairs_of, write_adapter, write_peft
from tests.models.builders import model_tensors, write_gguf
from tests.models.test_adapters import adapted


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "base.gguf")


def test_what_is_just_allowed(base: Path, tmp_path: Path) -> None:
    """Scales, names, numbers of adapters and ranks, each beside what is too much."""
    longest, most = "x" * 200, {f"{i}": "f" for i in range(1024)}
    assert adapter_files({longest: ("f", 1e4), "y": ("g", -1e4)})[0] == (longest, "f", 1e4)
    assert len(adapter_files(most)) == 1024
    for wrong, words in (
        ({"x" * 201: "f"}, "1 to 200 printable"), ({"": "f"}, "1 to 200 printable"),
        ({"a\n": "f"}, "printable"),
        ({"x": ("f", 1e4 + 1)}, "out of range"), ({"x": ("f", -1e4 - 1)}, "out of range"),
        (most | {"one more": "f"}, "1025 entries: give at most 1024"),
    ):  # fmt: skip
        with pytest.raises(ParameterError, match=words):
            adapter_files(wrong)
    pairs = pairs_of(1, ["attn_q"])
    for alpha in (1e6, -1e6):
        decoder = adapted(
            base, write_adapter(tmp_path / "a.gguf", pairs, {"adapter.lora.alpha": alpha})
        )
        assert decoder.adapters.loaded[0].matrices["blk.0.attn_q.weight"].factor == alpha / RANK
    for alpha in (1.1e6, -1.1e6):
        with pytest.raises(FileFormatError, match="alpha is"):
            adapted(base, write_adapter(tmp_path / "a.gguf", pairs, {"adapter.lora.alpha": alpha}))


@pytest.mark.parametrize(("rank", "fits"), [(1, True), (4096, True), (4097, False)])
def test_ranks(rank: int, fits: bool, base: Path, tmp_path: Path) -> None:
    wide = np.full((rank, 32), 0.5, np.float32)
    file = write_adapter(tmp_path / "a.gguf", {"blk.0.attn_q.weight": (wide, wide.T.copy())})
    if fits:
        assert (
            adapted(base, file).adapters.loaded[0].matrices["blk.0.attn_q.weight"].a.shape[0]
            == rank
        )
        return
    with pytest.raises(UnsupportedModel, match="has rank 4097, and at most 4096 is applied"):
        adapted(base, file)


def test_matrices_begin_at_cache_lines_in_the_order_of_a_step(base: Path, tmp_path: Path) -> None:
    decoder = adapted(base, write_adapter(tmp_path / "a.gguf", pairs_of(1, rank=3)))
    matrices = decoder.adapters.loaded[0].matrices
    kinds = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    assert list(matrices) == [f"blk.{layer}.{kind}.weight" for layer in (0, 1) for kind in kinds]
    for side in ("a", "b"):
        at = [getattr(each, side).data.ctypes.data for each in matrices.values()]
        assert not any(each % 64 for each in at)
        sizes = [getattr(each, side).data.size for each in matrices.values()]
        assert [b - a for a, b in pairwise(at)] == [-(-n // 64) * 64 for n in sizes[:-1]]


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 33])
def test_columns_of_every_sixteen_rows(rows: int) -> None:
    b = np.arange(3.0 * rows, dtype=np.float32).reshape(rows, 3).view(np.uint32)
    made = adapter_memory.columns(b, "F32", 3)
    tall = -(-rows // 16)
    assert made.shape == (3 * tall, 16)
    columns = made.data.view(np.uint32).reshape(tall, 3, 16).swapaxes(1, 2).reshape(-1, 3)
    assert np.array_equal(columns[:rows], b)
    assert not columns[rows:].any()


def test_what_a_dora_adapter_goes_with(base: Path, tmp_path: Path) -> None:
    pairs = pairs_of(1, ["attn_q"])
    sizes = {name: np.full(len(b), 5, np.float32) for name, (_, b) in pairs.items()}
    files = write_peft(tmp_path / "p", pairs, sizes), write_adapter(tmp_path / "b.gguf", pairs)
    adapters = adapted(base, *files).adapters
    assert [each.fixed for each in adapters.loaded] == [True, False]
    assert len(adapters.chosen(chosen_adapters({"a": 1, "b": 0}))) == 1
    assert len(adapters.chosen(chosen_adapters({"a": 0, "b": 0.5}))) == 1
    for wrong in ({"a": 0.5}, {"a": 1, "b": 0.5}, {"a": 2}):
        with pytest.raises(ParameterError, match="'a' is a DoRA adapter"):
            adapters.chosen(chosen_adapters(wrong))


def test_rows_of_a_micro_batch(base: Path, tmp_path: Path) -> None:
    files = [write_adapter(tmp_path / f"{i}.gguf", pairs_of(i)) for i in (1, 2)]
    adapters = adapted(base, *files).adapters
    one, both = (adapters.chosen(chosen_adapters(each)) for each in ("b", {"b": 0.5, "a": -2.0}))
    assert adapters.rows([(), ()]) is None
    rows = adapters.rows([(), both, one, ()])
    assert rows is not None
    assert [each.tolist() for each in rows] == [[0, 0, 2, 3, 3], [0, 1, 1], [-2.0, 0.5, 1.0]]


@pytest.mark.parametrize(
    ("r", "said"), [(0, "between 1 and"), (1 << 20, "has rank 6"), ((1 << 20) + 1, "between 1 and")]
)
def test_ranks_that_a_configuration_may_have(r: int, said: str, base: Path, tmp_path: Path) -> None:
    folder = write_peft(tmp_path / "p", pairs_of(1, ["attn_q"]), r=r)
    with pytest.raises(FileFormatError, match=said) as caught:
        adapted(base, folder)
    assert caught.value.field == "r"


@pytest.mark.parametrize(
    ("alpha", "fits"), [(1e6, True), (-1e6, True), (1e6 + 1, False), (-1e6 - 1, False)]
)
@pytest.mark.parametrize("pattern", [False, True])
def test_alphas_that_a_configuration_may_have(
    alpha: float, fits: bool, pattern: bool, base: Path, tmp_path: Path
) -> None:
    given = {"alpha_pattern": {"q_proj": alpha}} if pattern else {"lora_alpha": alpha}
    folder = write_peft(tmp_path / "p", pairs_of(1, ["attn_q"]), **given)
    if fits:
        (first, *_) = adapted(base, folder).adapters.loaded[0].matrices.values()
        assert first.factor == pytest.approx(alpha / RANK)
        return
    with pytest.raises(FileFormatError, match="it must be between -1e\\+06 and 1e\\+06"):
        adapted(base, folder)


def test_names_files_and_scales() -> None:
    assert adapter_files({"x": "f", "y": ("g", 2)}) == (("x", "f", 0.0), ("y", "g", 2.0))
    assert read_words(["/d/x.gguf", "y=g.gguf:0.5,z.gguf:0"]) == (
        ("x", "/d/x.gguf", 1.0), ("y", "g.gguf", 0.5), ("z", "z.gguf", 0.0),
    )  # fmt: skip
    with pytest.raises(ParameterError, match="two are called 'x'"):
        read_words(["a/x.gguf", "b/x.gguf"])
    for value in (float("nan"), float("inf"), 1e5, True, "1"):
        with pytest.raises(ParameterError, match="scale"):
            adapter_files({"x": ("f", value)})
        with pytest.raises(ParameterError, match="scale"):
            chosen_adapters({"x": value})
    with pytest.raises(ParameterError, match="'x' is given twice: give it once"):
        chosen_adapters([("x", 1.0), ("y", 1.0), ("x", 0.5)])
    for strange in (5, [5], [("a",)], [("a", 1, 2)]):
        with pytest.raises(ParameterError, match="adapters="):
            chosen_adapters(strange)
    with pytest.raises(ParameterError, match="no adapter 'x'"):
        Adapters().chosen(chosen_adapters("x"))


def test_a_row_of_zeros_has_no_direction(tmp_path: Path) -> None:
    tensors, name = model_tensors(), "blk.0.attn_v.weight"
    tensors[name][3] = 0
    pairs = {name: pairs_of(1, ["attn_v"])[name]}
    pairs[name][1][3] = 0
    sizes = {name: np.ones(len(tensors[name]), np.float32)}
    path = write_gguf(tmp_path / "base.gguf", None, tensors)
    with pytest.raises(FileFormatError, match="a row of zeros cannot be normalised"):
        adapted(path, write_peft(tmp_path / "p", pairs, sizes))
