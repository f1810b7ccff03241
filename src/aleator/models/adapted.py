"""The matrices of a model that adapters may change: their names, their order in a step, where they lie.

An expert's matrices are called ``blk.0.ffn_gate.3.weight``, however the model's file holds them.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from aleator.models.files.tensor_types import StoredTensor

if TYPE_CHECKING:
    from aleator.models.weights import Weights

EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
_ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output")
_FEED_FORWARD = ("ffn_gate", "ffn_up", "ffn_down")
_DELTA = (
    "attn_qkv",
    "attn_gate",
    "ssm_g_a",
    "ssm_g_b",
    "ssm_beta",
    "ssm_alpha",
    "ssm_f_a",
    "ssm_f_b",
)
_STATES = ("ssm_in", "ssm_x", "ssm_dt", "ssm_out", "shortconv.in_proj", "shortconv.out_proj")
_KINDS = (
    *_DELTA,
    *_STATES,
    *_ATTENTION,
    *_FEED_FORWARD,
    "ffn_gate_inp",
    *(f"{each}_shexp" for each in _FEED_FORWARD),
)
_NUMBER = "(?:0|[1-9][0-9]{0,8})"
_ANY, _FED = "|".join(map(re.escape, _KINDS)), "|".join(_FEED_FORWARD)
_OF_LAYER = rf"blk\.({_NUMBER})\.(?:({_ANY})|({_FED})\.({_NUMBER}))\.weight"
_OF_EXPERTS = rf"(blk\.{_NUMBER}\.(?:ffn_gate_up|{_FED}))_exps\.weight"


def adaptable(name: str) -> bool:
    """Whether native code adds what adapters have to the products of such a matrix."""
    return name in (EMBEDDING, OUTPUT) or re.fullmatch(_OF_LAYER, name) is not None


def step_order(name: str) -> tuple[float, ...]:
    """The place of an adaptable matrix in the order of a step."""
    match = re.fullmatch(_OF_LAYER, name)
    if match is None:
        return (-math.inf,) if name == EMBEDDING else (math.inf,)
    return int(match[1]), _KINDS.index(match[2] or match[3]), int(match[4] or 0)


def expert_names(name: str, n: int) -> list[str] | None:
    """The names of the matrices of n experts that are in one tensor; None: the tensor is no such one."""
    match = re.fullmatch(_OF_EXPERTS, name)
    return None if match is None else [f"{match[1]}.{expert}.weight" for expert in range(n)]


def divided_experts(name: str, rows: StoredTensor) -> dict[str, StoredTensor]:
    """Rows of gate and up together, ``blk.0.ffn_gate_up.3.weight``, as those of each; others as they are."""
    if ".ffn_gate_up." not in name or rows.shape[0] % 2:
        return {name: rows}
    half = rows.shape[0] // 2
    parts = rows.data.reshape(2, -1)
    return {
        name.replace(".ffn_gate_up.", f".{kind}."): StoredTensor(
            rows.type, (half, rows.shape[1]), part
        )
        for kind, part in zip(("ffn_gate", "ffn_up"), parts, strict=True)
    }


def matrix(weights: Weights, name: str) -> StoredTensor | None:
    """The matrix [out, in] of that name as native code takes it; None: the model has none."""
    if name in weights:
        return weights.stored(name)
    if name == OUTPUT and weights.config.tied:
        return weights.stored(EMBEDDING)
    match = re.fullmatch(_OF_LAYER, name)
    experts = weights.config.experts
    if match is None or not match[3] or experts is None or int(match[4]) >= experts.n_experts:
        return None
    at, kind = f"blk.{match[1]}.", match[3]
    if f"{at}{kind}_exps.weight" in weights:
        return _expert(weights.stored(f"{at}{kind}_exps.weight"), int(match[4]))
    if kind != "ffn_down" and f"{at}ffn_gate_up_exps.weight" in weights:
        both = _expert(weights.stored(f"{at}ffn_gate_up_exps.weight"), int(match[4]))
        return divided_experts(f"{at}ffn_gate_up.0.weight", both).get(f"{at}{kind}.0.weight")
    return None


def _expert(stack: StoredTensor, number: int) -> StoredTensor:
    part = stack.data.reshape(stack.shape[0], -1)[number]
    return StoredTensor(stack.type, stack.shape[1:], part)
