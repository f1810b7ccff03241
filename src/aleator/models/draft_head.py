"""Draft heads: one layer that guesses a model's next tokens from its hidden states.

Two kinds: EAGLE-3 (Li et al. 2025, arXiv:2503.01840), a directory of safetensors trained for a model; and the
layer for multi-token prediction (DeepSeek-V3, arXiv:2412.19437) that some models' files hold after the others.
They take the hidden states that llama.cpp gives them.

At a token's position a head takes the hidden state of the token and the embedding of the one that follows.  It
gives logits of the token after that, and a hidden state to go on with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

import aleator._native as _native
from aleator.cache.kv_cache import KVCache
from aleator.cache.pools.attention import first_of
from aleator.core.errors import FileFormatError, ParameterError, UnsupportedModel
from aleator.core.threads import pool as thread_pool
from aleator.models.architecture import Architecture
from aleator.models.config import ModelConfig
from aleator.models.decoder import Decoder
from aleator.models.files.fields import Fields, read_json
from aleator.models.files.safetensors import read_directory
from aleator.models.files.tensor_types import FLOAT_TYPES, TENSOR_TYPES, StoredTensor
from aleator.models.hub.bundled import bundled_head
from aleator.models.hub.located import located
from aleator.models.index import read_json as read_config
from aleator.models.layers.native_layers import add_attention
from aleator.models.layers.stored import stored_weight
from aleator.models.native_decoder import NativeDecoder
from aleator.models.sizes import cache_of_layers
from aleator.models.weights import Weights, layer_of

MTP, BUNDLED = "mtp", "bundled"
"""Values of ``model_draft`` that name the layer in the model's own file, and the bundled model's head."""

MTP_ARCHITECTURES = ("deepseek2", "glm4moe", "qwen35", "qwen35moe", "qwen3next")
"""Those whose further layers take and give hidden states after the last norm."""


SMALLER = TENSOR_TYPES["Q8_0"]
"""What matrices of 16 bits of an EAGLE-3 head are stored in: rougher guesses in half the time."""

WINDOW, MOST_NEW, MOST_GUESSES = 1024, 1024, 64
"""How many tokens a head sees, is newly shown at once, and guesses at once."""
BUNDLED_NEW, BUNDLED_GUESSES = 32, 5
"""In place of the last two for the bundled head, which guesses no better after more tokens.

