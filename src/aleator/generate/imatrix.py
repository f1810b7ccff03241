"""Importance matrix: sums of squares of the inputs of a model's matrices while it processes a text.

They are collected where products begin, by the address of a matrix's bytes, so layers need no names.

The sums of a tensor's columns differ from llama-imatrix's by a part of their total.  Of SmolLM2 and 6144 tokens
that is 8e-6 in F32 with an F32 cache.  In Q4_1 it is 0.005, as both round activations, and both are 0.016 off
F32's; where most of a column's sum is a few large inputs, it alone can differ by more than the mean of all.

All batches count; llama-imatrix skips those below 16 tokens.  Of three chunks of 512 that it reads together it
takes 170 tokens each at once, so that the 6 that are left do not count.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence

import numpy as np

import aleator._native as _native
from aleator.core.arrays import Doubles, Int64s
from aleator.generate.context import Batch, Context
from aleator.models.delta_net import JOINT
from aleator.models.weights import Weights

Sums = tuple[Doubles, Int64s]
_EXPERT = re.compile(r"(blk\.\d+\.ffn_(?:gate|up|down))\.(\d+)\.weight")
_SHARED_GATE = "ffn_gate_inp_shexp.weight"
_OF_EXPERTS = ("ffn_gate_exps", "ffn_up_exps")
_WITH_THE_INPUT_OF = {
    "ssm_beta": ("ssm_ba",),
    "attn_q": ("attn_qkv",),
    "ffn_gate_up_exps": _OF_EXPERTS,
}
"""Of matrices by whose bytes inputs are found: others with these inputs, which files have in their place."""


class InputSums:
    """Sums of squares of the inputs of every matrix of a model's layers."""

    def __init__(self, weights: Weights) -> None:
        self._squares = _native.InputSquares()
        self._sums: dict[str, Sums] = {}
        source = weights if weights.gguf is None else weights.gguf
        names = weights.names() if weights.gguf is None else list(weights.gguf.tensors)
        experts = 0 if weights.config.experts is None else weights.config.experts.n_experts
        for name in names:
            stored = source.stored(name)
            if not name.startswith("blk.") or len(stored.shape) < 2:
                continue
            expert = _EXPERT.fullmatch(name)
            matrices = (
                int(np.prod(stored.shape[:-2], dtype=np.int64)) if expert is None else experts
            )
            key = name if expert is None else f"{expert[1]}_exps.weight"
            if key not in self._sums:
                sums = np.zeros((matrices, stored.shape[-1])), np.zeros(matrices, np.int64)
                self._sums[key] = sums
            one = slice(None) if expert is None else slice(int(expert[2]), int(expert[2]) + 1)
            squares, rows = self._sums[key]
            self._squares.watch(stored.data, squares[one], rows[one])
        if weights.gguf is None:
            self._name_as_files_do(weights)
        for part, whole in JOINT.items():
            for name in weights.names():
                joint = self._sums.get(name.removesuffix(part) + whole)
                if name.endswith(part) and joint is not None:
                    self._squares.watch(weights.stored(name).data, *joint)
        for name in weights.gates:
            query = name.replace("attn_gate", "attn_q")
            self._sums[name] = self._sums[query]
            self._squares.watch(weights.stored(query).data, *self._sums[query])
        for name in names:
            if name.endswith(_SHARED_GATE):
                self._sums[name] = self._sums[name.replace(_SHARED_GATE, "ffn_gate_inp.weight")]

    def _name_as_files_do(self, weights: Weights) -> None:
        """Give the sums of a directory the names, too, that matrices have in the file that it becomes."""
        files = weights.architecture.hugging_face
        known = {*_OF_EXPERTS, *(() if files is None else files.layer.values())}
        for name, sums in list(self._sums.items()):
            at, _, part = name.removesuffix(".weight").rpartition(".")
            for whole in _WITH_THE_INPUT_OF.get(part, ()):
                if whole in known:
                    self._sums[f"{at}.{whole}.weight"] = sums

    def read(
        self, context: Context, tokens: Sequence[int], n_ctx: int, n_chunks: int, bos: int | None
    ) -> Generator[int]:
        """Process a text chunk by chunk, each with an empty cache; yield the number processed after each.

        ``bos`` replaces the first token of each chunk; None: nothing does.
        """
        self._squares.start()
        try:
            for chunk in range(n_chunks):
                part = list(tokens[chunk * n_ctx : (chunk + 1) * n_ctx])
                if bos is not None:
                    part[0] = bos
                context.cache.clear()
                context.decode(Batch.one(part, 0))
                yield chunk + 1
        finally:
            self._squares.stop()

    @property
    def nbytes(self) -> int:
        """Bytes that all sums and numbers take in a file, in float32."""
        return 4 * sum(total.size + rows.size for total, rows in self._sums.values())

    def found(self) -> dict[str, Sums]:
        """By matrix name, sums [matrices, columns] and numbers of inputs [matrices], where there were any."""
        return {name: sums for name, sums in self._sums.items() if sums[1].any()}
