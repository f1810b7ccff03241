"""Adapters against the same model with merged weights; what is refused; bits in company."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from numpy.typing import NDArray
from safetensors.numpy import save_file

from aleator.core.errors import FileFormatError, InvalidBatch, ParameterError, UnsupportedModel
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.adapter_files import TENSORS, load_adapters
from aleator.models.adapters import adapter_files, chosen_adapters, key_of
from aleator.models.decoder import Decoder
from tests.models.adapters import (
    ALPHA,
    RANK,
    merged,
    of_hugging_face,
    pairs_of,
    their_name,
    write_adapter,
    write_peft,
)
from tests.models.builders import (
    hugging_face_tensors,
    model_json,
    model_metadata,
    model_tensors,
    write_directory,
    write_gguf,
)

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
Rows = NDArray[np.float32]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "base.gguf")


def adapted(path: Path, *files: Path, kind: str = "auto") -> Decoder:
    """The model with adapters called "a", "b" ..."""
    weights = open_weights(path)
    named = adapter_files(dict(zip("abc", files, strict=False)))
    decoder = build_decoder(weights)
    decoder.take(load_adapters(named, weights, kind))
    return decoder


def logits(decoder: Decoder, chosen: Any = (), tokens: Sequence[int] = TOKENS) -> Rows:
    context = Context(decoder, n_ctx=64, type_k="f32", type_v="f32", n_threads=1)
    context.adapters.set(0, chosen_adapters(chosen))
    return np.array(context.decode(Batch.one(tokens, logits=True)))


def check_near(rows: Rows, tensors: Mapping[str, Any], folder: Path, metadata: Any = None) -> None:
    """Compare with a model that has these tensors."""
    wanted = logits(build_decoder(open_weights(write_gguf(folder / "m.gguf", metadata, tensors))))
    assert np.abs(rows - wanted).max() < 1e-5 * (wanted.max() - wanted.min())


@pytest.mark.parametrize("scale", [1.0, 0.5, -2.0])
def test_gguf_is_what_merged_weights_are(base: Path, tmp_path: Path, scale: float) -> None:
    pairs = pairs_of(1)
    decoder = adapted(base, write_adapter(tmp_path / "a.gguf", pairs))
    rows = logits(decoder, {"a": scale})
    check_near(rows, merged((pairs, scale * ALPHA / RANK)), tmp_path)


def test_two_adapters_of_other_ranks_and_matrices(base: Path, tmp_path: Path) -> None:
    first, second = (
        pairs_of(1, ["attn_q", "ffn_down"]),
        pairs_of(2, ["attn_v", "ffn_down"], rank=11),
    )
    files = [write_adapter(tmp_path / f"{i}.gguf", p) for i, p in enumerate((first, second))]
    rows = logits(adapted(base, *files), {"b": 0.25, "a": 1})
    check_near(rows, merged((first, ALPHA / RANK), (second, 0.25 * ALPHA / 11)), tmp_path)


def test_without_alpha_the_scale_is_1(base: Path, tmp_path: Path) -> None:
    pairs = pairs_of(1)
    decoder = adapted(base, write_adapter(tmp_path / "a.gguf", pairs, {"adapter.lora.alpha": 0.0}))
    check_near(logits(decoder, "a"), merged((pairs, 1.0)), tmp_path)


def test_half_precision_is_used_as_it_is_stored(base: Path, tmp_path: Path) -> None:
    pairs = {n: (a.astype(np.float16), b.astype(np.float16)) for n, (a, b) in pairs_of(1).items()}
    decoder = adapted(base, write_adapter(tmp_path / "a.gguf", pairs))  # type: ignore[arg-type]
    matrices = decoder.adapters.loaded[0].matrices.values()
    assert {each.type for pair in matrices for each in (pair.a, pair.b)} == {"F16"}
    check_near(logits(decoder, "a"), merged((pairs, ALPHA / RANK)), tmp_path)  # type: ignore[arg-type]


def test_blocks_are_the_floats_they_stand_for(base: Path, tmp_path: Path) -> None:
    """A file whose matrices have blocks, as llama-quantize makes them."""
    kind, pairs = GGMLQuantizationType.Q8_0, pairs_of(1, ["ffn_gate"], rank=32)
    about = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": ALPHA}
    blocks = {
        f"{name}.lora_{side}": gguf.quants.quantize(part, kind)
        for name, pair in pairs.items()
        for side, part in zip("ab", pair, strict=True)
    }
    file = write_gguf(tmp_path / "a.gguf", about, blocks, dict.fromkeys(blocks, kind))
    floats = {name: gguf.quants.dequantize(data, kind) for name, data in blocks.items()}
    read = {name: (floats[f"{name}.lora_a"], floats[f"{name}.lora_b"]) for name in pairs}
    check_near(logits(adapted(base, file), "a"), merged((read, ALPHA / 32)), tmp_path)


def test_fused_projections(tmp_path: Path) -> None:
    """phi3's file holds queries, keys and values in one matrix, and gate and up in another."""
    tensors = model_tensors()
    fused: dict[str, Any] = {}
    for name, values in tensors.items():
        kind = name.split(".")[-2]
        stem = name.removesuffix(f"{kind}.weight")
        if kind in ("attn_q", "ffn_gate"):
            parts = ("attn_q", "attn_k", "attn_v") if kind == "attn_q" else ("ffn_gate", "ffn_up")
            whole = np.concatenate([tensors[f"{stem}{part}.weight"] for part in parts])
            fused[f"{stem}{'attn_qkv' if kind == 'attn_q' else 'ffn_up'}.weight"] = whole
        elif kind not in ("attn_k", "attn_v", "ffn_up"):
            fused[name] = values
    rng = np.random.default_rng(5)
    made = {
        name: (
            0.3 * rng.standard_normal((RANK, fused[name].shape[1])).astype(np.float32),
            0.3 * rng.standard_normal((fused[name].shape[0], RANK)).astype(np.float32),
        )
        for name in ("blk.0.attn_qkv.weight", "blk.1.ffn_up.weight")
    }
    about = model_metadata("phi3") | {"phi3.rope.dimension_count": 8}
    path = write_gguf(tmp_path / "phi3.gguf", about, fused, architecture="phi3")
    file = write_adapter(tmp_path / "a.gguf", made, architecture="phi3")
    rows = logits(adapted(path, file), "a")
    for name, (a, b) in made.items():
        fused[name] = fused[name] + np.float32(ALPHA / RANK) * (b @ a)
    path = write_gguf(tmp_path / "m.gguf", about, fused, architecture="phi3")
    wanted = logits(build_decoder(open_weights(path)))
    assert np.abs(rows - wanted).max() < 1e-5 * np.ptp(wanted)


