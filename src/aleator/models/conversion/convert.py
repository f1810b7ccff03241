"""A Hugging Face directory as a GGUF file for llama.cpp, made while it is read.

Names and conversions of tensors are those of the reader (:mod:`aleator.models.directory`).  Here is what
llama.cpp wants besides: experts in one tensor, queries and keys in the order of its rotation, and norms and
other small tensors in F32.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from aleator.core.errors import AleatorError, FileFormatError, ParameterError, UnsupportedModel
from aleator.models import sampling
from aleator.models.config import ModelConfig, present
from aleator.models.conversion.file_types import FILE_TYPES, may_change
from aleator.models.conversion.gguf_form import (
    ROTATION,
    config_in_gguf,
    differences,
    factor,
    llama_cpp_lacks,
    metadata,
)
from aleator.models.conversions import ROTATED, otherwise_rotated
from aleator.models.delta_net import tiled_order
from aleator.models.directory import Directory
from aleator.models.files.fields import Value, read_json
from aleator.models.files.gguf import GGUFFile, TensorInfo
from aleator.models.files.gguf_writer import NewTensor, beginning, field
from aleator.models.files.tensor_types import TENSOR_TYPES, StoredTensor
from aleator.models.finite_check import Unchecked
from aleator.models.index import read_gguf
from aleator.models.layers.rotation import llama3_divisors
from aleator.models.native_decoder import NativeDecoder
from aleator.models.projection import Projection
from aleator.models.score_head import ANSWERS, OUTPUT
from aleator.models.weights import Weights, layer_of, separated

_EXPERT = re.compile(r"(blk\.\d+\.ffn_(?:gate|up|down))\.(\d+)\.weight")
_BIASED = ("mamba", "mamba2", "jamba")
"""Architectures of which llama.cpp's convolutions must have biases."""
_RANKING = ("qwen3", "qwen3vl")
"""Decoders of which llama.cpp reads a head with the rows of "yes" and "no"."""
_MTP_LAYERS = "layers that predict further tokens, which stay in the directory"
_UNROTATED = 1e30
"""The divisor of frequencies of pairs that do not rotate, in llama.cpp's files."""


