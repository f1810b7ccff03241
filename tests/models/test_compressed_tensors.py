"""Directories of compressed-tensors: the numbers they stand for, logits, conversion, damaged files.

The packing is written here from the format's description: words of int32 whose lowest bits are the first
element, codes above the least, zeros packed along rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from decoder_numerics.blocks import MXFP4
from safetensors.torch import load_file, save_file

from aleator.core.errors import AleatorError
from aleator.models import open_weights
from tests.models.check_converted import converted, logits
from tests.models.prequantised import (
    N_EMBD,
    N_VOCAB,
    Made,
    fp8,
    mxfp4,
    ours,
    scattered_groups,
    write_quantised,
)

IDS = list(range(20))
FIRST = "model.layers.0.self_attn.q_proj."
BF16, F32 = torch.bfloat16, torch.float32


def config(weights: dict[str, Any], kind: str = "pack-quantized", **more: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": {"num_bits": 8}}
    return {
        "quant_method": "compressed-tensors", "format": kind, "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:(a+)+$"], "quantization_status": "compressed", **more,
    }  # fmt: skip


def rounded(values: npt.NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32)).to(dtype)


def in_words(codes: npt.NDArray[Any], bits: int) -> torch.Tensor:
    """Codes from 0 on [rows, n] as int32 [rows, n * bits / 32], rounded up."""
    each = 32 // bits
    filled = np.pad(codes, ((0, 0), (0, -codes.shape[1] % each))).reshape(len(codes), -1, each)
    shifts = bits * np.arange(each, dtype=np.uint64)
    words = (filled.astype(np.uint64) << shifts).sum(-1).astype(np.uint32)
    return torch.from_numpy(words.view(np.int32))


def integers(
    rng: np.random.Generator, out: int, n_in: int, *, bits: int = 8, size: int = 0, zeros: str = "",
    dtype: torch.dtype = BF16, packed: bool = False, index: bool | None = None, tensor: bool = False,
    scattered: bool = False,
) -> Made:  # fmt: skip
    """Integers of ``bits`` with scales of groups of ``size`` columns, 0: of all; ``tensor``: one scale.

    ``zeros``: "wide" of all values, "narrow" of 0 and 1, "" none.  ``index``: groups by ``weight_g_idx``, of
    neighbours, or only -1 (False).  ``scattered``: they are, alike in all matrices of as many columns.
    """
    groups, rows = -(-n_in // (size or n_in)), 1 if tensor else out
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    codes = rng.integers(low + (zeros == "narrow"), high + 1, (out, n_in))
    zero = rng.integers(*((0, 2) if zeros == "narrow" else (low, high + 1)), (rows, groups))
    zero = zero if zeros else np.zeros_like(zero)
    scale = rounded(rng.uniform(0.5, 1.5, (rows, groups)) / n_in**0.5 / high, dtype)
    of = np.arange(n_in) // (size or n_in)
    of = scattered_groups(of) if scattered else of
    whole = scale.float().numpy()[:, of] * (codes - zero[:, of])
    tensors = {"weight_scale": scale[0] if tensor else scale, "input_scale": torch.ones(1)}
    if index is not None:
        listed = of if index else np.full(n_in, -1)
        tensors["weight_g_idx"] = torch.from_numpy(listed.astype(np.int32))
    if packed:
        tensors["weight_packed"] = in_words(codes - low, bits)
        tensors["weight_shape"] = torch.tensor([out, n_in])
    else:
        tensors["weight"] = torch.from_numpy(codes.astype(np.int8))
    if zeros and packed:
        tensors["weight_zero_point"] = in_words((zero - low).T, bits).T.contiguous()
    elif zeros:
        tensors["weight_zero_point"] = torch.from_numpy(zero.astype(np.int8).reshape(scale.shape))
        if tensor:
            tensors["weight_zero_point"] = tensors["weight_zero_point"][0]
    return tensors, whole.astype(np.float32)


def nvfp4(rng: np.random.Generator, out: int, n_in: int) -> Made:
    codes = rng.integers(0, 16, (out, n_in)).astype(np.uint8)
    scale = rounded(rng.uniform(1, 400, (out, n_in // 16)), torch.float8_e4m3fn)
    whole = np.float32(2000 * n_in**0.5)
    of = np.repeat(scale.float().numpy() / whole, 16, -1)
    tensors = {
        "weight_packed": torch.from_numpy(codes[:, ::2] | codes[:, 1::2] << 4),
        "weight_scale": scale,
        "weight_global_scale": torch.tensor([whole]),
    }
    return tensors, ((MXFP4[codes] / 2).astype(np.float32) * of).astype(np.float32)


def mx(rng: np.random.Generator, out: int, n_in: int) -> Made:
    tensors, whole = mxfp4(rng, 1, out, n_in)
    return {
        "weight_packed": tensors["_blocks"].reshape(out, n_in // 2),
        "weight_scale": tensors["_scales"][0],
    }, whole[0]


INT8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
INT4 = {"num_bits": 4, "type": "int", "group_size": 64, "strategy": "group"}
FLOAT8 = {"num_bits": 8, "type": "float"}
FLOAT4 = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}
NV = FLOAT4 | {"strategy": "tensor_group", "group_size": 16}
ZEROS = {"symmetric": False}
BLOCKS = {"strategy": "block", "block_structure": [64, 64]}
SCALE = {"name": "weight_scale"}
WORDS4: dict[str, Any] = {"bits": 4, "size": 64, "packed": True}
WORDS8 = WORDS4 | {"bits": 8}

CASES: dict[str, tuple[dict[str, Any], Callable[..., Made], dict[str, Any], str]] = {
    "fp8": (FLOAT8 | {"strategy": "tensor"}, fp8, SCALE | {"by": "matrix"}, "F8_E4M3"),
    "fp8 by rows": (FLOAT8 | {"strategy": "channel"}, fp8, SCALE | {"by": "rows"}, "F8_E4M3"),
    "fp8 in blocks": (FLOAT8 | BLOCKS, fp8, SCALE, "F8_E4M3"),
    "fp8 in blocks, as text": (FLOAT8 | BLOCKS | {"block_structure": "64x64"}, fp8, SCALE, "F8_E4M3"),
    "int8": (INT8, integers, {}, "Q8_0"),
    "int8 of float32 scales": (INT8, integers, {"dtype": F32}, "F32"),
    "int8 in groups": (INT4 | {"num_bits": 8}, integers, {"size": 64}, "Q8_0"),
    "int8 in groups of 16": (INT4 | {"num_bits": 8, "group_size": 16}, integers, {"size": 16}, "F16"),
    "int8 of one scale": (INT8 | {"strategy": "tensor"}, integers, {"tensor": True}, "Q8_0"),
    "int8 of zeros": (INT8 | ZEROS, integers, {"zeros": "wide"}, "F32"),
    "int8 of zeros near 0": (INT8 | ZEROS, integers, {"zeros": "narrow"}, "Q8_0"),
    "int8 of one zero": (
        INT8 | ZEROS | {"strategy": "tensor"}, integers, {"zeros": "wide", "tensor": True}, "F32"
    ),
    "int4": (INT4, integers, WORDS4, "Q4_0"),
    "int4 by rows": (INT4 | {"strategy": None, "group_size": -1}, integers, WORDS4 | {"size": 0}, "Q4_0"),
    "int4 of zeros": (INT4 | ZEROS, integers, WORDS4 | {"zeros": "wide"}, "Q5_0"),
    "int4 of float32 scales": (INT4, integers, WORDS4 | {"dtype": F32}, "F32"),
    "int4 with an index": (INT4 | {"actorder": "group"}, integers, WORDS4 | {"index": True}, "Q4_0"),
    "int4 with no index": (INT4 | {"actorder": "group"}, integers, WORDS4 | {"index": False}, "Q4_0"),
    "int4 in act-order": (
        INT4 | {"actorder": "group"}, integers, WORDS4 | {"index": True, "scattered": True}, "Q4_0"
    ),
    "int8 in act-order": (
        INT4 | ZEROS | {"num_bits": 8, "actorder": "group"}, integers,
        WORDS8 | {"zeros": "narrow", "index": True, "scattered": True}, "Q8_0",
    ),
    "int8 in words": (INT4 | {"num_bits": 8}, integers, WORDS8, "Q8_0"),
    "int8 in words, of zeros": (
        INT4 | ZEROS | {"num_bits": 8}, integers, WORDS8 | {"zeros": "narrow"}, "Q8_0"
    ),
    "mxfp4": (FLOAT4, mx, {}, "MXFP4"),
    "nvfp4": (NV, nvfp4, {}, "F32"),
}  # fmt: skip


def write(path: Path, name: str, shards: int = 1) -> tuple[dict[str, Any], str]:
    weights, make, how, kind = CASES[name]
    return write_quantised(path, config(weights), make, shards, **how), kind


@pytest.mark.parametrize("name", CASES)
def test_matrices_are_what_the_format_says(tmp_path: Path, name: str) -> None:
    whole, kind = write(tmp_path / "m", name, shards=3 if name == "int4 of zeros" else 1)
    weights = open_weights(tmp_path / "m")
    for stem, expected in whole.items():
        stored = weights.stored(ours(stem))
        assert (stored.type, stored.shape) == (kind, expected.shape)
        assert not stored.data.flags.writeable
        wanted = expected.astype(np.float16) if kind == "F16" else expected
        np.testing.assert_array_equal(stored.floats(), wanted.astype(np.float32))


@pytest.mark.parametrize("name", ["fp8 by rows", "int8", "int4", "int4 of zeros", "mxfp4", "nvfp4"])
def test_logits_are_those_of_the_float_model(tmp_path: Path, name: str) -> None:
    """Activations that the configuration would round have ours."""
    _, kind = write(tmp_path / "m", name)
    expected = logits(open_weights(tmp_path / "m" / "floats"), IDS)
    rows = logits(open_weights(tmp_path / "m"), IDS)
    if kind in ("F8_E4M3", "F32"):
        assert rows.tobytes() == expected.tobytes()
    else:
        assert 0 < np.abs(rows - expected).max() < 0.03 * np.ptp(expected)


def test_a_converted_file_keeps_the_types(tmp_path: Path) -> None:
    for name in ("int8", "int4", "mxfp4"):
        _, kind = write(tmp_path / name, name)
        gguf = converted(tmp_path / name, tmp_path / "m.gguf")
        assert gguf.type_of("blk.0.ffn_up.weight") == kind


def test_groups_of_several_kinds(tmp_path: Path) -> None:
    """Attention in FP8, embeddings, which are tied, in eight bits, the rest in four, one matrix in floats."""

    def make(rng: np.random.Generator, out: int, n_in: int) -> Made:
        if out in (64, 128) and n_in == 128:
            return fp8(rng, out, n_in, by="rows", name="weight_scale")
        return integers(rng, out, n_in, **WORDS4)

    groups = {
        "group_0": {"targets": ["re:.*mlp.*"], "weights": INT4, "format": "pack-quantized"},
        "group_1": {"targets": ["re:.*attn.*"], "weights": FLOAT8 | {"strategy": "channel"}},
        "group_2": {"targets": ["Embedding"], "weights": INT4 | {"num_bits": 8}},
        "group_3": {"targets": ["LlamaAttention"], "weights": None},
    }
    path = tmp_path / "m"
    whole = write_quantised(path, config({}, "mixed-precision", config_groups=groups), make)
    named = load_file(path / "model.safetensors")
    for end in ("k_scale", "v_scale"):
        named[f"model.layers.0.self_attn.{end}"] = torch.ones(1)
    table, expected = integers(np.random.default_rng(1), N_VOCAB, N_EMBD, **WORDS8)
    del named["model.embed_tokens.weight"]
    named |= {f"model.embed_tokens.{end}": tensor for end, tensor in table.items()}
    stem = "model.layers.1.mlp.down_proj."
    for end in ("weight_packed", "weight_shape", "weight_scale", "input_scale"):
        del named[stem + end]
    named[f"{stem}weight"] = torch.from_numpy(whole[stem])
    save_file(named, path / "model.safetensors")
    weights = open_weights(path)
    assert weights.stored("token_embd.weight").type == "Q8_0"
    np.testing.assert_array_equal(weights.floats("token_embd.weight"), expected)
    assert np.isfinite(logits(weights, IDS)).all()
    kinds = {name: weights.stored(ours(name)).type for name in whole}
    assert kinds.pop(stem) == "F32"
    assert {kind for name, kind in kinds.items() if "mlp" in name} == {"Q4_0"}
    assert {kind for name, kind in kinds.items() if "attn" in name} == {"F8_E4M3"}
    for name, expected in whole.items():
        np.testing.assert_array_equal(weights.floats(ours(name)), expected)


NAN = torch.full((128, 2), torch.nan).to(BF16)


@pytest.mark.parametrize(
    ("name", "end", "tensor", "what"),
    [
        ("int4", "weight_scale", None, "weight_scale' is missing: without it"),
        ("int4", "weight_shape", None, "weight_shape' is missing"),
        ("int4 of zeros", "weight_zero_point", None, "weight_zero_point' is missing"),
        ("int4", "weight_scale", NAN, "holds NaN or an infinity"),
        ("int4", "weight_scale", torch.ones(128, 2).int(), "is stored in I32; it must be F32 or"),
        ("int4", "weight_scale", torch.ones(128, 3), r"\[128, 3\]; it must be \[128, 2\] for one of"),
        ("int4", "weight_shape", torch.tensor([128, 192]), r"is \[128, 192\], and weight_packed"),
        ("int4", "weight_shape", torch.tensor([-128, -128]), "they must have as many rows"),
        ("int4", "weight_packed", torch.ones(128, 24).int(), "4 or 8 bits for each element"),
        ("int4 of zeros", "weight_zero_point", torch.ones(8, 2).int(), r"it must be \[16, 2\]"),
        ("int4 of zeros", "weight_zero_point", torch.ones(16, 2), "must be I32"),
        ("int4 with an index", "weight_g_idx", torch.full((128,), 2).int(), "has 2; it must be between"),
        ("int4 with an index", "weight_g_idx", torch.arange(-1, 127).int() // 64, "has -1; it must be"),
        ("int8", "weight_scale", None, "is missing"),
        ("int8 of zeros", "weight_zero_point", torch.zeros(128, 1), "must be I8"),
        ("fp8", "weight_scale", torch.tensor([torch.inf]), "holds NaN or a number of 2"),
        ("fp8 in blocks", "weight_scale", torch.ones(2, 3), r"it must be \[2, 2\] for one of"),
        ("mxfp4", "weight_scale", torch.full((128, 4), 255, dtype=torch.uint8), "holds NaN"),
        ("nvfp4", "weight_global_scale", None, "is missing"),
        ("nvfp4", "weight_global_scale", torch.zeros(1), "holds NaN or an infinity"),
        ("nvfp4", "weight_scale", torch.full((128, 8), torch.nan).to(torch.float8_e4m3fn), "holds NaN"),
    ],
)  # fmt: skip
def test_damaged_files(
    tmp_path: Path, name: str, end: str, tensor: torch.Tensor | None, what: str
) -> None:
    write(tmp_path / "m", name)
    named = load_file(tmp_path / "m" / "model.safetensors")
    del named[FIRST + end]
    if tensor is not None:
        named[FIRST + end] = tensor
    save_file(named, tmp_path / "m" / "model.safetensors")
    with pytest.raises(AleatorError, match=what):
        open_weights(tmp_path / "m").check_finite(ours(FIRST))


OTHER = {"group_0": {"weights": INT8}}
TWO = {"a": {"weights": INT4}, "b": {"weights": INT4 | {"group_size": 100}}}


@pytest.mark.parametrize(
    ("name", "changes", "what"),
    [
        ("int4", {"format": "marlin-24"}, "'compressed-tensors' with format='marlin-24'"),
        ("int4", {"config_groups": {"a": {"format": "mxfp6-pack-quantized"}}}, "format='mxfp6-pack"),
        ("int4", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "='sparse-24-bitmask'"),
        ("int4", {"transform_config": {"config_groups": {"R1": {}}}}, "transform_config="),
        ("int4", {"config_groups": None}, "config_groups"),
        ("int4", {"config_groups": OTHER}, "no weights of int in 4 bits, as"),
        ("int4", {"config_groups": {"a": 3}}, "config_groups has 3 as 'a'"),
        ("int4", {"config_groups": {str(i): {} for i in range(257)}}, "has 257 groups; at most"),
        ("fp8", {"symmetric": False}, "with floats of symmetric=False"),
        ("int4", {"config_groups": TWO}, "config_groups has several ways to read"),
        ("int4", {"num_bits": 3}, "no weights of int in 4 bits, as"),
        ("int4", {"type": "complex"}, "type is 'complex'; it must be 'int' or 'float'"),
        ("int4", {"strategy": "token"}, "strategy is 'token'; it must be tensor, "),
        ("int4", {"group_size": 0}, "group_size is 0; with groups it must be 1 or more"),
        ("int4", {"group_size": 32}, r"\[128, 3\]; it must be \[128, 6\] for one of config"),
        ("int4", {"symmetric": "no"}, "symmetric must be true or false"),
        ("fp8 in blocks", {"block_structure": None}, "block_structure is None; it must be two"),
        ("fp8 in blocks", {"block_structure": [64, 0]}, "it must be two positive integers"),
    ],
)  # fmt: skip
def test_configurations_that_are_refused(
    tmp_path: Path, name: str, changes: dict[str, Any], what: str
) -> None:
    write(tmp_path / "m", name)
    file = tmp_path / "m" / "config.json"
    fields = json.loads(file.read_text())
    given = fields["quantization_config"]
    of = given["config_groups"]["group_0"]["weights"]
    for key, value in changes.items():
        (of if key in of or key == "symmetric" else given)[key] = value
    file.write_text(json.dumps(fields))
    with pytest.raises(AleatorError, match=what):
        open_weights(tmp_path / "m")


@pytest.mark.parametrize("name", [name for name in CASES if name != "nvfp4"])
def test_scales_of_whole_matrices_are_nvfp4s_alone(tmp_path: Path, name: str) -> None:
    write(tmp_path / "m", name)
    file = tmp_path / "m" / "model.safetensors"
    save_file(load_file(file) | {f"{FIRST}weight_global_scale": torch.full((1,), 3.0)}, file)
    told = rf"{file}: .*'{FIRST}weight_global_scale' is read beside a weight_scale in F8_E4M3 only"
    with pytest.raises(AleatorError, match=told):
        open_weights(tmp_path / "m")


ZERO_POINT = "weight_zero_point"


@pytest.mark.parametrize("name", ["fp8", "int8", "int4", "mxfp4"])
def test_zeros_that_the_configuration_does_not_announce(tmp_path: Path, name: str) -> None:
    """Old versions wrote zeros of 0; others would make another model."""
    whole, _ = write(tmp_path / "m", name)
    file = tmp_path / "m" / "model.safetensors"
    named = load_file(file) | {FIRST + ZERO_POINT: torch.zeros(128, 1, dtype=torch.int8)}
    save_file(named, file)
    read = open_weights(tmp_path / "m").floats(ours(FIRST))
    np.testing.assert_array_equal(read, whole[FIRST])
    named[FIRST + ZERO_POINT][3] = 1
    save_file(named, file)
    with pytest.raises(AleatorError, match="has zeros other than 0, but config_groups says symm"):
        open_weights(tmp_path / "m")


@pytest.mark.parametrize("name", ["fp8 in blocks", "mxfp4", "nvfp4"])
def test_scattered_groups_of_floats_are_refused(tmp_path: Path, name: str) -> None:
    whole, _ = write(tmp_path / "m", name)
    file = tmp_path / "m" / "model.safetensors"
    named = load_file(file) | {FIRST + "weight_g_idx": torch.full((N_EMBD,), -1, dtype=torch.int32)}
    save_file(named, file)
    read = open_weights(tmp_path / "m").floats(ours(FIRST))
    np.testing.assert_array_equal(read, whole[FIRST])
    named[FIRST + "weight_g_idx"] = torch.arange(N_EMBD, dtype=torch.int32) % 2
    save_file(named, file)
    with pytest.raises(AleatorError, match="with weight_g_idx of floats="):
        open_weights(tmp_path / "m")


def test_a_block_larger_than_the_matrix_is_the_matrix(tmp_path: Path) -> None:
    weights = FLOAT8 | {"strategy": "block", "block_structure": [256, 256]}
    groups = {"a": {"weights": weights}, "b": {"weights": FLOAT8 | {"strategy": "tensor"}}}
    given = config({}, "float-quantized", config_groups=groups)
    whole = write_quantised(tmp_path / "m", given, fp8, name="weight_scale", by="matrix")
    read = open_weights(tmp_path / "m").floats(ours(FIRST))
    np.testing.assert_array_equal(read, whole[FIRST])


def test_narrow_blocks_of_fp8_are_refused(tmp_path: Path) -> None:
    def make(rng: np.random.Generator, out: int, n_in: int) -> Made:
        tensors, whole = fp8(rng, out, n_in, name="weight_scale")
        return tensors | {"weight_scale": torch.ones(out, n_in // 32)}, whole

    weights = FLOAT8 | {"strategy": "group", "group_size": 32}
    write_quantised(tmp_path / "m", config(weights), make)
    with pytest.raises(AleatorError, match="'compressed-tensors' with columns of blocks=32"):
        open_weights(tmp_path / "m")