def directory(folder: Path) -> Path:
    """The small model as Hugging Face has it."""
    import torch

    made = hugging_face_tensors()
    for name, values in model_tensors().items():
        if name.startswith("blk.") and "norm" not in name:
            rows = np.ascontiguousarray(of_hugging_face(values, name))
            made[f"{their_name(name)}.weight"] = torch.from_numpy(rows)
    return write_directory(folder, model_json(rope_theta=10000.0), made)


@pytest.mark.parametrize("of_peft", [False, True])
def test_each_kind_of_adapter_on_each_kind_of_file(tmp_path: Path, of_peft: bool) -> None:
    """Queries and keys have their rows in another order in GGUF files than in Hugging Face's."""
    pytest.importorskip("torch")
    pairs, own = pairs_of(1), merged((pairs_of(1), ALPHA / RANK))
    file = write_peft(tmp_path / "p", pairs) if of_peft else write_adapter(tmp_path / "a", pairs)
    for path in (write_gguf(tmp_path / "base.gguf"), directory(tmp_path / "hf")):
        check_near(logits(adapted(path, file), "a"), own, tmp_path)


def test_rank_stabilised_and_patterns(base: Path, tmp_path: Path) -> None:
    pairs = pairs_of(1, ["attn_q", "ffn_up"]) | pairs_of(2, ["attn_v"], rank=4)
    folder = write_peft(
        tmp_path / "p",
        pairs,
        use_rslora=True,
        rank_pattern={"v_proj": 4},
        alpha_pattern={"layers.1.mlp.up_proj": 2.0, "^model.layers.0.self_attn.q_proj": 3},
    )
    rows = logits(adapted(base, folder), "a")
    scales = {
        name: {"blk.1.ffn_up.weight": 2.0, "blk.0.attn_q.weight": 3.0}.get(name, ALPHA)
        / np.sqrt(len(a))
        for name, (a, _) in pairs.items()
    }
    check_near(rows, merged(*(({n: p}, scales[n]) for n, p in pairs.items())), tmp_path)


