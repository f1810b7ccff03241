"""Small random encoders and rerankers as GGUF files, with vocabularies of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from dense_shapes import Dense
from model_file import Array, Draws, add_fields, add_tensors, write_file

WORDS = [
    "the", "of", "and", "to", "in", "king", "queen", "lord", "lady", "sword", "crown", "night",
    "day", "love", "death", "wit", "play", "stage", "storm", "sea", "ship", "man", "woman", "friend",
    "enemy", "cat", "dog", "bread", "ale", "is", "was", "not", "good", "bad", "true", "false",
]  # fmt: skip
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?'"
NORMAL, UNKNOWN, CONTROL = 1, 2, 3


@dataclass(frozen=True)
class Encoder:
    """A model: dimensions, which tensors its layers have, and its vocabulary's kind.

    Attributes:
        pre: the layers normalise their inputs, not their sums, and norms have no biases.
        bias: matrices have biases.
        gate: "": feed-forward without a gate; "apart", or "fused" into ``ffn_up``.
        types: kinds of segments; 0: segments have no vectors.
        learned: positions have vectors.
        norms: queries and keys are normalised.
        layers: the layers, if they are as a decoder's; then the rest is the vocabulary and ``meta``.
        experts: experts in every second layer.
        head: the classification head: "": none; "output": a row; "dense": a layer before; "norm": and a norm.
        vocabulary: "bert" or "t5".
        meta: further fields, without the architecture's prefix.
        type: type of the matrices.
    """

    arch: str
    seed: int = 1
    n_layers: int = 3
    n_embd: int = 64
    n_heads: int = 4
    n_ff: int = 96
    context: int = 64
    pre: bool = False
    bias: bool = True
    gate: str = ""
    types: int = 2
    learned: bool = False
    norms: bool = False
    layers: Dense | None = None
    experts: int = 0
    head: str = ""
    vocabulary: str = "bert"
    meta: Mapping[str, Any] = field(default_factory=dict)
    type: str = "F32"


ENCODERS: dict[str, Encoder] = {
    "bert": Encoder("bert", seed=201, learned=True, meta={"pooling_type": 2}),
    "bert-q8": Encoder("bert", seed=202, learned=True, type="Q8_0", meta={"pooling_type": 1}),
    "bert-score": Encoder("bert", seed=203, learned=True, head="output", meta={"pooling_type": 4}),
    "xlm-roberta": Encoder(
        "bert", seed=204, learned=True, types=1, vocabulary="t5", head="dense", meta={"pooling_type": 4},
    ),
    "nomic-bert": Encoder(
        "nomic-bert", seed=205, bias=False, gate="apart", meta={"pooling_type": 1, "rope.freq_base": 1000.0},
    ),
    "jina-bert-v2": Encoder("jina-bert-v2", seed=206, gate="fused", meta={"pooling_type": 1}),
    "jina-bert-v2-norms": Encoder(
        "jina-bert-v2", seed=207, gate="apart", norms=True, n_heads=6, n_embd=96, meta={"pooling_type": 3},
    ),
    "jina-bert-v3": Encoder(
        "jina-bert-v3", seed=208, types=1, vocabulary="t5", meta={"pooling_type": 1, "rope.freq_base": 20000.0},
    ),
    "modern-bert": Encoder(
        "modern-bert", seed=209, n_layers=4, pre=True, bias=False, gate="fused", types=0, head="norm",
        meta={
            "pooling_type": 1, "attention.sliding_window": 8, "rope.freq_base": 160000.0,
            "rope.freq_base_swa": 10000.0,
        },
    ),
    "nomic-bert-moe": Encoder(
        "nomic-bert-moe", seed=210, vocabulary="t5", types=1, experts=4,
        meta={
            "pooling_type": 1, "moe_every_n_layers": 2, "expert_count": 4, "expert_used_count": 2,
            "rope.freq_base": 10000.0,
        },
    ),
    "neo-bert": Encoder(
        "neo-bert", meta={"pooling_type": 2},
        layers=Dense(
            "neo-bert", fused=("qkv", "gate"), n_kv_heads=4, tied=True, last_norm="enc.output_norm", seed=211,
        ),
    ),
    "eurobert": Encoder(
        "eurobert", meta={"pooling_type": 1}, layers=Dense("eurobert", tied=True, seed=212),
    ),
    "llama-embed": Encoder(
        "llama-embed", meta={"pooling_type": 1},
        layers=Dense("llama-embed", n_layers=2, tied=True, divisors=True, seed=214),
    ),
    "gemma-embedding": Encoder(
        "gemma-embedding",
        meta={"pooling_type": 1, "attention.sliding_window": 8, "rope.freq_base": 1e6},
        layers=Dense(
            "gemma-embedding", n_layers=7, tied=True, head_norm="head", gain=2.0, seed=213,
            norms=("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"),
        ),
    ),
}  # fmt: skip


def vocabulary(kind: str) -> tuple[list[str], list[int], list[float]]:
    """Tokens, their kinds and their scores."""
    words = [f"▁{word}" for word in WORDS]
    letters = [f"▁{letter}" for letter in LETTERS] + list(LETTERS)
    if kind == "bert":
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        ends = ["ing", "ed", "ly", "er"]
        kinds = [CONTROL, UNKNOWN, CONTROL, CONTROL, CONTROL]
    else:
        special, ends = ["<s>", "<pad>", "</s>", "<unk>"], ["ing", "ed", "ly", "er", "▁"]
        kinds = [CONTROL, CONTROL, CONTROL, UNKNOWN]
    tokens = [*special, *words, *letters, *ends]
    rng = np.random.default_rng(7)
    scores = [0.0] * len(special) + [
        -2.0 - 8.0 * float(x) for x in rng.random(len(tokens) - len(special))
    ]
    return tokens, kinds + [NORMAL] * (len(tokens) - len(kinds)), scores


def write_metadata(w: gguf.GGUFWriter, spec: Encoder) -> None:
    if spec.layers is not None:
        sized(spec.layers, spec).write_metadata(w)
    given = (
        {}
        if spec.layers is not None
        else {
            "context_length": spec.context,
            "embedding_length": spec.n_embd,
            "feed_forward_length": spec.n_ff,
            "block_count": spec.n_layers,
            "attention.head_count": spec.n_heads,
            "attention.layer_norm_epsilon": 1e-5,
        }
    )
    add_fields(w, spec.arch, {**given, "attention.causal": False, **spec.meta})
    tokens, kinds, scores = vocabulary(spec.vocabulary)
    w.add_tokenizer_model(spec.vocabulary)
    w.add_tokenizer_pre("default")
    w.add_token_list(tokens)
    w.add_token_types(kinds)
    w.add_token_type_count(max(1, spec.types))
    if spec.vocabulary == "t5":
        w.add_token_scores(scores)
        w.add_bool("tokenizer.ggml.add_bos_token", True)
        w.add_bool("tokenizer.ggml.add_eos_token", True)
        w.add_bool("tokenizer.ggml.add_sep_token", True)
        w.add_add_space_prefix(True)
        w.add_remove_extra_whitespaces(True)
        special = {"bos": 0, "eos": 2, "unk": 3, "sep": 2, "pad": 1}
    else:
        special = {"bos": 2, "unk": 1, "sep": 3, "pad": 0, "mask": 4}
    for name, token in special.items():
        getattr(w, f"add_{name}_token_id")(token)


def sized(layers: Dense, spec: Encoder) -> Dense:
    """A decoder's layers with as many tokens as the vocabulary."""
    return replace(layers, n_vocab=len(vocabulary(spec.vocabulary)[0]))


