"""Directories of compressed-tensors, as llm-compressor writes them.

A matrix has codes in ``weight_packed`` or ``weight``, and scales; ``config_groups`` say which of its elements
share one.  Types and shapes show which of the groups a matrix belongs to, and what is not quantised; names in
``targets`` and ``ignore``, which may be slow expressions, are not asked.  Activations, keys and values are not
rounded as the configuration says: their scales are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from aleator.core.arrays import Bytes, Floats, Int64s
from aleator.core.errors import UnsupportedModel
from aleator.core.records import dataclass
from aleator.models import refused
from aleator.models.files.fields import MAX_WIDTH, Fields
from aleator.models.files.tensor_types import FLOAT_TYPES, StoredTensor
from aleator.models.prequantised.matrix_parts import (
    Packed,
    Parts,
    apart,
    array,
    float4,
    float8,
    float8_values,
    mxfp4,
    of_bytes,
    of_integers,
    two_sizes,
)

CODES = {"weight_packed": ("I32", "U8"), "weight": ("F8_E4M3", "I8")}
"""Ends of names of tensors with codes, and their types."""
OTHERS = (
    "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx", "weight_global_scale",
    "input_scale", "input_zero_point", "input_global_scale", "input_g_idx", "output_scale", "output_zero_point",
)  # fmt: skip
"""Ends of names of the tensors beside them."""
UNUSED = (".k_scale", ".k_zero_point", ".v_scale", ".v_zero_point", ".q_scale", ".q_zero_point")
"""Ends of names of what belongs to rounded queries, keys and values."""
FORMATS = (
    "dense", "naive-quantized", "int-quantized", "float-quantized", "pack-quantized", "mxfp4-pack-quantized",
    "nvfp4-pack-quantized", "mixed-precision",
)  # fmt: skip
"""Values of ``format``; "mixed-precision" is that of groups with formats of their own."""
_STRATEGIES = ("tensor", "channel", "group", "tensor_group", "block")
_MAX_GROUPS = 256
"""Limit of ``config_groups``, each of which is compared with each matrix; known models have up to four."""


@dataclass(frozen=True)
class Scheme:
    """How the matrices of one of ``config_groups`` are quantised."""

    kind: str  # "int" or "float"
    bits: int
    zeros: bool  # whether codes have zeros other than 0
    high: int  # rows that share a scale; 0: all
    wide: int  # columns that do; 0: all

    def spans(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of a matrix that share a scale."""
        return min(self.high or shape[0], shape[0]), min(self.wide or shape[1], shape[1])

    def grid(self, shape: tuple[int, int]) -> tuple[int, int]:
        """How many scales a matrix has."""
        high, wide = self.spans(shape)
        return -(-shape[0] // high), -(-shape[1] // wide)


def _refused(given: Fields, key: str, value: object) -> UnsupportedModel:
    return refused.quantisation(given.path, "compressed-tensors", key, value)


def check(given: Fields) -> None:
    """Raise FileFormatError or UnsupportedModel for a ``quantization_config`` that cannot be read."""
    sparsity = Fields(given.path, given.get("sparsity_config", kind=dict) or {})
    if sparsity.get("format", "dense") != "dense":
        raise _refused(given, "sparsity_config", sparsity.get("format"))
    transform = Fields(given.path, given.get("transform_config", kind=dict) or {})
    if transform.get("config_groups"):
        raise _refused(given, "transform_config", "rotations")
    _schemes(given)


def _schemes(given: Fields) -> list[Scheme]:
    made = []
    groups = given.require("config_groups", dict)
    if len(groups) > _MAX_GROUPS:
        raise given.error(
            "config_groups",
            f"config_groups has {len(groups)} groups; at most {_MAX_GROUPS} are read",
        )
    for name, values in groups.items():
        if not isinstance(values, dict):
            raise given.error("config_groups", f"config_groups has {values!r:.60} as {name!r:.60}")
        group = Fields(given.path, values)
        if group.get("format", "dense") not in FORMATS:
            raise _refused(given, "format", group.get("format"))
        weights = group.get("weights", kind=dict)
        if weights is not None:
            made.append(_scheme(Fields(given.path, weights)))
    return list(dict.fromkeys(made))


def _scheme(weights: Fields) -> Scheme:
    kind = weights.get("type", "int")
    if kind not in ("int", "float"):
        raise weights.error("type", f"type is {kind!r:.60}; it must be 'int' or 'float'")
    zeros = not weights.get("symmetric", True)
    if zeros and kind == "float":
        raise _refused(weights, "floats of symmetric", False)
    size = weights.integer("group_size", -1, MAX_WIDTH, -1)
    blocks = _blocks(weights)
    inferred = "tensor" if weights.get("group_size") is None else "group" if size > 0 else "channel"
    strategy = weights.get("strategy", inferred)
    if strategy not in _STRATEGIES:
        raise weights.error(
            "strategy", f"strategy is {strategy!r:.60}; it must be {', '.join(_STRATEGIES)}"
        )
    if strategy in ("group", "tensor_group") and size < 1:
        raise weights.error("group_size", f"group_size is {size}; with groups it must be 1 or more")
    spans = {"tensor": (0, 0), "channel": (1, 0), "block": blocks}
    high, wide = spans.get(strategy, (1, size))
    return Scheme(kind, weights.integer("num_bits", 1, 16, 8), zeros, high, wide)


def _blocks(weights: Fields) -> tuple[int, int]:
    listed: Any = weights.get("block_structure")
    if listed is None and weights.get("strategy") != "block":
        return 0, 0
    if isinstance(listed, str):  # "128x128"
        listed = [
            int(n) if n.isascii() and n.isdigit() and len(n) < 9 else n for n in listed.split("x")
        ]
    return two_sizes(weights, "block_structure", listed)


def read(parts: Parts, given: Fields) -> Packed:
    """A matrix of the directory."""
    if "weight_packed" not in parts:
        codes = parts.tensor("weight", CODES["weight"], (None, None))
        return (_float8 if codes.type == "F8_E4M3" else _bytes)(parts, given)
    codes = parts.tensor("weight_packed", CODES["weight_packed"], (None, None))
    return (_words if codes.type == "I32" else _float4)(parts, given)


def _fitting(
    parts: Parts, given: Fields, kind: str, bits: Iterable[int], shape: tuple[int, int]
) -> Scheme:
    """The scheme of a matrix, by how many scales it has."""
    scale = parts.tensor("weight_scale", (*FLOAT_TYPES, "U8", "F8_E4M3"))
    if "weight_global_scale" in parts and scale.type != "F8_E4M3":
        raise parts.error(
            "weight_global_scale",
            f"is read beside a weight_scale in F8_E4M3 only (NVFP4), not in {scale.type}: take the "
            "model's unquantised safetensors",
        )
    found = (*scale.shape, 1) if len(scale.shape) == 1 else scale.shape
    of_kind = [each for each in _schemes(given) if each.kind == kind and each.bits in bits]
    if not of_kind:
        raise given.error(
            "config_groups",
            f"config_groups has no weights of {kind} in {' or '.join(map(str, bits))} bits, as "
            f"{parts.stem + 'weight'!r} is stored",
        )
    fits = {(each.spans(shape), each.zeros): each for each in of_kind if each.grid(shape) == found}
    if len(fits) > 1:
        raise given.error(
            "config_groups",
            f"config_groups has several ways to read {parts.stem + 'weight'!r}, as its scales are of shape "
            f"{list(scale.shape)}",
        )
    if not fits:
        grids = " or ".join(str(list(each.grid(shape))) for each in of_kind)
        raise parts.error(
            "weight_scale",
            f"is of shape {list(scale.shape)}; it must be {grids} for one of config_groups",
        )
    scheme = next(iter(fits.values()))
    if "weight_zero_point" in parts and not scheme.zeros:
        _without_zeros(parts)
    return scheme


def _without_zeros(parts: Parts) -> None:
    """Zeros that the configuration does not announce must be 0, as old versions wrote them."""
    kinds = (*FLOAT_TYPES, "I32", "I8", "F8_E4M3")
    if parts.tensor("weight_zero_point", kinds).data.any():
        raise parts.error(
            "weight_zero_point", "has zeros other than 0, but config_groups says symmetric=True"
        )


def _columns(parts: Parts, scheme: Scheme, shape: tuple[int, int]) -> Callable[[], Int64s]:
    """Reads the group of each column: ``weight_g_idx``, or neighbours where that is missing or only -1."""
    n_in, last = shape[1], scheme.grid(shape)[1] - 1
    neighbours = np.arange(n_in) // scheme.spans(shape)[1]
    if "weight_g_idx" not in parts:
        return lambda: neighbours
    parts.tensor("weight_g_idx", ("I32", "I64"), (n_in,))

    def index() -> Int64s:
        if (parts.integers("weight_g_idx", -1, last) == -1).all():
            return neighbours
        return parts.integers("weight_g_idx", 0, last)

    return index


def _floats(parts: Parts, given: Fields, bits: int, shape: tuple[int, int]) -> Scheme:
    """The scheme of a matrix of floats, whose groups must be neighbours."""
    scheme = _fitting(parts, given, "float", (bits,), shape)
    neighbours = np.arange(shape[1]) // scheme.spans(shape)[1]
    if not np.array_equal(_columns(parts, scheme, shape)(), neighbours):
        raise _refused(given, "weight_g_idx of floats", parts.stem)
    return scheme


def _float8(parts: Parts, given: Fields) -> Packed:
    stored = parts.tensor("weight", ("F8_E4M3",)).shape
    shape = stored[0], stored[1]
    scheme = _floats(parts, given, 8, shape)
    parts.tensor("weight_scale", FLOAT_TYPES)
    if scheme.wide % 64:
        raise _refused(given, "columns of blocks", scheme.wide)
    return float8(parts, "weight_scale", *scheme.spans(shape))


def _scales(parts: Parts, scheme: Scheme, shape: tuple[int, int]) -> Floats:
    """The scales of each row [n_out, groups]."""
    stored = parts.tensor("weight_scale", FLOAT_TYPES)
    rows = np.arange(shape[0]) // scheme.spans(shape)[0]
    return stored.floats().reshape(scheme.grid(shape))[rows]


def _bytes(parts: Parts, given: Fields) -> Packed:
    codes = parts.tensor("weight", ("I8",), (None, None))
    shape = codes.shape[0], codes.shape[1]
    scheme = _fitting(parts, given, "int", range(1, 9), shape)
    scale = parts.tensor("weight_scale", FLOAT_TYPES)
    zero = parts.tensor("weight_zero_point", ("I8",), scale.shape) if scheme.zeros else None
    group = _columns(parts, scheme, shape)

    def make() -> StoredTensor:
        values, of = array(codes, "i1"), group()
        if zero is None:
            return of_bytes(lambda rows: values[rows], _scales(parts, scheme, shape), of)
        high = scheme.spans(shape)[0]
        less = array(zero, "i1").astype(np.int16).reshape(scheme.grid(shape))
        less = less[np.arange(shape[0]) // high]
        return of_bytes(
            lambda rows: values[rows] - less[rows][:, of], _scales(parts, scheme, shape), of
        )

    return Packed(shape, make)


def _words(parts: Parts, given: Fields) -> Packed:
    words = parts.tensor("weight_packed", ("I32",), (None, None))
    said = parts.tensor("weight_shape", ("I64", "I32"), (2,))
    n_out, n_in = array(said, "<i8" if said.type == "I64" else "<i4").tolist()
    lengths = {-(-n_in * bits // 32): bits for bits in (4, 8)}
    if n_out != words.shape[0] or words.shape[1] not in lengths or n_in % 2:
        raise parts.error(
            "weight_shape",
            f"is {[n_out, n_in]}, and weight_packed of shape {list(words.shape)}: they must have as many rows, "
            "an even number of columns, and 4 or 8 bits for each element",
        )
    bits, shape = lengths[words.shape[1]], (n_out, n_in)
    scheme = _fitting(parts, given, "int", (bits,), shape)
    parts.tensor("weight_scale", FLOAT_TYPES)
    zero, (rows, groups) = None, scheme.grid(shape)
    if scheme.zeros:
        zero = parts.tensor("weight_zero_point", ("I32",), (-(-rows * bits // 32), groups))
    group = _columns(parts, scheme, shape)
    middle = 1 << bits - 1

    def unpacked(pairs: Bytes) -> Bytes:
        return apart(pairs) if bits == 4 else pairs

    def zeros() -> Bytes:
        """Those of each row [n_out, groups], from 0 on, as codes are."""
        if zero is None:
            return np.full((n_out, groups), middle, np.uint8)
        turned = np.ascontiguousarray(array(zero, "<u4").T).view(np.uint8)
        of_rows = np.ascontiguousarray(unpacked(turned)[:, :rows].T)
        made: Bytes = of_rows[np.arange(n_out) // scheme.spans(shape)[0]]
        return made

    def make() -> StoredTensor:
        codes = words.data.reshape(n_out, -1)[:, : n_in * bits // 8]
        scales = _scales(parts, scheme, shape)
        return of_integers(bits, lambda some: codes[some], scales, zeros(), group())

    return Packed(shape, make)


def _float4(parts: Parts, given: Fields) -> Packed:
    codes = parts.tensor("weight_packed", ("U8",), (None, None))
    shape = codes.shape[0], 2 * codes.shape[1]
    scheme = _floats(parts, given, 4, shape)
    scale = parts.tensor("weight_scale", ("U8", "F8_E4M3"))
    if scale.type == "U8":
        if scheme.wide != 32 or shape[1] % 32:
            raise parts.error(
                "weight_scale",
                f"is for groups of {scheme.wide} of {shape[1]} columns; with scales in U8 groups have 32, and "
                "columns are a multiple of it",
            )
        return mxfp4(codes, scale)
    whole = parts.tensor("weight_global_scale", FLOAT_TYPES, (1,))

    def make() -> StoredTensor:
        with np.errstate(all="ignore"):  # FiniteCheck finds them
            scales = float8_values(parts.float8("weight_scale")) / whole.floats()
        return float4(array(codes, "u1"), scales, np.arange(shape[1]) // scheme.wide)

    return Packed(shape, make)