def test_matrices_that_directories_have_transposed(tmp_path: Path) -> None:
    """GPT-2's are [in, out] (fan_in_fan_out), and what PEFT adds is as ever."""
    transformers: Any = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, n_positions=32, vocab_size=24)
    model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(tmp_path / "base")
    rng = np.random.default_rng(4)
    named: dict[str, NDArray[np.float32]] = {}
    for name, out in (("attn.c_attn", 96), ("attn.c_proj", 32), ("mlp.c_fc", 128)):
        a, b = (rng.standard_normal(s).astype(np.float32) for s in ((RANK, 32), (out, RANK)))
        stem = f"transformer.h.0.{name}"
        named |= {f"{stem}.lora_A.weight": a, f"{stem}.lora_B.weight": b}
        matrix = model.get_parameter(f"{stem}.weight").data
        matrix += torch.from_numpy(ALPHA / RANK * (b @ a).T)
    model.save_pretrained(tmp_path / "merged")
    folder = write_peft(tmp_path / "p", {}, fan_in_fan_out=True)
    save_file({f"base_model.model.{n}": t for n, t in named.items()}, folder / TENSORS)
    rows = logits(adapted(tmp_path / "base", folder), "a")
    wanted = logits(build_decoder(open_weights(tmp_path / "merged")))
    assert np.abs(rows - wanted).max() < 1e-5 * np.ptp(wanted)


def test_dora_rescales_rows(base: Path, tmp_path: Path) -> None:
    pairs, rng = pairs_of(1), np.random.default_rng(7)
    sizes = {n: rng.uniform(3, 9, len(b)).astype(np.float32) for n, (_, b) in pairs.items()}
    decoder = adapted(base, write_peft(tmp_path / "p", pairs, sizes))
    wanted = merged((pairs, ALPHA / RANK))
    for name, size in sizes.items():
        rows = wanted[name].astype(np.float64)
        wanted[name] = (rows * (size / np.linalg.norm(rows, axis=1))[:, None]).astype(np.float32)
    check_near(logits(decoder, "a"), wanted, tmp_path)
    with pytest.raises(ParameterError, match=r"'a' is a DoRA adapter.*scale 1"):
        logits(decoder, {"a": 0.5})


def test_dora_leaves_biases_alone(tmp_path: Path) -> None:
    tensors, rng = model_tensors(), np.random.default_rng(3)
    bias = rng.standard_normal(len(tensors["blk.0.attn_q.weight"])).astype(np.float32)
    tensors["blk.0.attn_q.bias"] = bias
    path = write_gguf(tmp_path / "base.gguf", None, tensors)
    pairs = pairs_of(1, ["attn_q"])
    sizes = {n: rng.uniform(3, 9, len(b)).astype(np.float32) for n, (_, b) in pairs.items()}
    decoder = adapted(path, write_peft(tmp_path / "p", pairs, sizes))
    wanted = merged((pairs, ALPHA / RANK)) | {"blk.0.attn_q.bias": bias}
    for name, size in sizes.items():
        wanted[name] = wanted[name] * (size / np.linalg.norm(wanted[name], axis=1))[:, None]
    check_near(logits(decoder, "a"), wanted, tmp_path)


