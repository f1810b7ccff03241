"""Adapters of embeddings, output matrices, experts and routers, against the same model with merged weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoder_numerics.floats import adapted as reference
from make_models import SPECS, write_model
from wide_models import SMALL

from aleator.core.errors import FileFormatError, UnsupportedModel
from aleator.generate import Batch, Context
from aleator.models import adapted as adapted_module
from aleator.models import build_decoder, open_weights
from aleator.models.adapters import chosen_adapters
from tests.models.adapters import ALPHA, RANK, pairs_of, write_adapter
from tests.models.builders import N_EMBD, N_VOCAB, model_tensors, write_gguf
from tests.models.test_adapters import COMPANY, TOKENS, adapted, check_near, company, logits

Floats = np.ndarray[Any, np.dtype[np.float32]]
Pair = tuple[Floats, Floats]
SCALE = ALPHA / RANK
EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
EXPERTS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
OTHERS = ("ffn_gate_inp", "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp", "ffn_gate_inp_shexp")


def pair(seed: int, *shape: int, rank: int = RANK, size: float = 0.3) -> Pair:
    """A [..., rank, in] and B [..., out, rank] of a matrix [..., out, in]."""
    rng, (*stack, out, n_in) = np.random.default_rng(seed), shape
    a, b = rng.standard_normal((*stack, rank, n_in)), rng.standard_normal((*stack, out, rank))
    return (size * a).astype(np.float32), (size * b).astype(np.float32)


def of_embeddings(seed: int, rank: int = RANK) -> Pair:
    """The same of embeddings as files have it: A [n_vocab, rank] and B [n_embd, rank]."""
    a, b = pair(seed, N_EMBD, N_VOCAB, rank=rank)
    return np.ascontiguousarray(a.T), b


def outer(tied: bool) -> dict[str, Floats]:
    """The small model's tensors, with an output matrix of their own unless tied."""
    return model_tensors() | ({} if tied else {OUTPUT: 2 * model_tensors(3)[EMBEDDING]})


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("which", ["embedding", "output", "both"])
def test_embeddings_and_output(tmp_path: Path, tied: bool, which: str) -> None:
    """One matrix that serves as both is changed where the adapter says, as PEFT changes it."""
    tensors = outer(tied)
    path = write_gguf(tmp_path / "base.gguf", None, tensors)
    given, merged = {}, {OUTPUT: tensors[EMBEDDING], **tensors}
    if which != "output":
        a, b = given[EMBEDDING] = of_embeddings(1)
        merged[EMBEDDING] = merged[EMBEDDING] + np.float32(SCALE) * (a @ b.T)
    if which != "embedding":
        a, b = given[OUTPUT] = pair(2, N_VOCAB, N_EMBD)
        merged[OUTPUT] = merged[OUTPUT] + np.float32(SCALE) * (b @ a)
    rows = logits(adapted(path, write_adapter(tmp_path / "a.gguf", given)), "a")
    check_near(rows, merged, tmp_path)
    assert np.abs(rows - logits(build_decoder(open_weights(path)))).max() > 0.1


def test_embeddings_are_the_reference_bit_for_bit(tmp_path: Path) -> None:
    tensors, scale = outer(tied=False), 0.3
    path = write_gguf(tmp_path / "base.gguf", None, tensors)
    pairs = [of_embeddings(1), of_embeddings(2, 17)]
    files = [
        write_adapter(tmp_path / f"{i}.gguf", {EMBEDDING: each}) for i, each in enumerate(pairs)
    ]
    decoder: Any = adapted(path, *files)
    decoder.tap([0])
    context: Any = Context(decoder, n_ctx=64, n_threads=1)
    context.adapters.set(0, chosen_adapters({"a": scale, "b": -2.0}))
    context.decode(Batch.one(TOKENS))
    wanted = tensors[EMBEDDING][TOKENS]
    for (a, b), by in zip(pairs, (scale, -2.0), strict=True):
        factor = np.float32(by) * np.float32(ALPHA / b.shape[1])
        one = np.eye(1, 16, dtype=np.float32)  # of A's column as a matrix with one input
        for t, token in enumerate(TOKENS):
            low = np.outer(a[token], one)
            wanted[t] = reference(wanted[t : t + 1], one, low, b, float(factor))[0]
    assert context._step.taps[:, 0].tobytes() == wanted.tobytes()


