"""Draft heads give the logits of their definitions, and those of other models are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aleator
import aleator._native as _native
from aleator.cache.kv_cache import KVCache
from aleator.core.errors import FileFormatError, ParameterError, UnsupportedModel
from aleator.core.threads import pool as thread_pool
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.draft_head import (
    BUNDLED,
    CELLS,
    MOST_GUESSES,
    MOST_NEW,
    MTP,
    WINDOW,
    DraftHead,
    head_bytes,
    open_head,
)
from aleator.models.hub.bundled import bundled_head, bundled_model
from aleator.models.native_decoder import NativeDecoder
from aleator.samplers import Greedy, SamplerChain
from tests.models.heads import (
    CONFIG,
    DRAFT,
    E,
    Recorder,
    eagle3_logits,
    eagle3_tensors,
    head_rows,
    rms,
    write_eagle3,
    write_mtp,
    write_mtp_directory,
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
    """The model's logits of the first guess after 1, 2, ... tokens, by the head."""
    return np.array([head_rows(head, hidden[:n], tokens[:n])[0] for n in range(1, len(tokens) + 1)])


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
    ids = np.flatnonzero(tensors["t2d"])
    assert close(made[:, ids], eagle3_logits(tensors, hidden.reshape(len(TOKENS), -1), following))
    assert np.isneginf(np.delete(made, ids, 1)).all()


def test_matrices_of_16_bits_are_stored_in_fewer(tmp_path: Path) -> None:
    """Where rows are whole blocks; a guess is rougher, and no other."""
    tensors, decoder = eagle3_tensors(), target()
    for name, each in tensors.items():
        if each.ndim == 2:
            tensors[name] = each.astype(np.float16)
    write_eagle3(tmp_path, tensors)
    head, hidden = head_of(tmp_path, decoder), seen(decoder)
    types = {name: head.decoder.weights.stored(name).type for name in head.decoder.weights.names()}
    assert types["fc.weight"] == types["blk.0.ffn_down.weight"] == "Q8_0"
    assert types["token_embd.weight"] == types["blk.0.attn_q.weight"] == "F16"  # 24 and 48 wide
    made = logits(head, hidden, TOKENS)[:, tensors["t2d"]]
    wanted = eagle3_logits(tensors, hidden.reshape(len(TOKENS), -1), TOKENS)
    assert close(made, wanted, 0.03)
    assert not close(made, wanted, 1e-4)


def test_a_heads_bytes_are_those_of_its_file_and_its_cells(tmp_path: Path) -> None:
    def counted(name: str, path: Path, n_texts: int = 3) -> tuple[int | None, int]:
        """Bytes that are counted, and those of a place's cells."""
        decoder = target(path)
        shapes = head_of(name, decoder).decoder.cache_shapes
        cells = sum(k + v for _, k, v in KVCache(shapes, CELLS).first.sides)
        return head_bytes(name, Path, decoder.weights, n_texts), cells

    write_eagle3(tmp_path / "head")
    for name, head in ((str(tmp_path / "head"), tmp_path / "head"), (BUNDLED, bundled_head())):
        found, cells = counted(name, bundled_model())
        assert found == (head / "model.safetensors").stat().st_size + 3 * cells
    for arch in ("qwen35", "deepseek2"):
        found, cells = counted(MTP, write_mtp(tmp_path, arch))
        assert found == 3 * cells
    pytest.importorskip("transformers")
    tensors = write_mtp_directory(tmp_path / "glm4moe", "glm4moe")
    found, cells = counted(MTP, tmp_path / "glm4moe")
    own = sum(each.nbytes for name, each in tensors.items() if name.startswith("model.layers.4."))
    assert found == own + 3 * cells
    weights = open_weights(bundled_model())
    assert head_bytes(MTP, Path, weights, 3) == 0  # it has no such layer, and will be refused
    assert head_bytes(str(bundled_model()), Path, weights, 3) is None


