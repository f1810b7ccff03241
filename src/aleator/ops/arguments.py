"""The operator's arguments and outputs; each wrong argument is a ``ParameterError`` with its name.

Checks work on NumPy arrays and tensors alike, by their metadata only: no value on a device is read.
"""

from __future__ import annotations

import numbers
from typing import Any, NamedTuple

from aleator.core.contract import MAX_VOCAB
from aleator.core.errors import ParameterError

MAX_VOCAB_WIDE = 1 << 22  # 2^22 weights of at most 2^40 sum to at most 2^62
MAX_KS = 1024
FLOATS = ("float16", "bfloat16", "float32")


class Sampled(NamedTuple):
    """The results of the operator; those not requested are ``None``.

    They are arrays or tensors, like the logits: indices int64 [B], logits float32 [B, V], ids int64 [B, V],
    probabilities float32 [B, V].
    """

    logits_select_idx: Any
    logits_top_kp_select: Any
    logits_idx: Any
    logits_sort_masked: Any


class Call(NamedTuple):
    """The arguments of a call in the form that all kernels take, in the order of the torch op's schema.

    ``limit`` is the largest k that is not skipped; ``seeds`` and ``positions`` are those of a keyed draw.
    """

    logits: Any
    top_k: Any
    top_p: Any
    q: Any = None
    min_p: Any = None
    seeds: Any = None
    positions: Any = None
    eps: float = 0.0
    is_need_logits: bool = False
    top_k_guess: int = 32
    limit: int = MAX_VOCAB_WIDE
    max_vocab: int = MAX_VOCAB_WIDE
    input_is_logits: bool = True
    is_need_sample_result: bool = False

    def outputs(self) -> tuple[tuple[tuple[int, ...] | None, str], ...]:
        """Shape and dtype of each output; the shape is ``None`` for outputs not requested."""
        shape = tuple(self.logits.shape)
        listed = self.is_need_sample_result
        return (
            (None if listed else shape[:1], "int64"),
            (shape if self.is_need_logits else None, "float32"),
            (shape if listed else None, "int64"),
            (shape if listed else None, "float32"),
        )


def column(values: Any) -> Any:
    """Return [B] or [B, 1] as [B], without copying; ``None`` stays."""
    return values if values is None or len(values.shape) == 1 else values[:, 0]


def refuse(name: str, given: str, allowed: str) -> ParameterError:
    """The error that says what was given and what to give instead."""
    return ParameterError(f"{name} {given}: {allowed}")


def dtype_name(array: Any) -> str:
    """The name of a dtype, such as ``float32``, for NumPy and torch."""
    return getattr(array.dtype, "name", None) or str(array.dtype).removeprefix("torch.")


def check_array(name: str, array: Any, like: Any, dtypes: tuple[str, ...]) -> None:
    """Refuse a value that is not an array of the logits' kind and device, or has another dtype."""
    wanted = " or ".join(dtypes)
    if type(like).__module__ == "numpy" and type(array).__module__ != "numpy":
        given = f"is a {type(array).__name__}"
        raise refuse(name, given, f"give a NumPy array of {wanted}, as logits is one")
    if dtype_name(array) not in dtypes:
        raise refuse(name, f"has dtype {dtype_name(array)}", f"convert it to {wanted}")
    device, home = getattr(array, "device", None), getattr(like, "device", None)
    if str(device) != str(home):
        raise refuse(name, f"is on {device}", f"move it to {home}, where logits are")


def check_rows(name: str, array: Any, logits: Any, dtypes: tuple[str, ...]) -> None:
    """Refuse anything but [B] or [B, 1]."""
    check_array(name, array, logits, dtypes)
    shape, rows = tuple(array.shape), logits.shape[0]
    if len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] != 1):
        raise refuse(name, f"has shape {shape}", f"give one value per row, [{rows}] or [{rows}, 1]")
    if not same(shape[0], rows):
        given = f"has {shape[0]} rows and logits have {rows}"
        raise refuse(name, given, f"give [{rows}] or [{rows}, 1]")


def same(a: Any, b: Any) -> bool:
    """Whether sizes are equal; true if one is symbolic, as when torch exports a model."""
    return not (isinstance(a, int) and isinstance(b, int)) or a == b


def check_int(name: str, value: Any) -> None:
    """Refuse anything but an integer of 64 bits."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise refuse(name, f"is {value!r}", "give an integer")
    if not -(2**63) <= int(value) < 2**63:
        raise refuse(name, f"is {value}", "give an integer of 64 bits")


def aligned(ks_max: Any) -> int:
    """The largest k that is not skipped: ``ks_max`` rounded up to a multiple of 8."""
    check_int("ks_max", ks_max)
    if not 1 <= ks_max <= MAX_KS:
        raise refuse(
            "ks_max", f"is {ks_max}",
            f"give 1 to {MAX_KS}, or use top_k_top_p_sample_wide, which takes any k",
        )  # fmt: skip
    return round_up(int(ks_max))


def round_up(ks_max: int) -> int:
    """Round up to a multiple of 8."""
    return (ks_max + 7) // 8 * 8


def check_options(eps: Any, top_k_guess: Any, **flags: Any) -> None:
    """Refuse options of the wrong type or out of range."""
    if isinstance(eps, bool) or not isinstance(eps, numbers.Real):
        raise refuse("eps", f"is {eps!r}", "give a number of at least 0, such as 1e-8")
    if not 0 <= float(eps) <= 3e38:
        raise refuse("eps", f"is {eps}", "give a number from 0 to 3e38, such as 1e-8")
    check_int("top_k_guess", top_k_guess)
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise refuse(name, f"is {value!r}", "give True or False")


def check_tensors(call: Call) -> None:
    """Refuse wrong types, dtypes, devices and shapes."""
    logits, q = call.logits, call.q
    if not hasattr(logits, "dtype") or not hasattr(logits, "shape"):
        raise refuse("logits", f"is a {type(logits).__name__}", "give a NumPy array or a tensor")
    if (dtype := dtype_name(logits)) not in FLOATS:
        raise refuse("logits", f"has dtype {dtype}", f"convert it to {' or '.join(FLOATS)}")
    shape = tuple(logits.shape)
    if len(shape) != 2:
        raise refuse("logits", f"has shape {shape}", "give [batch, vocabulary]")
    rows, n_vocab = shape
    if (isinstance(rows, int) and rows < 1) or (isinstance(n_vocab, int) and n_vocab < 1):
        raise refuse("logits", f"has shape {shape}", "give at least one row and one token")
    if isinstance(n_vocab, int) and n_vocab > call.max_vocab:
        wider = ": use top_k_top_p_sample_wide" if call.max_vocab == MAX_VOCAB else ""
        allowed = f"at most {call.max_vocab} are supported{wider}"
        raise refuse("logits", f"has {n_vocab} tokens a row", allowed)
    check_rows("top_k", call.top_k, logits, ("int32",))
    check_rows("top_p", call.top_p, logits, FLOATS)
    if call.min_p is not None:
        check_rows("min_p", call.min_p, logits, FLOATS)
    if q is not None:
        check_array("q", q, logits, ("float32",))
        if len(q.shape) != 2 or not all(map(same, tuple(q.shape), shape)):
            raise refuse("q", f"has shape {tuple(q.shape)}", f"give the shape of logits, {shape}")
        if call.is_need_sample_result:
            raise refuse("q", "is given", "pass q=None where is_need_sample_result is True")
    for name, keys in (("seeds", call.seeds), ("positions", call.positions)):
        if keys is not None:
            check_rows(name, keys, logits, ("int64",))
