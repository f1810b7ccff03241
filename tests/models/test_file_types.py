"""Which type each tensor gets: llama.cpp's rules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from make_models import SPECS, Spec, write_model

from aleator.core.errors import FileFormatError, ParameterError, UnsupportedModel
from aleator.models.conversion.file_types import FILE_TYPES, Rules, file_type
from aleator.models.files.gguf import GGUFFile
from tests.models.builders import entry, model_metadata, raw_gguf, string, tensor, write_gguf

WIDE = Spec(n_layers=16, n_embd=256, n_heads=4, n_kv_heads=1, head_dim=64, n_ff=256, seed=1)


def types(path: Path, kind: str, weighed: bool = False) -> dict[str, str | None]:
    rules = Rules(GGUFFile(path), kind, weighed)
    return {info.name: chosen for info, chosen in rules.types()}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("types") / "wide.gguf", WIDE)


def layers(found: dict[str, str | None], part: str) -> list[str | None]:
    return [found[f"blk.{i}.{part}.weight"] for i in range(16)]


def test_q4_k_m(wide: Path) -> None:
    found = types(wide, "Q4_K_M")
    more = [i in (0, 1, 4, 7, 10, 13, 14, 15) for i in range(16)]
    assert layers(found, "ffn_down") == ["Q6_K" if m else "Q4_K" for m in more]
    assert layers(found, "attn_v") == ["Q6_K" if m else "Q4_K" for m in more]
    assert set(layers(found, "attn_q")) | set(layers(found, "ffn_up")) == {"Q4_K"}
    assert (found["output.weight"], found["token_embd.weight"]) == ("Q6_K", "Q4_K")
    assert found["blk.0.attn_norm.weight"] is None
    assert list(found)[:3] == ["output.weight", "output_norm.weight", "token_embd.weight"]


@pytest.mark.parametrize(
    ("kind", "values", "downs", "output"),
    [
        ("Q2_K", ["Q4_K"] * 16, ["Q3_K"] * 16, "Q3_K"),
        ("Q3_K_S", ["Q3_K"] * 16, ["Q3_K"] * 16, "Q3_K"),
        ("Q3_K_M", ["Q5_K"] * 2 + ["Q4_K"] * 14, ["Q5_K"] + ["Q4_K"] * 15, "Q4_K"),
        ("Q3_K_L", ["Q5_K"] * 16, ["Q5_K"] * 16, "Q5_K"),
        ("Q4_K_S", ["Q5_K"] * 4 + ["Q4_K"] * 12, ["Q5_K"] * 2 + ["Q4_K"] * 14, "Q4_K"),
        ("Q4_0", ["Q4_0"] * 16, ["Q4_0"] * 16, "Q4_0"),
        ("F16", ["F16"] * 16, ["F16"] * 16, "F16"),
    ],
)
def test_others(wide: Path, kind: str, values: list[str], downs: list[str], output: str) -> None:
    found = types(wide, kind)
    assert layers(found, "attn_v") == values
    assert layers(found, "ffn_down") == downs
    assert set(layers(found, "attn_output")) == {output}


def test_with_importances_the_first_q4_0_layers_have_a_least_value(wide: Path) -> None:
    assert layers(types(wide, "Q4_0", True), "ffn_down") == ["Q4_1"] * 2 + ["Q4_0"] * 14


def test_experts(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", SPECS["mixtral"])
    found = types(path, "MXFP4_MOE")
    assert found["blk.0.ffn_up_exps.weight"] == "MXFP4"
    assert found["blk.0.ffn_down_exps.weight"] == "F16"  # rows of 48 are no whole blocks
    assert found["blk.0.ffn_gate_inp.weight"] is None
    assert (found["blk.0.attn_q.weight"], found["output.weight"]) == ("Q8_0", "Q8_0")
    eight = Spec(n_experts=8, n_ff_expert=256, n_embd=256, seed=2)
    found = types(write_model(tmp_path / "8.gguf", eight), "Q4_K_M")
    assert found["blk.0.attn_v.weight"] == found["blk.0.attn_k.weight"] == "Q8_0"
    assert found["blk.1.attn_output.weight"] == "Q5_1"  # Q5_K, of rows of 64


@pytest.mark.parametrize(
    ("shape", "kind"),
    [((2, 4, 256), "MXFP4"), ((1, 4, 256), "Q8_0"), ((4, 256), "Q8_0"), ((2, 1, 256), "MXFP4"),
     ((1, 1, 256), None), ((1, 256), None), ((256,), None), ((1, 2, 256), "Q8_0")],
)  # fmt: skip
def test_of_which_shapes_a_matrix_is_changed_and_as_experts(
    shape: tuple[int, ...], kind: str | None, tmp_path: Path
) -> None:
    """Rows of one matrix or several; of one expert alone there is no mixture."""
    name = "blk.0.ffn_up_exps.weight"
    about = [
        entry("general.architecture", 8, string("llama")), entry("llama.block_count", 4, b"\1\0\0\0"),
        entry("llama.expert_count", 4, b"\2\0\0\0"),
    ]  # fmt: skip
    data = bytes(4 * int(np.prod(shape)))
    path = tmp_path / "m.gguf"
    path.write_bytes(raw_gguf(about, [tensor(name, list(shape[::-1]))], data))
    assert types(path, "MXFP4_MOE") == {name: kind}


def test_the_number_of_an_experts_layer_is_checked(tmp_path: Path) -> None:
    about = [
        entry("general.architecture", 8, string("llama")), entry("llama.block_count", 4, b"\4\0\0\0"),
        entry("llama.expert_count", 4, b"\2\0\0\0"),
    ]  # fmt: skip
    path = tmp_path / "m.gguf"
    for layer in (3, 4):
        part = tensor(f"blk.{layer}.ffn_down_exps.weight", [256, 4, 2])
        path.write_bytes(raw_gguf(about, [part], bytes(4 * 256 * 4 * 2)))
        if layer < 4:
            assert len(types(path, "Q4_K_M")) == 1
            continue
        with pytest.raises(FileFormatError, match=r"there are 4 layers .*blk\.4\.ffn_down_exps"):
            types(path, "Q4_K_M")


def test_rows_of_no_whole_blocks(tmp_path: Path) -> None:
    found = types(write_model(tmp_path / "m.gguf", SPECS["llama-tied-mha"]), "Q4_K_M")
    assert found["token_embd.weight"] == "Q8_0"  # Q6_K, of rows of 64
    assert found["blk.0.attn_q.weight"] == "Q5_0"
    assert [found[f"blk.{i}.ffn_down.weight"] for i in range(2)] == ["Q5_0", "Q8_0"]


def test_names() -> None:
    assert (file_type("q4_k"), file_type("mxfp4")) == ("Q4_K_M", "MXFP4_MOE")
    assert all(file_type(name) == name for name in FILE_TYPES)
    with pytest.raises(ParameterError, match="type='Q9_K': give one of Q8_0"):
        file_type("Q9_K")


def test_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(raw_gguf([entry("general.architecture", 8, string("grok"))]))
    with pytest.raises(UnsupportedModel, match="'grok' is not supported"):
        Rules(GGUFFile(path), "Q8_0", False)
    path.write_bytes(raw_gguf([entry("general.architecture", 8, string("llama"))]))
    with pytest.raises(FileFormatError, match="block_count"):
        Rules(GGUFFile(path), "Q8_0", False)
    for value in ("many", -1, ["many"]):
        about = model_metadata() | {"llama.attention.head_count": value}
        with pytest.raises(FileFormatError, match="it must be a number of heads"):
            Rules(GGUFFile(write_gguf(path, about)), "Q8_0", False)
