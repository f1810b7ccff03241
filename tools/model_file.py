"""GGUF files of random models: numbers, fields and tensors, for make_models.py and its siblings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from quantise import quantise_tensor

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Shape:
    """GGUF's dimensions of a decoder, the seed of its weights, and the type of its matrices."""

    arch: str
    _: KW_ONLY
    n_vocab: int = 64
    n_embd: int = 64
    n_heads: int = 4
    n_kv_heads: int = 2
    head_dim: int = 16
    n_ff: int = 96
    context: int = 512
    tied: bool = False
    seed: int = 1
    type: str = "F32"

    def each_tensor(self) -> Iterator[tuple[str, Array]]:
        """The tensors one by one, by their GGUF names, so that a large model's need not all be in memory."""
        raise NotImplementedError

    def write_metadata(self, w: gguf.GGUFWriter) -> None:
        """Add the fields besides the tokenizer's."""
        raise NotImplementedError

    def add_tensors(self, w: gguf.GGUFWriter, tensors: Iterable[tuple[str, Array]]) -> None:
        """Add tensors in the types of such a model's file."""
        add_tensors(w, tensors, self.type)


class Draws:
    """The numbers of a model, which depend on its seed and the order of requests."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def matrix(self, *shape: int, gain: float = 1.0) -> Array:
        """Normal numbers that preserve the scale of their inputs."""
        made = self.rng.standard_normal(shape) * gain / math.sqrt(shape[-1])
        return made.astype(np.float32)

    def vector(self, *shape: int, around: float = 1.0) -> Array:
        """Numbers near one."""
        return (around + 0.2 * self.rng.standard_normal(shape)).astype(np.float32)


def add_fields(w: gguf.GGUFWriter, arch: str, fields: Mapping[str, Any]) -> None:
    """Add fields by their names without the architecture's prefix; their types say how they are stored."""
    for ending, value in fields.items():
        name = f"{arch}.{ending}"
        if isinstance(value, bool):
            w.add_bool(name, value)
        elif isinstance(value, float):
            w.add_float32(name, value)
        elif isinstance(value, str):
            w.add_string(name, value)
        elif isinstance(value, list):
            w.add_array(name, value)
        else:
            w.add_uint32(name, value)


_STAY_FLOATS = (
    "conv1d.weight", "conv1d_q.weight", "conv1d_k.weight", "conv1d_v.weight", "shortconv.conv.weight",
    "gate_inp.weight", "position_embd.weight",
    "token_types.weight", "norm.weight", "ssm_a", "ssm_d", ".bias",
)  # fmt: skip


def add_tensors(w: gguf.GGUFWriter, tensors: Iterable[tuple[str, Array]], kind: str) -> None:
    """Add a model's tensors to a file, its matrices in a storage type.

    Vectors, norms, convolutions, routers and positions' vectors stay float32, and so does a matrix whose rows
    are not whole blocks.

    Args:
        w: the writer of the file.
        tensors: names and float32 values.
        kind: the type's name, such as "Q4_K".
    """
    stored_type = gguf.GGMLQuantizationType[kind]
    block = gguf.GGML_QUANT_SIZES[stored_type][0]
    for name, tensor in tensors:
        whole = tensor.ndim > 1 and tensor.shape[-1] % block == 0
        if kind == "F32" or not whole or name.endswith(_STAY_FLOATS):
            w.add_tensor(name, tensor)
            continue
        w.add_tensor(name, quantise_tensor(kind, tensor), raw_dtype=stored_type)


def copy_tokenizer(w: gguf.GGUFWriter, source: Path) -> None:
    """Add the fields of another file's tokenizer."""
    for name, f in gguf.GGUFReader(source).fields.items():
        if name.startswith("tokenizer."):
            inner = f.types[1] if len(f.types) > 1 else None
            w.add_key_value(name, f.contents(), f.types[0], inner)


def write_file(
    path: Path,
    arch: str,
    metadata: Callable[[gguf.GGUFWriter], None],
    tensors: Callable[[gguf.GGUFWriter], None],
    tokenizer_from: Path | None = None,
    tokenizer: bool = False,
) -> Path:
    """Write a file.

    Args:
        path: the file's path.
        arch: the architecture.
        metadata: adds the fields.
        tensors: adds the tensors.
        tokenizer_from: a GGUF file whose tokenizer it gets; None: it has none.
        tokenizer: ``metadata`` adds a tokenizer.

    Returns:
        The path.
    """
    w = gguf.GGUFWriter(str(path), arch)
    metadata(w)
    if tokenizer_from is None and not tokenizer:
        w.add_tokenizer_model("no_vocab")
    elif tokenizer_from is not None:
        copy_tokenizer(w, tokenizer_from)
    tensors(w)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def write_model(
    path: Path,
    spec: Shape,
    tensors: Mapping[str, Array] | None = None,
    tokenizer_from: Path | None = None,
) -> Path:
    """Write a random model; ``tensors`` replaces its own (to make broken ones).  See :func:`write_file`."""
    made = spec.each_tensor() if tensors is None else tensors.items()
    return write_file(
        path, spec.arch, spec.write_metadata, lambda w: spec.add_tensors(w, made), tokenizer_from
    )
