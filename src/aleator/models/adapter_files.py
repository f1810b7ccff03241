"""Reads adapters: llama.cpp's GGUF files and PEFT's directories.

Every number is checked before any is used.  Each architecture declares how the matrices of Hugging Face's
models become those of GGUF files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aleator.core.errors import FileFormatError, ParameterError, UnsupportedModel
from aleator.models import adapted
from aleator.models.adapted import Part, check_shape
from aleator.models.adapter_memory import (
    KEPT,
    columns,
    kept,
    side_by_side,
    with_magnitudes,
    words,
)
from aleator.models.adapters import Adapter, AdapterFile, Adapters, LowRank
from aleator.models.conversion.gguf_form import ROTATION, factor
from aleator.models.conversions import ROTATED, otherwise_rotated
from aleator.models.delta_net import tiled_order
from aleator.models.files.fields import Fields, read_json
from aleator.models.files.gguf import GGUFFile
from aleator.models.files.safetensors import read_file
from aleator.models.files.tensor_types import StoredTensor
from aleator.models.fingerprint import fingerprint
from aleator.models.peft_experts import of_experts
from aleator.models.peft_patterns import Patterns, check_names
from aleator.models.weights import Weights, layer_of, separated

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
LARGEST_ALPHA, LARGEST_RANK = 1e6, 4096
_OF_PEFT = re.compile(
    r"base_model\.model\.(.+)\.(lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector)"
    r"(?:\.weight)?",
    re.ASCII,
)
# Beside an adapter of embeddings PEFT saves the matrices that it leaves as they are.
_OF_BASE = re.compile(r"base_model\.model\.(.+)\.base_layer\.weight", re.ASCII)
# Settings of adapter_config.json that are read, or that only say how the adapter was trained (PEFT 0.21).
_KNOWN = {
    "peft_type", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora", "task_type",
    "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode", "target_modules",
    "exclude_modules", "lora_dropout", "layers_to_transform", "layers_pattern", "megatron_core",
    "loftq_config", "eva_config", "corda_config", "lora_ga_config", "qalora_group_size",
    "ensure_weight_tying", "target_parameters", "fan_in_fan_out", "alora_invocation_tokens",
}  # fmt: skip
# The others change the computation, but for these values; of one that is not listed: null, false and empty.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "bias": ("none",),
    # Others start from changed weights of the base model, which the adapter needs.
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal"),
}
_CONVERT = (
    "merge it into its model (PEFT: merge_and_unload; GGUF: llama-export-lora), and load that"
)

MAX_INVOCATION = 256  # tokens: a prompt is searched for them
_NOT_MERGED = ("ADAPTION_PROMPT", "XLORA", "POLY")
"""PEFT's types without virtual tokens that it cannot merge into a model."""
_TRAIN = "it cannot be merged into its model either: train an adapter of the type LORA"

_TWICE = "the adapter changes this matrix twice"


def _not_applied(path: object, why: str, remedy: str = _CONVERT) -> UnsupportedModel:
    return UnsupportedModel(f"{path}: {why}: {remedy}")


def load_adapters(files: Sequence[AdapterFile], weights: Weights, kind: str = "auto") -> Adapters:
    """Read the adapters of some files for a model.

    ``kind``: in which type numbers are kept (ModelOptions.adapter_type).

    Raises:
        ParameterError: a file is not there, or numbers are beyond float16's range.
        FileFormatError: a file is damaged, is not an adapter, or belongs to another model.
        UnsupportedModel: an adapter changes something that cannot be changed here; names it.
    """
    loaded = [_load(name, Path(file), weights, kind) for name, file, _ in files]
    made = Adapters(loaded, [0.0] * len(files))
    scales = [scale for _, _, scale in files]
    for number, scale in enumerate(scales):  # each must be possible by itself
        made.use([scale if i == number else 0.0 for i in range(len(files))])
    made.use(scales)
    return made


