"""Directories that others quantised: GPTQ, AWQ, FP8, MXFP4, NF4 of bitsandbytes, ModelOpt, compressed-tensors.

Several tensors stand for one matrix: codes, scales, zeros.  Here they become one in a stored type that has the
same numbers (docs/numerics.md, part 2): GPTQ and AWQ become Q4_0, Q5_0 or Q8_0, MXFP4 stays MXFP4 in another
order, FP8 and NF4 have types of their own; compressed-tensors has kinds of these (compressed_tensors.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from aleator.core.arrays import Bytes, Floats, UInt32s
from aleator.core.errors import UnsupportedModel
from aleator.core.json_text import loads
from aleator.core.records import dataclass
from aleator.models import refused
from aleator.models.files.fields import MAX_WIDTH, Fields, read_json
from aleator.models.files.tensor_types import FLOAT_TYPES, StoredTensor
from aleator.models.prequantised import compressed_tensors
from aleator.models.prequantised.matrix_parts import (
    Packed,
    Parts,
    apart,
    array,
    float4,
    float8,
    float8_values,
    grouped,
    halves,
    mxfp4,
    of_integers,
    paired,
    scaled,
    two_sizes,
)

_AWQ_ORDER = np.array([0, 4, 1, 5, 2, 6, 3, 7])
"""Where AWQ puts eight neighbouring columns in a word."""
_GROUP = 16
"""Columns that share a scale in NVFP4."""


def _group_size(given: Fields, n_in: int) -> int:
    size = given.integer("group_size", -1, MAX_WIDTH, 128)
    if size == 0:
        raise given.error(
            "group_size", "group_size is 0; it must be 1 or more, or -1 for one group"
        )
    return n_in if size == -1 else size


def _gptq(parts: Parts, given: Fields) -> Packed:
    words, bits = parts.tensor("qweight", ("I32",), (None, None)), given.integer("bits", 4, 8, 4)
    each = 32 // bits
    n_in, n_out = each * words.shape[0], words.shape[1]
    if n_out % each:
        raise parts.error("qweight", f"has {n_out} columns; they must be a multiple of {each}")
    size = _group_size(given, n_in)
    groups = -(-n_in // size)
    scales = parts.tensor("scales", FLOAT_TYPES, (groups, n_out))
    stored = parts.tensor("qzeros", ("I32",), (groups, n_out // each))
    if "g_idx" in parts or (given.get("desc_act", False) and groups > 1):
        parts.tensor("g_idx", ("I32", "I64"), (n_in,))
    order = given.get("checkpoint_format", given.get("format", "gptq"))  # older name, newer name
    above = 0 if order == "gptq_v2" else 1

    def make() -> StoredTensor:
        group = np.arange(n_in) // size
        if "g_idx" in parts:
            group = parts.integers("g_idx", 0, groups - 1)
        codes, zeros = array(words, "<u4"), array(stored, "<u4").view(np.uint8)
        return of_integers(
            bits,
            lambda rows: np.ascontiguousarray(codes[:, rows].T).view(np.uint8),
            np.ascontiguousarray(scales.floats().T),
            np.ascontiguousarray((apart(zeros) if bits == 4 else zeros).T) + np.int16(above),
            group,
        )

    return Packed((n_out, n_in), make)


def _awq(parts: Parts, given: Fields) -> Packed:
    words = parts.tensor("qweight", ("I32",), (None, None))
    n_in, n_out = words.shape[0], 8 * words.shape[1]
    if n_in % 2:
        raise parts.error("qweight", f"has {n_in} rows; they must be even")
    size = _group_size(given, n_in)
    groups = -(-n_in // size)
    scales = parts.tensor("scales", FLOAT_TYPES, (groups, n_out))
    stored = parts.tensor("qzeros", ("I32",), (groups, n_out // 8))

    def columns(words: UInt32s) -> Bytes:
        turned = np.ascontiguousarray(words.view(np.uint8).T)
        nibbles = np.stack([turned & 15, turned >> 4], 1).reshape(-1, 8, len(words))
        return nibbles[:, _AWQ_ORDER].reshape(-1, len(words))

    def pairs(rows: slice) -> Bytes:
        codes = columns(array(words, "<u4")[:, rows.start // 8 : rows.stop // 8])
        return paired(codes)

    def make() -> StoredTensor:
        turned = np.ascontiguousarray(scales.floats().T)
        return grouped(pairs, turned, columns(array(stored, "<u4")), np.arange(n_in) // size)

    return Packed((n_out, n_in), make)


def _refuse_exceptions(given: Fields) -> None:
    """Raise UnsupportedModel for matrices of other bits or groups by expressions for names (``dynamic``).

    An expression that begins with "-:" is of matrices that are not quantised, as their types show.
    """
    for names, changes in (given.get("dynamic", kind=dict) or {}).items():
        if not names.startswith("-:"):
            changed = Fields(given.path, changes if isinstance(changes, dict) else {})
            for key, usual in (("bits", 4), ("group_size", 128)):
                if key in changed and changed.get(key) != given.get(key, usual):
                    raise refused.quantisation(given.path, "gptq", "dynamic", {names: changes})


# --- floats with a scale ---


def _block_size(given: Fields) -> tuple[int, int]:
    """Rows and columns that share a scale of FP8, where blocks have scales."""
    key = "weight_block_size"
    high, wide = two_sizes(given, key, given.get(key, [128, 128]))
    if wide % 64:
        raise given.error(key, f"{key} is {[high, wide]}; its columns must be a multiple of 64")
    return high, wide


def _fp8(parts: Parts, given: Fields) -> Packed:
    n_out, n_in = parts.tensor("weight", ("F8_E4M3",), (None, None)).shape
    end = "weight_scale" if "weight_scale" in parts else "weight_scale_inv"
    if end == "weight_scale" and "weight_scale_inv" in parts:
        raise parts.error(
            "weight_scale_inv",
            "stands beside a weight_scale; only one of them is read: take the unquantised safetensors",
        )
    scale = parts.tensor(end, FLOAT_TYPES)
    high, wide = _block_size(given)
    blocks = -(-n_out // high), -(-n_in // wide)
    sizes = {blocks: (high, wide), (n_out, 1): (1, n_in), (1, 1): (n_out, n_in)}
    grid = (*scale.shape, 1, 1)[:2] if len(scale.shape) < 2 else scale.shape
    if grid not in sizes:
        raise parts.error(
            end,
            f"is of shape {list(scale.shape)}; it must be {list(blocks)} for blocks of {[high, wide]} "
            f"(weight_block_size), [{n_out}, 1] for rows, or [1]",
        )
    return float8(parts, end, *sizes[grid])


def _nf4_values() -> Floats:
    """What NF4's codes stand for."""
    codes = np.arange(32, dtype=np.uint8)[None]
    return scaled("NF4", codes, np.ones(1, np.float32)).floats()[0, :16]


