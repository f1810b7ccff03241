"""Directories of encoders for which transformers has no class: hidden states as in the models' own code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aleator
from aleator.cli import main
from aleator.core.errors import FileFormatError, UnsupportedModel
from aleator.models import build_decoder, native_decoder, open_weights
from aleator.models.conversion.convert import ConvertedDirectory
from aleator.models.directory import Directory
from aleator.models.encoder import Encoder
from aleator.models.layers import parts
from tests.models.check_converted import NO_VOCABULARY
from tests.models.check_transformers import relative

from .test_encoders import IDS, write_tokenizer

torch: Any = pytest.importorskip("torch")
pytest.importorskip("tokenizers")
VOCAB, WIDTH, HEADS, LAYERS, DIM = 120, 32, 4, 4, 8
FF, EXPERTS, USED = 48, 5, 2
NEO = {
    "model_type": "neobert", "architectures": ["NeoBERTLMHead"], "vocab_size": VOCAB,
    "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "intermediate_size": 50, "norm_eps": 1e-5, "max_length": 64,
}  # fmt: skip
NEO_FF = 40  # two thirds of 50, and up to a multiple of 8
NOMIC = {
    "model_type": "nomic_bert", "architectures": ["NomicBertModel"], "activation_function": "gelu",
    "vocab_size": VOCAB, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_inner": FF,
    "n_positions": 64, "max_trained_positions": 64, "layer_norm_epsilon": 1e-5, "causal": False,
    "prenorm": False, "rotary_emb_base": 10000.0, "rotary_emb_fraction": 1.0, "qkv_proj_bias": True,
    "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "num_experts": EXPERTS,
    "moe_every_n_layers": 2, "moe_top_k": USED, "moe_normalize_expert_weights": False,
    "num_shared_experts": 0, "expert_choice_router": False, "parallel_block": False, "use_rms_norm": None,
}  # fmt: skip


def drawn(shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    torch.manual_seed(5)
    return {name: torch.randn(*shape) * 0.3 for name, shape in shapes.items()}


def neo_tensors() -> dict[str, Any]:
    made: dict[str, tuple[int, ...]] = {
        "model.encoder.weight": (VOCAB, WIDTH), "model.layer_norm.weight": (WIDTH,),
        "decoder.weight": (VOCAB, WIDTH), "decoder.bias": (VOCAB,),
    }  # fmt: skip
    for i in range(LAYERS):
        of = {
            "qkv": (3 * WIDTH, WIDTH), "wo": (WIDTH, WIDTH), "ffn.w12": (2 * NEO_FF, WIDTH),
            "ffn.w3": (WIDTH, NEO_FF), "attention_norm": (WIDTH,), "ffn_norm": (WIDTH,),
        }  # fmt: skip
        made |= {f"model.transformer_encoder.{i}.{name}.weight": each for name, each in of.items()}
    return drawn(made)


def nomic_tensors(bias: bool = True) -> dict[str, Any]:
    made: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (VOCAB, WIDTH),
        "embeddings.token_type_embeddings.weight": (1, WIDTH),
    }

    def add(name: str, *shape: int) -> None:
        made.update({f"{name}.weight": shape, f"{name}.bias": shape[:1]})

    add("emb_ln", WIDTH)
    for i in range(LAYERS):
        at = f"encoder.layers.{i}."
        add(f"{at}attn.Wqkv", 3 * WIDTH, WIDTH)
        add(f"{at}attn.out_proj", WIDTH, WIDTH)
        add(f"{at}norm1", WIDTH)
        add(f"{at}norm2", WIDTH)
        if i % 2:
            made[f"{at}mlp.router.layer.weight"] = EXPERTS, WIDTH
            made[f"{at}mlp.experts.bias"] = (WIDTH,)
            for name in ("w1", "w2"):
                made[f"{at}mlp.experts.mlp.{name}"] = EXPERTS * FF, WIDTH
        else:
            add(f"{at}mlp.fc1", FF, WIDTH)
            add(f"{at}mlp.fc2", WIDTH, FF)
    tensors = drawn(made)
    if not bias:
        tensors = {n: t * 0 if n.endswith("experts.bias") else t for n, t in tensors.items()}
    return tensors


def attended(q: Any, k: Any, v: Any) -> Any:
    """Attention of [n, HEADS, DIM]; to [n, WIDTH]."""
    q, k, v = (each.transpose(0, 1) for each in (q, k, v))
    seen = (q @ k.transpose(1, 2) / DIM**0.5).softmax(-1) @ v
    return seen.transpose(0, 1).reshape(-1, WIDTH)


def angles(n: int) -> Any:
    frequencies = 10000.0 ** (-torch.arange(0, DIM, 2) / DIM)
    return torch.outer(torch.arange(n).float(), frequencies)[:, None]


def neo_states(made: dict[str, Any], ids: list[int]) -> Any:
    """Pairs of neighbours are rotated, as complex numbers; each head has its query, key and value together."""
    functional, n = torch.nn.functional, len(ids)
    turn = torch.polar(torch.ones(n, 1, DIM // 2), angles(n))

    def rotated(x: Any) -> Any:
        pairs = torch.view_as_complex(x.reshape(n, HEADS, -1, 2).contiguous())
        return torch.view_as_real(pairs * turn).flatten(2)

    def norm(x: Any, name: str) -> Any:
        return functional.rms_norm(x, (WIDTH,), made[f"model.{name}.weight"], 1e-5)

    x = made["model.encoder.weight"][ids]
    for i in range(LAYERS):
        at = f"transformer_encoder.{i}."
        own = {
            name: made[f"model.{at}{name}.weight"] for name in ("qkv", "wo", "ffn.w12", "ffn.w3")
        }
        both = norm(x, f"{at}attention_norm") @ own["qkv"].T
        q, k, v = both.view(n, HEADS, 3 * DIM).chunk(3, -1)
        x = x + attended(rotated(q), rotated(k), v) @ own["wo"].T
        gate, up = (norm(x, f"{at}ffn_norm") @ own["ffn.w12"].T).chunk(2, -1)
        x = x + (functional.silu(gate) * up) @ own["ffn.w3"].T
    return norm(x, "layer_norm")


def nomic_states(made: dict[str, Any], ids: list[int]) -> Any:
    """Channels half a head apart are rotated; experts have softmax's weights, their sum a bias."""
    functional, n = torch.nn.functional, len(ids)
    cos, sin = (torch.cat([f(angles(n))] * 2, -1) for f in (torch.cos, torch.sin))

    def rotated(x: Any) -> Any:
        low, high = x.chunk(2, -1)
        return x * cos + torch.cat((-high, low), -1) * sin

    def linear(x: Any, name: str) -> Any:
        return functional.linear(x, made[f"{name}.weight"], made[f"{name}.bias"])

    def norm(x: Any, name: str) -> Any:
        own = made[f"{name}.weight"], made[f"{name}.bias"]
        return functional.layer_norm(x, (WIDTH,), *own, 1e-5)

    def mixture(x: Any, at: str) -> Any:
        w1, w2 = (made[f"{at}experts.mlp.{w}"].view(EXPERTS, FF, WIDTH) for w in ("w1", "w2"))
        weights, chosen = (x @ made[f"{at}router.layer.weight"].T).softmax(-1).topk(USED)
        out = made[f"{at}experts.bias"].repeat(len(x), 1)
        for token, (own, experts) in enumerate(zip(weights, chosen, strict=True)):
            for weight, expert in zip(own, experts, strict=True):
                out[token] += weight * (functional.gelu(x[token] @ w1[expert].T) @ w2[expert])
        return out

    embedded = made["embeddings.word_embeddings.weight"][ids]
    x = norm(embedded + made["embeddings.token_type_embeddings.weight"][0], "emb_ln")
    for i in range(LAYERS):
        at = f"encoder.layers.{i}."
        q, k, v = linear(x, f"{at}attn.Wqkv").view(n, 3, HEADS, DIM).unbind(1)
        seen = attended(rotated(q), rotated(k), v)
        x = norm(x + linear(seen, f"{at}attn.out_proj"), f"{at}norm1")
        if i % 2:
            inner = mixture(x, f"{at}mlp.")
        else:
            inner = linear(functional.gelu(linear(x, f"{at}mlp.fc1")), f"{at}mlp.fc2")
        x = norm(x + inner, f"{at}norm2")
    return x