def _load(name: str, path: Path, weights: Weights, kind: str) -> Adapter:
    files = [path / each for each in (CONFIG, TENSORS)] if os.path.isdir(path) else [path]
    for file in files:
        if not os.path.exists(file):  # nor does one whose name is too long
            raise ParameterError(
                f"adapters: {name!r}: {file}: no such file; give a GGUF file of an adapter, or a directory "
                f"with {CONFIG} and {TENSORS}"
            )
    about: dict[str, str] = {}
    if path.is_dir():
        parts, fields = _read_peft(path, weights), read_json(path / CONFIG)
        invocation = _tokens(fields, "alora_invocation_tokens", weights)
    else:
        gguf = GGUFFile(path)
        parts = _read_gguf(gguf, weights)
        invocation = _tokens(gguf.fields, "adapter.alora.invocation_tokens", weights)
        for key in ("task_name", "prompt_prefix"):
            about[key] = gguf.fields.get(f"adapter.lora.{key}", "")
    matrices: dict[str, LowRank] = {}
    for tensor, part in _with_gates(path, parts, weights).items():
        for own, made in _low_ranks(path, tensor, part, weights, kind):
            if own in matrices:
                raise FileFormatError(path, _TWICE, field=own)
            matrices[own] = made
    matrices = side_by_side(matrices)
    numbers = [
        (f"{name} {side} {each.factor!r} {part.type} {part.shape}", part.data)
        for name, each in matrices.items()
        for side, part in (("a", each.a), ("b", each.b), ("grows", _grown(each)))
    ]
    if invocation:
        numbers.append((f"invocation {invocation}", np.zeros(0, np.uint8)))
    fixed = any(each.grows is not None for each in matrices.values())
    return Adapter(name, str(path), fingerprint(numbers), matrices, about, fixed, invocation)


def _tokens(fields: Fields, key: str, weights: Weights) -> tuple[int, ...]:
    """The invocation tokens of an adapter; (): it has none."""
    given, most = fields.get(key, kind=list), weights.config.n_vocab - 1
    if given is None:
        return ()
    whole = all(type(each) is int and 0 <= each <= most for each in given)
    if not whole or not 1 <= len(given) <= MAX_INVOCATION:
        what = f"{key} is {given!r:.60} ({len(given)} tokens)"
        raise fields.error(
            key, f"{what}; it must be 1 to {MAX_INVOCATION} tokens, each 0 to {most}"
        )
    return tuple(given)


def _grown(matrix: LowRank) -> StoredTensor:
    return StoredTensor.of(np.zeros(0, np.float32) if matrix.grows is None else matrix.grows)


def _read_gguf(gguf: GGUFFile, weights: Weights) -> dict[str, Part]:
    path, fields = gguf.path, gguf.fields
    kind = fields.get("general.type", "model")
    if kind != "adapter":
        raise FileFormatError(
            path, f"the file holds a {kind!r}, not an adapter (general.type): give it as the model"
        )
    if (of := fields.require("adapter.type", str)) != "lora":
        raise _not_applied(path, f"adapters of the type {of!r:.40} are not applied")
    if (of := fields.require("general.architecture", str)) != weights.architecture.name:
        raise FileFormatError(
            path,
            f"the adapter is for the architecture {of!r:.40}, and the model is {weights.architecture.name!r}: "
            "give an adapter that was trained on this model",
            field="general.architecture",
        )
    alpha = fields.number("adapter.lora.alpha", -LARGEST_ALPHA, LARGEST_ALPHA, 0.0)
    found: dict[str, dict[str, StoredTensor]] = {}
    for name in gguf.tensors:
        stem, _, side = name.rpartition(".")
        if side not in ("lora_a", "lora_b"):
            raise _not_applied(path, f"the tensor {name!r} is no part of LoRA")
        tensor = gguf.stored(name)
        for each, part in adapted.one_by_one(path, stem, tensor, weights.config).items():
            if side in found.setdefault(each, {}):
                raise FileFormatError(path, _TWICE, field=each)
            found[each][side] = part
    return _paired(path, found, lambda _, rank: alpha / rank if alpha else 1.0)


