"""The bits that decoders have on every machine: what is recorded, and how it is compared."""

from __future__ import annotations

from machines import GOLDEN, differences

from aleator.models.files.tensor_types import TENSOR_TYPES


def test_recorded_decoders_cover_every_type_and_are_equal_in_themselves() -> None:
    lines = [line.split() for line in GOLDEN.read_text().splitlines()]
    assert {name.split("/")[1] for name, *_ in lines} == set(TENSOR_TYPES)
    assert {name.split("/")[0] for name, *_ in lines} == {
        "llama", "qwen3", "gemma3", "rounded-gelu", "mamba"
    }  # fmt: skip
    assert all(equal == "equal" and 1 < float(largest) < 100 for _, _, equal, largest in lines)


def test_differences() -> None:
    golden = ["a 1 equal 2", "b 2 equal 3"]
    assert differences(golden, golden) == []
    assert differences(["a 1 equal 2"], golden) == ["b"]
    assert differences([*golden, "c 1 equal 1"], golden) == ["c"]
    assert differences(["a 1 DIFFERS 2", golden[1]], golden) == ["a"]
