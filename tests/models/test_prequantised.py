"""Directories that others quantised: the numbers they stand for, logits, conversion, damaged files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from aleator.cache.devices import Device
from aleator.core.errors import AleatorError, FileFormatError, UnsupportedModel
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.adapter_files import load_adapters
from aleator.models.adapters import adapter_files, chosen_adapters
from aleator.models.conversion.convert import ConvertedDirectory
from aleator.models.conversion.quantise import Quantisation
from aleator.models.directory import Directory
from aleator.models.exact import exact_bytes
from aleator.models.placement import ON_CPU, Place, weight_bytes
from tests.models.adapters import write_adapter
from tests.models.check_converted import NO_VOCABULARY, converted, logits
from tests.models.prequantised import (
    N_EMBD,
    N_FF,
    N_VOCAB,
    Made,
    awq,
    fp8,
    gptq,
    nf4,
    ours,
    write_quantised,
)

IDS = list(range(20))
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"}
FP8 = {"quant_method": "fp8", "weight_block_size": [64, 64]}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
FIRST = "model.layers.0.self_attn.q_proj."

CASES: dict[str, tuple[dict[str, Any], Callable[..., Made], dict[str, Any], str]] = {
    "gptq": (GPTQ, gptq, {}, "Q5_0"),
    "gptq symmetric": (GPTQ | {"sym": True}, gptq, {"zero": 8}, "Q4_0"),
    "gptq v2": (GPTQ | {"checkpoint_format": "gptq_v2"}, gptq, {"v2": True}, "Q5_0"),
    "gptq v2 by its newer name": (
        GPTQ | {"format": "gptq_v2", "dynamic": {"-:lm_head": {}, "+:.*up": {"bits": 4, "sym": False}}},
        gptq, {"v2": True}, "Q5_0",
    ),
    "gptq of zeros 16": (GPTQ, gptq, {"zero": 16}, "Q5_0"),
    "gptq in one group": (GPTQ | {"group_size": -1}, gptq, {"size": 1024}, "Q5_0"),
    "gptq in groups of 32": (GPTQ | {"group_size": 32}, gptq, {"size": 32}, "Q5_0"),
    "gptq in groups that blocks cross": (GPTQ | {"group_size": 24}, gptq, {"size": 24}, "F16"),
    "gptq in act-order": (GPTQ | {"desc_act": True}, gptq, {"scattered": True}, "Q5_0"),
    "gptq symmetric in act-order": (GPTQ | {"desc_act": True}, gptq, {"scattered": True, "zero": 8}, "Q4_0"),
    "gptq of 8 bits": (GPTQ | {"bits": 8}, gptq, {"bits": 8, "zero": 128, "scattered": True}, "Q8_0"),
    "gptq of 8 bits and zeros": (GPTQ | {"bits": 8}, gptq, {"bits": 8}, "F32"),
    "awq": (AWQ, awq, {}, "Q5_0"),
    "awq of zeros 0": (AWQ | {"version": "GEMM"}, awq, {"zero": 0}, "Q5_0"),
    "awq symmetric": (AWQ, awq, {"zero": 8}, "Q4_0"),
    "awq by former names": ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, awq, {}, "Q5_0"),
    "fp8": (FP8, fp8, {}, "F8_E4M3"),
    "fp8 by rows": ({"quant_method": "fbgemm_fp8"}, fp8, {"by": "rows", "name": "weight_scale"}, "F8_E4M3"),
    "fp8 with one scale": ({"quant_method": "fp8"}, fp8, {"by": "matrix"}, "F8_E4M3"),
    "nf4": (NF4, nf4, {}, "NF4"),
    "nf4 nested": (NF4, nf4, {"nested": True}, "NF4"),
    "fp4": (NF4 | {"bnb_4bit_quant_type": "fp4"}, nf4, {"kind": "fp4", "nested": True}, "F32"),
    "nf4 in blocks of 128": (NF4, nf4, {"size": 128}, "NF4"),
    "nf4 as bfloat16": (NF4, nf4, {"stored": torch.bfloat16, "nested": True}, "NF4"),
    "nf4 as float32": (NF4, nf4, {"stored": torch.float32}, "NF4"),
}  # fmt: skip


def write(path: Path, name: str, shards: int = 1) -> tuple[dict[str, Any], str]:
    config, make, how, kind = CASES[name]
    return write_quantised(path, config, make, shards, **how), kind


@pytest.mark.parametrize("name", CASES)
def test_matrices_are_what_the_format_says(tmp_path: Path, name: str) -> None:
    whole, kind = write(tmp_path / "m", name, shards=3 if name == "gptq" else 1)
    weights = open_weights(tmp_path / "m")
    for stem, expected in whole.items():
        stored = weights.stored(ours(stem))
        assert (stored.type, stored.shape) == (kind, expected.shape)
        assert not stored.data.flags.writeable
        wanted = expected.astype(np.float16) if kind == "F16" else expected
        np.testing.assert_array_equal(stored.floats(), wanted.astype(np.float32))


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_the_float_model(tmp_path: Path, name: str) -> None:
    _, kind = write(tmp_path / "m", name)
    expected = logits(open_weights(tmp_path / "m" / "floats"), IDS)
    rows = logits(open_weights(tmp_path / "m"), IDS)
    if kind in ("F8_E4M3", "NF4", "F32"):  # products with these numbers, in the same order
        assert rows.tobytes() == expected.tobytes()
    else:  # activations are rounded to int8, or weights to float16
        assert 0 < np.abs(rows - expected).max() < 0.03 * np.ptp(expected)


@pytest.mark.parametrize("name", ["gptq", "awq symmetric", "fp8", "nf4"])
def test_a_converted_file_has_the_same_logits(tmp_path: Path, name: str) -> None:
    _, kind = write(tmp_path / "m", name)
    gguf = converted(tmp_path / "m", tmp_path / "m.gguf")
    assert gguf.type_of("blk.0.ffn_up.weight") == {"F8_E4M3": "BF16", "NF4": "BF16"}.get(kind, kind)
    expected = logits(open_weights(tmp_path / "m"), IDS)
    rows = logits(open_weights(tmp_path / "m.gguf"), IDS)
    # llama.cpp rotates neighbours, so that sums of scores have another order.
    assert np.abs(rows - expected).max() < (0.02 if "BF16" in kind else 1e-2) * np.ptp(expected)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", None])
@pytest.mark.parametrize("name", ["fp8", "nf4 nested"])
def test_every_type_is_made_of_the_numbers_themselves(
    tmp_path: Path, name: str, kind: str | None
) -> None:
    """The file is that of the directory with these numbers in float32; without a type it has BF16."""
    whole, _ = write(tmp_path / "m", name)
    converted(tmp_path / "m", tmp_path / "m.gguf", kind)
    converted(tmp_path / "m" / "floats", tmp_path / "floats.gguf", kind or "BF16")
    made, floats = (open_weights(tmp_path / f"{each}.gguf") for each in ("m", "floats"))
    for stem in whole:
        ours_, theirs = made.stored(ours(stem)), floats.stored(ours(stem))
        assert ours_.type == theirs.type == (kind or "BF16")
        assert ours_.data.tobytes() == theirs.data.tobytes(), stem


@pytest.mark.parametrize(("name", "file"), [("gptq", "quantize"), ("awq by former names", "quant")])
def test_a_file_of_its_own_may_say_how(tmp_path: Path, name: str, file: str) -> None:
    """As AutoGPTQ and AutoAWQ wrote them at first."""
    write(tmp_path / "m", name)
    expected, config = logits(open_weights(tmp_path / "m"), IDS), tmp_path / "m" / "config.json"
    given = (values := json.loads(config.read_text())).pop("quantization_config")
    config.write_text(json.dumps(values))
    del given["quant_method"]
    (tmp_path / "m" / f"{file}_config.json").write_text(json.dumps(given))
    assert logits(open_weights(tmp_path / "m"), IDS).tobytes() == expected.tobytes()


def test_progress_ends_at_the_whole(tmp_path: Path) -> None:
    write(tmp_path / "m", "fp8")
    plan = Quantisation(ConvertedDirectory(Directory(tmp_path / "m"), NO_VOCABULARY), "F16")
    seen: list[tuple[int, int]] = []
    plan.write(tmp_path / "m.gguf", 1, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (plan.size[0], plan.size[0])


@pytest.mark.parametrize("name", ["gptq", "fp8 by rows", "nf4"])
def test_a_quantised_output_matrix_is_not_tied(tmp_path: Path, name: str) -> None:
    """transformers takes the matrix of NF4, and fails to load the others: none is tied."""
    write(tmp_path / "m", name)
    _, make, how, kind = CASES[name]
    made, whole = make(np.random.default_rng(1), N_VOCAB, N_EMBD, **how)
    head = {f"lm_head.{end}": tensor for end, tensor in made.items()}
    damage(tmp_path / "m", lambda tensors: tensors.update(head))
    weights = open_weights(tmp_path / "m")
    assert not weights.config.tied
    assert weights.stored("output.weight").type == kind
    np.testing.assert_array_equal(weights.floats("output.weight"), whole)


def half(value: Fraction) -> float:
    """The nearest float16, of two as near the one whose last bit is 0, in exact arithmetic."""
    exponent = max(math.frexp(float(value))[1] - 1, -14)
    return float(round(value / Fraction(2) ** (exponent - 10)) * Fraction(2) ** (exponent - 10))


def test_float16_of_fp8_is_rounded_once(tmp_path: Path) -> None:
    """Scales in BF16 make exact products of 12 bits: BF16, with 8, is no place on the way to float16."""

    def make(rng: np.random.Generator, out: int, n_in: int) -> Made:
        tensors, _ = fp8(rng, out, n_in)
        scale = tensors["weight_scale_inv"].to(torch.bfloat16)
        of = scale.float().repeat_interleave(64, 0)[:out].repeat_interleave(64, 1)[:, :n_in]
        return tensors | {"weight_scale_inv": scale}, (tensors["weight"].float() * of).numpy()

    whole = write_quantised(tmp_path / "m", FP8, make)
    converted(tmp_path / "m", tmp_path / "m.gguf", "F16")
    weights = open_weights(tmp_path / "m.gguf")
    stem = next(each for each in whole if ours(each) == "blk.1.ffn_up.weight")
    made, exact = weights.floats(ours(stem)), whole[stem]
    wanted = [half(Fraction(float(value))) for value in exact.reshape(-1)]
    assert made.reshape(-1).tolist() == wanted
    twice = torch.from_numpy(exact).to(torch.bfloat16).to(torch.float16).float().numpy()
    assert 0.1 < (made != twice).mean() < 1


@pytest.mark.parametrize("make", [fp8, nf4])
def test_rows_that_are_no_whole_blocks_are_widened(
    tmp_path: Path, make: Callable[..., Made]
) -> None:
    """Matrices of 160 columns have two blocks and a half."""
    tensors, whole = make(np.random.default_rng(0), 128, 160)
    write(tmp_path / "m", "fp8" if make is fp8 else "nf4")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    named = load_file(tmp_path / "m" / "model.safetensors")
    config["intermediate_size"] = 160
    for layer in (0, 1):
        stem = f"model.layers.{layer}.mlp."
        named |= {f"{stem}down_proj.{end}": each.clone() for end, each in tensors.items()}
        for each in ("gate_proj", "up_proj"):
            other, _ = make(np.random.default_rng(layer), 160, 128)
            named |= {f"{stem}{each}.{end}": tensor for end, tensor in other.items()}
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    save_file(named, tmp_path / "m" / "model.safetensors")
    stored = open_weights(tmp_path / "m").stored("blk.1.ffn_down.weight")
    assert stored.type == "F32"
    np.testing.assert_array_equal(stored.floats(), whole)


@pytest.mark.parametrize("factor", [1.0001, 1e8])
def test_scales_that_are_no_float16_widen_the_matrix(tmp_path: Path, factor: float) -> None:
    def make(rng: np.random.Generator, out: int, n_in: int) -> Made:
        tensors, whole = gptq(rng, out, n_in)
        scales = tensors["scales"].float() * factor
        of = np.arange(n_in) // 64
        steps = np.rint(whole / tensors["scales"].float().numpy()[of].T)
        return tensors | {"scales": scales}, (scales.numpy()[of].T * steps).astype(np.float32)

    whole = write_quantised(tmp_path / "m", GPTQ, make)
    stored = open_weights(tmp_path / "m").stored(ours(FIRST))
    assert stored.type == "F32"
    np.testing.assert_array_equal(stored.floats(), whole[FIRST])


def test_orders_that_matrices_with_one_input_do_not_share(tmp_path: Path) -> None:
    """Products are rounded to float16, as GPTQ's own are; where a matrix has its input alone, nothing is."""

    def make(rng: np.random.Generator, out: int, n_in: int) -> Made:
        return gptq(rng, out, n_in, index=rng.permutation(np.arange(n_in) // 64))

    whole = write_quantised(tmp_path / "m", GPTQ | {"desc_act": True}, make)
    weights = open_weights(tmp_path / "m")
    assert weights.size_bytes == sum(weights.stored(each).data.size for each in weights.names())
    for stem, expected in whole.items():
        stored, alone = weights.stored(ours(stem)), stem.endswith(("o_proj.", "down_proj."))
        assert (stored.type, stored.order is None) == (("Q5_0", False) if alone else ("F16", True))
        wanted = expected if alone else expected.astype(np.float16)
        np.testing.assert_array_equal(stored.floats(), wanted.astype(np.float32))


def damage(path: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    named = load_file(path / "model.safetensors")
    change(named)
    save_file(named, path / "model.safetensors")


def put(end: str, tensor: torch.Tensor | None) -> Callable[[dict[str, torch.Tensor]], None]:
    def change(named: dict[str, torch.Tensor]) -> None:
        if tensor is None:
            del named[FIRST + end]
        else:
            named[FIRST + end] = tensor

    return change


def put_all(tensors: dict[str, torch.Tensor]) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda named: named.update({FIRST + end: each for end, each in tensors.items()})


def state(**changes: Any) -> torch.Tensor:
    values = {"blocksize": 64, "shape": [N_EMBD, N_EMBD]} | changes
    return torch.tensor(list(json.dumps(values).encode()), dtype=torch.uint8)


STATE = "weight.quant_state.bitsandbytes__nf4"
BLOCKS_OR_ROWS = r"it must be \[2, 2\] for blocks of \[64, 64\] .*, \[128, 1\] for rows, or \[1\]"
I32, F32, U8 = torch.int32, torch.float32, torch.uint8
INDEX = (torch.arange(N_EMBD) // 64).int()
SCATTERED = INDEX.roll(1)
LARGE, ENDLESS = (torch.full((2, N_EMBD), n).half() for n in (65504.0, torch.inf))
NESTED, BYTES = {"nested_blocksize": 256}, torch.ones(256, dtype=U8)
HUGE = {"absmax": torch.full((1,), 3e38), "quant_map": torch.full((256,), 3e38)}


@pytest.mark.parametrize(
    ("name", "change", "what"),
    [
        ("gptq", put("scales", None), "scales' is missing"),
        ("gptq", put("qzeros", None), "qzeros' is missing"),
        ("gptq", put("qzeros", torch.ones(2, 16)), "stored in F32; it must be I32"),
        ("gptq", put("qzeros", torch.ones(2, 15, dtype=I32)), r"it must be \[2, 16\]"),
        ("gptq", put("g_idx", INDEX[1:].clone()), r"it must be \[128\]"),
        ("gptq in act-order", put("g_idx", None), "g_idx' is missing"),
        ("gptq", put("g_idx", INDEX + 1), "has 2; it must be between 0 and 1"),
        ("gptq", put("qweight", torch.ones(16, 127, dtype=I32)), "127 columns.*multiple of 8"),
        ("gptq", put("weight", torch.ones(4, dtype=U8)), "type U8, and belongs to no matrix"),
        ("gptq", put("scales", torch.full((2, N_EMBD), torch.nan).half()), "holds NaN"),
        ("gptq", put_all({"scales": LARGE, "g_idx": SCATTERED}), "an infinity"),
        ("gptq", put_all({"scales": ENDLESS, "g_idx": SCATTERED}), "an infinity"),
        ("awq", put("qweight", torch.ones(127, 16, dtype=I32)), "127 rows; they must be even"),
        ("fp8", put("weight_scale_inv", None), "weight_scale_inv' is missing"),
        ("fp8", put("weight_scale_inv", torch.ones(3, 3)), BLOCKS_OR_ROWS),
        ("fp8", put("weight_scale_inv", torch.full((2, 2), torch.inf)), "2.100 or more"),
        ("fp8", put("weight_scale_inv", torch.full((2, 2), torch.nan)), "holds NaN"),
        ("fp8", put("weight_scale", torch.ones(1)), "weight_scale_inv' stands beside a weight_scale;"),
        ("fp8", put("weight", torch.full((128, 128), torch.nan).to(torch.float8_e4m3fn)), "holds NaN"),
        ("nf4", put(STATE, None), "nf4' is missing"),
        ("nf4", put(STATE, torch.ones(9, dtype=U8)), "no JSON object"),
        ("nf4", put(STATE, state(shape=[1, N_EMBD])), "has the shape .*has 16384 elements"),
        ("nf4", put(STATE, state(shape=None)), f"{STATE}': shape must be a list"),
        ("nf4", put(STATE, state(blocksize=0)), "blocksize is 0; it must be between 64"),
        ("nf4", put(STATE, state(blocksize=65)), "blocksize is 65; it must be a multiple of 64"),
        ("nf4", put("weight.absmax", None), "absmax' is missing"),
        ("nf4", put("weight.absmax", torch.ones(256, dtype=U8)), "nested_blocksize"),
        ("nf4", put("weight.quant_map", torch.ones(16)), "is not that of NF4"),
        ("nf4", put_all({STATE: state(**NESTED, nested_offset=2e30), "weight.absmax": BYTES}), r"is 2e\+30"),
        ("nf4 nested", put_all({f"weight.nested_{end}": each for end, each in HUGE.items()}), "an infinity"),
        ("nf4 nested", put("weight.nested_quant_map", torch.ones(16)), r"it must be \[256\]"),
    ],
)  # fmt: skip
def test_damaged_files(
    tmp_path: Path, name: str, change: Callable[[dict[str, torch.Tensor]], None], what: str
) -> None:
    write(tmp_path / "m", name)
    damage(tmp_path / "m", change)
    with pytest.raises((FileFormatError, UnsupportedModel), match=what):
        open_weights(tmp_path / "m").check_finite(ours(FIRST))


@pytest.mark.parametrize(
    ("name", "changes", "what"),
    [
        ("gptq", {"group_size": 0}, "group_size is 0; it must be 1 or more, or -1"),
        ("gptq", {"bits": 3}, "'gptq' with bits=3"),
        ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format='marlin'"),
        ("gptq", {"is_marlin_format": True}, "is_marlin_format=True"),
        ("gptq", {"format": "gptq_p"}, "'gptq' with format='gptq_p'"),
        ("gptq", {"rotation": "hadamard"}, "'gptq' with rotation='hadamard'"),
        ("gptq", {"dynamic": {r"-:.*up": {}, r"+:.*down": {"bits": 8}}}, "dynamic=.*down.*'bits': 8"),
        ("gptq", {"dynamic": {r".*down": {"group_size": 32}}}, "dynamic=.*'group_size': 32"),
        ("gptq", {"dynamic": [1]}, "dynamic must be a dict"),
        ("awq", {"version": "gemv"}, "'awq' with version='gemv'"),
        ("awq", {"format": "gemv"}, "'awq' with format='gemv'"),
        ("awq", {"checkpoint_format": "gemv_fast"}, "'awq' with checkpoint_format='gemv_fast'"),
        ("fp8", {"weight_scale_semantics": "inverse"}, "weight_scale_semantics='inverse'"),
        ("fp8", {"expert_dtype": "fp4"}, "'fp8' with expert_dtype='fp4'"),
        ("fp8", {"weight_block_size": [128, 128]}, r"it must be \[1, 2\] for blocks of \[128, 128\]"),
        ("fp8", {"weight_block_size": [64, 0]}, "two positive integers"),
        ("fp8", {"weight_block_size": [64, 32]}, "columns must be a multiple of 64"),
        ("fp8", {"fmt": "e5m2"}, "'fp8' with fmt='e5m2'"),
        ("nf4", {"load_in_8bit": True}, "load_in_8bit=True"),
        ("gptq", {"quant_method": "hqq"}, "'hqq'.*unquantised safetensors, or a GGUF file"),
        ("gptq", {"quant_method": 3}, "quant_method must be a string"),
        ("gptq", {"quant_method": "awq"}, "has the type I32, and belongs to no matrix"),
    ],
)  # fmt: skip
def test_other_ways_to_quantise(
    tmp_path: Path, name: str, changes: dict[str, Any], what: str
) -> None:
    write(tmp_path / "m", name)
    file = tmp_path / "m" / "config.json"
    config = json.loads(file.read_text())
    config["quantization_config"] |= changes
    file.write_text(json.dumps(config))
    with pytest.raises(AleatorError, match=what):
        open_weights(tmp_path / "m")


def test_scales_of_a_rounded_cache_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "m", "fp8 with one scale")
    expected = logits(open_weights(tmp_path / "m"), IDS)
    ends, file = ("kv_scale", "k_scale", "v_scale", "k_proj.output_scale"), tmp_path / "m"
    scales = {f"model.layers.0.self_attn.{end}": torch.tensor(2.0) for end in ends}
    damage(file, lambda named: named.update(scales))
    assert logits(open_weights(tmp_path / "m"), IDS).tobytes() == expected.tobytes()


def test_without_the_configuration_the_types_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "m", "gptq")
    file = tmp_path / "m" / "config.json"
    config = json.loads(file.read_text())
    del config["quantization_config"]
    file.write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match="has the type I32, which is not supported"):
        open_weights(tmp_path / "m")


def test_a_part_that_is_missing_is_missed_in_the_shard_with_the_codes(tmp_path: Path) -> None:
    write(tmp_path / "m", "awq", shards=2)
    index = tmp_path / "m" / "model.safetensors.index.json"
    files = json.loads(index.read_text())
    stem = next(
        name.removesuffix("qweight")
        for name, file in files["weight_map"].items()
        if name.endswith("qweight") and file != min(files["weight_map"].values())
    )
    del files["weight_map"][f"{stem}scales"]
    index.write_text(json.dumps(files))
    with pytest.raises(FileFormatError, match="is missing: without") as caught:
        open_weights(tmp_path / "m")
    assert str(caught.value.path).endswith(files["weight_map"][f"{stem}qweight"])


@pytest.mark.parametrize(("name", "wide"), [("gptq", False), ("fp8", True), ("nf4", True)])
def test_sizes(tmp_path: Path, name: str, wide: bool) -> None:
    """On the CPU as they are stored; FP8 and NF4 are float32 on a GPU."""
    write(tmp_path / "m", name)
    weights, gpu = open_weights(tmp_path / "m"), Place(Device("cuda"), "exact")
    assert weights.size_bytes == sum(weights.stored(each).data.size for each in weights.names())
    assert weight_bytes(weights, [ON_CPU] * 2) == {"cpu": weights.size_bytes}
    on_gpu = 4 * weights.n_parameters if wide else weights.size_bytes
    assert weight_bytes(weights, [gpu] * 2) == {str(gpu.device): on_gpu}
    assert exact_bytes(weights, [gpu] * 2) == pytest.approx(on_gpu, rel=0.1)


@pytest.mark.parametrize("name", ["awq", "fp8", "nf4", "gptq in act-order"])
def test_adapters_are_added_to_them(tmp_path: Path, name: str) -> None:
    _, kind = write(tmp_path / "m", name)
    rng, pairs = np.random.default_rng(1), {}
    for layer in (0, 1):
        a, b = (rng.standard_normal(shape, np.float32) for shape in ((4, N_FF), (N_EMBD, 4)))
        pairs[f"blk.{layer}.ffn_down.weight"] = np.float32(0.1) * a, b
    adapter = write_adapter(tmp_path / "a.gguf", pairs)

    def rows(path: Path, chosen: Any = ()) -> Any:
        weights = open_weights(path)
        decoder, adapters = (
            build_decoder(weights),
            load_adapters(adapter_files({"a": adapter}), weights),
        )
        types = {each.a.type for each in adapters.loaded[0].matrices.values()}
        floats = weights.stored(min(pairs)).type in ("F32", "F8_E4M3", "NF4")
        assert types == {"F32" if floats else "Q8_0"}  # as activations are
        decoder.take(adapters)
        context = Context(decoder, n_ctx=64, type_k="f32", type_v="f32", n_threads=1)
        context.adapters.set(0, chosen_adapters(chosen))
        return np.array(context.decode(Batch.one(IDS, logits=True)))

    made, floats = rows(tmp_path / "m", "a"), rows(tmp_path / "m" / "floats", "a")
    assert np.abs(made - rows(tmp_path / "m")).max() > 0.1 * np.ptp(floats)
    if kind in ("F8_E4M3", "NF4"):
        assert made.tobytes() == floats.tobytes()
    else:
        assert np.abs(made - floats).max() < 0.03 * np.ptp(floats)
