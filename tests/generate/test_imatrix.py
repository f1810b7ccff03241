"""Sums of squares of the inputs of a model's matrices: of which matrices, how many inputs, and their values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delta_models import DELTAS
from make_models import SPECS, write_model

from aleator.generate import Context
from aleator.generate.imatrix import InputSums
from aleator.models import build_decoder, open_weights
from aleator.models.weights import Weights
from tests.models.builders import _HUGGING_FACE, model_json, write_directory
from tests.models.check_converted import converted
from tests.models.check_transformers import DELTA_NETS, QWEN3_MOE, SMALL, write

TEXT = [5 + 7 * i % 50 for i in range(20)]


def opened(name: str, folder: Path) -> tuple[Weights, Context]:
    weights = open_weights(write_model(folder / f"{name}.gguf", SPECS[name]))
    return weights, Context(build_decoder(weights), n_ctx=8, n_threads=1)


@pytest.mark.parametrize("bos", [None, 1])
def test_inputs_are_counted_and_squared(bos: int | None, tmp_path: Path) -> None:
    """Of two chunks of eight tokens; the rest is not read."""
    weights, context = opened("llama", tmp_path)
    sums = InputSums(weights)
    assert sums.found() == {}
    assert list(sums.read(context, TEXT, 8, 2, bos)) == [1, 2]
    assert context.cache.used == 8  # of the second chunk alone
    found = sums.found()
    layers = [name for name in weights.names() if name.startswith("blk.")]
    assert found.keys() == {name for name in layers if "norm" not in name}
    assert all(rows.tolist() == [16] for _, rows in found.values())
    read = np.array(TEXT[:16]).reshape(2, 8)
    read[:, 0] = read[:, 0] if bos is None else bos
    x = weights.floats("token_embd.weight")[read.ravel()].astype(np.float64)
    x /= np.sqrt((x * x).mean(1, keepdims=True) + 1e-5)
    x *= weights.floats("blk.0.attn_norm.weight")
    for name in ("q", "k", "v"):
        np.testing.assert_allclose(
            found[f"blk.0.attn_{name}.weight"][0], [(x * x).sum(0)], rtol=1e-5
        )


def test_sums_of_all_layers_are_those_of_transformers(tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers")
    folder = write_directory(tmp_path / "m", model_json(architectures=["LlamaForCausalLM"]))
    theirs = transformers.LlamaForCausalLM.from_pretrained(folder)
    wanted: dict[str, Any] = {}

    def see(name: str, module: Any) -> None:
        wanted[name] = 0
        module.register_forward_pre_hook(
            lambda _, x: wanted.update({name: wanted[name] + x[0].double().square().sum((0, 1))})
        )

    for layer, block in enumerate(theirs.model.layers):
        for stem, name in _HUGGING_FACE.items():
            if "norm" not in stem:
                see(f"blk.{layer}.{stem}.weight", block.get_submodule(name))
    text = [3 + 7 * i % 20 for i in range(24)]
    for at in (0, 8, 16):
        theirs(theirs.dummy_inputs["input_ids"].new_tensor([text[at : at + 8]]))
    weights = open_weights(folder)
    decoder, sums = build_decoder(weights), InputSums(weights)
    context = Context(decoder, n_ctx=8, n_threads=1, type_k="f32", type_v="f32")
    assert [*sums.read(context, text, 8, 3, None)] == [1, 2, 3]
    assert sums.found().keys() == wanted.keys()
    for name, (squares, _) in sums.found().items():
        np.testing.assert_allclose(squares[0], wanted[name].detach().numpy(), rtol=1e-4)


def test_experts_are_counted_one_by_one(tmp_path: Path) -> None:
    weights, context = opened("mixtral", tmp_path)
    sums = InputSums(weights)
    assert [*sums.read(context, TEXT, 4, 1, None)] == [1]
    squares, rows = sums.found()["blk.1.ffn_gate_exps.weight"]
    assert squares.shape == (6, 64)
    assert rows.sum() == 4 * SPECS["mixtral"].n_used
    assert ((squares.sum(1) > 0) == (rows > 0)).all()


def test_what_is_not_read_to_the_end_lets_others_read(tmp_path: Path) -> None:
    weights, context = opened("llama", tmp_path)
    first, second = InputSums(weights), InputSums(weights)
    reading = first.read(context, TEXT, 8, 2, None)
    assert next(reading) == 1
    reading.close()
    assert list(second.read(context, TEXT, 8, 1, None)) == [1]
    assert {name: rows.tolist() for name, (_, rows) in first.found().items()} == {
        name: rows.tolist() for name, (_, rows) in second.found().items()
    }


def test_joint_projections_of_a_delta_net_have_their_parts_inputs(tmp_path: Path) -> None:
    """They are copied apart when a file is opened; llama-imatrix names the file's tensors."""
    weights = open_weights(write_model(tmp_path / "m.gguf", DELTAS["qwen3next-joint"]))
    sums = InputSums(weights)
    context = Context(build_decoder(weights), n_ctx=8, n_threads=1)
    assert list(sums.read(context, TEXT, 8, 2, None)) == [1, 2]
    found = sums.found()
    joint, small = (found[f"blk.1.ssm_{each}.weight"] for each in ("in", "ba"))
    assert joint[1].tolist() == small[1].tolist() == [16]
    assert joint[0].tobytes() == small[0].tobytes()


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        (
            "Qwen3NextConfig",
            DELTA_NETS | QWEN3_MOE | {"num_hidden_layers": 4, "linear_value_head_dim": 8},
        ),
        ("GptOssConfig", SMALL | {"num_local_experts": 4, "head_dim": 16}),
        (
            "GPT2Config",
            {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 96},
        ),
    ],
)
def test_a_directory_has_the_names_of_the_file_that_it_becomes(
    tmp_path: Path, config: str, sizes: dict[str, Any]
) -> None:
    transformers: Any = pytest.importorskip("transformers")
    made = getattr(transformers, config)(**sizes)
    write(transformers.AutoModelForCausalLM.from_config(made), tmp_path / "m")
    converted(tmp_path / "m", tmp_path / "m.gguf", "F32")
    of_both = []
    for name in ("m", "m.gguf"):
        weights = open_weights(tmp_path / name)
        sums, context = InputSums(weights), Context(build_decoder(weights), n_ctx=8, n_threads=1)
        assert list(sums.read(context, TEXT, 8, 2, None)) == [1, 2]
        of_both.append(sums.found())
    directory, file = of_both
    assert file
    for name, (squares, rows) in file.items():
        assert directory[name][1].tolist() == rows.tolist(), name
        np.testing.assert_allclose(directory[name][0], squares, rtol=0.02, err_msg=name)
