"""Draft heads give the logits of their definitions, and those of other models are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aleator
from aleator.core.errors import FileFormatError, ParameterError, UnsupportedModel
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.draft_head import MTP, DraftHead, open_head
from aleator.models.hub.bundled import bundled_model
from aleator.models.native_decoder import NativeDecoder
from tests.models.heads import (
    CONFIG,
    DRAFT,
    E,
    eagle3_logits,
    eagle3_tensors,
    rms,
    write_eagle3,
    write_mtp,
)

TOKENS = [0, 40, 50, 60, 41, 42, 200, 7]


def target(path: Path | None = None) -> NativeDecoder:
    made = build_decoder(open_weights(bundled_model() if path is None else path))
    assert isinstance(made, NativeDecoder)
    return made


def head_of(name: str | Path, decoder: NativeDecoder) -> DraftHead:
    head = open_head(str(name), decoder)
    assert head is not None
    return head


def seen(decoder: NativeDecoder, n_ubatch: int = 64) -> Any:
    """What the model's tapped layers take of TOKENS, in micro-batches of so many tokens."""
    context = Context(decoder, n_ctx=64, n_ubatch=n_ubatch)
    context.decode(Batch.one(TOKENS))
    return context.hidden


def logits(head: DraftHead, hidden: Any, tokens: list[int]) -> Any:
    """The head's own logits of a text whose hidden states are known, in one batch."""
    context, batch = Context(head.decoder, n_ctx=64), Batch()
    for pos, vector in enumerate(head.inputs(tokens, head.fused(hidden))):
        batch.add_embedding(vector, pos, logits=True)
    return context.decode(batch)


def close(a: Any, b: Any, by: float = 1e-4) -> bool:
    return bool(np.abs(a - b).max() < by * np.abs(b).max())


def test_steps_give_what_layers_take() -> None:
    decoder = target()
    decoder.tap([0, 3, 6])
    found = seen(decoder)
    assert found.shape == (len(TOKENS), 3, 256)
    assert np.array_equal(found, seen(decoder, 3))
    rows = decoder.weights.floats("token_embd.weight")[TOKENS]
    assert np.array_equal(found[:, 0], rows)
    context = Context(decoder, n_ctx=64, embeddings=True)
    last = context.decode(Batch.one(TOKENS, logits=True))
    assert close(rms(found[:, 2], decoder.weights.floats("output_norm.weight")), last)
    first = NativeDecoder(decoder.weights, n_layers=3).hidden()
    assert np.array_equal(
        found[:, 1], Context(first, n_ctx=64).decode(Batch.one(TOKENS, logits=True))
    )


def test_an_eagle3_head_gives_its_definitions_logits(tmp_path: Path) -> None:
    tensors, decoder = write_eagle3(tmp_path / "head"), target()
    head = head_of(tmp_path / "head", decoder)
    hidden, following = seen(decoder), [*TOKENS[1:], 99]
    made = logits(head, hidden, following)
    wanted = eagle3_logits(tensors, hidden.reshape(len(TOKENS), -1), following)
    assert close(made, wanted)
    whole = head.logits(made[0], 2048)
    ids = np.flatnonzero(tensors["t2d"])
    assert np.array_equal(whole[ids], made[0])
    assert np.isneginf(np.delete(whole, ids)).all()


def test_an_eagle3_heads_switches_are_followed(tmp_path: Path) -> None:
    decoder, plain = target(), eagle3_tensors()
    write_eagle3(tmp_path / "plain", plain)
    made = []
    for i, changes in enumerate(({}, {"norm_before_residual": True}, {"norm_before_fc": True})):
        own = dict(plain)
        if "norm_before_fc" in changes:
            own["input_norm.weight"] = np.full(768, 0.5, np.float32)
        write_eagle3(tmp_path / str(i), own, **changes)
        head = head_of(tmp_path / str(i), decoder)
        hidden = seen(decoder)
        fused = head.fused(hidden)
        if i == 2:
            flat = rms(hidden.reshape(len(TOKENS), -1), 0.5)
            assert close(fused, flat @ plain["fc.weight"].T)
        made.append(head.inputs(TOKENS, fused)[:, :E])
    assert close(made[1], rms(made[0], plain["midlayer.hidden_norm.weight"]))