_FP4 = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3], np.float32) / np.float32(12)
"""What codes of bitsandbytes' fp4 without the sign stand for."""
_STATES = tuple(f"weight.quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4"))


def _bits4(parts: Parts, given: Fields) -> Packed:
    """nf4, or fp4, which becomes F32."""
    end = _STATES[_STATES[1] in parts]
    codes = parts.tensor("weight", ("U8", *FLOAT_TYPES))  # whose bytes are codes in any type
    n = 2 * codes.data.size
    text = parts.tensor(end, ("U8",))
    try:
        values = loads(bytes(text.data).decode())
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise parts.error(end, "is no JSON object")
    state = Fields(f"{parts.file(end)}: the tensor {parts.stem + end!r}", values)
    shape = state.require("shape", list)
    sizes = all(type(size) is int and 1 <= size <= MAX_WIDTH for size in shape)
    if not sizes or len(shape) != 2 or math.prod(shape) != n:
        raise parts.error(end, f"has the shape {shape!r:.60}; the matrix has {n} elements")
    n_out, n_in = shape
    size = state.integer("blocksize", 64, MAX_WIDTH)
    if size % 64:
        raise state.error("blocksize", f"blocksize is {size}; it must be a multiple of 64")
    blocks = -(-n // size)
    own = parts.tensor("weight.absmax", ("F32", "U8"), (blocks,))
    table = parts.tensor("weight.quant_map", ("F32",), (16,))
    nested = None
    if own.type == "U8":
        every = state.integer("nested_blocksize", 1, MAX_WIDTH)
        offset = state.number("nested_offset", -1e30, 1e30)
        of_scales = parts.tensor("weight.nested_quant_map", ("F32",), (256,))
        above = parts.tensor("weight.nested_absmax", ("F32",), (-(-blocks // every),))
        nested = every, np.float32(offset), of_scales, above

    def make() -> StoredTensor:
        fp4 = np.concatenate([_FP4, -_FP4]) if end == _STATES[1] else None
        if not np.array_equal(table.floats(), _nf4_values() if fp4 is None else fp4):
            kind = end[-3:].upper()
            raise parts.error(
                "weight.quant_map", f"is not that of {kind}: other codes are not read"
            )
        if nested is None:
            scales = own.floats()
        else:
            every, offset, of_scales, above = nested
            scales = of_scales.floats()[own.data]
            with np.errstate(over="ignore", invalid="ignore"):  # FiniteCheck finds them
                scales = scales * np.repeat(above.floats(), every)[:blocks] + offset
        # In the file the first element is in the high nibble.
        pairs = codes.data >> 4 | codes.data << 4
        if fp4 is not None:
            with np.errstate(over="ignore", invalid="ignore"):  # FiniteCheck finds them
                values = fp4[apart(pairs.reshape(-1).view(np.uint8))] * np.repeat(scales, size)[:n]
            return StoredTensor.of(values.reshape(n_out, n_in))
        filled = np.pad(pairs.reshape(-1), (0, -len(pairs) % 32)).reshape(-1, 16)
        repeated = np.repeat(scales, size // 64)[: -(-n // 64)]
        made = scaled("NF4", halves(filled).reshape(-1, 32), repeated)
        if n_in % 64 == 0:
            return replace(made, shape=(n_out, n_in))
        return StoredTensor.of(made.floats().reshape(-1)[:n].reshape(n_out, n_in))

    return Packed((n_out, n_in), make)


def _mxfp4(parts: Parts, given: Fields) -> Packed:
    codes = parts.tensor("_blocks", ("U8",), (None, None, None, 16))
    return mxfp4(codes, parts.tensor("_scales", ("U8",), codes.shape[:3]))


def _modelopt(parts: Parts, given: Fields) -> Packed:
    """FP8, or NVFP4, which becomes F32."""
    codes = parts.tensor("weight", ("U8", "F8_E4M3"), (None, None))
    if codes.type == "F8_E4M3":
        return _fp8(parts, given)
    n_out, n_in = codes.shape[0], 2 * codes.shape[1]
    parts.tensor("weight_scale", ("F8_E4M3",), (n_out, -(-n_in // _GROUP)))
    whole = parts.tensor("weight_scale_2", ("F32",))
    if whole.n_elements != 1:
        raise parts.error(
            "weight_scale_2", f"is of shape {list(whole.shape)}; it must be one number"
        )

    def make() -> StoredTensor:
        with np.errstate(all="ignore"):  # FiniteCheck finds them
            scales = float8_values(parts.float8("weight_scale")) * whole.floats().reshape(())
        return float4(array(codes, "u1"), scales, np.arange(n_in) // _GROUP)

    return Packed((n_out, n_in), make)


# --- what is in a directory ---


@dataclass(frozen=True)
class Method:
    """A way to quantise, as tensors of a directory show it."""

    codes: Mapping[str, tuple[str, ...]]  # ends of names of tensors with codes, and their types
    others: tuple[str, ...]  # the ends of the others' names
    read: Callable[[Parts, Fields], Packed]
    matrix: str = "weight"  # the end of the matrix's name
    unused: tuple[str, ...] = ()  # ends of names of tensors beside matrices that are passed over
    check: Callable[[Fields], None] | None = None  # of the configuration, beside _ONLY
    beside: tuple[str, ...] = ()  # ends of names of tensors that tell codes of any type


_OF_NF4 = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
_OF_FP8 = ("weight_scale_inv", "weight_scale", "input_scale", "activation_scale", "output_scale")
METHODS = {
    "gptq": Method(
        {"qweight": ("I32",)}, ("qzeros", "scales", "g_idx"), _gptq, check=_refuse_exceptions
    ),
    "awq": Method({"qweight": ("I32",)}, ("qzeros", "scales"), _awq),
    "fp8": Method(
        {"weight": ("F8_E4M3",)}, _OF_FP8, _fp8, unused=(".kv_scale", *compressed_tensors.UNUSED)
    ),
    "mxfp4": Method({"_blocks": ("U8",)}, ("_scales",), _mxfp4, matrix=""),
    "bitsandbytes": Method(
        {"weight": ("U8",)},
        (*(f"weight.{each}" for each in _OF_NF4), *_STATES),
        _bits4,
        beside=_STATES,
    ),
    "modelopt": Method(
        {"weight": ("U8", "F8_E4M3")},
        ("weight_scale", "weight_scale_2", "input_scale"),
        _modelopt,
        unused=compressed_tensors.UNUSED,
    ),
    "compressed-tensors": Method(
        compressed_tensors.CODES,
        compressed_tensors.OTHERS,
        compressed_tensors.read,
        unused=compressed_tensors.UNUSED,
        check=compressed_tensors.check,
    ),
}
"""``quant_method`` of a config.json's ``quantization_config``."""
_ALIKE = {"fbgemm_fp8": "fp8"}
_GPTQ_ORDERS, _AWQ_ORDERS = ("gptq", "gptq_v2"), ("gemm", "GEMM")
_ONLY: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    "gptq": {
        "bits": (4, 8),
        "format": _GPTQ_ORDERS,
        "checkpoint_format": _GPTQ_ORDERS,
        "is_marlin_format": (False,),
        "rotation": ("",),
    },
    "awq": {
        "bits": (4,),
        "version": _AWQ_ORDERS,
        "format": _AWQ_ORDERS,
        "checkpoint_format": _AWQ_ORDERS,
        "rotation": ("",),
    },
    "fp8": {"fmt": ("e4m3",), "expert_dtype": ("fp8",), "weight_scale_semantics": ()},
    "bitsandbytes": {"load_in_8bit": (False,), "bnb_4bit_quant_type": ("nf4", "fp4")},
    "modelopt": {"quant_algo": ("FP8", "NVFP4")},
    "compressed-tensors": {"format": compressed_tensors.FORMATS},
}
"""The values that fields of ``quantization_config`` may have, where they are there."""
_FORMER = {"w_bit": "bits", "q_group_size": "group_size"}
"""Fields as AWQ's files named them -> their names."""
_FORMER_FILES = {
    "quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt",
}  # fmt: skip
"""Files with what is now ``quantization_config``, and the method of one that says none."""


def given_by(fields: Fields) -> tuple[Method, Fields] | None:
    """How a directory is quantised by its config.json or an older file, and the fields that say so; None: it is
    not.

    Raises:
        FileFormatError: a field is of another type.
        UnsupportedModel: it is quantised in a way that is not read.
    """
    values = fields.get("quantization_config", kind=dict)
    if values is None:
        text = Fields(fields.path, fields.get("text_config", kind=dict) or {})
        values = text.get("quantization_config", kind=dict)
    path = Path(str(fields.path))
    for file, method in _FORMER_FILES.items():
        former = path.parent / file
        if values is None and former.is_file():
            told = read_json(former)
            inner = told.get("quantization", kind=dict) or {}
            path, values = former, {"quant_method": method, **told.values, **inner}
    if values is None:
        return None
    renamed = {_FORMER[key]: value for key, value in values.items() if key in _FORMER}
    given = Fields(path, {**renamed, **values})
    name = given.get("quant_method", "an unknown method")
    name = _ALIKE.get(name, name)
    if name not in METHODS:
        raise refused.quantisation(path, name)
    for key, allowed in _ONLY.get(name, {}).items():
        if given.get(key) is not None and given.get(key) not in allowed:
            raise refused.quantisation(path, name, key, given.get(key))
    found = METHODS[name]
    if found.check is not None:
        found.check(given)
    return found, given


def joined(
    fields: Fields, tensors: Iterable[tuple[Path, str, StoredTensor]]
) -> Iterator[tuple[Path, str, StoredTensor | Packed]]:
    """The files, names and tensors of a directory, those that stand for a matrix together as one.

    Raises:
        FileFormatError: one is missing, or is of another type or shape.
        UnsupportedModel: the directory is quantised in a way that is not read.
    """
    how = given_by(fields)
    if how is None:
        yield from tensors
        return
    method, given = how
    found = {name: (file, tensor) for file, name, tensor in tensors}
    stems = {
        name.removesuffix(end): end
        for name, (_, tensor) in found.items()
        for end, kinds in method.codes.items()
        if name.endswith(end)
        and (
            tensor.type in kinds
            or any(name.removesuffix(end) + each in found for each in method.beside)
        )
    }
    rest = {stem + end for stem in stems for end in method.others}
    of_codes = {stem + end: stem for stem, end in stems.items()}
    for name, (file, tensor) in found.items():
        if name in of_codes:
            stem = of_codes[name]
            yield file, stem + method.matrix, method.read(Parts(stem, file, found), given)
        elif name not in rest and not name.endswith(method.unused):
            if tensor.type not in FLOAT_TYPES:
                raise UnsupportedModel(
                    f"{file}: tensor {name!r} has the type {tensor.type}, and belongs to no matrix that is "
                    "quantised as quantization_config says"
                )
            yield file, name, tensor