def written(folder: Path, fields: dict[str, Any], made: dict[str, Any]) -> Path:
    from safetensors.torch import save_file

    folder.mkdir(exist_ok=True)
    save_file(made, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(fields))
    write_tokenizer(folder)
    return folder


Made = tuple[dict[str, Any], Callable[[], dict[str, Any]], Callable[[Any, Any], Any], str]
MODELS: dict[str, Made] = {
    "neo-bert": (NEO, neo_tensors, neo_states, "silu"),
    "nomic-bert-moe": (NOMIC, nomic_tensors, nomic_states, "gelu_exact"),
}


@pytest.mark.parametrize("name", list(MODELS))
def test_hidden_states_and_those_of_the_converted_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp has the files' vectors within 3e-7, without a bias behind experts."""
    fields, tensors, reference, activation = MODELS[name]
    made = tensors()
    folder, file = written(tmp_path / "m", fields, made), tmp_path / "m.gguf"
    decoder = build_decoder(open_weights(folder))
    assert isinstance(decoder, Encoder)
    (got,) = decoder.states([IDS])
    assert relative(got, reference(made, IDS).numpy()) < 5e-6
    assert main(["convert", str(folder), str(file)]) == 0
    for module in (parts, native_decoder):  # GGUF's GELU is llama.cpp's approximation
        monkeypatch.setattr(module, "gate_of", lambda _, gate=activation: gate)
    text = "the queen is loving a king"
    wanted, found = (aleator.load(each).embed(text, normalize=False) for each in (folder, file))
    assert np.array_equal(found, wanted)


