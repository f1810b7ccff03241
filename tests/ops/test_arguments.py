"""Bad input: an error that names the argument, before anything is computed; no row harms another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from aleator import LogitsError, ParameterError, ops
from aleator.core import host


def good(**changes: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "logits": np.zeros((3, 10), np.float32),
        "top_k": np.ones(3, np.int32),
        "top_p": np.ones(3, np.float32),
    }
    return arguments | changes


BAD: list[tuple[str, Any]] = [
    ("logits", [[1.0, 2.0]]),
    ("logits", np.zeros((3, 10))),
    ("logits", np.zeros(10, np.float32)),
    ("logits", np.zeros((0, 10), np.float32)),
    ("logits", np.broadcast_to(np.float32(0), (3, (1 << 20) + 1))),
    ("top_k", [1, 1, 1]),
    ("top_k", None),
    ("top_k", np.ones(3, np.int64)),
    ("top_k", np.ones(2, np.int32)),
    ("top_k", np.ones((3, 2), np.int32)),
    ("top_k", torch.ones(3, dtype=torch.int32)),
    ("top_p", np.ones(3, np.float64)),
    ("top_p", np.array([1, np.nan, 1], np.float32)),
    ("min_p", np.ones(3, np.float64)),
    ("min_p", np.array([0, np.nan, 0], np.float16)),
    ("q", np.ones((3, 10))),
    ("q", np.ones((3, 9), np.float32)),
    ("q", np.ones(10, np.float32)),
    ("q", np.full((3, 10), np.nan, np.float32)),
    ("eps", -1e-8),
    ("eps", float("nan")),
    ("eps", "1"),
    ("ks_max", 0),
    ("ks_max", 1025),
    ("top_k_guess", 1.5),
    ("top_k_guess", 2**63),
    ("input_is_logits", None),
    ("is_need_sample_result", "yes"),
]


@pytest.mark.parametrize(("name", "value"), BAD, ids=[f"{n}-{i}" for i, (n, _) in enumerate(BAD)])
def test_an_error_names_the_argument(name: str, value: Any) -> None:
    with pytest.raises(ParameterError) as caught:
        ops.top_k_top_p_sample(**good(**{name: value}))
    assert caught.value.parameter == name
    assert name in str(caught.value)


@pytest.mark.parametrize("name", ["top_k", "top_p"])
def test_beside_a_tensor_lists_are_refused(name: str) -> None:
    given: dict[str, Any] = {key: torch.from_numpy(value) for key, value in good().items()}
    with pytest.raises(ParameterError, match=f"{name} is a list: give a tensor, as") as caught:
        ops.top_k_top_p_sample(**given | {name: [1, 1, 1]})
    assert caught.value.parameter == name


def test_q_and_the_intermediate_result_exclude_each_other() -> None:
    with pytest.raises(ParameterError, match="q=None") as caught:
        ops.top_k_top_p_sample(**good(q=np.ones((3, 10), np.float32), is_need_sample_result=True))
    assert caught.value.parameter == "q"


@pytest.mark.parametrize("name", ["top_p", "min_p"])
def test_nan_parameters_name_their_row(name: str) -> None:
    with pytest.raises(ParameterError, match="row 1"):
        ops.top_k_top_p_sample(**good(**{name: np.array([0.5, np.nan, 0.5], np.float32)}))


@pytest.mark.parametrize("is_logits", [True, False])
def test_hopeless_rows_are_named(is_logits: bool) -> None:
    x = np.full((3, 200), 0.5, np.float32)
    x[2] = np.nan
    with pytest.raises(LogitsError, match="row 2"):
        ops.top_k_top_p_sample(**good(logits=x, input_is_logits=is_logits))
    x[2] = -np.inf if is_logits else 0
    with pytest.raises(LogitsError, match="row 2"):
        ops.top_k_top_p_sample(**good(logits=x, input_is_logits=is_logits))


@pytest.mark.parametrize("value", [-0.1, 1.1, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 127, 128, 199])
def test_what_is_no_probability_is_named(value: float, place: int) -> None:
    x = np.full((3, 200), 0.005, np.float32)
    x[1, place] = value
    with pytest.raises(LogitsError, match=rf"row 1: logits\[{place}\]"):
        ops.top_k_top_p_sample(**good(logits=x, input_is_logits=False))


def test_draw_needs_its_keys() -> None:
    arguments = good()
    for name, bad in (("seeds", np.zeros(3, np.int32)), ("positions", np.zeros(2, np.int64))):
        keys: dict[str, Any] = {
            "seeds": np.zeros(3, np.int64), "positions": np.zeros(3, np.int64), name: bad,
        }  # fmt: skip
        with pytest.raises(ParameterError) as caught:
            ops.top_k_top_p_draw(**arguments, **keys)
        assert caught.value.parameter == name


def kernel(**changes: Any) -> None:
    """Call the native kernel, which everything else calls, with arguments for all it can do."""
    rows, whole = np.zeros(3, np.int64), np.zeros((3, 10), np.float32)
    p, ids = np.ones(3, np.float32), np.zeros((3, 10), np.int64)
    arguments: dict[str, Any] = {
        "logits": whole, "top_k": np.ones(3, np.int32), "top_p": p, "q": whole, "min_p": p,
        "seeds": rows, "positions": rows, "eps": 1e-8, "limit": 1024, "is_logits": True,
        "indices": rows.copy(), "select": whole.copy(), "listed": ids, "probs": whole.copy(),
        "pool": None,
    }  # fmt: skip
    host.top_k_top_p_sample(**arguments | changes)


def test_the_kernel_reads_and_writes_nothing_outside_its_arrays() -> None:
    kernel()
    short, narrow = np.zeros((2, 10), np.float32), np.zeros((3, 9), np.float32)
    for changes in (
        {"logits": np.zeros((3, 20), np.float32)[:, ::2]}, {"top_k": np.ones(2, np.int32)},
        {"top_p": short[:, 0]}, {"min_p": short[:, 0]}, {"q": short}, {"q": narrow},
        {"q": np.zeros((3, 20), np.float32)[:, ::2]}, {"seeds": np.zeros(2, np.int64)},
        {"positions": np.zeros(2, np.int64)}, {"seeds": None}, {"indices": np.zeros(2, np.int64)},
        {"select": short}, {"select": narrow}, {"listed": np.zeros((2, 10), np.int64)},
        {"listed": np.zeros((3, 9), np.int64)}, {"listed": None}, {"probs": short},
        {"probs": narrow}, {"probs": None},
    ):  # fmt: skip
        with pytest.raises(ParameterError):
            kernel(**changes)


def test_outputs_not_asked_for_are_none() -> None:
    assert [o is None for o in ops.top_k_top_p_sample(**good())] == [False, True, True, True]
    out = ops.top_k_top_p_sample(**good(is_need_logits=True, is_need_sample_result=True))
    assert [o is None for o in out] == [True, False, False, False]
