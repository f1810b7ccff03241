"""The selective scan of a state space (Gu and Dao 2023, arXiv:2312.00752), on torch tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

CHUNK = 32  # tokens at once; a chunk's working memory is CHUNK times the state's


def selective_scan(
    u: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    state: torch.Tensor,
    keep: Sequence[int] = (),
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """h(t) = exp(dt(t) a) h(t - 1) + dt(t) u(t) b(t), and y(t) = c(t) . h(t).

    Within a chunk pairs of steps are composed, then pairs of pairs, and so on; every factor lies in
    [0, 1], as dt is positive and a is not, so nothing overflows.

    Args:
        u: inputs, float32 [T, D].
        dt: time steps, [T, D].
        a: [D, N].
        b: [T, N].
        c: [T, N].
        state: h before the first token, [D, N].
        keep: tokens after which the state is returned, ascending.

    Returns:
        y [T, D], and the states [D, N] after the tokens in ``keep``.
    """
    outputs, kept = [], []
    wanted = list(keep)
    for start in range(0, len(u), CHUNK):
        end = min(start + CHUNK, len(u))
        step = dt[start:end, :, None]
        decay = torch.exp(step * a)
        h = step * u[start:end, :, None] * b[start:end, None, :]
        h[0] += decay[0] * state
        reach = 1
        while reach < end - start:
            h = torch.cat((h[:reach], h[reach:] + decay[reach:] * h[:-reach]))
            decay = torch.cat((decay[:reach], decay[reach:] * decay[:-reach]))
            reach *= 2
        outputs.append(torch.einsum("tdn,tn->td", h, c[start:end]))
        state = h[-1]
        while wanted and wanted[0] < end:
            kept.append(h[wanted.pop(0) - start].clone())
    return torch.cat(outputs), kept
