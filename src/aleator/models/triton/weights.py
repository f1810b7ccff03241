"""The matrices of a Triton decoder's layers, as they are stored."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

from aleator.models.files.tensor_types import SCALED_TYPES, StoredTensor
from aleator.models.kernels.planes import Planes, planes
from aleator.models.layers.layer import LayerWeights
from aleator.models.layers.layer_source import Matrix, matrix_of
from aleator.models.layers.linear import Linear
from aleator.models.triton.ops import TritonOps
from aleator.models.triton.stacks import TritonEmbedding, TritonLinear


class TritonWeights(LayerWeights):
    """The tensors of one layer, matrices as they are stored."""

    ops = TritonOps()

    def _planes(self, matrix: Matrix) -> Planes:
        _, stored, bias = matrix
        n_out, n_in = stored.shape
        if stored.type in SCALED_TYPES:
            stored = StoredTensor.of(stored.floats())
        # The file's bytes are read-only, and nothing writes to them
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            data = torch.from_numpy(stored.data)
        added = None if bias is None else torch.from_numpy(bias).to(self.device)
        return planes(data, stored.type, n_out, n_in, added, self.device)

    def embedding(self, name: str, shape: tuple[int, int]) -> TritonEmbedding:
        return TritonEmbedding(self._planes(matrix_of(self.weights, self.prefix + name, *shape)))

    def product(self, matrices: Sequence[Matrix]) -> Linear:
        stored, order = matrices[0].stored.order, None
        if stored is not None:
            order = torch.tensor(stored, dtype=torch.int64, device=self.device)
        return TritonLinear([self._planes(each) for each in matrices], order)
