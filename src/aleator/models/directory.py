"""A Hugging Face directory (config.json and safetensors): its tensors by GGUF's names."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from aleator.core.errors import FileFormatError, ModelNotFound, UnsupportedModel
from aleator.models.files.fields import Fields, read_json
from aleator.models.files.safetensors import read_directory
from aleator.models.files.tensor_types import StoredTensor
from aleator.models.index import read_json as read_config
from aleator.models.prequantised.directories import given_by, joined
from aleator.models.prequantised.matrix_parts import Packed
from aleator.models.sentence_transformers import (
    changes_of_directory,
    longest_of_directory,
    modules_of_directory,
)

log = logging.getLogger(__name__)

MAX_MTP = 64
"""Layers that predict further tokens; each has a name for every expert's matrices.  Known models have 1."""

_PART = 1 << 22
"""Bytes of matrices that are compared at a time, which take as much memory."""
_IN_FLOAT32 = ("ffn_gate_inp.weight", "per_layer_model_proj.weight")
"""Matrices that GGUF files have in float32: of BF16 the activations would be rounded."""


class Directory:
    """An open directory.

    Attributes:
        path: the directory.
        fields: the fields of config.json.
        architecture: as its module declares it.
        config: the model's dimensions.
    """

    def __init__(self, path: Path) -> None:
        """Read config.json, and whether an output matrix is the embedding.

        Raises:
            ModelNotFound: nothing is there.
            FileFormatError: a file is missing or damaged; names the field.
            UnsupportedModel: an architecture or a feature is not supported.
        """
        self.path = path
        try:
            self.fields = read_json(path / "config.json")
        except ModelNotFound:
            if not path.exists():
                raise ModelNotFound(path) from None
            remedy = "give a GGUF file, or a Hugging Face model"
            if (path / "adapter_config.json").exists():
                remedy = "it holds an adapter, which is given beside its model: adapters=, --lora"
            raise FileFormatError(path, f"the directory has no config.json; {remedy}") from None
        self.architecture, config = read_config(self.fields)
        files = self.architecture.hugging_face
        if files is None:
            raise UnsupportedModel(
                f"{path}: {self.architecture.name!r} is read from GGUF files only"
            )
        self._files = files
        # Steps add a bias to the products with an output matrix only, not with an embedding.
        self._tied_with_bias = config.tied and any(
            files.usual_name(name) == "lm_head.bias" for _, name, _ in self._stored()
        )
        longest, self._modules = longest_of_directory(path), modules_of_directory(path)
        self.config = replace(
            config,
            tied=_is_headless(self.fields)
            or (config.tied and not self._tied_with_bias and not self._has_own_head()),
            pooling=self._modules.pooling,
            dense=self._modules.dense,
            longest_text=longest if longest < config.context_length else 0,
        )
        for change in changes_of_directory(path):
            log.warning(
                "%s: sentence-transformers %s; here texts are read as they are", path, change
            )
        self._shapes: dict[str, tuple[int, ...]] = {}

    def tensors(self) -> Iterator[tuple[str, StoredTensor | Packed]]:
        """GGUF's names, and the tensors as the files store them, unread.

        Raises:
            FileFormatError: a file is missing or damaged, or two tensors are the same one of the model.
            UnsupportedModel: a tensor is of another type, or not part of the architecture.
        """
        files, config = self._files, self.config
        n_experts = config.experts.n_experts if config.experts else 0
        names = files.names(config.n_layers, n_experts, self._n_mtp())
        for i, (folder, wanted) in enumerate(self._modules.folders):
            missing = set(wanted)
            for file, name, part in read_directory(folder):
                if name not in missing:
                    raise UnsupportedModel(
                        f"{file}: the tensor {name!r} is not one of the dense layer"
                    )
                missing.remove(name)
                yield name.replace("linear", f"dense_{i + 2}"), part
            for name in sorted(missing):
                raise FileFormatError(folder, f"the tensor {name!r} of the dense layer is missing")
        found: dict[str, str] = {}
        for file, name, tensor in self._stored():
            if name.endswith("rotary_emb.inv_freq"):
                continue  # saved by old versions of transformers; computed from the configuration
            usual = files.own_name(name, names)
            if not usual or ((config.tied or self._tied_with_bias) and usual == "lm_head.weight"):
                continue
            if usual not in names:
                if files.mtp_prefix and usual.startswith(files.mtp_prefix):
                    continue
                raise UnsupportedModel(
                    f"{file}: the tensor {usual!r} is not part of the architecture "
                    f"{self.architecture.name!r} with {config.n_layers} layers"
                )
            if usual in found:
                raise FileFormatError(
                    file, f"the tensor is there twice, also as {found[usual]!r}", field=name
                )
            found[usual] = name
            self._shapes[names[usual]] = tensor.shape
            yield names[usual], tensor
            if names[usual] == "token_embd.weight" and self._tied_with_bias:
                yield "output.weight", tensor

    def _stored(self) -> Iterator[tuple[Path, str, StoredTensor | Packed]]:
        quantised = given_by(self.fields) is not None
        return joined(self.fields, read_directory(self.path, quantised))

    def _has_own_head(self) -> bool:
        """Whether the output matrix differs from the embedding; transformers takes it then, tied or not."""
        found: dict[str, StoredTensor | Packed] = {}
        for _, name, tensor in self._stored():
            stem = self._files.usual_name(name).removesuffix(".weight")
            found[self._files.outer.get(stem, "")] = tensor
        embedding, head = found.get("token_embd"), found.get("output")
        if embedding is None or head is None or embedding.shape != head.shape:
            return False
        if isinstance(embedding, Packed) or isinstance(head, Packed):
            return True
        if embedding.type != head.type:
            return True
        return any(
            not np.array_equal(embedding.data[at : at + _PART], head.data[at : at + _PART])
            for at in range(0, embedding.data.size, _PART)
        )

    def _n_mtp(self) -> int:
        """How many layers predict further tokens."""
        if not self._files.mtp:
            return 0
        if self._files.mtp_prefix:
            return 1
        return self.fields.integer("num_nextn_predict_layers", 0, MAX_MTP, 0)

    def made(self, name: str, tensor: StoredTensor | Packed) -> StoredTensor:
        """A tensor of :meth:`tensors`, which has given all, as GGUF files hold it."""
        files, config = self._files, self.config
        if isinstance(tensor, Packed):
            tensor = tensor.make()
        elif files.turned and len(tensor.shape) == 2 and name.startswith("blk."):
            tensor = tensor.moved(np.transpose)
        made = files.convert(name, tensor)
        if files.move_rows is not None:
            made = files.move_rows(name, made, config)
        if files.move_columns is not None:
            made = files.move_columns(name, made, config)
        if files.convert_fields is not None:
            made = files.convert_fields(name, made, self.fields, config)
        if files.convert_beside is not None:
            made = files.convert_beside(name, made, config, self._shapes)
        if made.type == "BF16" and name.endswith(_IN_FLOAT32):
            return StoredTensor.of(made.floats())
        return made


_BARE = re.compile(r"\w*(?<!Head)(?<!Heads)Model|\w+ForSequenceClassification")
"""Classes of transformers without an output matrix; GPT2LMHeadModel and GPT2DoubleHeadsModel have one."""


def _is_headless(fields: Fields) -> bool:
    """Whether the model has no output matrix, as those for vectors (transformers' Qwen3Model)."""
    classes = fields.values.get("architectures")
    return (
        isinstance(classes, list)
        and bool(classes)
        and all(isinstance(each, str) and _BARE.fullmatch(each) for each in classes)
    )