class ConvertedDirectory(GGUFFile):
    """The GGUF file that a directory would be; its tensors are made when they are asked for.

    Attributes:
        left_out: what GGUF cannot say about the model and llama.cpp does without, for warnings.
        llama_cpp_lacks: for what llama.cpp does not load the file, or gives other logits, for warnings.
        directory: the open directory.
    """

    def __init__(
        self, directory: Directory, vocabulary: Sequence[bytes], answers: Sequence[int] = ()
    ) -> None:
        """Read all of a directory except most tensors' numbers; check that the file will be sound.

        Args:
            directory: the open directory.
            vocabulary: the fields of the tokenizer.
            answers: the tokens "yes" and "no" of a model that ranks by them, of which llama.cpp wants a head.

        Raises:
            FileFormatError: a file is damaged, a tensor is missing or of another shape than config.json asks
                for.
            UnsupportedModel: a feature that is not supported, here or in GGUF files.
        """
        self.directory, path = directory, directory.path
        self._said = config_in_gguf(directory.architecture, directory.config)
        found, n = dict(directory.tensors()), directory.config.n_layers
        for name in [each for each in found if each.endswith(".ffn_out.bias")]:
            if not directory.made(name, found[name]).floats().any():
                del found[name]  # llama.cpp loads no file with this tensor
        has_head = f"{OUTPUT}.weight" in found
        ranks = directory.architecture.name in _RANKING and (has_head or bool(answers))
        self._answers = answers if ranks and not has_head else ()
        if ranks:
            self._said = replace(self._said, pooling="rank")
        self._raw = {name: each for name, each in found.items() if layer_of(name) < n}
        self._made = _computed(directory.config) | self._zeros()
        self.left_out = [_MTP_LAYERS] if len(self._raw) < len(found) else []
        self.llama_cpp_lacks = llama_cpp_lacks(directory.config, self._raw)
        self._sources: dict[str, list[str]] = {name: [] for name in self._made}
        new = [NewTensor(name, each.type, each.shape) for name, each in self._made.items()]
        new += self._planned()
        type_of = max(
            FILE_TYPES,
            key=lambda kind: sum(n.nbytes for n in new if n.type == FILE_TYPES[kind].main),
        )
        fields: dict[str, Value] = {
            "general.architecture": directory.architecture.name,
            "general.type": "model",
            "general.name": Path(directory.config.name).name or path.resolve().name,
            "general.file_type": FILE_TYPES[type_of].number,
            **self._sampling(),
            **metadata(directory.architecture, self._said, directory.fields),
        }
        style, files = directory.config.rope.style, directory.architecture.hugging_face
        if files is not None and style not in ("none", files.rope_style):
            fields[f"{directory.architecture.name}.{ROTATION}"] = style
        if "token_types.weight" in self._raw:
            fields["tokenizer.ggml.token_type_count"] = self._raw["token_types.weight"].shape[0]
        if ranks:
            fields[f"{directory.architecture.name}.classifier.output_labels"] = [*ANSWERS]
        listed = [_entry(path, key, value) for key, value in fields.items()]
        super().__init__(path, beginning([*listed, *vocabulary], new)[0])
        self.left_out += self._check()

    def stored(self, name: str) -> StoredTensor:
        """The tensor ``name``, made anew; in its own type where GGUF has none, and the file will have BF16."""
        if name in self._made:
            return self._made[name]
        sources = self._sources[name]
        parts = [self._parts(each)[name if len(sources) == 1 else each][1] for each in sources]
        if len(parts) == 1:
            return parts[0]
        data = np.concatenate([part.data for part in parts])
        return StoredTensor(parts[0].type, (len(parts), *parts[0].shape), data)

    def files(self) -> list[Path]:
        """All files of the directory that may be read."""
        found = self.directory.path.iterdir()
        return [each for each in found if each.is_file() and each.suffix != ".gguf"]

    def _zeros(self) -> dict[str, StoredTensor]:
        """Biases of convolutions that llama.cpp wants, and the model has not."""
        if self.directory.architecture.name not in _BIASED:
            return {}
        end = "ssm_conv1d.weight"
        rows = {
            n.removesuffix("weight"): self._raw[n].shape[0] for n in self._raw if n.endswith(end)
        }
        return {
            f"{name}bias": StoredTensor.of(np.zeros(n, np.float32))
            for name, n in rows.items()
            if f"{name}bias" not in self._raw
        }

    def _planned(self) -> list[NewTensor]:
        """The tensors to write, and from which of the directory's each is made."""
        experts: dict[str, dict[int, str]] = {}
        made = []
        for name in self._raw:
            expert = _EXPERT.fullmatch(name)
            if expert is not None:
                experts.setdefault(f"{expert[1]}_exps.weight", {})[int(expert[2])] = name
                continue
            for new, (kind, part) in self._parts(name).items():
                self._sources[new] = [name]
                made.append(NewTensor(new, kind, part.shape))
        for new, names in experts.items():
            count = self._said.experts.n_experts if self._said.experts is not None else 0
            missing = next((i for i in range(count) if i not in names), None)
            if missing is not None:
                raise FileFormatError(
                    self.directory.path, f"expert {missing} has no matrix", field=new
                )
            self._sources[new] = [names[i] for i in range(count)]
            parts = [self._parts(each)[each] for each in self._sources[new]]
            kind, first = parts[0]
            if any((part.type, part.shape) != (first.type, first.shape) for _, part in parts):
                raise FileFormatError(
                    self.directory.path, "the experts' matrices differ in shape or type", field=new
                )
            made.append(NewTensor(new, kind, (count, *first.shape)))
        return made

    def _parts(self, name: str) -> dict[str, tuple[str, StoredTensor]]:
        """What one of the directory's tensors becomes, by name: the file's type, and the tensor.

        For a type that GGUF does not have the file's is BF16, which other converters take too.
        """
        whole = self.directory.made(name, self._raw[name]).in_order()
        made = {}
        for new, part in self._divided(name, whole).items():
            formed = self._formed(new, part)
            changes = may_change(TensorInfo(new, 0, formed.shape, 0))
            kind = "BF16" if changes and whole.type not in TENSOR_TYPES else formed.type
            made[new] = kind, formed
        return made

    def _divided(self, name: str, whole: StoredTensor) -> dict[str, StoredTensor]:
        """A tensor, or the parts of one that llama.cpp wants apart."""
        config, said = self.directory.config, self._said
        at, _, stem = name.rpartition(".ffn_gate_up_exps.")
        if at:
            return {f"{at}.ffn_{part}_exps.{stem}": each for part, each in _halves(whole)}
        apart = [".ffn_gate_up_shexp.", ".attn_kv."]
        if said.latent is not None and said.latent.compressed:
            apart.append(".attn_kv_b.")
        if name.endswith(".ssm_in.weight") and config.delta is not None:
            apart.append(".ssm_in.")
        if config.rope.style != said.rope.style:  # queries and keys get another order
            apart.append(".attn_qkv.")
        if any(each in name for each in apart):
            return separated({name: whole}, self.directory.architecture, config)
        if config.experts is None and ".ffn_down_shexp." in name:
            return {name.replace("_shexp", ""): whole}
        if self._answers and name == f"{'token_embd' if config.tied else 'output'}.weight":
            rows = [*self._answers]
            return {name: whole, f"{OUTPUT}.weight": whole.moved_rows(lambda each: each[rows])}
        if name == "token_embd.weight" and config.tied and not said.tied:
            return {name: whole, "output.weight": whole}
        if name.endswith(".ffn_norm.weight") and self.directory.architecture.name == "falcon-h1":
            return {name.removesuffix(".weight"): whole}
        return {name: whole}

    def _formed(self, name: str, tensor: StoredTensor) -> StoredTensor:
        """A tensor with its rows in llama.cpp's order, and in its shape and type."""
        config, said = self.directory.config, self._said
        layer = layer_of(name)
        stem = name if layer < 0 else name.split(".", 2)[2]
        if config.rope.style != said.rope.style and stem.startswith(ROTATED):
            tensor = tensor.moved_rows(lambda rows: otherwise_rotated(rows, stem, layer, config))
        if said.delta is not None and said.delta.tiled and config.keeps_state(layer):
            tensor = _tiled(config, stem, tensor)
        if said.ssm is not None and said.ssm.heads:
            n, groups = tensor.n_elements, said.ssm.groups
            shapes = {"ssm_a": (n, 1), "ssm_d": (n, 1)}
            if n % groups == 0:  # otherwise refused for its shape
                shapes["ssm_norm.weight"] = groups, n // groups
            tensor = replace(tensor, shape=shapes.get(stem, tensor.shape))
        by = factor(name, config, said)
        if by != 1:
            tensor = StoredTensor.of(tensor.floats() * np.float32(by))
        if name == "per_layer_token_embd.weight" and said.per_layer is not None:
            size = tensor.data.size // tensor.shape[0]
            rows_kept = min(tensor.shape[0], said.per_layer.n_vocab)
            kept = (rows_kept, *tensor.shape[1:])
            tensor = replace(tensor, shape=kept, data=tensor.data[: rows_kept * size])
        if tensor.type != "F32" and not may_change(TensorInfo(name, 0, tensor.shape, 0)):
            return StoredTensor.of(tensor.floats())
        return tensor

    def _sampling(self) -> dict[str, Value]:
        """The sampling parameters that the directory recommends."""
        path = self.directory.path / "generation_config.json"
        if not path.is_file():
            return {}
        try:
            found = sampling.from_generation_config(read_json(path))
        except ParameterError as error:
            self.left_out.append(f"the sampling parameters: {error}")
            return {}
        return {f"general.sampling.{key}": value for key, value in found.items()}

    def _check(self) -> list[str]:
        """Read the new file's metadata and shapes as a decoder does; return what they leave out."""
        path, architecture = self.directory.path, self.directory.architecture
        try:
            _, found = read_gguf(self)
        except AleatorError as error:
            raise UnsupportedModel(f"{path}: GGUF files cannot hold this model: {error}") from None
        left_out, wrong = differences(self._said, found)
        if wrong:
            raise UnsupportedModel(
                f"{path}: GGUF files of {architecture.name!r} cannot say all about this model: "
                f"{'; '.join(wrong)}"
            )
        new = [
            NewTensor(name, self.type_of(name), self.tensors[name].shape) for name in self.tensors
        ]
        # Zeros take no memory until they are written.
        zeros = np.zeros(max((each.nbytes for each in new), default=0), np.uint8)
        tensors = {
            each.name: StoredTensor(each.type, each.shape, zeros[: each.nbytes]) for each in new
        }
        weights = Weights(path, architecture, found, tensors | self._made, self)
        weights.check = Unchecked(weights)
        Projection(weights)
        NativeDecoder(weights)  # reads the shapes of all tensors; their numbers only to compute
        return left_out


