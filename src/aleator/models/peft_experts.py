"""Adapters of PEFT on all experts of a layer together (``target_parameters``), as one adapter for each expert.

transformers 5 has the experts' matrices in two parameters, gate_up_proj and down_proj, which PEFT wraps one
around the other.  Files do not say which wrapper is which; the shapes do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from aleator.core.errors import FileFormatError, UnsupportedModel
from aleator.core.records import dataclass
from aleator.models.config import ExpertsConfig
from aleator.models.files.tensor_types import StoredTensor
from aleator.models.weights import Weights

_OF_EXPERTS = re.compile(
    r"base_model\.model\.((?:\w+\.)*layers\.(\d{1,9})(?:\.\w+)?\.experts)((?:\.base_layer)*)\.(lora_[AB])\.weight",
    re.ASCII,
)
_TURNED = re.compile(r"0\.(?:19|[2-9]\d|\d{3,})\b|[1-9]", re.ASCII)
"""Versions of PEFT that take the second dimension for what comes out; the others for what goes in."""
_KINDS, _STACKED = (
    {"ffn_gate.{}", "ffn_up.{}", "ffn_down.{}"},
    {"ffn_gate_up_exps", "ffn_down_exps"},
)


@dataclass(frozen=True)
class OfExpert:
    """What an adapter has for one matrix of one expert."""

    parameter: str  # the one of all experts, as PEFT calls it
    a: StoredTensor  # [rank, in]
    b: StoredTensor  # [out, rank]


def of_experts(
    path: Path, tensors: Mapping[str, StoredTensor], weights: Weights, version: str
) -> tuple[dict[str, OfExpert], set[str]]:
    """What an adapter has for each expert, by the GGUF names of their matrices, and the tensors that say so.

    ``version``: PEFT's, which saved them.

    Raises:
        FileFormatError: they do not fit the model's experts.
        UnsupportedModel: square ones, whose sides an older PEFT may have taken for each other.
    """
    files, experts = weights.architecture.hugging_face, weights.config.experts
    if experts is None or files is None:
        return {}, set()
    one = StoredTensor.of(np.zeros((1, 1, 2), np.float32))
    names = {each.removesuffix(".weight") for each in (*files.layer.values(), *files.bare.values())}
    converted = files.convert("blk.0.ffn_down_exps.weight", one)
    turned = converted.shape == (1, 2, 1) and not files.experts_interleaved
    stacked = names >= _STACKED and (turned or converted is one)
    if not (files.experts_interleaved or stacked or set(files.expert.values()) >= _KINDS):
        return {}, set()
    made: dict[str, OfExpert] = {}
    read: set[str] = set()
    found: dict[tuple[str, str, str], dict[str, StoredTensor]] = {}
    for key, tensor in tensors.items():
        match = _OF_EXPERTS.fullmatch(key)
        if match is not None:
            found.setdefault((match[1], match[2], match[3]), {})[match[4]] = tensor
            read.add(key)
    for (module, layer, wrapper), sides in found.items():
        where = f"{module}{wrapper}"
        new = _TURNED.match(version) is not None
        kind, a, b = _sides(path, where, sides, weights.config.n_embd, experts, turned, new)
        square = a.shape[1] == b.shape[0]
        if square and not files.experts_interleaved and not new:
            raise UnsupportedModel(
                f"{path}: {where}: square matrices of PEFT {version or 'before 0.18'!r:.40}, which may take "
                "what goes in for what comes out: train it with PEFT 0.19 or later, or merge it into its model"
            )
        for name, part in _experts(kind, a, b, experts, files.experts_interleaved):
            gguf = f"blk.{int(layer)}.{name}.weight"
            if gguf in made:
                raise FileFormatError(path, "the adapter changes these experts twice", field=where)
            made[gguf] = replace(part, parameter=f"{module}.{kind}")
    return made, read


def _sides(
    path: Path,
    where: str,
    sides: Mapping[str, StoredTensor],
    n_embd: int,
    experts: ExpertsConfig,
    turned: bool,
    new: bool,
) -> tuple[str, StoredTensor, StoredTensor]:
    """The parameter that a pair of matrices belongs to by its shapes, and the pair, A on what goes in.

    ``turned``: the parameter is [experts, in, out], as llama4's.  A ``new`` PEFT does not know that.
    """
    if len(sides) < 2:
        raise FileFormatError(path, "one of lora_A and lora_B is missing", field=where)
    a, b, n, ff = sides["lora_A"], sides["lora_B"], experts.n_experts, experts.n_ff
    rank, n_in, n_out = a.shape[0] // n, a.shape[-1], b.shape[0]
    kinds = {(n_embd, 2 * ff): "gate_up_proj", (ff, n_embd): "down_proj"}
    swapped = turned and (n_out, n_in) in kinds and (new or n_in != n_out)
    kind = kinds.get((n_out, n_in) if swapped else (n_in, n_out))
    if kind is None or (a.shape, b.shape) != ((n * rank, n_in), (n_out, n * rank)):
        raise FileFormatError(
            path,
            f"lora_A {list(a.shape)} and lora_B {list(b.shape)} do not fit {n} experts of [{ff}, {n_embd}]: "
            "give an adapter that was trained on this model",
            field=where,
        )
    if swapped:
        a, b = (
            b.moved(lambda values: values.reshape(n_out, rank, n).T.reshape(n * rank, n_out)),
            a.moved(lambda values: values.reshape(n, rank, n_in).T.reshape(n_in, rank * n)),
        )
    return kind, a, b


def _experts(
    kind: str, a: StoredTensor, b: StoredTensor, experts: ExpertsConfig, interleaved: bool
) -> Iterator[tuple[str, OfExpert]]:
    """What belongs to each expert's matrices, by their GGUF names within the layer."""
    n, ff = experts.n_experts, experts.n_ff
    rank, n_in = a.shape[0] // n, a.shape[1]
    parts = {"ffn_down": slice(None)}
    if kind == "gate_up_proj":
        halves = slice(ff), slice(ff, None)
        turns = slice(0, None, 2), slice(1, None, 2)
        parts = dict(zip(("ffn_gate", "ffn_up"), turns if interleaved else halves, strict=True))
    for expert in range(n):
        own = a.moved(lambda values, i=expert: values.reshape(n, rank, n_in)[i])  # type: ignore[misc]
        for name, rows in parts.items():
            columns = b.moved(
                lambda values, i=expert, rows=rows: values.reshape(-1, rank, n)[rows, :, i]  # type: ignore[misc]
            )
            yield f"{name}.{expert}", OfExpert("", own, columns)
