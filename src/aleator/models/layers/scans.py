"""What layers that keep a state compute over the tokens of a micro-batch, run by run, in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from aleator.cache.pools.recurrent_rows import RecurrentBatch
from aleator.cache.storage.tensors import as_tensor
from aleator.models.layers.norms import Norm, as_it_is


class Scanned(NamedTuple):
    """Inputs of a selective scan; each of D channels has a state of N numbers."""

    u: torch.Tensor  # inputs, float32 [T, D]
    steps: torch.Tensor  # [T, D], or [T, heads] with one decay per head
    both: torch.Tensor  # b and c, [T, 2, N], or [T, 2, groups * N] with heads
    gate: torch.Tensor  # [T, D]
    norm: Norm = as_it_is  # of b and c, before the scan


class Deltas(NamedTuple):
    """Inputs of a delta rule."""

    # Queries and keys, float32 [T, 2 * key heads * D], side by side; they become of unit length.
    qk: torch.Tensor
    v: torch.Tensor  # values [T, H, Dv]
    beta: torch.Tensor  # [T, H]
    decay: torch.Tensor  # [T, H], or [T, H * D] with a decay for each channel


def convolve(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    states: RecurrentBatch,
    layer: int,
    activated: bool,
) -> torch.Tensor:
    """Each channel's latest values, weighted, [T, channels]; the values are kept for later tokens.

    x is float32 [T, channels], weight [channels, width], oldest first, bias [channels]; ``activated``: SiLU
    follows.
    """
    kept, width = as_tensor(states.conv[layer]), weight.shape[1]
    out = torch.empty_like(x)
    for run in states.runs:
        tokens = torch.tensor(run.tokens, device=x.device)
        fresh = run.source < 0
        before = x.new_zeros(width - 1, x.shape[1]) if fresh else kept[run.source].T
        values = torch.cat((before, x.index_select(0, tokens)))
        t = len(run.tokens)
        sums = sum(values[k : k + t] * weight[:, k] for k in range(width))
        out[tokens] = sums if bias is None else sums + bias
        for index, row in run.stores:
            kept[row] = values[index + 1 : index + width].T
    return F.silu(out) if activated else out


def scan(
    u: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    states: RecurrentBatch,
    layer: int,
) -> torch.Tensor:
    """The selective scan of all runs.

    Args:
        u: inputs, float32 [T, D].
        dt: time steps [T, D], or [T, heads] with one decay per head.
        a: [D, N], or [heads].
        b: [T, N], or [T, groups * N] with heads.
        c: as ``b``.
        states: the states [rows, D, N], which are kept for later tokens.
        layer: index of the layer in the states.

    Returns:
        y [T, D].
    """
    kept, out = as_tensor(states.ssm[layer]), torch.empty_like(u)
    channels, n = kept.shape[1:]
    if a.dim() == 1:
        dim = channels // len(a)
        dt = dt.repeat_interleave(dim, dim=1)
        a = a.repeat_interleave(dim)[:, None].expand(-1, n)
    groups = b.shape[1] // n
    wide = channels // groups
    for run in states.runs:
        at = torch.tensor(run.tokens, device=u.device)
        state = torch.zeros_like(kept[0]) if run.source < 0 else kept[run.source].clone()
        for group in range(groups):  # heads of one group have the same B and C
            part = slice(group * wide, (group + 1) * wide)
            shared = slice(group * n, (group + 1) * n)
            y, after = selective_scan(
                u[at, part],
                dt[at, part],
                a[part],
                b[at, shared],
                c[at, shared],
                state[part],
                [index for index, _ in run.stores],
            )
            out[at, part] = y
            for (_, row), new in zip(run.stores, after, strict=True):
                kept[row, part] = new
    return out


def delta_scan(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    decay: torch.Tensor,
    states: RecurrentBatch,
    layer: int,
) -> torch.Tensor:
    """The delta rule of all runs, see :func:`delta_rule`; the states are kept for later tokens."""
    kept, out = as_tensor(states.ssm[layer]), torch.empty_like(v)
    shape = (v.shape[1], v.shape[2], k.shape[2])
    for run in states.runs:
        at = torch.tensor(run.tokens, device=v.device)
        state = torch.zeros_like(kept[0]) if run.source < 0 else kept[run.source]
        out[at], after = delta_rule(
            q[at],
            k[at],
            v[at],
            beta[at],
            decay[at],
            state.reshape(shape),
            [index for index, _ in run.stores],
        )
        for (_, row), new in zip(run.stores, after, strict=True):
            kept[row] = new.reshape(kept[row].shape)
    return out


def delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    decay: torch.Tensor,
    state: torch.Tensor,
    keep: Sequence[int] = (),
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """S(t) = decay S(t - 1) + beta (v - decay S(t - 1) k) k^T, and y = S(t) q, token after token.

    Args:
        q: queries, float32 [T, H, D].
        k: keys, [T, H, D].
        v: values, [T, H, Dv].
        beta: [T, H].
        decay: [T, H, 1], or [T, H, D] with a decay for each channel.
        state: S before the first token, [H, Dv, D].
        keep: tokens after which the state is returned, ascending.

    Returns:
        y [T, H, Dv], and the states [H, Dv, D] after the tokens in ``keep``.
    """
    out, kept, wanted = torch.empty_like(v), [], set(keep)
    for t in range(len(q)):
        state = state * decay[t, :, None]
        known = (state * k[t, :, None]).sum(-1)
        state = state + ((v[t] - known) * beta[t, :, None])[..., None] * k[t, :, None]
        out[t] = (state * q[t, :, None]).sum(-1)
        if t in wanted:
            kept.append(state)
    return out, kept


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

    Within a chunk pairs of steps are composed, then pairs of pairs, and so on.  Every factor is in [0, 1], as
    dt is positive and a is not, so nothing overflows.

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