def _entry(path: Path, key: str, value: Value) -> bytes:
    """An entry of the metadata; FileFormatError for a number that it cannot hold."""
    try:
        return field(key, value)
    except (struct.error, OverflowError):
        raise FileFormatError(
            path, f"{key} would be {value!r:.60}, which is no number of 32 bits", field=key
        ) from None


def _computed(config: ModelConfig) -> dict[str, StoredTensor]:
    """Tensors that llama.cpp wants in place of fields of config.json: divisors of rotary frequencies."""
    rope, divisors = config.rope, {}
    if rope.scaling == "llama3" and rope.style != "none":
        divisors["rope_freqs"] = llama3_divisors(rope)
    if rope.scaling == "longrope":
        divisors["rope_factors_long"] = np.array(rope.long_factors)
        divisors["rope_factors_short"] = np.array(rope.short_factors)
    if config.architecture == "gemma4":
        made = np.full(rope.dim // 2, rope.factor)
        if rope.scaling == "proportional":
            made[rope.n_rotated :] = _UNROTATED
        divisors["rope_freqs"] = made
    return {
        f"{name}.weight": StoredTensor.of(values.astype(np.float32))
        for name, values in divisors.items()
    }


def _halves(whole: StoredTensor) -> list[tuple[str, StoredTensor]]:
    """The gate's rows and then as many others of each expert."""
    half = whole.shape[1] // 2
    if whole.shape[1] % 2:
        return [("gate_up", whole)]  # refused for its shape
    parts = {"gate": slice(half), "up": slice(half, None)}
    move = whole.moved_rows if len(whole.shape) == 3 else whole.moved  # of a bias
    return [
        (name, move(lambda values, rows=rows: values[:, rows]))  # type: ignore[misc]
        for name, rows in parts.items()
    ]


def _tiled(config: ModelConfig, stem: str, tensor: StoredTensor) -> StoredTensor:
    """A tensor of a gated delta net with its heads of values in llama.cpp's order."""
    axis = 1 if stem == "ssm_out.weight" else 0
    order = tiled_order(present(config.delta), stem, tensor.shape[axis])
    if order is None:
        return tensor
    return tensor.moved(lambda values: np.take(values, order, axis))