def each_tensor(spec: Encoder) -> Iterator[tuple[str, Array]]:
    """Names and numbers of all tensors."""
    if spec.layers is not None:
        yield from sized(spec.layers, spec).each_tensor()
        return
    draw, e, ff = Draws(spec.seed), spec.n_embd, spec.n_ff

    def matrix(
        name: str, out: int, wide: int, bias: bool = spec.bias
    ) -> Iterator[tuple[str, Array]]:
        yield f"{name}.weight", draw.matrix(out, wide)
        if bias:
            yield f"{name}.bias", draw.vector(out, around=0.0)

    def norm(name: str) -> Iterator[tuple[str, Array]]:
        yield f"{name}.weight", draw.vector(e)
        if not spec.pre:
            yield f"{name}.bias", draw.vector(e, around=0.0)

    yield "token_embd.weight", draw.matrix(len(vocabulary(spec.vocabulary)[0]), e, gain=e**0.5)
    if spec.types:
        yield "token_types.weight", draw.matrix(spec.types, e, gain=0.3 * e**0.5)
    if spec.learned:
        yield "position_embd.weight", draw.matrix(spec.context, e, gain=0.5 * e**0.5)
    yield from norm("token_embd_norm")
    for layer in range(spec.n_layers):
        at = f"blk.{layer}."
        if spec.pre:
            if layer:
                yield from norm(f"{at}attn_norm")
            yield from matrix(f"{at}attn_qkv", 3 * e, e)
        else:
            for part in "qkv":
                yield from matrix(f"{at}attn_{part}", e, e)
        if spec.norms:
            for part in "qk":
                yield f"{at}attn_{part}_norm.weight", draw.vector(e)
                yield f"{at}attn_{part}_norm.bias", draw.vector(e, around=0.0)
        yield from matrix(f"{at}attn_output", e, e)
        yield from norm(f"{at}ffn_norm" if spec.pre else f"{at}attn_output_norm")
        if spec.gate == "apart":
            yield from matrix(f"{at}ffn_gate", ff, e, bias=False)
        if spec.experts and layer % 2:
            yield f"{at}ffn_gate_inp.weight", draw.matrix(spec.experts, e, gain=2.0)
            for name, *shape in (("up", ff, e), ("down", e, ff)):
                stacked = [draw.matrix(*shape) for _ in range(spec.experts)]
                yield f"{at}ffn_{name}_exps.weight", np.stack(stacked)
            yield from norm(f"{at}layer_output_norm")
            continue
        yield from matrix(
            f"{at}ffn_up", 2 * ff if spec.gate == "fused" else ff, e, spec.bias and not spec.gate
        )
        yield from matrix(f"{at}ffn_down", e, ff)
        if not spec.pre:
            yield from norm(f"{at}layer_output_norm")
    if spec.pre:
        yield from norm("output_norm")
    if spec.head in ("dense", "norm"):
        yield from matrix("cls", e, e)
    if spec.head == "norm":
        yield "cls.norm.weight", draw.vector(e)
    if spec.head:
        yield from matrix("cls.output", 1, e, bias=True)


