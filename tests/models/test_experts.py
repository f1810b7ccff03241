"""Mixtures of experts: routing and gates against the contract's reference, bit for bit; and what is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoder_numerics import experts as experts_numerics
from make_models import SPECS, write_model
from model_file import Array

from aleator import _native
from aleator.core.errors import FileFormatError, ParameterError, UnsupportedModel
from aleator.generate import Batch, Context
from aleator.models import build_decoder, finite_check, open_weights
from aleator.models.config import ExpertsConfig, ModelConfig, Scores, present, without_attention
from aleator.models.experts import in_gguf
from aleator.models.files.fields import Fields
from tests.models.bits import equal

SCORES: list[Scores] = ["softmax", "sigmoid", "chosen softmax", "chosen sigmoid"]


def config(n: int, used: int, **facts: Any) -> ExpertsConfig:
    return ExpertsConfig(n, used, 32, (True,), **facts)


def native(
    logits: Array, config: ExpertsConfig, bias: Array | None = None, scales: Array | None = None
) -> tuple[Any, Array]:
    chosen = np.empty((len(logits), config.n_used), np.int32)
    weights = np.empty((len(logits), config.n_used), np.float32)
    _native.route(
        logits.copy(), chosen, weights, config.scores, config.normalised, config.scale,
        config.n_groups, config.n_groups_used, config.n_group_best, bias, scales,
    )  # fmt: skip
    return chosen, weights


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("facts", [
    {}, {"normalised": True, "scale": 2.5}, {"n_groups": 4, "n_groups_used": 2, "normalised": True},
    {"n_groups": 6, "n_groups_used": 2, "n_group_best": 1},
])  # fmt: skip
@pytest.mark.parametrize("biased", [False, True])
def test_routes_are_the_reference(scores: Scores, facts: dict[str, Any], biased: bool) -> None:
    rng = np.random.default_rng(1)
    logits = (3 * rng.standard_normal((40, 24))).astype(np.float32)
    logits[:20] = np.round(logits[:20])  # ties
    logits[20, 3], logits[21, 5], logits[22] = np.nan, -np.inf, 0
    bias = rng.standard_normal(24).astype(np.float32) if biased else None
    made = config(24, 6, scores=scores, **facts)
    scales = rng.standard_normal(24).astype(np.float32) if biased else None
    chosen, weights = native(logits, made, bias, scales)
    for row, (theirs, own) in enumerate(zip(chosen, weights, strict=True)):
        with np.errstate(all="ignore"):
            expected, factors = experts_numerics.route(logits[row], made, bias, scales)
        assert theirs.tolist() == expected.tolist(), row
        assert equal(own, factors), row


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("biased", [False, True])
def test_routes_in_torch(scores: Scores, biased: bool) -> None:
    torch = pytest.importorskip("torch")
    from aleator.models.layers.routing import route

    rng = np.random.default_rng(1)
    logits = (3 * rng.standard_normal((20, 24))).astype(np.float32)
    bias = rng.standard_normal(24).astype(np.float32) if biased else None
    best = 1 if biased else 2
    made = config(
        24, 6, scores=scores, n_groups=4, n_groups_used=2, n_group_best=best, normalised=True
    )
    chosen, weights = native(logits, made, bias)
    of_torch = route(
        torch.from_numpy(logits), made, None if bias is None else torch.from_numpy(bias)
    )
    assert (of_torch[0].numpy() == chosen).all()
    np.testing.assert_allclose(of_torch[1].numpy(), weights, rtol=1e-5)


def test_impossible_routes_are_refused() -> None:
    logits = np.zeros((1, 6), np.float32)
    for facts, used in (
        ({"n_groups": 4}, 1), ({"n_groups": 3}, 3), ({"n_group_best": 3}, 1), ({}, 7),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="ffn_gate_inp"):
            native(logits, config(6, used, **facts))


def test_clamped_gate_is_the_reference() -> None:
    rng = np.random.default_rng(2)
    special = [0, -0.0, 7, 7.5, -7.5, 100, -100, np.inf, -np.inf]
    gate = np.concatenate([4 * rng.standard_normal(500), special]).astype(np.float32)
    up = np.roll(gate, 7)
    with np.errstate(all="ignore"):
        expected = experts_numerics.silu_clamped(gate, up)
    _native.activate("silu_clamped", gate, up)
    assert equal(gate, expected)


@pytest.mark.parametrize("text", [[7], list(range(5, 25))])
def test_tokens_read_only_their_experts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: list[int]
) -> None:
    """What an expert holds that no token goes through is never looked at; a damaged one is named."""
    monkeypatch.setattr(finite_check, "CHUNK_BYTES", 0)
    spec = replace(SPECS["qwen3moe"], n_layers=1, n_experts=24, n_used=2)
    tensors = dict(spec.each_tensor())

    def logits(damaged: int | None) -> bytes:
        name = "blk.0.ffn_down_exps.weight"
        own = dict(tensors)
        if damaged is not None:
            own[name] = own[name].copy()
            own[name][damaged, 5, 3] = np.nan
        path = write_model(tmp_path / f"{damaged}.gguf", spec, own)
        context = Context(build_decoder(open_weights(path), form="native"), n_ctx=64)
        return np.asarray(context.decode(Batch.one(text, logits=True))).tobytes()

    def untouched(damaged: int) -> bool:
        try:
            return logits(damaged) == sound
        except FileFormatError as error:
            return "ffn_down_exps" not in str(error)

    sound = logits(None)
    unused = sum(map(untouched, range(0, 24, 3)))
    assert unused >= (6 if len(text) == 1 else 1)


def test_steps_ahead_are_refused(make_decoder: Any) -> None:
    pytest.importorskip("torch")
    from aleator.generate.multi_step import check_model

    with pytest.raises(ParameterError, match="experts"):
        check_model(Context(make_decoder("qwen3moe"), n_ctx=32))


def test_experts_apart_and_joined_are_those_of_one_tensor(tmp_path: Path) -> None:
    """Files of other versions of llama.cpp hold a tensor for each expert, or gate and up in one."""
    spec = SPECS["qwen3moe"]
    tensors = dict(spec.each_tensor())
    apart: dict[str, Array] = {}
    joined: dict[str, Array] = {}
    for name, tensor in tensors.items():
        if "_exps" not in name:
            apart[name] = joined[name] = tensor
            continue
        for expert, part in enumerate(tensor):
            apart[name.replace("_exps", f".{expert}")] = part
        if "down" in name:
            joined[name] = tensor
        elif "gate" in name:
            up = tensors[name.replace("gate", "up")]
            joined[name.replace("gate", "gate_up")] = np.concatenate([tensor, up], 1)

    def logits(name: str, own: dict[str, Array]) -> bytes:
        path = write_model(tmp_path / f"{name}.gguf", spec, own)
        context = Context(build_decoder(open_weights(path)), n_ctx=64)
        return np.asarray(context.decode(Batch.one(list(range(9)), logits=True))).tobytes()

    assert logits("a", apart) == logits("b", tensors) == logits("c", joined)


def test_experts_in_several_types_are_computed_in_pytorch(tmp_path: Path) -> None:
    """Native code takes experts of one type; one of another type is not an error of the file."""
    pytest.importorskip("torch")
    from aleator.models.torch_decoder import TorchDecoder

    spec = replace(SPECS["qwen3moe"], n_layers=1, n_experts=3)
    own: dict[str, Any] = {}
    for name, tensor in dict(spec.each_tensor()).items():
        if "_exps" not in name:
            own[name] = tensor
            continue
        for expert, part in enumerate(tensor):
            own[name.replace("_exps", f".{expert}")] = part.astype("f2" if expert == 1 else "f4")
    weights = open_weights(write_model(tmp_path / "m.gguf", spec, own))
    assert isinstance(build_decoder(weights), TorchDecoder)
    with pytest.raises(ParameterError, match=r"several types \(blk\.0\.ffn_gate\.1\.weight\)"):
        build_decoder(weights, form="native")


METADATA = {"m.expert_count": 6, "m.expert_used_count": 3, "m.expert_feed_forward_length": 32}


def config_from_metadata(n_ff_used: int = 0, **changes: Any) -> ModelConfig:
    values = METADATA | {f"m.{key}": value for key, value in changes.items()}
    sizes = {"n_vocab": 8, "n_layers": 2, "n_embd": 32, "context_length": 64}
    config = without_attention("m", name="", rms_eps=1e-5, **sizes)
    return in_gguf(config, Fields("m.gguf", values), n_ff_used=n_ff_used)


def from_metadata(n_ff_used: int = 0, **changes: Any) -> ExpertsConfig:
    return present(config_from_metadata(n_ff_used, **changes).experts)


def test_the_first_layers_have_the_first_mixtures() -> None:
    assert present(config_from_metadata().beginning(1).experts).layers == (True,)


@pytest.mark.parametrize("changes", [
    {"expert_weights_scale": 2.5},  # llama.cpp does not read it for these architectures
    {"expert_feed_forward_length": [32, 32], "expert_used_count": [3, 3]},
    {"expert_feed_forward_length": 0, "n_ff_used": 96},
    {"expert_feed_forward_length": None, "n_ff_used": 97},
])  # fmt: skip
def test_metadata_of_one_meaning(changes: dict[str, Any]) -> None:
    """What llama.cpp takes for the same model, compared with its logits."""
    assert from_metadata(**changes) == from_metadata()


@pytest.mark.parametrize("changes", [
    {"expert_count": 10**9}, {"expert_count": 0}, {"expert_used_count": 0}, {"expert_used_count": 7},
    {"expert_used_count": [3]}, {"expert_used_count": [0, 0]}, {"expert_used_count": [[3], [3]]},
    {"expert_feed_forward_length": 0}, {"expert_feed_forward_length": None},
    {"expert_feed_forward_length": [32, 32, 32]}, {"expert_group_count": 4},
])  # fmt: skip
def test_metadata_that_no_model_has_are_named(changes: dict[str, Any]) -> None:
    with pytest.raises(FileFormatError, match=next(iter(changes))):
        from_metadata(**changes)


def test_layers_with_different_experts_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="expert_feed_forward_length"):
        from_metadata(expert_feed_forward_length=[32, 64])