COMPANY: list[Any] = ["a", {}, {"a": 0.5, "b": -1.0}, "b", {"a": 0.25}]


def company(decoder: Decoder, alone: list[Any], threads: int, at_once: int) -> Context:
    """Compare texts that are decoded together with what each has alone, bit for bit; return their context."""
    context = Context(
        decoder, n_ctx=128, n_seq_max=len(COMPANY), n_ubatch=at_once, n_batch=at_once,
        type_k="f32", type_v="f32", n_threads=threads, n_threads_batch=threads,
    )  # fmt: skip
    batch, last = Batch(), Batch()
    for i, chosen in enumerate(COMPANY):
        context.adapters.set(i, chosen_adapters(chosen))
    for pos in range(len(TOKENS)):
        for i in range(len(COMPANY)):
            if pos < len(TOKENS) - i:
                batch.add(TOKENS[i + pos], pos, [i], logits=True)
                last.add(TOKENS[i + pos], pos, [i], logits=pos == len(TOKENS) - i - 1)
    rows = context.decode(batch)
    for i, own in enumerate(alone):
        mine = [n for n, seqs in enumerate(batch.sequences) if seqs == (i,)]
        assert (rows[mine] == own).all(), i
        context.cache.seq_rm(i, -1, -1)
    rows = context.decode(last)  # logits of few rows, which do not follow each other
    order = [seqs[0] for seqs, wanted in zip(last.sequences, last.logits, strict=True) if wanted]
    for i, row in zip(order, rows, strict=True):
        assert (row == alone[i][-1]).all(), i
    return context


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("n_ubatch", [5, 64])
def test_bits_are_those_alone(base: Path, tmp_path: Path, n_threads: int, n_ubatch: int) -> None:
    files = [
        write_adapter(tmp_path / "a.gguf", pairs_of(1)),
        write_adapter(tmp_path / "b.gguf", pairs_of(2, ["attn_k", "ffn_gate"], rank=17)),
    ]
    decoder, plain = adapted(base, *files), build_decoder(open_weights(base))
    alone = [logits(decoder, chosen, TOKENS[i:]) for i, chosen in enumerate(COMPANY)]
    assert (alone[1] == logits(plain, (), TOKENS[1:])).all()
    assert (alone[0] != logits(plain)).any()
    context = company(decoder, alone, n_threads, n_ubatch)
    for i, own in enumerate(alone):  # and one token after the other
        context.cache.seq_rm(i, -1, -1)
        for pos, wanted in enumerate(own):
            (row,) = context.decode(Batch.one([TOKENS[i + pos]], pos, i))
            assert (row == wanted).all(), (i, pos)


def test_what_holds_for_all_who_say_nothing(base: Path, tmp_path: Path) -> None:
    decoder = adapted(base, write_adapter(tmp_path / "a.gguf", pairs_of(1)))
    half = logits(decoder, {"a": 0.5})
    context = Context(decoder, n_ctx=64, type_k="f32", type_v="f32")
    decoder.adapters.use([0.5])
    assert (context.decode(Batch.one(TOKENS, logits=True)) == half).all()


def test_shared_tokens_have_one_choice(base: Path, tmp_path: Path) -> None:
    decoder = adapted(base, write_adapter(tmp_path / "a.gguf", pairs_of(1)))
    context = Context(decoder, n_ctx=64, n_seq_max=2)
    context.adapters.set(1, chosen_adapters("a"))
    batch = Batch()
    batch.add(1, 0, [0, 1])
    with pytest.raises(InvalidBatch, match="share it and have other adapters"):
        context.decode(batch)