def _read_peft(path: Path, weights: Weights) -> dict[str, Part]:
    fields = read_json(path / CONFIG)
    _check_config(fields)
    files, config = weights.architecture.hugging_face, weights.config
    if files is None or (files.convert_fields is not None and weights.gguf is not None):
        why = "" if files is None else ", which does not say by what its matrices were multiplied"
        raise UnsupportedModel(
            f"{path}: adapters of PEFT are not read beside a GGUF file of {weights.architecture.name!r}{why}: "
            "give the model's directory, or convert it with llama.cpp's convert_lora_to_gguf.py"
        )
    about = fields if files.convert_fields is None else read_json(weights.path / "config.json")
    names = files.names(config.n_layers, config.experts.n_experts if config.experts else 0)
    tensors = read_file(path / TENSORS)
    experts, read = of_experts(path, tensors, weights, fields.get("peft_version", ""))
    found = {name: {"lora_a": each.a, "lora_b": each.b} for name, each in experts.items()}
    modules = {name: each.parameter for name, each in experts.items()}
    for key, tensor in tensors.items():
        if key in read:
            continue
        base = _OF_BASE.fullmatch(key)
        match = base or _OF_PEFT.fullmatch(key)
        usual = key if match is None else files.own_name(f"{match[1]}.weight", names)
        if match is not None and not usual:
            continue  # such as a part that sees pictures, which the model is read without
        if usual not in names:  # transformers 5 has one name for what directories call by two
            usual = usual.replace(".forget_gate.", ".").replace(".mlp.", ".block_sparse_moe.")
            usual = files.own_name(usual, names)
        if match is None or usual not in names:
            raise _not_applied(
                path,
                f"the tensor {key!r:.200} is no part of LoRA for {weights.architecture.name!r} with "
                f"{config.n_layers} layers",
            )
        gguf = names[usual]
        if base is not None:
            _check_matrix(path, key, gguf, tensor.shape, weights)
            continue
        embeds = match[2].startswith("lora_embedding")
        if embeds != (gguf == adapted.EMBEDDING) and match[2] != "lora_magnitude_vector":
            _check_adaptable(path, gguf)
            raise FileFormatError(path, "this is no matrix of embeddings, or is one", field=key)
        side = {"A": "lora_a", "B": "lora_b"}.get(match[2][-1], "magnitude")
        if embeds and side == "lora_a" and len(tensor.shape) == 2:
            tensor = tensor.moved(np.transpose)
        if modules.setdefault(gguf, match[1]) != match[1] or side in found.get(gguf, {}):
            raise FileFormatError(path, _TWICE, field=key)
        found.setdefault(gguf, {})[side] = tensor
        if side == "lora_a":
            if files.move_columns is not None:
                found[gguf][side] = files.move_columns(gguf, tensor, config)
            continue
        convert, other = files.convert_fields, files.convert(gguf, tensor).data is not tensor.data
        if other or (convert is not None and side == "magnitude"):
            _check_adaptable(path, gguf)
            raise _not_applied(path, f"{key!r:.200}: this matrix is stored in another form here")
        if convert is not None and len(tensor.shape) == 2:
            found[gguf][side] = convert(gguf, tensor, about, config)
        if files.move_rows is not None:
            found[gguf][side] = files.move_rows(gguf, tensor, config)
    dora = fields.get("use_dora", False)
    if found and dora != any("magnitude" in each for each in found.values()):
        raise fields.error("use_dora", f"use_dora is {dora}, and the tensors say otherwise")
    root = fields.get("use_rslora", False)
    alpha = fields.number("lora_alpha", -LARGEST_ALPHA, LARGEST_ALPHA)
    ranks, rank_of_all = (
        Patterns(fields, "rank_pattern", LARGEST_ALPHA),
        fields.integer("r", 1, 1 << 20),
    )
    alphas = Patterns(fields, "alpha_pattern", LARGEST_ALPHA)
    parameters = fields.get("target_parameters", kind=list) or []
    check_names(fields, "target_parameters", parameters)
    targets = tuple(f".{each}" for each in parameters)

    def scale(name: str, rank: int) -> float:
        module = modules[name]
        if f"{module}.weight".endswith(targets):
            module += ".weight"
        wanted = ranks.value(module, rank_of_all)
        if wanted != rank:
            raise fields.error(
                "r", f"{module} has rank {rank}, and the configuration says {wanted:g}"
            )
        own = alphas.value(module, alpha)
        return float(own / (np.sqrt(rank) if root else rank))

    return _paired(path, found, scale)


def _check_config(fields: Fields) -> None:
    """Refuse settings that this module would compute differently, and name them."""
    kind = fields.require("peft_type", str)
    if kind != "LORA":
        remedy = _TRAIN if "num_virtual_tokens" in fields or kind in _NOT_MERGED else _CONVERT
        raise _not_applied(fields.path, f"peft_type={kind!r:.40} is not applied, LORA is", remedy)
    for name in fields.values.keys() - _KNOWN:
        value, neutral = fields.values[name], _NEUTRAL.get(name, (False, [], {}))
        if value is not None and not any(type(value) is type(n) and value == n for n in neutral):
            raise _not_applied(fields.path, f"{name}={value!r:.80} is not applied")


