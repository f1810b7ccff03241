"""Random matrices as GPTQ, AWQ, FP8, MXFP4 and bitsandbytes store them, and what they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from decoder_numerics.blocks import MXFP4
from decoder_numerics.scaled import NF4

from tests.models.builders import _HUGGING_FACE, model_json, write_directory

Floats = npt.NDArray[np.float32]
Tensors = dict[str, torch.Tensor]
FP4 = np.array([0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4], np.float32)
FP4 = np.concatenate([FP4, -FP4])
"""What codes of bitsandbytes' fp4 stand for."""
Made = tuple[Tensors, Floats]
"""Tensors by the ends of their names, and the matrix that they stand for, float32 [out, in]."""

N_VOCAB, N_EMBD, N_FF, N_LAYERS = 24, 128, 192, 2
CONFIG = {"hidden_size": N_EMBD, "intermediate_size": N_FF}


def words(codes: npt.NDArray[np.int64], bits: int = 4) -> torch.Tensor:
    """Codes [rows, 32 / bits * n] -> int32 [rows, n], the first code in the lowest bits."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    parts = codes.reshape(len(codes), -1, len(shifts)).astype(np.uint32) << shifts
    return torch.from_numpy(parts.sum(-1, dtype=np.uint32).view(np.int32))


def grouped(
    rng: np.random.Generator, out: int, n_in: int, groups: int, zero: int | None, most: int = 15
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float16], npt.NDArray[np.int64]]:
    """Codes [in, out], scales and zeros [groups, out]."""
    scales = (rng.uniform(0.5, 1.5, (groups, out)) / n_in**0.5 / (most / 3)).astype(np.float16)
    zeros = rng.integers(4, 12, (groups, out)) if zero is None else np.full((groups, out), zero)
    return rng.integers(0, most + 1, (n_in, out)), scales, zeros


def scattered_groups(groups: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The groups of as many columns in a random order, always the same."""
    return np.random.default_rng(len(groups)).permutation(groups)