TEMPLATE = "<|im_start|>Query: {query}\nDocument: {document}<|im_end|>\nAnswer: "
RERANKER = Encoder("qwen3", seed=220, n_layers=2)
"""Dimensions of a decoder that answers "yes" or "no"."""


def write_reranker(path: Path, head: bool = True, template: str | None = TEMPLATE) -> Path:
    """Write a decoder of the kind of Qwen3-Reranker; ``head``: the rows of "yes" and "no" are a head."""
    spec, draw = RERANKER, Draws(RERANKER.seed)
    e, ff, dim = spec.n_embd, spec.n_ff, spec.n_embd // spec.n_heads
    tokens = [*byte_texts(), "no", "ye", "yes", "<|im_start|>", "<|im_end|>"]
    table = draw.matrix(len(tokens), e, gain=e**0.5)

    def tensors(w: gguf.GGUFWriter) -> None:
        made = [("token_embd.weight", table), ("output_norm.weight", draw.vector(e))]
        for layer in range(spec.n_layers):
            shapes = {
                "attn_q": (e, e), "attn_k": (2 * dim, e), "attn_v": (2 * dim, e), "attn_output": (e, e),
                "ffn_gate": (ff, e), "ffn_up": (ff, e), "ffn_down": (e, ff), "attn_norm": (e,),
                "ffn_norm": (e,), "attn_q_norm": (dim,), "attn_k_norm": (dim,),
            }  # fmt: skip
            for name, shape in shapes.items():
                values = draw.matrix(*shape) if len(shape) > 1 else draw.vector(*shape)
                made.append((f"blk.{layer}.{name}.weight", values))
        if head:
            made.append(("cls.output.weight", table[[tokens.index("yes"), tokens.index("no")]]))
        add_tensors(w, made, "F32")

    def metadata(w: gguf.GGUFWriter) -> None:
        fields = {
            "context_length": 512, "embedding_length": e, "feed_forward_length": ff,
            "block_count": spec.n_layers, "attention.head_count": spec.n_heads,
            "attention.head_count_kv": 2, "attention.key_length": dim, "attention.value_length": dim,
            "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e6,
        }  # fmt: skip
        add_fields(w, spec.arch, fields | ({"pooling_type": 4} if head else {}))
        if head:
            w.add_classifier_output_labels(["yes", "no"])
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre("qwen2")
        w.add_token_list(tokens)
        w.add_token_types([NORMAL] * (len(tokens) - 2) + [CONTROL] * 2)
        w.add_token_merges(["n o", "y e", "ye s"])
        w.add_eos_token_id(len(tokens) - 1)
        w.add_add_bos_token(False)
        if template is not None:
            w.add_chat_template([{"name": "rerank", "template": template}])

    return write_file(path, spec.arch, metadata, tensors, tokenizer=True)


def byte_texts() -> list[str]:
    """The characters that stand for bytes in a byte-level vocabulary."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) if byte in shown else chr(0x100 + others.index(byte)) for byte in range(256)]


def write_encoder(path: Path, spec: Encoder) -> Path:
    """Write the model with its vocabulary."""
    return write_file(
        path,
        spec.arch,
        lambda w: write_metadata(w, spec),
        lambda w: add_tensors(w, each_tensor(spec), spec.type),
        tokenizer=True,
    )
