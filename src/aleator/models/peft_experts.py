"""Adapters of PEFT on all experts of a layer together (``target_parameters``), as one adapter for each expert.

transformers 5 has the experts' matrices in two parameters, gate_up_proj and down_proj, which PEFT wraps one
around the other.  Files do not say which wrapper is which; the shapes do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from aleator.core.errors import FileFormatError, UnsupportedModel
from aleator.models.config import ExpertsConfig
from aleator.models.files.tensor_types import StoredTensor
from aleator.models.weights import Weights

_OF_EXPERTS = re.compile(
    r"(base_model\.model\.(?:\w+\.)*layers\.\d+)\.\w+\.experts((?:\.base_layer)*)\.(lora_[AB])\.weight",
    re.ASCII,
)
_TURNED = re.compile(r"0\.(?:19|[2-9]\d|\d{3,})\b|[1-9]", re.ASCII)
"""Versions of PEFT that take the second dimension for what comes out; the others for what goes in."""
_GATE, _UP, _DOWN = "ffn_gate.{}", "ffn_up.{}", "ffn_down.{}"


def divided(
    path: Path, tensors: Mapping[str, StoredTensor], weights: Weights, version: str
) -> dict[str, StoredTensor]:
    """The tensors of an adapter, with those of all experts replaced by each expert's.

    ``version``: PEFT's, which saved them.

    Raises:
        FileFormatError: they do not fit the model's experts.
        UnsupportedModel: square ones, whose sides an older PEFT may have taken for each other.
    """
    files, experts = weights.architecture.hugging_face, weights.config.experts
    names = {} if files is None else {gguf: name for name, gguf in files.expert.items()}
    if experts is None or not {_GATE, _UP, _DOWN} <= names.keys():
        return dict(tensors)
    made: dict[str, StoredTensor] = {}
    found: dict[tuple[str, str], dict[str, StoredTensor]] = {}
    for key, tensor in tensors.items():
        match = _OF_EXPERTS.fullmatch(key)
        if match is None:
            made[key] = tensor
        else:
            found.setdefault((match[1], match[2]), {})[match[3]] = tensor
    for (layer, wrapper), sides in found.items():
        where = f"{layer}.experts{wrapper}"
        n_embd = weights.config.n_embd
        for gguf, expert, a, b in _experts(path, where, sides, n_embd, experts, version):
            for side, part in (("lora_A", a), ("lora_B", b)):
                key = f"{layer}.{names[gguf].format(expert)}.{side}.weight"
                if key in made:
                    raise FileFormatError(
                        path, "the adapter changes these experts twice", field=where
                    )
                made[key] = part
    return made


def _experts(
    path: Path,
    where: str,
    sides: Mapping[str, StoredTensor],
    n_embd: int,
    experts: ExpertsConfig,
    version: str,
) -> Iterator[tuple[str, int, StoredTensor, StoredTensor]]:
    """The matrices of each expert, by GGUF's names: A [rank, in] and B [out, rank]."""
    if len(sides) < 2:
        raise FileFormatError(path, "one of lora_A and lora_B is missing", field=where)
    a, b, n, ff = sides["lora_A"], sides["lora_B"], experts.n_experts, experts.n_ff
    rank, n_in, n_out = a.shape[0] // n, a.shape[-1], b.shape[0]
    parts = {
        (n_embd, 2 * ff): {_GATE: slice(ff), _UP: slice(ff, None)},
        (ff, n_embd): {_DOWN: slice(None)},
    }.get((n_in, n_out), {})
    if not parts or (a.shape, b.shape) != ((n * rank, n_in), (n_out, n * rank)):
        raise FileFormatError(
            path,
            f"lora_A {list(a.shape)} and lora_B {list(b.shape)} do not fit {n} experts of [{ff}, {n_embd}]: "
            "give an adapter that was trained on this model",
            field=where,
        )
    if n_in == n_out and not _TURNED.match(version):
        raise UnsupportedModel(
            f"{path}: {where}: square matrices of PEFT {version or 'before 0.18'!r:.40}, which may take "
            "what goes in for what comes out: train it with PEFT 0.19 or later, or merge it into its model"
        )
    for expert in range(n):
        own = a.moved(lambda values, i=expert: values.reshape(n, rank, n_in)[i])  # type: ignore[misc]
        for name, cut in parts.items():
            yield (
                name,
                expert,
                own,
                b.moved(
                    lambda values, i=expert, cut=cut: values.reshape(n_out, rank, n)[cut, :, i]  # type: ignore[misc]
                ),
            )