def gptq(
    rng: np.random.Generator, out: int, n_in: int, *, size: int = 64, zero: int | None = None,
    v2: bool = False, index: npt.NDArray[np.int64] | None = None, scattered: bool = False,
    bits: int = 4,
) -> Made:  # fmt: skip
    """``zero``: that of every group; ``index``: the group of each column.

    ``scattered``: groups are scattered, alike in all matrices of as many columns.
    """
    groups = -(-n_in // size)
    codes, scales, zeros = grouped(rng, out, n_in, groups, zero, (1 << bits) - 1)
    of = np.arange(n_in) // size if index is None else index
    of = scattered_groups(of) if scattered else of
    tensors = {
        "qweight": words(codes.T, bits).T.contiguous(),
        "qzeros": words(zeros - (0 if v2 else 1), bits),
        "scales": torch.from_numpy(scales),
        "g_idx": torch.from_numpy(of.astype(np.int32)),
    }
    return tensors, (scales.astype(np.float32)[of] * (codes - zeros[of])).T.astype(np.float32)


def awq(
    rng: np.random.Generator, out: int, n_in: int, *, size: int = 64, zero: int | None = None
) -> Made:
    codes, scales, zeros = grouped(rng, out, n_in, -(-n_in // size), zero)
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def in_order(values: npt.NDArray[np.int64]) -> torch.Tensor:
        return words(values.reshape(len(values), -1, 8)[..., order].reshape(len(values), -1))

    of = np.arange(n_in) // size
    tensors = {
        "qweight": in_order(codes),
        "qzeros": in_order(zeros),
        "scales": torch.from_numpy(scales),
    }
    return tensors, (scales.astype(np.float32)[of] * (codes - zeros[of])).T.astype(np.float32)


def fp8(
    rng: np.random.Generator,
    out: int,
    n_in: int,
    *,
    by: str = "blocks",
    name: str = "weight_scale_inv",
) -> Made:
    """``by``: what has a scale of its own: blocks of 64 x 64, rows, or the matrix."""
    grid = {"blocks": (-(-out // 64), -(-n_in // 64)), "rows": (out, 1), "matrix": (1,)}[by]
    values = torch.from_numpy(rng.standard_normal((out, n_in), np.float32) * 100)
    codes = values.to(torch.float8_e4m3fn)
    scales = (rng.uniform(0.5, 1.5, grid) / n_in**0.5 / 100).astype(np.float32)
    high, wide = {"blocks": (64, 64), "rows": (1, n_in), "matrix": (out, n_in)}[by]
    of_rows = scales.reshape(len(scales), -1)[np.arange(out) // high]
    whole = codes.float().numpy() * of_rows[:, np.arange(n_in) // wide]
    return {"weight": codes, name: torch.from_numpy(scales)}, whole


def nf4(
    rng: np.random.Generator, out: int, n_in: int, *, size: int = 64, nested: bool = False,
    stored: torch.dtype = torch.uint8, kind: str = "nf4",
) -> Made:  # fmt: skip
    """``stored``: the type that the codes' bytes pass for (bnb_4bit_quant_storage)."""
    n, values = out * n_in, NF4 if kind == "nf4" else FP4
    codes = rng.integers(0, 16, n).astype(np.uint8)
    scales = (rng.uniform(0.5, 1.5, -(-n // size)) / n_in**0.5).astype(np.float32)
    state: dict[str, Any] = {
        "quant_type": kind, "blocksize": size, "dtype": "bfloat16", "shape": [out, n_in]
    }  # fmt: skip
    tensors = {
        "weight": torch.from_numpy(codes[::2] << 4 | codes[1::2]).view(stored)[:, None],
        "weight.quant_map": torch.from_numpy(values.copy()),
        "weight.absmax": torch.from_numpy(scales),
    }
    if nested:
        table = np.sort(rng.uniform(-1, 1, 256)).astype(np.float32)
        above = rng.uniform(0.01, 0.02, -(-len(scales) // 256)).astype(np.float32)
        of = rng.integers(0, 256, len(scales)).astype(np.uint8)
        scales = table[of] * np.repeat(above, 256)[: len(of)] + np.float32(0.0625)
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.0625}
        tensors |= {
            "weight.absmax": torch.from_numpy(of),
            "weight.nested_absmax": torch.from_numpy(above),
            "weight.nested_quant_map": torch.from_numpy(table),
        }
    text = np.frombuffer(json.dumps(state).encode(), np.uint8).copy()
    tensors[f"weight.quant_state.bitsandbytes__{kind}"] = torch.from_numpy(text)
    return tensors, (values[codes] * np.repeat(scales, size)[:n]).reshape(out, n_in)


def nvfp4(rng: np.random.Generator, out: int, n_in: int) -> Made:
    """As ModelOpt writes it: the scale of the matrix multiplies."""
    codes = rng.integers(0, 16, (out, n_in)).astype(np.uint8)
    scale = torch.from_numpy(rng.uniform(1, 400, (out, n_in // 16))).to(torch.float8_e4m3fn)
    whole = np.float32(1 / (2000 * n_in**0.5))
    of = np.repeat(scale.float().numpy() * whole, 16, -1)
    tensors = {
        "weight": torch.from_numpy(codes[:, ::2] | codes[:, 1::2] << 4),
        "weight_scale": scale,
        "weight_scale_2": torch.tensor(whole),
        "input_scale": torch.tensor(1.0),
    }
    return tensors, (MXFP4[codes] / 2).astype(np.float32) * of


def mxfp4(rng: np.random.Generator, experts: int, out: int, n_in: int) -> Made:
    """The matrix is [experts, out, in]."""
    codes = rng.integers(0, 16, (experts, out, n_in // 32, 32)).astype(np.uint8)
    scales = rng.integers(121, 125, (experts, out, n_in // 32)).astype(np.uint8)
    values = MXFP4[codes] / 2 * 2.0 ** (scales[..., None].astype(np.float64) - 127)
    tensors = {
        "_blocks": torch.from_numpy(codes[..., ::2] | codes[..., 1::2] << 4),
        "_scales": torch.from_numpy(scales),
    }
    return tensors, values.reshape(experts, out, n_in).astype(np.float32)


def shapes() -> dict[str, tuple[int, int]]:
    """The matrices within layers of a small llama, by their names without an end."""
    kinds = {
        "attn_q": (N_EMBD, N_EMBD), "attn_k": (N_EMBD // 2, N_EMBD), "attn_v": (N_EMBD // 2, N_EMBD),
        "attn_output": (N_EMBD, N_EMBD), "ffn_gate": (N_FF, N_EMBD), "ffn_up": (N_FF, N_EMBD),
        "ffn_down": (N_EMBD, N_FF),
    }  # fmt: skip
    return {
        f"model.layers.{layer}.{_HUGGING_FACE[kind]}.": shape
        for layer in range(N_LAYERS)
        for kind, shape in kinds.items()
    }


def ours(stem: str) -> str:
    """GGUF's name of such a matrix."""
    _, _, layer, rest = stem.split(".", 3)
    kind = next(kind for kind, theirs in _HUGGING_FACE.items() if rest == f"{theirs}.")
    return f"blk.{layer}.{kind}.weight"


def write_quantised(
    path: Path, config: Mapping[str, Any], make: Callable[..., Made], shards: int = 1, **how: Any
) -> dict[str, Floats]:
    """A small llama with its layers' matrices made by one of the functions above.

    Returns:
        What they stand for, by their names without an end; ``path / "floats"`` is the model with these.
    """
    rng = np.random.default_rng(0)
    plain = {"model.embed_tokens.weight": rng.standard_normal((N_VOCAB, N_EMBD), np.float32)}
    norms = ["model.norm"] + [
        f"model.layers.{layer}.{_HUGGING_FACE[kind]}"
        for layer in range(N_LAYERS)
        for kind in ("attn_norm", "ffn_norm")
    ]
    plain |= {f"{name}.weight": rng.uniform(0.5, 1.5, N_EMBD).astype(np.float32) for name in norms}
    tensors = {name: torch.from_numpy(values) for name, values in plain.items()}
    floats, whole = dict(tensors), {}
    for stem, shape in shapes().items():
        made, whole[stem] = make(rng, *shape, **how)
        tensors |= {stem + end: tensor for end, tensor in made.items()}
        floats[f"{stem}weight"] = torch.from_numpy(np.ascontiguousarray(whole[stem]))
    path.mkdir()
    write_directory(path / "floats", model_json(**CONFIG), floats)
    write_directory(path, model_json(**CONFIG, quantization_config=dict(config)), tensors, shards)
    return whole