DAMAGED: list[tuple[dict[str, Any], str, type[Exception], str]] = [
    ({"adapter.lora.alpha": float("nan")}, "", FileFormatError, r"alpha is nan"),
    ({"adapter.type": "control_vector"}, "", UnsupportedModel, "control_vector"),
    ({"general.type": "model"}, "", FileFormatError, "not an adapter"),
    ({"adapter.alora.invocation_tokens": [1, 24]}, "", FileFormatError, "256 tokens, each 0 to 23"),
    ({"adapter.alora.invocation_tokens": [1] * 257}, "", FileFormatError, "(257 tokens)"),
    ({}, "nan", FileFormatError, r"lora_b holds NaN.*blk.0.attn_q"),
    ({}, "one side", FileFormatError, "one of lora_a and lora_b is missing"),
    ({}, "rank", FileFormatError, "do not fit"),
    ({}, "shape", FileFormatError, r"shape \[32, 40\].*\[32, 32\].*trained on this model"),
    ({}, "layer", FileFormatError, r"has no 'blk.7.attn_q.weight'"),
    ({}, "norm", UnsupportedModel, r"'blk.0.attn_norm.weight'"),
    ({}, "embedding", FileFormatError, r"\[6, 32\] and lora_b \[24, 6\] do not fit.*'token_embd"),
    ({}, "other", UnsupportedModel, r"'blk.0.attn_q.weight' is no part of LoRA"),
    ({}, "nothing", FileFormatError, "no tensors"),
    ({}, "wide", UnsupportedModel, "has rank 5000, and at most 4096"),
]


@pytest.mark.parametrize(("fields", "damage", "error", "words"), DAMAGED)
def test_bad_files_are_refused(
    base: Path, tmp_path: Path, fields: Any, damage: str, error: type[Exception], words: str
) -> None:
    pairs: dict[str, Any] = pairs_of(1, ["attn_q"])
    a, b = pairs["blk.0.attn_q.weight"]
    match damage:
        case "nan":
            b[3, 1] = np.nan
        case "rank":
            pairs["blk.0.attn_q.weight"] = a, b[:, :-1]
        case "shape":
            pairs["blk.0.attn_q.weight"] = np.ones((RANK, 40), np.float32), b
        case "wide":
            wide = np.ones((5000, 32), np.float32)
            pairs["blk.0.attn_q.weight"] = wide, np.ascontiguousarray(wide.T)
        case "layer":
            pairs["blk.7.attn_q.weight"] = a, b
        case "norm":
            pairs["blk.0.attn_norm.weight"] = np.ones((RANK, 1), np.float32), b
        case "embedding":
            pairs["token_embd.weight"] = a, np.ones((24, RANK), np.float32)
    path = write_adapter(tmp_path / "a.gguf", {} if damage == "nothing" else pairs, fields)
    if damage in ("one side", "other"):
        extra = (
            {"blk.0.attn_q.weight.lora_a": a}
            if damage == "one side"
            else {"blk.0.attn_q.weight": a}
        )
        about = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": 1.0}
        path = write_gguf(path, about, extra)
    with pytest.raises(error, match=words):
        adapted(base, path)


def test_another_architecture(base: Path, tmp_path: Path) -> None:
    file = write_adapter(tmp_path / "a.gguf", pairs_of(1), architecture="qwen2")
    with pytest.raises(FileFormatError, match=r"'qwen2'.*'llama'"):
        adapted(base, file)


