"""The matrices of a model that adapters may change: their names, their order in a step, where they lie.

An expert's matrices are called ``blk.0.ffn_gate.3.weight``, however the model's file holds them, and those of
a head over compressed keys ``blk.0.attn_k_b.3.weight`` and ``blk.0.attn_v_b.3.weight``.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from aleator.core.errors import FileFormatError
from aleator.core.records import dataclass
from aleator.models.config import ModelConfig, present
from aleator.models.files.tensor_types import StoredTensor

if TYPE_CHECKING:
    from aleator.models.weights import Weights

EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
_PER_LAYER = "per_layer_model_proj.weight"
_LATENT = ("attn_q_a", "attn_kv_a_mqa", "attn_q_b", "attn_kv_b")
_OF_HEADS = ("attn_k_b", "attn_v_b")
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
    *_LATENT,
    *_OF_HEADS,
    *_ATTENTION,
    *_FEED_FORWARD,
    "ffn_gate_inp",
    *(f"{each}_shexp" for each in (*_FEED_FORWARD, "ffn_gate_inp")),
    "inp_gate",
    "proj",
)
_NUMBER = "(?:0|[1-9][0-9]{0,8})"
_FED = "|".join(_FEED_FORWARD)
_ONE = "|".join(map(re.escape, (each for each in _KINDS if each not in _OF_HEADS)))
_OF_LAYER = rf"blk\.({_NUMBER})\.(?:({_ONE})|({_FED}|{'|'.join(_OF_HEADS)})\.({_NUMBER}))\.weight"
_STACK = rf"(blk\.{_NUMBER}\.)(?:(ffn_gate_up|{_FED})_exps|({'|'.join(_OF_HEADS)}))\.weight"


@dataclass(frozen=True)
class Part:
    """What a file holds for one matrix, with rows in the order of that kind of file."""

    a: StoredTensor  # [rank, n_in]; of embeddings [n_vocab, rank]
    b: StoredTensor  # [n_out, rank]
    scale: float
    magnitude: StoredTensor | None = None


def behind_each_query(query: Part | None, gate: Part | None, heads: int) -> Part:
    """What changes queries and their gates, as the change of the matrix that has each gate behind its query."""
    given = [(i, part) for i, part in enumerate((query, gate)) if part is not None]
    scale = given[0][1].scale or 1.0
    rows = []
    for i, part in given:
        b = part.b.floats().reshape(heads, 1, -1, part.b.shape[1])
        both = np.zeros((heads, 2, *b.shape[2:]), np.float32)
        both[:, i] = b[:, 0] * np.float32(part.scale / scale)
        rows.append(both.reshape(-1, b.shape[3]))
    a = np.concatenate([part.a.floats() for _, part in given])
    return Part(StoredTensor.of(a), StoredTensor.of(np.concatenate(rows, 1)), scale)


def check_shape(path: Path, tensor: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Raise FileFormatError if an adapter's ``shape`` is not its matrix's."""
    if shape != wanted:
        raise FileFormatError(
            path,
            f"the adapter is for a matrix of shape {list(shape)}, and the model's is {list(wanted)}: "
            "give an adapter that was trained on this model",
            field=tensor,
        )


def adaptable(name: str) -> bool:
    """Whether native code adds what adapters have to the products of such a matrix."""
    return name in (EMBEDDING, _PER_LAYER, OUTPUT) or re.fullmatch(_OF_LAYER, name) is not None


def step_order(name: str) -> tuple[float, ...]:
    """The place of an adaptable matrix in the order of a step."""
    match = re.fullmatch(_OF_LAYER, name)
    if match is None:
        return (math.inf,) if name == OUTPUT else (-math.inf,)
    return int(match[1]), _KINDS.index(match[2] or match[3]), int(match[4] or 0)


def one_by_one(
    path: Path, name: str, tensor: StoredTensor, config: ModelConfig
) -> dict[str, StoredTensor]:
    """A side of an adapter's stack of matrices, of all experts or heads, by their names; another as it is.

    Those of heads may have one side for all.

    Raises:
        FileFormatError: it is a side of another number of matrices.
    """
    match = re.fullmatch(_STACK, name)
    if match is None:
        return {name: tensor}
    n = config.n_heads[0] if match[3] else config.experts.n_experts if config.experts else 0
    names = [f"{match[1]}{match[2] or match[3]}.{i}.weight" for i in range(n)]
    if match[3] and tensor.shape[:-2] in ((), (1,)):
        return dict.fromkeys(names, replace(tensor, shape=tensor.shape[-2:]))
    if len(tensor.shape) != 3 or tensor.shape[0] != n:
        raise FileFormatError(
            path,
            f"the adapter's shape is {list(tensor.shape)}, and the model has {n} "
            f"{'heads' if match[3] else 'experts'}: give an adapter that was trained on this model",
            field=name,
        )
    rows = tensor.data.reshape(n, -1)
    return {
        each: StoredTensor(tensor.type, tensor.shape[1:], part)
        for each, part in zip(names, rows, strict=True)
    }


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


def divided_latent(
    name: str, a: StoredTensor, b: StoredTensor, config: ModelConfig
) -> dict[str, tuple[StoredTensor, StoredTensor]]:
    """A and B of each head's matrices, of those of ``attn_kv_b`` where the cache holds compressed keys.

    A head's keys are transposed: what is added to them is A^T B^T.
    """
    at, latent = name.removesuffix("attn_kv_b.weight"), present(config.latent)
    plain = latent.head_dim - config.rope.dim
    wide = plain + latent.head_dim_v
    made, turned = {}, a.moved(np.transpose)
    for head in range(b.shape[0] // wide):
        key, value = (
            b.moved_rows(lambda rows, i=i, n=n: rows[i : i + n])  # type: ignore[misc]
            for i, n in ((head * wide, plain), (head * wide + plain, latent.head_dim_v))
        )
        made[f"{at}attn_k_b.{head}.weight"] = key.moved(np.transpose), turned
        made[f"{at}attn_v_b.{head}.weight"] = a, value
    return made


def matrix(weights: Weights, name: str) -> StoredTensor | None:
    """The matrix [out, in] of that name as native code takes it; None: the model has none."""
    if name.endswith(".ffn_gate_inp_shexp.weight") and name in weights:  # a vector
        return StoredTensor.of(weights.vector(name).reshape(1, -1))
    if name in weights:
        return weights.stored(name)
    if name == OUTPUT and weights.config.tied:
        return weights.stored(EMBEDDING)
    match = re.fullmatch(_OF_LAYER, name)
    if match is None or not match[3]:
        return None
    at, kind, number = f"blk.{match[1]}.", match[3], int(match[4])
    stack = f"{at}{kind}.weight" if kind in _OF_HEADS else f"{at}{kind}_exps.weight"
    if stack in weights:
        return _one(weights.stored(stack), number)
    if kind != "ffn_down" and f"{at}ffn_gate_up_exps.weight" in weights:
        both = _one(weights.stored(f"{at}ffn_gate_up_exps.weight"), number)
        return both and divided_experts(f"{at}ffn_gate_up.0.weight", both).get(
            f"{at}{kind}.0.weight"
        )
    return None


def _one(stack: StoredTensor, number: int) -> StoredTensor | None:
    if number >= stack.shape[0]:
        return None
    part = stack.data.reshape(stack.shape[0], -1)[number]
    return StoredTensor(stack.type, stack.shape[1:], part)