Beside its small model they would cost more than guesses may lose; rows of a step cost more from the seventh on.
"""
CELLS = WINDOW + MOST_NEW + MOST_GUESSES
"""Of each text."""


class DraftHead:
    """A head bound to the model that it guesses for.

    Attributes:
        decoder: its layer, whose inputs are vectors.
        taps: the layers of the model whose inputs it is shown.
        parts: what it does around its layer; native code reads it by its names.
        most_new, most_guesses: how many tokens it is newly shown, and guesses, at once.
    """

    decoder: NativeDecoder
    taps: tuple[int, ...]
    parts: dict[str, Any]
    """``embedding``: tokens' vectors, times ``embedding_scale``, normed by ``embedding_norm``.

    Hidden states of ``n_seen`` numbers are normed by ``fuse_norm`` and multiplied by ``fuse``, where there are
    these, then normed by ``hidden_norm``.  The layer takes ``join`` times embedding and normed state; without
    ``join`` the state (with ``normed_residual`` the normed one), the embedding and the normed state.  The next
    state is what it gives, normed by ``follow_norm`` if there is one; its logits are of the tokens ``ids``.
    """

    most_new, most_guesses = MOST_NEW, MOST_GUESSES - 1

    def __init__(self) -> None:
        self._spare: dict[tuple[int, int], _native.DraftHead] = {}

    def over(self, places: int, n_tokens: int) -> _native.DraftHead:
        """The head with cells for so many texts, over the first ``n_tokens`` tokens."""
        spare = self._spare.pop((places, n_tokens), None)
        if spare is not None:
            return spare
        rows = first_of(KVCache(self.decoder.cache_shapes, places * CELLS).pool).rows
        step = self.decoder.step()
        for block in self.decoder.blocks:
            add_attention(step, block, rows)
        return _native.DraftHead(step, SimpleNamespace(**self.parts, n_tokens=n_tokens), places)

    def give_back(self, places: int, n_tokens: int, made: _native.DraftHead) -> None:
        """Keep what :meth:`over` made for the next context; to make it takes as long as some tokens."""
        self._spare = {(places, n_tokens): made}


def open_head(name: str, target: Decoder) -> DraftHead | None:
    """The head that ``model_draft`` names; None: it names a whole model.

    Raises:
        ParameterError: the model has no such layer, the head was made for another model, or heads are not
            computed where the model is.
        FileFormatError: a file is damaged.
    """
    path = None if name == MTP else bundled_head() if name == BUNDLED else located(name)
    if path is not None and not is_eagle3(path):
        return None
    if not isinstance(target, NativeDecoder):
        raise ParameterError(
            "model_draft",
            f"model_draft={name!r} is a draft head, which is computed in native code on the CPU, and the model "
            f"is not ({target.device}, {target.dtype}): load it with device='cpu' and dtype='float32'",
        )
    head = MTPHead(target) if path is None else Eagle3Head(path, target)
    if name == BUNDLED:
        head.most_new, head.most_guesses = BUNDLED_NEW, BUNDLED_GUESSES
    target.tap(head.taps)
    return head


def is_eagle3(path: Path) -> bool:
    """Whether a directory holds an EAGLE-3 head."""
    if not (path / "config.json").is_file():
        return False
    fields = _eagle3_fields(path)
    names = fields.get("architectures", kind=list) or []
    return "draft_vocab_size" in fields or any("eagle3" in str(each).lower() for each in names)


def _eagle3_fields(path: Path) -> Fields:
    """The fields of config.json, and those of the layer if it has them apart."""
    fields = read_json(path / "config.json")
    inner = fields.get("transformer_layer_config", kind=dict)
    return fields if inner is None else Fields(fields.path, {**inner, **fields.values, **inner})


def _eagle3_config(fields: Fields) -> tuple[Architecture, ModelConfig]:
    """The architecture of a head's layer, and its dimensions with the head's own number of tokens."""
    n_draft = fields.length("draft_vocab_size", fields.length("vocab_size"))
    given = dict(fields.values, num_hidden_layers=1, vocab_size=n_draft, tie_word_embeddings=True)
    given.setdefault("model_type", "llama")
    architecture, config = read_config(Fields(fields.path, given))
    return architecture, replace(config, window=None)


class Eagle3Head(DraftHead):
    """A layer with Llama's parts whose attention takes an embedding and a hidden state side by side.

    The hidden states of a token at three layers are fused to one.  The head has logits for a part of the
    model's tokens only.
    """

    def __init__(self, path: Path, target: NativeDecoder) -> None:
        super().__init__()
        config, fields = target.config, _eagle3_fields(path)
        n_vocab = fields.length("vocab_size")
        _fits(path, n_vocab == config.n_vocab, f"{n_vocab} tokens", f"{config.n_vocab}")
        self.taps = _taps(fields, config.n_layers)
        architecture, own = _eagle3_config(fields)
        if architecture.name != "llama":
            raise UnsupportedModel(
                f"{path}: EAGLE-3 heads of {architecture.name!r}; Llama's are known"
            )
        e, seen, n_draft = own.n_embd, len(self.taps) * config.n_embd, own.n_vocab
        own = replace(own, wide=2 * e, context_length=config.context_length)
        tensors = {name: _smaller(path, name, t) for name, t in _eagle3_tensors(path).items()}
        ids = _ids(path, tensors, n_draft, n_vocab)
        if "token_embd.weight" not in tensors:
            _fits(path, e == config.n_embd, f"hidden states of {e} numbers", f"{config.n_embd}")
        embedding = tensors.pop("token_embd.weight", None)
        if "output.weight" not in tensors and ids is None:  # it shares the model's
            tensors["output.weight"] = target.weights.stored(
                "token_embd.weight" if config.tied else "output.weight"
            )
        if "output.weight" in tensors:
            tensors["token_embd.weight"] = tensors.pop("output.weight")
        if embedding is not None:
            tensors["embed_tokens.weight"] = embedding
        weights = Weights(path, architecture, own, tensors)
        shape = weights.stored("fc.weight").shape
        width = f"hidden states of another width (fc.weight is {list(shape)})"
        _fits(path, shape == (e, seen), width, f"[{e}, {seen}]")
        normed = fields.get("norm_before_fc", False)
        sizes = {"blk.0.embed_norm": e, "blk.0.attn_norm": e}
        if normed:
            sizes["input_norm"] = seen
        for name, n in sizes.items():
            weights.expect(f"{name}.weight", (n,))
        table, scale = target.embedding, target.embedding_scale
        if embedding is not None:
            table, scale = stored_weight(weights, "embed_tokens", n_vocab, e), 1.0
        self.parts = {
            "embedding": [table],
            "embedding_scale": scale,
            "embedding_norm": weights.floats("blk.0.embed_norm.weight"),
            "n_seen": seen,
            "fuse_norm": weights.floats("input_norm.weight") if normed else None,
            "fuse": [stored_weight(weights, "fc", e, seen)],
            "hidden_norm": weights.floats("blk.0.attn_norm.weight"),
            "join": None,
            "normed_residual": bool(fields.get("norm_before_residual", False)),
            "follow_norm": None,
            "ids": ids,
        }
        self.decoder = NativeDecoder(weights)


def _fits(path: Path, right: bool, has: str, wanted: str) -> None:
    """Refuse a head that was made for another model."""
    if not right:
        raise ParameterError(
            "model_draft",
            f"{path} is a draft head for another model: it has {has}, and the model {wanted}: give one that "
            "was trained for this model",
        )


def _taps(fields: Fields, n_layers: int) -> tuple[int, ...]:
    """The layers whose inputs are fused."""
    key = "eagle_aux_hidden_state_layer_ids"
    listed = fields.get(key, kind=list) or [2, n_layers // 2, n_layers - 3]
    right = len(listed) == 3 and all(type(n) is int and 0 <= n <= n_layers for n in listed)
    if not right:
        raise fields.error(
            key, f"{key} is {listed!r:.80}; it must be three layers, 0 to {n_layers}"
        )
    return tuple(listed)


_OUTSIDE = {
    "fc.weight": "fc.weight", "norm.weight": "output_norm.weight", "lm_head.weight": "output.weight",
    "embed_tokens.weight": "token_embd.weight", "input_norm.weight": "input_norm.weight",
    "d2t": "d2t", "t2d": "t2d",
}  # fmt: skip
_LAYER = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "input_layernorm": "embed_norm", "hidden_norm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip


def _eagle3_tensors(path: Path) -> dict[str, StoredTensor]:
    """A head's tensors by the names that a layer's have in GGUF files."""
    found: dict[str, StoredTensor] = {}
    for file, name, tensor in read_directory(path, other_types=True):
        gguf = _OUTSIDE.get(name.removeprefix("model."))
        for layer in ("midlayer.", "layers.0.", "model.layers.0."):
            part, _, kind = name.removeprefix(layer).rpartition(".")
            if name.startswith(layer) and part in _LAYER:
                gguf = f"blk.0.{_LAYER[part]}.{kind}"
        if gguf is None:
            raise UnsupportedModel(f"{file}: the tensor {name!r} is not part of an EAGLE-3 head")
        if gguf in found:
            raise FileFormatError(file, "the tensor is there twice", field=name)
        if tensor.type not in FLOAT_TYPES and gguf not in ("d2t", "t2d"):
            raise FileFormatError(file, f"the tensor is of {tensor.type}", field=name)
        found[gguf] = tensor
    return found


def _smaller(path: Path, name: str, tensor: StoredTensor) -> StoredTensor:
    """A matrix of 16 bits as :data:`SMALLER`, where its rows are whole blocks; others as they are."""
    whole = len(tensor.shape) == 2 and tensor.shape[1] % SMALLER.block == 0
    if tensor.type not in ("F16", "BF16") or not whole:
        return tensor
    rows = tensor.floats()
    if not np.isfinite(rows).all():
        raise FileFormatError(path, "the tensor holds NaN or an infinity", field=name)
    made = np.empty((len(rows), rows.shape[1] // SMALLER.block * SMALLER.size), np.uint8)
    _native.quantise_rows(thread_pool(), SMALLER.name, rows, None, made)
    return StoredTensor(SMALLER.name, tensor.shape, made.reshape(-1))


def _ids(
    path: Path, tensors: dict[str, StoredTensor], n_draft: int, n_vocab: int
) -> npt.NDArray[np.int64] | None:
    """The model's token of each of the head's; None: they are the same."""
    offsets, known = tensors.pop("d2t", None), tensors.pop("t2d", None)
    if offsets is None:
        if n_draft != n_vocab:
            raise FileFormatError(path, "the tensor 'd2t' is missing", field="d2t")
        return None
    if offsets.type != "I64" or offsets.shape != (n_draft,):
        raise FileFormatError(path, f"the tensor 'd2t' must be {n_draft} of I64", field="d2t")
    ids = offsets.data.view("<i8")
    wrong = (ids < -n_draft) | (ids >= n_vocab)  # before a sum that could overflow
    ids = np.where(wrong, -n_draft - 1, ids) + np.arange(n_draft)
    for i in np.flatnonzero((ids < 0) | (ids >= n_vocab))[:1]:
        raise FileFormatError(
            path,
            f"d2t gives its token {i} a number outside the model's {n_vocab} tokens",
            field="d2t",
        )
    if len(np.unique(ids)) < n_draft:
        raise FileFormatError(path, "d2t gives two of its tokens the same number", field="d2t")
    if known is not None and not (
        known.shape == (n_vocab,) and np.array_equal(np.flatnonzero(known.data), np.sort(ids))
    ):
        raise FileFormatError(path, "d2t and t2d name different tokens", field="t2d")
    return ids


class MTPHead(DraftHead):
    """The first of the layers that predict further tokens, in the model's own files."""

    def __init__(self, target: NativeDecoder) -> None:
        super().__init__()
        weights, config, n = target.weights, target.config, target.config.n_layers
        at = f"blk.{n}."
        if f"{at}nextn.eh_proj.weight" not in weights:
            raise ParameterError(
                "model_draft",
                f"model_draft={MTP!r}: {weights.path} has no layer that predicts further tokens "
                f"({at}nextn.eh_proj.weight): give a smaller model, or a draft head's directory",
            )
        if weights.architecture.name not in MTP_ARCHITECTURES:
            raise UnsupportedModel(
                f"{weights.path}: layers that predict further tokens, of {weights.architecture.name!r}, are "
                f"not supported as model_draft={MTP!r}; known are {', '.join(MTP_ARCHITECTURES)}"
            )
        own = {
            name.replace(at, "blk.0.", 1): weights.stored(name)
            for name in (*weights.names(), *weights.further)
            if name.startswith(at)
        }

        def shared(name: str, of_model: str) -> StoredTensor:
            found = own.pop(f"blk.0.nextn.{name}.weight", None)
            return weights.stored(f"{of_model}.weight") if found is None else found

        output = shared("shared_head_head", "token_embd" if config.tied else "output")
        tensors = {
            name: weights.stored(name) for name in weights.names() if name.startswith("rope_")
        }
        tensors |= {
            "embed_tokens.weight": shared("embed_tokens", "token_embd"),
            "output_norm.weight": shared("shared_head_norm", "output_norm"),
            "token_embd.weight": output,
            **own,
        }
        made = Weights(
            weights.path, weights.architecture, _one_layer(config), tensors, weights.gguf
        )
        e, self.taps = config.n_embd, (n,)
        names = ("blk.0.nextn.enorm.weight", "blk.0.nextn.hnorm.weight", "output_norm.weight")
        for name in names:
            made.expect(name, (e,))
        of_embedding, of_hidden, of_output = [made.floats(name) for name in names]
        self.parts = {
            "embedding": [stored_weight(made, "embed_tokens", config.n_vocab, e)],
            "embedding_scale": target.embedding_scale,
            "embedding_norm": of_embedding,
            "n_seen": e,
            "fuse_norm": weights.floats("output_norm.weight"),
            "fuse": None,
            "hidden_norm": of_hidden,
            "join": [stored_weight(made, "blk.0.nextn.eh_proj", e, 2 * e)],
            "normed_residual": False,
            "follow_norm": of_output,
            "ids": None,
        }
        self.decoder = NativeDecoder(made)


