"""A model's weights by their GGUF names, whatever kind of file they come from."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aleator.core.arithmetic import arithmetic_version
from aleator.core.errors import FileFormatError, UnsupportedModel
from aleator.models import delta_net, sampling
from aleator.models.architecture import Architecture
from aleator.models.column_orders import shared_orders
from aleator.models.config import LatentConfig, ModelConfig
from aleator.models.files.fields import read_json_if_any
from aleator.models.files.gguf import GGUFFile, open_parts
from aleator.models.files.mapping import MappedFiles, lock
from aleator.models.files.tensor_types import FLOAT_TYPES, StoredTensor
from aleator.models.fingerprint import ModelIdentity, fingerprint, remembered
from aleator.models.finite_check import FiniteCheck
from aleator.models.hub.located import located
from aleator.models.index import read_gguf

# Tensors without parameters of the model: divisors of the rotary frequencies.
_NOT_PARAMETERS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")

_DIMENSIONS = {
    "_exps.weight": 3, "_exps.bias": 2, "ffn_gate_inp.weight": 2, "token_types.weight": 2, "cls.weight": 2,
    "cls.output.weight": 2,
}  # fmt: skip
"""How many dimensions tensors have of which the first may be 1, by the ends of their names."""


class Weights:
    """The open weights of a model: its configuration, and tensors read when asked for.

    Names are GGUF's: ``token_embd.weight``, ``blk.0.attn_q.weight``, ``output_norm.weight``; a
    matrix is ``[out, in]``, as PyTorch has it.

    Attributes:
        path: the file (the first of a split model), or the Hugging Face directory.
        architecture: as its module in :mod:`aleator.models` declares it.
        config: the model's dimensions.
        gguf: the open file; None for a directory.
        kind: "gguf" or "safetensors".
        further: names in a directory's layers that predict further tokens, which are read when asked for.
        gates: names of the gates in the files that :func:`separated` joined with their queries.
        size_bytes: bytes of all tensors as they are stored, but for ``further``.
        n_parameters: numbers in all tensors, but for ``further``.
        check: looks for NaN and infinities in matrices.
        mapped: the files that tensors lie in.
    """

    def __init__(
        self,
        path: Path,
        architecture: Architecture,
        config: ModelConfig,
        tensors: Mapping[str, StoredTensor],
        gguf: GGUFFile | None = None,
        further: Mapping[str, Callable[[], StoredTensor]] | None = None,
    ) -> None:
        self.path, self.architecture, self.config, self.gguf = path, architecture, config, gguf
        self.kind = "safetensors" if gguf is None else "gguf"
        self._tensors = separated(tensors, architecture, config)
        self.gates = [
            each for each in tensors if ".attn_gate." in each and each not in self._tensors
        ]
        self._further, self._read = dict(further or {}), dict[str, StoredTensor]()
        self._vectors: dict[str, npt.NDArray[np.float32]] = {}
        self.further = tuple(self._further)
        self.check = FiniteCheck(self)
        self.mapped = MappedFiles(tensor.data for tensor in tensors.values())
        self.size_bytes = sum(tensor.data.size for tensor in tensors.values())
        self.n_parameters = sum(
            tensor.n_elements for name, tensor in tensors.items() if name not in _NOT_PARAMETERS
        )

    def names(self) -> list[str]:
        """The tensors' GGUF names, in the order of the file, but for ``further``."""
        return list(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors or name in self._further

    def stored(self, name: str) -> StoredTensor:
        """The tensor as the file stores it, unread.

        Raises:
            FileFormatError: there is no tensor of that name.
        """
        if name in self._further:
            if name not in self._read:
                self._read[name] = self._further[name]()
            return self._read[name]
        if name not in self._tensors:
            raise FileFormatError(self.path, f"the tensor {name!r} is missing", field=name)
        return self._tensors[name]

    def identity(self) -> ModelIdentity:
        """The model's identity: its name, its path, and a fingerprint of all its bytes.

        Tensors of a directory's layers that predict further tokens do not count: texts do not depend on them.
        The first call for a file reads it whole (:mod:`aleator.models.fingerprint`).
        """
        path = self.path.resolve()
        made = remembered(self._files(), lambda: fingerprint(self._parts()), self._layout())
        return ModelIdentity(made, self.config.name or "", str(path), self.arithmetic)

    @property
    def arithmetic(self) -> int:
        """The version of the rules of the model's logits (docs/numerics.md, part 2).

        Layers that predict further tokens do not count: they give guesses, which change no text, and nothing
        that they compute is saved.
        """
        return arithmetic_version(
            each.type
            for name, each in self._tensors.items()
            if len(each.shape) > 1 and layer_of(name) < self.config.n_layers
        )

    def _files(self) -> list[Path]:
        if self.gguf is not None:
            return [part.path for part in self.gguf.parts]
        return sorted(
            [
                self.path / "config.json",
                *self.path.glob("*.safetensors"),
                *self.path.glob("*/model.safetensors"),
            ]
        )

    def _layout(self) -> str:
        """How the tensors of a directory are held; "" of a GGUF file, which says it."""
        if self.gguf is not None:
            return ""
        held = sorted(self._tensors.items())
        return "".join(f"{name} {each.type} {each.order is not None} " for name, each in held)

    def _parts(self) -> Iterator[tuple[str, npt.NDArray[np.uint8]]]:
        if self.gguf is not None:
            yield from (("gguf", part.data) for part in self.gguf.parts)
            return
        yield "config", np.frombuffer((self.path / "config.json").read_bytes(), np.uint8)
        for name, tensor in sorted(self._tensors.items()):
            yield f"{name} {tensor.shape} {tensor.type}", tensor.data
            if tensor.order is not None:
                yield f"{name} order", tensor.order.view(np.uint8)

    def lock(self) -> tuple[int, str]:
        """Lock all tensors, those of ``further`` that were read, and the orders of their columns
        in memory until the process ends.

        Returns:
            The bytes that are locked, and why not all are; "" if all are.
        """
        tensors = (*self._tensors.values(), *self._read.values())
        orders = {id(each.order): each.order for each in tensors}  # they share some
        held, why_not = 0, ""
        for part in (*(each.data for each in tensors), *orders.values()):
            if part is not None:
                why_not = lock(part)
                if why_not:
                    break
                held += part.nbytes
        return held, why_not

    def recommended_sampling(self) -> dict[str, Any]:
        """The sampling parameters that the model's files recommend.

        They come from ``general.sampling.*`` in a GGUF file's metadata, or from ``generation_config.json``
        beside config.json.

        Returns:
            Values as :meth:`SamplingParams.resolve <aleator.samplers.SamplingParams.resolve>` takes them
            as ``metadata``.

        Raises:
            FileFormatError: generation_config.json is damaged, or a value is of the wrong type.
            ParameterError: the files ask for a way to choose tokens that is not supported.
        """
        if self.gguf is not None:
            return sampling.from_gguf(self.gguf.fields)
        fields = read_json_if_any(self.path / "generation_config.json")
        return sampling.from_generation_config(fields)

    def floats(self, name: str) -> npt.NDArray[np.float32]:
        """A copy of a tensor as float32, dequantised.

        Args:
            name: of the tensor.

        Raises:
            FileFormatError: there is no tensor of that name, or it holds NaN or an infinity.
        """
        self.check_finite(name)
        return self.stored(name).floats()

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """A small tensor as float32, by :meth:`floats`; the same array at each call."""
        if name not in self._vectors:
            self._vectors[name] = self.floats(name)
        return self._vectors[name]

    def check_finite(self, name: str, first: int = 0, most: int | None = None) -> int | None:
        """Look for NaN and infinities in a tensor, or in a piece of it, which is read once.

        Args:
            name: of the tensor.
            first: the byte where the piece begins, as returned before.
            most: approximate bytes of the piece; None: to the end.

        Returns:
            The byte where the next piece begins; None at the end.

        Raises:
            FileFormatError: there is no tensor of that name, or it holds NaN or an infinity.
        """
        stored = self.stored(name)
        index, end = stored.first_nonfinite(first, most)
        if index is not None:
            raise FileFormatError(
                self.path,
                f"the tensor {name!r} holds NaN or an infinity, near element {index}: the file is "
                "damaged, or its training diverged",
                field=name,
            )
        return end if end < stored.data.size else None

    def expect(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise FileFormatError unless the tensor is there and of this shape."""
        actual = self.stored(name).shape
        if actual != shape:
            raise FileFormatError(
                self.path,
                f"the tensor {name!r} is of shape {list(actual)}; the configuration asks for "
                f"{list(shape)}",
                field=name,
            )


def open_weights(path: str | os.PathLike[str]) -> Weights:
    """Open a GGUF file, or a Hugging Face directory (config.json and safetensors).

    Tensor data stay on disk until they are read.

    Args:
        path: the file (the first of a split model), the directory, or a name that
            :func:`~aleator.models.hub.located.located` finds.

    Raises:
        ModelNotFound: nothing is there.
        HubError: a model of the hub cannot be fetched.
        FileFormatError: it is not a model, is cut short or damaged; names field and offset.
        UnsupportedModel: an architecture, tensor type or feature is not supported.
    """
    path = located(path)
    if path.is_dir():
        return _of_directory(path)
    if path.suffix == ".safetensors" and path.is_file():
        raise UnsupportedModel(
            f"{path}: a safetensors file has no configuration; give the directory that holds it "
            "together with config.json"
        )
    gguf = open_parts(path)
    architecture, config = read_gguf(gguf)
    tensors = {name: _with_ones(name, gguf.stored(name)) for name in gguf.tensors}
    return Weights(path, architecture, config, tensors, gguf)


def _with_ones(name: str, tensor: StoredTensor) -> StoredTensor:
    """A tensor with the dimensions of size 1 that ggml does not write, as those of a single row."""
    wanted = next((n for end, n in _DIMENSIONS.items() if name.endswith(end)), 0)
    missing = wanted - len(tensor.shape)
    return replace(tensor, shape=(1,) * missing + tensor.shape) if missing > 0 else tensor


def _of_directory(path: Path) -> Weights:
    """Open a directory: tensors stay on disk, except those that need conversion."""
    from aleator.models.directory import Directory  # most models are GGUF files

    directory = Directory(path)
    of = directory.architecture, directory.config
    found = dict(directory.tensors())
    own = [name for name in found if layer_of(name) < directory.config.n_layers]
    made = {name: directory.made(name, found[name]) for name in own}

    def further(name: str) -> StoredTensor:
        return directory.made(name, found[name]).in_order()

    later = {name: partial(further, name) for name in found if name not in made}
    return Weights(path, *of, shared_orders(made, directory.config), further=later)


def layer_of(name: str) -> int:
    """The layer in a tensor's name; -1: none."""
    found = re.match(r"blk\.(\d+)", name)
    return int(found[1]) if found else -1


def separated(
    tensors: Mapping[str, StoredTensor], architecture: Architecture, config: ModelConfig
) -> dict[str, StoredTensor]:
    """The tensors of a model with every fused one replaced by its parts.

    If the cache holds compressed keys, ``attn_kv_b`` has each head's ``attn_k_b``, transposed, and
    ``attn_v_b``; these are copied.  ``attn_qkv`` has queries, keys and values; ``attn_gate`` is joined with
    ``attn_q``.  With a fused gate, ``ffn_up`` has the gate and then its own rows, and so does
    ``ffn_gate_up_shexp`` of a shared expert.  A tensor that is not as long as its parts together stays as it
    is; its parts are then reported as missing.
    """
    made = dict(tensors)
    for layer in range(config.n_layers):
        at = f"blk.{layer}."
        if config.delta is not None and config.keeps_state(layer):
            delta_net.separated(made, layer, config.delta)
        elif config.n_heads:
            dim, dim_v = config.head_dims(layer)
            gates = architecture.attention_gate and at + "attn_gate.weight" not in made
            q = config.n_heads[layer] * dim * (2 if gates else 1)
            kv = config.n_kv_heads[layer]
            rows = {"attn_q": q, "attn_k": kv * dim, "attn_v": kv * dim_v}
            rows_of = {at + name: n for name, n in rows.items()}
            _separate(made, at + "attn_qkv", rows_of)
            del rows_of[at + "attn_q"]
            _separate(made, at + "attn_kv", rows_of)  # of directories
            if architecture.attention_gate:
                wide = dim if architecture.head_gates else 1
                _join_gate(made, at, config.n_heads[layer], wide)
        if config.latent is not None and config.latent.compressed:
            _divide_latent(made, at, config.n_heads[layer], config.rope.dim, config.latent)
        if architecture.fused_gate and config.n_ff:
            n_ff = config.n_ff[layer]
            _separate(made, at + "ffn_up", {at + "ffn_gate": n_ff, at + "ffn_up": n_ff})
        if config.experts is not None and config.experts.n_ff_shared:
            n_ff = config.experts.n_ff_shared
            shared = {at + "ffn_gate_shexp": n_ff, at + "ffn_up_shexp": n_ff}
            _separate(made, at + "ffn_gate_up_shexp", shared)
        elif config.experts is None and config.n_ff:
            # Without other experts the shared expert is the feed-forward part.
            n_ff = config.n_ff[layer]
            _separate(made, at + "ffn_gate_up_shexp", {at + "ffn_gate": n_ff, at + "ffn_up": n_ff})
            if at + "ffn_down_shexp.weight" in made:
                made[at + "ffn_down.weight"] = made.pop(at + "ffn_down_shexp.weight")
    return made


def _join_gate(tensors: dict[str, StoredTensor], at: str, heads: int, wide: int) -> None:
    """Put ``attn_gate``, where there is one, into ``attn_q``: behind each head's query its gate.

    Each of its rows becomes ``wide`` rows.
    """
    names = at + "attn_q.weight", at + "attn_gate.weight"
    pair = [tensors[name] for name in names if name in tensors]
    if wide > 1 and len(pair) == 2:
        pair[1] = pair[1].moved_rows(lambda rows: np.repeat(rows, wide, 0))
    shapes = {each.shape for each in pair}
    if len(pair) < 2 or len(shapes) > 1 or len(pair[0].shape) != 2 or pair[0].shape[0] % heads:
        return
    if pair[0].type != pair[1].type:
        pair = [StoredTensor.of(each.floats()) for each in pair]
    data = np.stack([each.data.reshape(heads, -1) for each in pair], 1).reshape(-1)
    n_out, n_in = pair[0].shape
    tensors[names[0]] = StoredTensor(pair[0].type, (2 * n_out, n_in), data, pair[0].order)
    del tensors[names[1]]


def _divide_latent(
    tensors: dict[str, StoredTensor], at: str, heads: int, rotated: int, latent: LatentConfig
) -> None:
    plain, wide = latent.head_dim - rotated, latent.head_dim - rotated + latent.head_dim_v
    whole = tensors.get(at + "attn_kv_b.weight")
    if whole is None or whole.shape != (heads * wide, latent.rank):
        return
    if whole.type not in FLOAT_TYPES:  # keys are transposed, which blocks cannot be
        whole = StoredTensor.of(whole.floats())
    del tensors[at + "attn_kv_b.weight"]
    parts = whole.data.reshape(heads, wide, latent.rank, -1)
    key, value = parts[:, :plain].transpose(0, 2, 1, 3), parts[:, plain:]
    for name, part in (("attn_k_b.weight", key), ("attn_v_b.weight", value)):
        data = np.ascontiguousarray(part).reshape(-1)
        tensors[at + name] = StoredTensor(whole.type, part.shape[:3], data)


def _separate(tensors: dict[str, StoredTensor], name: str, parts: Mapping[str, int]) -> None:
    for kind in ("weight", "bias"):
        whole = tensors.get(f"{name}.{kind}")
        if whole is None or whole.shape[0] != sum(parts.values()):
            continue
        del tensors[f"{name}.{kind}"]
        first, size = 0, whole.data.size // whole.shape[0]
        for part, n in parts.items():
            rows = whole.data[first * size : (first + n) * size]
            tensors[f"{part}.{kind}"] = replace(whole, shape=(n, *whole.shape[1:]), data=rows)
            first += n