def test_only_a_bias_behind_experts_that_is_not_zero_is_in_the_file(tmp_path: Path) -> None:
    """llama.cpp has no place for it."""
    for bias, lacks in ((True, ["a bias behind experts"]), (False, [])):
        folder = written(tmp_path / str(bias), NOMIC, nomic_tensors(bias))
        gguf = ConvertedDirectory(Directory(folder), NO_VOCABULARY)
        assert gguf.llama_cpp_lacks == lacks
        assert ("blk.1.ffn_out.bias" in gguf.tensors) == bias


def test_a_score_of_neo_bert(tmp_path: Path) -> None:
    made = {n: t for n, t in neo_tensors().items() if not n.startswith("decoder.")}
    shapes = {"dense.weight": (WIDTH, WIDTH), "dense.bias": (WIDTH,)}
    made |= drawn(shapes | {"classifier.weight": (1, WIDTH), "classifier.bias": (1,)})
    loaded = aleator.load(written(tmp_path, NEO, made))
    (found,) = loaded.rerank("the queen", ["is loving a king"])
    ids, _ = loaded.tokenizer.encode_pair("the queen", "is loving a king")
    inner = torch.tanh(made["dense.weight"] @ neo_states(made, ids)[0] + made["dense.bias"])
    wanted = made["classifier.weight"] @ inner + made["classifier.bias"]
    assert found.score == pytest.approx(float(wanted), abs=2e-5)


@pytest.mark.parametrize(
    ("fields", "changes", "what"),
    [
        (NEO, {"hidden_act": "GELU"}, "hidden_act = 'GELU'"),
        (NEO, {"rms_norm": False}, "rms_norm = False"),
        (NEO, {"rope": False}, "rope = False"),
        (NEO, {"ngpt": True}, "ngpt = True"),
        (NEO, {"rope_theta": 5e4}, "rope_theta = 50000"),
        (NOMIC, {"activation_function": "swiglu"}, "the activation 'silu'"),
        (NOMIC, {"moe_normalize_expert_weights": 1.0}, "moe_normalize_expert_weights"),
        (NOMIC, {"num_shared_experts": 1}, "num_shared_experts"),
        (NOMIC, {"expert_choice_router": True}, "expert_choice_router"),
        (NOMIC, {"moe_every_n_layers": 1}, "moe_every_n_layers"),
        (NOMIC, {"rotary_emb_interleaved": True}, "rotary_emb_interleaved"),
        (NOMIC, {"rotary_emb_scale_base": 512.0}, "rotary_emb_scale_base"),
        (NOMIC, {"parallel_block": True}, "parallel_block"),
        (NOMIC, {"use_rms_norm": True}, "use_rms_norm"),
        (NOMIC, {"moe_top_k": EXPERTS + 1}, "moe_top_k is 6"),
        (NOMIC, {"num_experts": 0}, "num_experts is 0"),
    ],
)
def test_what_is_not_computed_is_refused(
    fields: dict[str, Any], changes: dict[str, Any], what: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(fields | changes))
    with pytest.raises((UnsupportedModel, FileFormatError), match=what):
        Directory(tmp_path)