def test_an_eagle3_head_may_take_embeddings_and_output_from_the_model(tmp_path: Path) -> None:
    decoder = target()
    tensors = {
        k: v for k, v in eagle3_tensors().items() if k not in ("embed_tokens.weight", "d2t", "t2d")
    }
    for name, each in tensors.items():  # as wide as the model
        tensors[name] = np.resize(
            each, [256 if n == E else 512 if n == 2 * E else n for n in each.shape]
        )
    del tensors["lm_head.weight"]
    write_eagle3(tmp_path, tensors, hidden_size=256, draft_vocab_size=2048)
    head = head_of(tmp_path, decoder)
    made = logits(head, seen(decoder), TOKENS)
    assert made.shape == (len(TOKENS), 2048)
    tensors["embed_tokens.weight"] = tensors["lm_head.weight"] = decoder.weights.floats(
        "token_embd.weight"
    )
    wanted = eagle3_logits(tensors, seen(decoder).reshape(len(TOKENS), -1), TOKENS)
    assert close(made, wanted, 1e-3)  # products with float16 round their input


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("arch", ["qwen35", "qwen3next", "deepseek2", "glm4moe"])
def test_a_further_layer_gives_the_logits_of_plain_floats(
    arch: str, own: bool, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    from aleator.models.placement import ON_CPU
    from aleator.models.torch_decoder import TorchDecoder

    decoder = target(write_mtp(tmp_path, arch, own))
    head = head_of(MTP, decoder)
    made = logits(head, seen(decoder), [*TOKENS[1:], 99])
    weights, n = decoder.weights, decoder.config.n_layers
    states = Context(decoder, n_ctx=64, embeddings=True).decode(Batch.one(TOKENS, logits=True))
    at = f"blk.{n}.nextn."
    table = weights.floats(f"{at}embed_tokens.weight" if own else "token_embd.weight")
    embedded = rms(table[[*TOKENS[1:], 99]], weights.floats(f"{at}enorm.weight"))
    both = np.concatenate((embedded, rms(states, weights.floats(f"{at}hnorm.weight"))), 1)
    context = Context(TorchDecoder(head.decoder.weights, [ON_CPU]), n_ctx=64)
    batch = Batch()
    for pos, vector in enumerate(both @ weights.floats(f"{at}eh_proj.weight").T):
        batch.add_embedding(vector, pos, logits=True)
    assert close(made, context.decode(batch))
    norm = weights.floats(f"{at}shared_head_norm.weight" if own else "output_norm.weight")
    assert close(head.follow(states), rms(states, norm))


@pytest.mark.parametrize(("changes", "message"), [
    ({"vocab_size": 2047}, "another model: it has 2047 tokens, and the model 2048"),
    ({"eagle_aux_hidden_state_layer_ids": [1, 3, 7]}, "must be three layers, 0 to 6"),
    ({"eagle_aux_hidden_state_layer_ids": [1, 3]}, "must be three layers, 0 to 6"),
    ({"draft_vocab_size": DRAFT + 1}, f"'d2t' must be {DRAFT + 1} of I64"),
    ({"hidden_size": 32}, "hidden states of another width"),
    ({"model_type": "qwen3"}, "EAGLE-3 heads of 'qwen3'"),
    ({"num_attention_heads": 0}, "num_attention_heads"),
    ({"hidden_act": "gelu"}, "the activation 'gelu'"),
])  # fmt: skip
def test_configurations_of_other_models_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_eagle3(tmp_path, **changes)
    with pytest.raises((ParameterError, FileFormatError, UnsupportedModel), match=message):
        aleator.load(model_draft=str(tmp_path))


def _at(name: str, i: int, value: int) -> Any:
    def change(tensors: dict[str, Any]) -> None:
        tensors[name] = tensors[name].copy()
        tensors[name][i] = value

    return change


@pytest.mark.parametrize(("change", "message"), [
    (_at("d2t", 3, 5000), "d2t gives its token 3 a number outside the model's 2048 tokens"),
    (_at("d2t", 3, -4), "d2t gives its token 3"),
    (_at("d2t", 3, 2**63 - 1), "d2t gives its token 3"),
    (_at("d2t", 3, -(2**63)), "d2t gives its token 3"),
    (lambda t: _at("d2t", 1, t["d2t"][0] - 1)(t), "two of its tokens the same number"),
    (_at("t2d", 0, 1), "d2t and t2d name different tokens"),
    (lambda t: t.update(t2d=t["t2d"][:-1]), "d2t and t2d name different tokens"),
    (lambda t: t.pop("d2t"), "'d2t' is missing"),
    (lambda t: t.pop("fc.weight"), "'fc.weight' is missing"),
    (lambda t: t.pop("midlayer.hidden_norm.weight"), "is missing"),
    (lambda t: t.update(more=t["norm.weight"]), "'more' is not part of an EAGLE-3 head"),
    (lambda t: t.update({"norm.weight": np.ones(E, np.int64)}), "is of I64"),
    (lambda t: t.update({"fc.weight": np.ones((E, 768), bool)}), "is of BOOL"),
    (_at("norm.weight", 0, np.nan), "NaN or an infinity"),  # type: ignore[arg-type]
])  # fmt: skip
def test_damaged_heads_are_refused(change: Any, message: str, tmp_path: Path) -> None:
    tensors = eagle3_tensors()
    change(tensors)
    write_eagle3(tmp_path, tensors)
    with pytest.raises((FileFormatError, UnsupportedModel), match=message):
        aleator.load(model_draft=str(tmp_path))


def test_a_head_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    write_eagle3(tmp_path)
    file = tmp_path / "model.safetensors"
    whole = file.read_bytes()
    for size in range(0, len(whole), len(whole) // 40):
        file.write_bytes(whole[:size])
        with pytest.raises(FileFormatError):
            open_head(str(tmp_path), target())


def test_models_without_such_layers_are_refused() -> None:
    with pytest.raises(ParameterError, match="no layer that predicts further tokens"):
        aleator.load(model_draft=MTP)
    assert CONFIG["vocab_size"] == 2048


def test_further_layers_of_other_architectures_are_refused_by_name(tmp_path: Path) -> None:
    """What they take, and how it is normed, is known for some alone."""
    with pytest.raises(UnsupportedModel, match=r"of 'bailingmoe2'.*known are .*glm4moe"):
        aleator.load(write_mtp(tmp_path, "bailingmoe2"), model_draft=MTP)


def test_heads_are_refused_where_the_model_is_not_native(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    write_eagle3(tmp_path)
    with pytest.raises(ParameterError, match="computed in native code on the CPU"):
        aleator.load(model_draft=str(tmp_path), dtype="bfloat16", device="cpu")