def _paired(
    path: Path, found: Mapping[str, Mapping[str, StoredTensor]], scale: Callable[[str, int], float]
) -> dict[str, Part]:
    """Pairs of matrices whose shapes fit each other and whose numbers are finite."""
    if not found:
        raise FileFormatError(path, "the adapter has no tensors that change a text")
    made: dict[str, Part] = {}
    for name, sides in found.items():
        for side, tensor in sides.items():
            index, _ = tensor.first_nonfinite()
            if index is not None:
                raise FileFormatError(
                    path, f"{side} holds NaN or an infinity, near element {index}", field=name
                )
        if "lora_a" not in sides or "lora_b" not in sides:
            raise FileFormatError(path, "one of lora_a and lora_b is missing", field=name)
        a, b, m = sides["lora_a"], sides["lora_b"], sides.get("magnitude")
        embeds = name == adapted.EMBEDDING
        fits = len(a.shape) == len(b.shape) == 2 and a.shape[embeds] == b.shape[1]
        if not fits or (m is not None and m.n_elements != b.shape[0]):
            raise FileFormatError(
                path, f"lora_a {list(a.shape)} and lora_b {list(b.shape)} do not fit", field=name
            )
        rank = b.shape[1]
        if rank > LARGEST_RANK:
            raise _not_applied(
                path, f"{name!r} has rank {rank}, and at most {LARGEST_RANK} is applied"
            )
        if embeds and m is not None:
            raise _not_applied(path, f"{name!r}: DoRA of embeddings is not applied")
        made[name] = Part(a, b, scale(name, rank), m)
    return made


