"""What layers compute with in Triton: the bits of docs/numerics.md, part 2, on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from aleator.cache.pools.recurrent_batch import RecurrentBatch
from aleator.models.kernels import attention, norms, product, recurrent, rotation, routing
from aleator.models.kernels.planes import Planes, planes, stack
from aleator.models.layers.expert_tensors import expert_tensors, stacked
from aleator.models.layers.layer import LayerWeights
from aleator.models.layers.linear import Embedding, Linear
from aleator.models.layers.norms import Norm
from aleator.models.layers.ops import Chosen, TorchOps
from aleator.models.layers.passes import Pass
from aleator.models.layers.rotary import Rotary

if TYPE_CHECKING:
    from aleator.models.experts import ExpertsConfig
    from aleator.models.files.tensor_types import StoredTensor

# filled in when the kernels are there