def test_embeddings_are_scaled_with_what_is_added(tmp_path: Path) -> None:
    spec = SPECS["gemma3"]
    tensors = dict(spec.each_tensor())
    path = write_model(tmp_path / "base.gguf", spec, tensors)
    a, b = pair(1, spec.n_embd, spec.n_vocab)
    given = {EMBEDDING: (np.ascontiguousarray(a.T), b)}
    file = write_adapter(tmp_path / "a.gguf", given, architecture=spec.arch)
    changed = tensors[EMBEDDING] + np.float32(SCALE) * (a.T @ b.T)
    merged = tensors | {EMBEDDING: changed, OUTPUT: tensors[EMBEDDING]}
    wanted = logits(build_decoder(open_weights(write_model(tmp_path / "m", spec, merged))))
    rows = logits(adapted(path, file), "a")
    assert np.abs(rows - wanted).max() < 1e-4 * np.ptp(wanted)  # GELU is a table


def of_experts(names: Mapping[str, Any], seed: int, rank: int = RANK) -> dict[str, Pair]:
    made = {}
    for layer in (0, 1):
        for i, name in enumerate((*EXPERTS, *OTHERS)):
            tensor = f"blk.{layer}.{name}.weight"
            if tensor in names:
                shape = names[tensor].shape if name != OTHERS[-1] else (1, names[tensor].size)
                made[tensor] = pair(100 * seed + 10 * layer + i, *shape, rank=rank)
    return made


def changed(tensors: Mapping[str, Floats], pairs: Mapping[str, Pair], scale: float) -> Any:
    return dict(tensors) | {
        name: tensors[name] + (np.float32(scale) * (b @ a)).reshape(tensors[name].shape)
        for name, (a, b) in pairs.items()
    }


@pytest.mark.parametrize("model", ["qwen2moe", "qwen3moe-all", "llama4"])
def test_experts_and_routers(tmp_path: Path, model: str) -> None:
    """qwen2moe has a shared expert; llama4's weights multiply what experts take."""
    spec = SMALL[model]
    tensors = dict(spec.each_tensor())
    pairs = of_experts(tensors, 1)
    path = write_model(tmp_path / "base.gguf", spec, tensors)
    file = write_adapter(tmp_path / "a.gguf", pairs, architecture=spec.arch)
    rows = logits(adapted(path, file), "a")
    other = write_model(tmp_path / "m", spec, changed(tensors, pairs, SCALE))
    wanted = logits(build_decoder(open_weights(other)))
    assert np.abs(rows - wanted).max() < 2e-5 * np.ptp(wanted)
    assert np.abs(rows - logits(build_decoder(open_weights(path)))).max() > 0.1


def test_experts_whose_gate_and_up_are_one_tensor(tmp_path: Path) -> None:
    spec = SPECS["qwen3moe"]
    tensors = dict(spec.each_tensor())
    joint = dict(tensors)
    for layer in (0, 1):
        parts = [joint.pop(f"blk.{layer}.{each}.weight") for each in EXPERTS[:2]]
        joint[f"blk.{layer}.ffn_gate_up_exps.weight"] = np.concatenate(parts, 1)
    path = write_model(tmp_path / "base.gguf", spec, joint)
    name = "blk.1.ffn_gate_up_exps.weight"
    both = {name: pair(1, *joint[name].shape)}
    own = of_experts({"blk.0.ffn_up_exps.weight": tensors["blk.0.ffn_up_exps.weight"]}, 2)
    files = [
        write_adapter(tmp_path / f"{i}.gguf", each, architecture=spec.arch)
        for i, each in enumerate((both, own))
    ]
    rows = logits(adapted(path, *files), {"a": 1, "b": -0.5})
    tensors = changed(tensors, own, -0.5 * SCALE)
    joint |= changed(joint, both, SCALE)
    for layer in (0, 1):
        parts = [tensors[f"blk.{layer}.{each}.weight"] for each in EXPERTS[:2]]
        if layer == 0:
            joint[f"blk.{layer}.ffn_gate_up_exps.weight"] = np.concatenate(parts, 1)
    wanted = logits(build_decoder(open_weights(write_model(tmp_path / "m", spec, joint))))
    assert np.abs(rows - wanted).max() < 2e-5 * np.ptp(wanted)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("at_once", [5, 64])