def _with_gates(path: Path, parts: Mapping[str, Part], weights: Weights) -> dict[str, Part]:
    """The parts, those of queries and gates that a model has in one matrix (``Weights.gates``) as one."""
    made = dict(parts)
    for gate in weights.gates:
        query = gate.replace("attn_gate", "attn_q")
        n_out, n_in = weights.stored(query).shape
        _divide_fused(path, made, query, weights)
        pair = {name: made.pop(name) for name in (query, gate) if name in made}
        if weights.architecture.head_gates and gate in pair:
            b = pair[gate].b.moved_rows(lambda rows: np.repeat(rows, weights.config.head_dim, 0))
            pair[gate] = replace(pair[gate], b=b)
        for name, part in pair.items():
            check_shape(path, name, (part.b.shape[0], part.a.shape[1]), (n_out // 2, n_in))
            if part.magnitude is not None:
                raise _not_applied(
                    path, f"{name!r}: DoRA of queries that have gates is not applied"
                )
        if pair:
            heads = weights.config.n_heads[layer_of(gate)]
            made[query] = adapted.behind_each_query(pair.get(query), pair.get(gate), heads)
    return made


def _divide_fused(path: Path, made: dict[str, Part], query: str, weights: Weights) -> None:
    """Divide what is for queries, keys and values in one matrix."""
    names = [query.replace("attn_q", name) for name in ("attn_qkv", "attn_q", "attn_k", "attn_v")]
    whole = made.pop(names[0], None)
    if whole is None:
        return
    rows = [weights.stored(name).shape[0] for name in names[1:]]
    ends = np.cumsum([rows[0] // 2, *rows[1:]]).tolist()
    n_in = weights.stored(query).shape[1]
    check_shape(path, names[0], (whole.b.shape[0], whole.a.shape[1]), (ends[-1], n_in))
    if whole.magnitude is not None:
        raise _not_applied(path, f"DoRA of {names[0]!r} is not applied")
    for name, first, last in zip(names[1:], (0, *ends), ends, strict=False):
        if name in made:
            raise FileFormatError(path, _TWICE, field=name)
        b = whole.b.moved_rows(lambda each, part=slice(first, last): each[part])  # type: ignore[misc]
        made[name] = replace(whole, b=b)


def _low_ranks(
    path: Path, tensor: str, part: Part, weights: Weights, kind: str
) -> Iterator[tuple[str, LowRank]]:
    """What is added to a matrix, or to each part of a fused matrix."""
    rank = part.b.shape[1]
    a, b = (
        each if each.type in KEPT else StoredTensor.of(each.floats()) for each in (part.a, part.b)
    )
    if part.magnitude is not None:
        column = part.magnitude.floats().reshape(-1, 1)
        b = StoredTensor.of(np.concatenate((b.floats(), column), axis=1))
    latent = weights.config.latent
    if latent is not None and latent.compressed and tensor.endswith(".attn_kv_b.weight"):
        wide = latent.head_dim - weights.config.rope.dim + latent.head_dim_v
        rows_of_all = weights.config.n_heads[0] * wide
        check_shape(path, tensor, (b.shape[0], a.shape[1]), (rows_of_all, latent.rank))
        parts = adapted.divided_latent(tensor, a, b, weights.config)
    else:
        whole = separated(adapted.divided_experts(tensor, b), weights.architecture, weights.config)
        parts = {name: (a, rows) for name, rows in whole.items()}
    for name, (a, rows) in parts.items():
        sizes = rows.shape[0], a.shape[1]
        if name == adapted.EMBEDDING:
            sizes = a.shape[0], rows.shape[0]
        matrix = _check_matrix(path, tensor, name, sizes, weights)
        own_a, turned, by = _as_the_model(path, a, words(rows), name, weights)
        scale, keys = part.scale * by, ".attn_k_b." in name
        if part.magnitude is None:
            made = LowRank(own_a, columns(turned, rows.type, rank), scale)
        else:
            own_b = rows.floats() if keys else turned.view(np.float32)
            made = with_magnitudes(path, name, matrix, own_a, own_b, scale, of_inputs=keys)
        yield name, kept(path, name, made, kind, matrix)


def _check_matrix(
    path: Path, tensor: str, name: str, shape: tuple[int, ...], weights: Weights
) -> StoredTensor:
    """The model's matrix, which must be there, adaptable and of this shape."""
    matrix = adapted.matrix(weights, name)
    if matrix is None:
        raise FileFormatError(
            path,
            f"the model {weights.path} has no {name!r}: give an adapter that was trained on this model",
            field=tensor,
        )
    _check_adaptable(path, name)
    check_shape(path, tensor, shape, matrix.shape)
    return matrix


def _check_adaptable(path: Path, name: str) -> None:
    if not adapted.adaptable(name):
        raise _not_applied(
            path,
            f"the adapter changes {name!r}; embeddings, the output matrix, projections of attention "
            "and states, and feed-forward parts with their experts and routers can be changed",
        )


def _as_the_model(
    path: Path, a: StoredTensor, b: npt.NDArray[Any], name: str, weights: Weights
) -> tuple[StoredTensor, npt.NDArray[Any], float]:
    """A, the rows of B in the order of the model's own file, and the factor of what they add there.

    Another kind of file may rotate other pairs of queries and keys, have heads of values in another order, and
    factors within matrices.
    """
    files, config, of_peft = weights.architecture.hugging_face, weights.config, path.is_dir()
    if files is None:
        return a, b, 1.0
    _, layer, stem = (*name.split(".", 2), "")[:3]
    own, theirs, gguf = weights.architecture.rope_style, config.rope.style, weights.gguf
    if gguf is not None:
        theirs = gguf.fields.get(f"{weights.architecture.name}.{ROTATION}", files.rope_style)
    turns = stem.startswith(ROTATED) and own not in ("none", theirs)
    if turns and not of_peft and theirs != files.rope_style:
        raise UnsupportedModel(
            f"{path}: {name!r}: rows of a GGUF adapter may have either order where the model's config.json has "
            "rope_interleave=false: give PEFT's directory"
        )
    if of_peft == (weights.kind == "safetensors"):
        return a, b, 1.0
    if turns:
        return a, otherwise_rotated(b, stem, int(layer), config, neighbours=of_peft), 1.0
    said = config if of_peft or files.config_in_gguf is None else files.config_in_gguf(config)
    by = 1.0 / (factor(name, config, said) or 1.0)
    if said.delta is None or not said.delta.tiled:
        return a, b, by
    inputs = stem == "ssm_out.weight"
    order = tiled_order(said.delta, stem, a.shape[1] if inputs else len(b))
    if order is None:
        return a, b, by
    order = order if of_peft else np.argsort(order)
    return (a.moved(lambda values: values[:, order]), b, by) if inputs else (a, b[order], by)
