"""What a decoder's operations are given and give, beside tensors: see ops.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from aleator.models.layers.norms import Norm, as_it_is
from aleator.models.layers.rotary import Rotary

if TYPE_CHECKING:
    from aleator.models.layers.linear import Linear

Chosen = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""x [T, n, n_in] and indices of matrices [T, n] -> the products [T, n, n_out]."""


class Routed(NamedTuple):
    """The experts of a mixture's tokens.

    Attributes:
        chosen: indices of experts [T, n_used], best first.
        weights: float32 [T, n_used].
        shared: weights of the shared expert, float32 [T]; None: 1, or there is none.
        work: what is to be launched to make these; None: they are made.
    """

    chosen: torch.Tensor
    weights: torch.Tensor
    shared: torch.Tensor | None
    work: Any = None


class Residual(NamedTuple):
    """A residual connection: ``(own(x + first * scale) + norm(product) * scale) * whole``."""

    x: torch.Tensor  # [T, n_out]
    scale: float = 1.0  # the last factor of the product
    norm: Norm = as_it_is  # applied before the factor
    whole: torch.Tensor | None = None  # the factor of the sum, [1], only after a norm; None: 1
    own: Norm = as_it_is  # only with a norm of the product
    first: torch.Tensor | None = None  # [T, n_out], only of a sum that is left; None: 0


class Sum(NamedTuple):
    """What a sum is made from, for the next product to make it."""

    y: Activations
    residual: Residual


class Factors(NamedTuple):
    """What a product is made from."""

    matrix: Linear
    x: torch.Tensor  # [T, n_in]
    norm: Norm = as_it_is  # of x, before the product


Activations = torch.Tensor | Sum
"""What layers pass on, [T, n_embd]."""


class Attending(NamedTuple):
    """How one layer attends, and how it prepares queries, keys and values."""

    layer: int  # index of the layer in the cells
    windowed: bool  # the cells are those of layers with a window
    norms: tuple[Norm, Norm, Norm]  # norms of queries, keys and values
    normed_keys: int  # how many first channels of the keys are normalised; 0: all
    norm_last: bool  # queries and keys are normalised after their rotation
    norm_together: bool  # the norms of queries and of keys are of a token's heads together
    rotary: Rotary | None  # rotation of queries and keys; None: none
    grows: bool  # queries grow with their position
    stores: bool  # keys and values are stored
    scale: float  # factor of the scores
    softcap: float  # scores s become softcap * tanh(s / softcap); 0: unchanged
    # ALiBi's slopes, float32 [H]; None: scores do not depend on distances
    slopes: torch.Tensor | None
    # A score of each head without a value, float32 [H]; None: there are none
    sinks: torch.Tensor | None
    # How many first channels of the keys are the values; 0: the cache has values
    values_in_keys: int


Products = Callable[[torch.Tensor, Norm], list[torch.Tensor]]
"""x [T, n_in] and its norm -> its product with each of some matrices."""
EachHead = Callable[[torch.Tensor], torch.Tensor]
"""A product of each head of x [T, H, n_in] with its own matrix, [T, H, n_out]."""
Router = Callable[[torch.Tensor, Norm], Routed]
"""x [T, n_embd] and its norm -> its experts."""
Mixed = Callable[[torch.Tensor, Norm, Routed, Residual, Factors | None], Activations]
"""x [T, n_embd], its norm and its experts -> the experts' results, added as the fourth argument says.

With the last argument they are added to this product.
"""