def test_a_file_cut_short(base: Path, tmp_path: Path) -> None:
    whole = write_adapter(tmp_path / "a.gguf", pairs_of(1)).read_bytes()
    for length in range(0, len(whole), len(whole) // 97):
        (tmp_path / "cut.gguf").write_bytes(whole[:length])
        with pytest.raises((FileFormatError, UnsupportedModel)):
            adapted(base, tmp_path / "cut.gguf")


CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"peft_type": "IA3"}, "IA3.*merge it"),
    ({"peft_type": "PREFIX_TUNING", "num_virtual_tokens": 8}, "PREFIX.*cannot be merged"),
    ({"bias": "all"}, "bias='all'"),
    ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
    ({"init_lora_weights": "pissa"}, "pissa"),
    ({"layer_replication": [[0, 1]]}, "layer_replication"),
    ({"alora_invocation_tokens": []}, "alora_invocation_tokens"),
    ({"kasa_config": {"beta": 1}}, "kasa_config"),
    ({"of_a_later_version": 1}, "of_a_later_version"),
    ({"r": 5}, "has rank 6"),
    ({"lora_alpha": float("inf")}, "lora_alpha"),
    ({"use_dora": True}, "use_dora"),
    ({"rank_pattern": {"(a+)+$": 6}}, "is read neither as a module's name"),
    ({"alpha_pattern": {"q_proj": "6"}}, "alpha_pattern|q_proj"),
    ({"target_parameters": "up_proj"}, "target_parameters must be a list"),
]


@pytest.mark.parametrize(("config", "words"), CONFIGS)
def test_settings_of_peft_that_change_more(
    base: Path, tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    folder = write_peft(tmp_path / "p", pairs_of(1), **config)
    with pytest.raises((FileFormatError, UnsupportedModel), match=words):
        adapted(base, folder)


def test_only_native_code_computes_adapters(base: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    weights = open_weights(base)
    made = load_adapters((("a", str(write_adapter(tmp_path / "a", pairs_of(1))), 0.0),), weights)
    decoder = build_decoder(weights, form="torch")
    with pytest.raises(ParameterError, match="device='cpu'"):
        decoder.take(made)


def test_keys_tell_adapters_and_scales_apart(base: Path, tmp_path: Path) -> None:
    files = [write_adapter(tmp_path / f"{i}.gguf", pairs_of(i)) for i in (1, 2)]
    adapters = adapted(base, *files).adapters
    chosen = [{}, "a", "b", {"a": 0.5}, {"a": 1, "b": 1}]
    keys = [key_of(adapters.chosen(chosen_adapters(each))) for each in chosen]
    assert keys[0] == ""
    assert len(set(keys)) == len(keys)
    both = chosen_adapters({"b": 1, "a": 1})
    assert key_of(adapters.chosen(both)) == keys[-1]


def test_the_same_bytes_in_another_order_of_rows_are_another_adapter(
    base: Path, tmp_path: Path
) -> None:
    """A GGUF file whose converter left the rows of queries as PEFT has them."""
    pairs = pairs_of(1, ["attn_q"])
    as_peft = {name: (a, of_hugging_face(b, name)) for name, (a, b) in pairs.items()}
    files = write_adapter(tmp_path / "a.gguf", as_peft), write_peft(tmp_path / "b", pairs)
    decoder = adapted(base, *files)
    assert (logits(decoder, "a") != logits(decoder, "b")).any()
    of_all = decoder.adapters
    keys = {key_of(of_all.chosen(chosen_adapters(name))) for name in of_all.names}
    assert len(keys) == 2


@pytest.mark.parametrize("name", ["nothing", "x" * 5000])
def test_a_file_that_is_not_there(base: Path, name: str) -> None:
    with pytest.raises(ParameterError, match="no such file"):
        adapted(base, base.with_name(name))


@pytest.mark.parametrize("name", ["adapter_config.json", TENSORS])
def test_a_directory_without_one_of_its_files(base: Path, tmp_path: Path, name: str) -> None:
    folder = write_peft(tmp_path / "p", pairs_of(1))
    (folder / name).unlink()
    with pytest.raises(ParameterError, match=f"'a': .*/p/{name}: no such file; give a GGUF file"):
        adapted(base, folder)