def _one_layer(config: ModelConfig) -> ModelConfig:
    """The dimensions of one more layer like the last that attends."""
    like = max(layer for layer in range(config.n_layers) if config.attends(layer))
    here, experts = slice(like, like + 1), config.experts
    return replace(
        config,
        n_layers=1,
        tied=True,
        n_heads=config.n_heads[here],
        n_kv_heads=config.n_kv_heads[here],
        n_ff=config.n_ff[here],
        unrotated=config.unrotated[here],
        keys_as_values=config.keys_as_values[here],
        key_layers=(),
        stateful=(),
        window=None,
        delta=None,
        ssm=None,
        per_layer=None,
        experts=None if experts is None else replace(experts, layers=experts.layers[here]),
    )


def head_bytes(name: str, find: Callable[[str], Path], model: Weights, n_texts: int) -> int | None:
    """Bytes of the head that ``model_draft`` names and of its cells, before it is loaded; None: a whole model.

    Args:
        name: see :func:`open_head`.
        find: the place of a path or a name.
        model: the model that it guesses for.
        n_texts: how many texts it has cells for.
    """
    if name == MTP:  # its tensors are the model's
        if model.architecture.name not in MTP_ARCHITECTURES:
            return 0
        n = model.config.n_layers
        size = sum(model.stored(each).data.size for each in model.further if layer_of(each) == n)
        config = _one_layer(model.config)
    else:
        path = bundled_head() if name == BUNDLED else find(name)
        if not is_eagle3(path):
            return None
        size = sum(each.stat().st_size for each in path.glob("*.safetensors"))
        config = _eagle3_config(_eagle3_fields(path))[1]
    ((keys, values, _),) = cache_of_layers(config, n_texts * CELLS, "f16", "f16", n_texts)
    return size + keys + values