def test_bits_of_embeddings_and_outputs_are_those_alone(
    tmp_path: Path, threads: int, at_once: int
) -> None:
    path = write_gguf(tmp_path / "base.gguf", None, outer(tied=False))
    first = {EMBEDDING: of_embeddings(1), OUTPUT: pair(2, N_VOCAB, N_EMBD)}
    second = {EMBEDDING: of_embeddings(3, 17)} | pairs_of(2, ["attn_k"], rank=17)
    files = [write_adapter(tmp_path / f"{i}.gguf", p) for i, p in enumerate((first, second))]
    decoder, plain = adapted(path, *files), build_decoder(open_weights(path))
    alone = [logits(decoder, chosen, TOKENS[i:]) for i, chosen in enumerate(COMPANY)]
    assert (alone[1] == logits(plain, (), TOKENS[1:])).all()
    company(decoder, alone, threads, at_once)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("kind", "at_once"), [("F32", 5), ("F32", 64), ("Q8_0", 64)])
def test_bits_of_experts_are_those_alone(
    tmp_path: Path, threads: int, at_once: int, kind: str
) -> None:
    from dataclasses import replace

    spec = replace(SPECS["qwen2moe"], type=kind)
    tensors = dict(spec.each_tensor())
    path = write_model(tmp_path / "base.gguf", spec, tensors)
    first, second = of_experts(tensors, 1), of_experts(tensors, 2, 17)
    del second["blk.0.ffn_up_exps.weight"], second["blk.1.ffn_gate_shexp.weight"]
    files = [
        write_adapter(tmp_path / f"{i}.gguf", each, architecture=spec.arch)
        for i, each in enumerate((first, second))
    ]
    decoder, plain = adapted(path, *files), build_decoder(open_weights(path))
    alone = [logits(decoder, chosen, TOKENS[i:]) for i, chosen in enumerate(COMPANY)]
    assert (alone[1] == logits(plain, (), TOKENS[1:])).all()
    assert (alone[0] != logits(plain)).any()
    company(decoder, alone, threads, at_once)
    for pos, row in enumerate(alone[0]):  # one token after the other: its row is not gathered
        if pos == 0:
            context = Context(decoder, n_ctx=64, type_k="f32", type_v="f32", n_threads=threads)
            context.adapters.set(0, chosen_adapters(COMPANY[0]))
        assert (context.decode(Batch.one([TOKENS[pos]], pos)) == row).all(), pos


def write_outer_peft(folder: Path, tensors: Mapping[str, Floats], **settings: Any) -> Path:
    from safetensors.numpy import save_file

    folder.mkdir()
    save_file(
        {f"base_model.model.{n}": np.ascontiguousarray(t) for n, t in tensors.items()},
        folder / "adapter_model.safetensors",
    )
    about = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA} | settings
    (folder / "adapter_config.json").write_text(json.dumps(about))
    return folder


def peft_tensors() -> dict[str, Floats]:
    (a, b), (c, d) = of_embeddings(1), pair(2, N_VOCAB, N_EMBD)
    return {
        "model.embed_tokens.lora_embedding_A": a.T,
        "model.embed_tokens.lora_embedding_B": b,
        "model.embed_tokens.base_layer.weight": model_tensors()[EMBEDDING],
        "lm_head.lora_A.weight": c,
        "lm_head.lora_B.weight": d,
        "lm_head.base_layer.weight": model_tensors()[EMBEDDING],
    }


def test_embeddings_and_output_of_peft(tmp_path: Path) -> None:
    """PEFT saves the matrices that it leaves as they are beside adapters of embeddings."""
    path = write_gguf(tmp_path / "base.gguf", None, outer(tied=True))
    theirs = write_outer_peft(tmp_path / "p", peft_tensors())
    ours = {EMBEDDING: of_embeddings(1), OUTPUT: pair(2, N_VOCAB, N_EMBD)}
    decoder = adapted(path, theirs, write_adapter(tmp_path / "a.gguf", ours))
    assert (logits(decoder, "a") == logits(decoder, "b")).all()
    assert (logits(decoder, "a") != logits(decoder)).any()


