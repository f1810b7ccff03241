"""Attention over cells against sums in float64: groups, masks, fused or not, and queries that see nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from aleator.models.layers.attention import attend

HEADS, KV_HEADS, DIM, DIM_V = 4, 2, 8, 6


class Cells:
    """Keys and values [n, G, D] and an additive mask [t, n], as a cache gives them."""

    def __init__(self, n: int, mask: torch.Tensor | None, causal: bool) -> None:
        generator = torch.Generator().manual_seed(n)
        self.k = torch.randn(n, KV_HEADS, DIM, generator=generator)
        self.v = torch.randn(n, KV_HEADS, DIM_V, generator=generator)
        self._mask, self.causal = mask, causal
        self.blind = mask is not None and bool((mask == -torch.inf).all(1).any())

    def read(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.k.half(), self.v

    def mask(self, layer: int) -> torch.Tensor | None:
        return self._mask


def expected(q: torch.Tensor, cells: Cells, scale: float) -> torch.Tensor:
    t, n = len(q), len(cells.k)
    mask = cells.mask(0)
    out = torch.zeros(t, HEADS, DIM_V, dtype=torch.float64)
    for i in range(t):
        sees = [
            j
            for j in range(n)
            if (mask is None or mask[i, j] == 0) and not (cells.causal and j > i)
        ]
        for head in range(HEADS) if sees else ():
            group = head // (HEADS // KV_HEADS)
            k, v = cells.k.half()[sees, group].double(), cells.v[sees, group].double()
            out[i, head] = (k @ q[i, head].double() * scale).softmax(0) @ v
    return out.flatten(1)


def some_cells(t: int, n: int) -> torch.Tensor:
    hidden = torch.rand(t, n, generator=torch.Generator().manual_seed(t)) < 0.4
    hidden[:, 0] = False
    if t > 2:
        hidden[1] = True  # sees nothing
    return torch.where(hidden, -torch.inf, 0.0)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("t", "n", "kind"),
    [(1, 5, "all"), (1, 5, "some"), (3, 7, "some"), (4, 4, "causal"), (2, 6, "all"), (3, 0, "all")],
)
def test_attention(t: int, n: int, kind: str, fused: bool) -> None:
    cells: Any = Cells(n, some_cells(t, n) if kind == "some" else None, kind == "causal")
    q = torch.randn(t, HEADS, DIM, generator=torch.Generator().manual_seed(9))
    out = attend(q, 0, cells, 0.3, fused)
    assert out.shape == (t, HEADS * DIM_V)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.double(), expected(q, cells, 0.3), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("t", [1, 3])
def test_scores_that_are_changed(t: int) -> None:
    """Softened, with something added, with sinks, and with values that are the first channels of the keys."""
    made, n = torch.Generator().manual_seed(t), 7
    cells: Any = Cells(n, some_cells(t, n), False)
    q = torch.randn(t, HEADS, DIM, generator=made)
    added, sinks = (torch.randn(*s, generator=made) for s in ((HEADS, t, n), (HEADS,)))
    out = attend(q, 0, cells, 0.3, True, 2.0, added, sinks, 5).view(t, HEADS, 5)
    for i in range(t):
        sees = cells.mask(0)[i] == 0
        for head in range(HEADS):
            k = cells.k.half()[sees, head // (HEADS // KV_HEADS)].double()
            scores = 2.0 * torch.tanh(k @ q[i, head].double() * 0.3 / 2.0)
            scores = torch.cat((scores + added[head, i, sees], sinks[head : head + 1]))
            right = scores.softmax(0)[:-1] @ k[:, :5]
            torch.testing.assert_close(out[i, head].double(), right, rtol=1e-5, atol=1e-5)


def test_one_query_is_two_plain_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's fused kernel is for more than one, where scores are not changed."""
    asked: list[int] = []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def fused(q: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        asked.append(q.shape[2])
        return kernel(q, *given, **named)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", fused)
    cells: Any = Cells(7, None, False)
    sinks = torch.zeros(HEADS)
    for t in (1, 2):
        q = torch.randn(t, HEADS, DIM)
        attend(q, 0, cells, 0.3, True)
        attend(q, 0, cells, 0.3, False)
        attend(q, 0, cells, 0.3, True, 2.0)
        attend(q, 0, cells, 0.3, True, 0.0, torch.zeros(HEADS, t, 7))
        attend(q, 0, cells, 0.3, True, sinks=sinks)
    assert asked == [2]