def test_a_guess_goes_on_with_what_the_layer_gave_for_the_guess_before(tmp_path: Path) -> None:
    tensors, decoder = write_eagle3(tmp_path / "head"), target()
    head, hidden = head_of(tmp_path / "head", decoder), seen(decoder)
    made = np.array(head_rows(head, hidden, [*TOKENS[1:], 99], n=4))
    text = [*TOKENS[1:], 99, *(int(row.argmax()) for row in made[:3])]
    wanted = eagle3_logits(tensors, hidden.reshape(len(TOKENS), -1), text)
    assert close(made[:, tensors["t2d"]], wanted[-4:])


def test_an_eagle3_heads_switches_are_followed(tmp_path: Path) -> None:
    decoder, plain = target(), eagle3_tensors()
    ids = plain["t2d"]
    for i, changes in enumerate(({"norm_before_residual": True}, {"norm_before_fc": True})):
        own = dict(plain)
        if "norm_before_fc" in changes:
            own["input_norm.weight"] = np.linspace(0.5, 1.5, 768, dtype=np.float32)
        write_eagle3(tmp_path / str(i), own, **changes)
        head = head_of(tmp_path / str(i), decoder)
        hidden = seen(decoder)
        made = logits(head, hidden, TOKENS)
        flat = hidden.reshape(len(TOKENS), -1)
        assert close(made[:, ids], eagle3_logits(own, flat, TOKENS, i == 0), 1e-3)


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
    assert np.isfinite(made).all()
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
    check_further(target(write_mtp(tmp_path, arch, own)), own)


def check_further(decoder: NativeDecoder, own: bool) -> None:
    """The head's guesses against the model's layers in PyTorch's form."""
    pytest.importorskip("torch")
    from aleator.models.placement import ON_CPU
    from aleator.models.torch_decoder import TorchDecoder

    head = head_of(MTP, decoder)
    made = logits(head, seen(decoder), [*TOKENS[1:], 99])
    weights, n = decoder.weights, decoder.config.n_layers
    states = Context(decoder, n_ctx=64, embeddings=True).decode(Batch.one(TOKENS, logits=True))
    at = f"blk.{n}.nextn."
    table = weights.floats(f"{at}embed_tokens.weight" if own else "token_embd.weight")
    embedded = rms(table[[*TOKENS[1:], 99]], weights.floats(f"{at}enorm.weight"))
    both = np.concatenate((embedded, rms(states, weights.floats(f"{at}hnorm.weight"))), 1)
    vectors = both @ weights.floats(f"{at}eh_proj.weight").T
    torch = TorchDecoder(head.decoder.weights, [ON_CPU])

    def rows(vectors: Any, embeddings: bool) -> Any:
        context, batch = Context(torch, n_ctx=64, embeddings=embeddings), Batch()
        for pos, vector in enumerate(vectors):
            batch.add_embedding(vector, pos, logits=True)
        return context.decode(batch)

    assert close(made, rows(vectors, False))
    first, second = head_rows(head, seen(decoder), [*TOKENS[1:], 99], n=2)
    state = rms(rows(vectors, True)[-1:], weights.floats(f"{at}hnorm.weight"))
    embedded = rms(table[[first.argmax()]], weights.floats(f"{at}enorm.weight"))
    further = np.concatenate((embedded, state), 1) @ weights.floats(f"{at}eh_proj.weight").T
    assert close(second, rows(np.concatenate((vectors, further)), False)[-1])