def test_peft_on_single_experts(tmp_path: Path) -> None:
    spec = SPECS["qwen3moe"]
    tensors = dict(spec.each_tensor())
    path = write_model(tmp_path / "base.gguf", spec, tensors)
    at, theirs = "blk.1.ffn_down_exps.weight", "model.layers.1.mlp.experts.3.down_proj"
    a, b = pair(1, *tensors[at].shape[1:])
    named = {f"{theirs}.lora_A.weight": a, f"{theirs}.lora_B.weight": b}
    decoder = adapted(path, write_outer_peft(tmp_path / "p", named))
    assert list(decoder.adapters.loaded[0].matrices) == ["blk.1.ffn_down.3.weight"]
    tensors[at][3] += np.float32(SCALE) * (b @ a)
    wanted = logits(build_decoder(open_weights(write_model(tmp_path / "m", spec, tensors))))
    assert np.abs(logits(decoder, "a") - wanted).max() < 2e-5 * np.ptp(wanted)


def test_dora_on_the_output_and_on_an_expert(tmp_path: Path) -> None:
    spec, rng = SPECS["qwen3moe"], np.random.default_rng(3)
    tensors = dict(spec.each_tensor())
    path = write_model(tmp_path / "base.gguf", spec, tensors)
    named: dict[str, Floats] = {}
    merged = dict(tensors)
    for i, (ours, theirs) in enumerate(
        {OUTPUT: "lm_head", EXPERTS[2]: "model.layers.1.mlp.experts.3.down_proj"}.items()
    ):
        whole = merged[OUTPUT] if ours == OUTPUT else merged[f"blk.1.{ours}.weight"][3]
        a, b = pair(i, *whole.shape)
        size = rng.uniform(1, 3, len(whole)).astype(np.float32)
        parts = {"lora_A.weight": a, "lora_B.weight": b, "lora_magnitude_vector": size}
        named |= {f"{theirs}.{end}": part for end, part in parts.items()}
        whole += np.float32(SCALE) * (b @ a)
        whole *= (size / np.linalg.norm(whole, axis=1))[:, None]
    folder = write_outer_peft(tmp_path / "p", named)
    about = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "use_dora": True}
    (folder / "adapter_config.json").write_text(json.dumps(about))
    rows = logits(adapted(path, folder), "a")
    wanted = logits(build_decoder(open_weights(write_model(tmp_path / "m", spec, merged))))
    assert np.abs(rows - wanted).max() < 2e-5 * np.ptp(wanted)


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"model.embed_tokens.base_layer.weight": np.ones((25, 32), np.float32)},
     FileFormatError, r"shape \[25, 32\], and the model's is \[24, 32\]"),
    ({"model.embed_tokens.lora_A.weight": np.ones((RANK, 32), np.float32)},
     FileFormatError, "no matrix of embeddings"),
    ({"lm_head.lora_embedding_A": np.ones((RANK, 32), np.float32)},
     FileFormatError, "no matrix of embeddings"),
    ({"model.embed_tokens.lora_embedding_A": np.ones((RANK, 23), np.float32)},
     FileFormatError, r"\[23, 32\].*\[24, 32\]"),
    ({"model.embed_tokens.lora_embedding_B": np.ones((31, RANK), np.float32)},
     FileFormatError, r"\[24, 31\].*\[24, 32\]"),
    ({"model.embed_tokens.lora_embedding_B": np.ones((32, RANK + 1), np.float32)},
     FileFormatError, "do not fit"),
    ({"model.embed_tokens.lora_magnitude_vector": np.ones(32, np.float32)},
     UnsupportedModel, "DoRA of embeddings"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "error", "words"), WRONG)