def test_a_text_longer_than_its_place_goes_on(tmp_path: Path) -> None:
    """Its rows take the cells of those that no row sees any more."""
    tensors, decoder = write_eagle3(tmp_path), target()
    head, chain = head_of(tmp_path, decoder), SamplerChain([recorder := Recorder(), Greedy()])
    rng = np.random.default_rng(1)
    hidden = rng.standard_normal((3 * WINDOW, 3, 256), np.float32)
    tokens = rng.integers(0, 2048, 3 * WINDOW).tolist()
    given: Any = 4, 0.0, [1.0] * _native.DRAFT_KINDS, chain.in_native

    def guess(native: _native.DraftHead, first: int, pieces: list[int]) -> Any:
        for n in pieces:
            text = 0, first, [hidden[first : first + n]], tokens[first : first + n], *given
            native.guess(thread_pool(1), [text], WINDOW)
            first += n
        return recorder.rows[-4][tensors["t2d"]]

    whole = guess(head.over(1, 2048), 0, [1000, 1000, 20, 9, 900, 5])
    assert close(whole, guess(head.over(2, 2048), 0, [500] * 5 + [1, 400, 33]))
    n = 2934
    flat = hidden[n - WINDOW : n].reshape(WINDOW, -1)
    alone = eagle3_logits(tensors, flat, tokens[n - WINDOW : n])[-1]
    assert close(whole, alone, 1e-3)  # keys are stored in float16


@pytest.mark.parametrize(("change", "message"), [
    ({"place": 1}, "place 1"),
    ({"first": -1}, "position -1"),
    ({"tokens": [5, 2048]}, "token 2048"),
    ({"tokens": [5]}, "2 hidden states of 1 tokens"),
    ({"most": 0}, "position 0"),
    ({"most": MOST_NEW + MOST_GUESSES - 1}, "no room for 2 tokens and"),
    ({"rates": [1.0]}, "a rate of each kind"),
    ({"hidden": [np.zeros((2, 2, 256), np.float32)]}, "hidden states of 512 numbers"),
])  # fmt: skip
def test_texts_that_do_not_fit_are_refused(change: Any, message: str, tmp_path: Path) -> None:
    write_eagle3(tmp_path)
    text: dict[str, Any] = {
        "place": 0, "first": 0, "hidden": [np.zeros((2, 3, 256), np.float32)], "tokens": [5, 6],
        "most": 3, "least": 0.0, "rates": [1.0] * _native.DRAFT_KINDS,
        "chain": SamplerChain([Greedy()]).in_native, **change,
    }  # fmt: skip
    native = head_of(tmp_path, target()).over(1, 2048)
    with pytest.raises(ValueError, match=message):
        native.guess(thread_pool(1), [tuple(text.values())], WINDOW)


@pytest.mark.parametrize(("changes", "message"), [
    ({"vocab_size": 2047, "eagle_aux_hidden_state_layer_ids": [1, 3, 99]}, "has 2047 tokens, and the model"),
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


def _in_16_bits(name: str, value: float) -> Any:
    def change(tensors: dict[str, Any]) -> None:
        tensors[name] = tensors[name].astype(np.float16)
        tensors[name][-1, -1] = value

    return change


@pytest.mark.parametrize(("change", "message"), [
    (_at("d2t", 3, 5000), "d2t gives its token 3 a number outside the model's 2048 tokens"),
    (_at("d2t", 3, -(2**63)), "d2t gives its token 3"),
    (lambda t: _at("d2t", 1, t["d2t"][0] - 1)(t), "two of its tokens the same number"),
    (_at("t2d", 0, 1), "d2t and t2d name different tokens"),
    (lambda t: t.update(t2d=t["t2d"][:-1]), "d2t and t2d name different tokens"),
    (lambda t: t.pop("d2t"), "'d2t' is missing"),
    (lambda t: t.pop("fc.weight"), "'fc.weight' is missing"),
    (lambda t: t.update(more=t["norm.weight"]), "'more' is not part of an EAGLE-3 head"),
    (lambda t: t.update({"norm.weight": np.ones(E, np.int64)}), "is of I64"),
    (lambda t: t.update({"fc.weight": np.ones((E, 768), bool)}), "is of BOOL"),
    (_at("norm.weight", 0, np.nan), "NaN or an infinity"),  # type: ignore[arg-type]
    (_in_16_bits("fc.weight", np.nan), "NaN or an infinity"),
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