def test_wrong_matrices_of_peft(
    tmp_path: Path, more: dict[str, Any], error: type[Exception], words: str
) -> None:
    path = write_gguf(tmp_path / "base.gguf", None, outer(tied=True))
    folder = write_outer_peft(tmp_path / "p", peft_tensors() | more)
    if "DoRA" in words:
        about = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "use_dora": True}
        (folder / "adapter_config.json").write_text(json.dumps(about))
    with pytest.raises(error, match=words):
        adapted(path, folder)


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("blk.0.ffn_up_exps.weight", (7, 32, 64), r"\[7, 6, 64\], and the model has 8 experts"),
        ("blk.0.ffn_up_exps.weight", (32, 64), r"\[6, 64\], and the model has 8 experts"),
        ("blk.0.ffn_up_exps.weight", (8, 31, 64), r"shape \[31, 64\].*\[32, 64\]"),
        ("blk.0.ffn_up.8.weight", (32, 64), r"has no 'blk.0.ffn_up.8.weight'"),
        ("blk.2.ffn_up.0.weight", (32, 64), r"has no 'blk.2.ffn_up.0.weight'"),
        ("blk.2.attn_q.weight", (64, 64), r"has no 'blk.2.attn_q.weight'"),
        ("strange.weight", (64, 64), r"has no 'strange.weight'"),
        ("blk.0.ffn_gate_up_exps.weight", (8, 63, 64), r"has no 'blk.0.ffn_gate_up.0.weight'"),
    ],
)
def test_experts_that_the_model_does_not_have(
    tmp_path: Path, name: str, shape: tuple[int, ...], words: str
) -> None:
    spec = SPECS["qwen3moe"]
    path = write_model(tmp_path / "base.gguf", spec)
    file = write_adapter(tmp_path / "a", {name: pair(1, *shape)}, architecture=spec.arch)
    with pytest.raises(FileFormatError, match=words):
        adapted(path, file)


@pytest.mark.parametrize("turned", [False, True])
def test_an_expert_that_is_there_twice(tmp_path: Path, turned: bool) -> None:
    spec = SPECS["qwen3moe"]
    path = write_model(tmp_path / "base.gguf", spec)
    given = {
        "blk.0.ffn_up_exps.weight": pair(1, 8, 32, 64),
        "blk.0.ffn_up.3.weight": pair(2, 32, 64),
    }
    file = write_adapter(
        tmp_path / "a", dict(reversed(given.items())) if turned else given, architecture=spec.arch
    )
    with pytest.raises(FileFormatError, match="changes this matrix twice"):
        adapted(path, file)


def test_experts_of_a_model_without_them(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "base.gguf")
    named = {"blk.0.ffn_up_exps.weight": pair(1, 8, 64, 32)}
    with pytest.raises(FileFormatError, match="the model has 0 experts"):
        adapted(path, write_adapter(tmp_path / "a.gguf", named))


def test_the_order_of_a_step() -> None:
    names = [
        "token_embd.weight", "blk.0.attn_q.weight", "blk.0.ffn_gate.2.weight",
        "blk.0.ffn_gate.10.weight", "blk.0.ffn_down.0.weight", "blk.0.ffn_gate_inp.weight",
        "blk.0.ffn_down_shexp.weight", "blk.2.attn_q.weight", "blk.10.attn_q.weight",
        "output.weight",
    ]  # fmt: skip
    assert all(map(adapted_module.adaptable, names))
    assert sorted(set(names), key=adapted_module.step_order) == names
    for name in ("output_norm.weight", "blk.0.ffn_gate_up.0.weight", "blk.01.attn_q.weight"):
        assert not adapted_module.adaptable(name)


@pytest.mark.parametrize("threads", [1, 2])
def test_long_texts_have_the_bits_of_single_tokens(tmp_path: Path, threads: int) -> None:
    """More tokens than are lowered at a time."""
    spec = SPECS["qwen2moe"]
    tensors = dict(spec.each_tensor())
    path = write_model(tmp_path / "base.gguf", spec, tensors)
    a, b = pair(1, spec.n_embd, spec.n_vocab)
    pairs = of_experts(tensors, 1) | {
        EMBEDDING: (np.ascontiguousarray(a.T), b),
        OUTPUT: pair(2, *tensors[OUTPUT].shape),
    }
    decoder = adapted(path, write_adapter(tmp_path / "a.gguf", pairs, architecture=spec.arch))
    text = (TOKENS * 7)[:75]
    whole, single = (
        Context(
            decoder, n_ctx=128, n_ubatch=96, n_batch=96, type_k="f32", type_v="f32",
            n_threads=threads, n_threads_batch=threads,
        )
        for _ in range(2)
    )  # fmt: skip
    for context in (whole, single):
        context.adapters.set(0, chosen_adapters("a"))
    rows = whole.decode(Batch.one(text, logits=True))
    for pos, token in enumerate(text):
        assert (single.decode(Batch.one([token], pos)) == rows[pos]).all(), pos
