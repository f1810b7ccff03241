"""mamba: a selective state space in every layer, no attention (Gu and Dao 2023, arXiv:2312.00752)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from aleator.cache.recurrent import RecurrentShape
from aleator.cache.recurrent_step import RecurrentBatch
from aleator.core.errors import UnsupportedModel
from aleator.models.decoder import Architecture, Decoder, Pass, feed_forward
from aleator.models.layers.linear import linear
from aleator.models.layers.parameters import parameter
from aleator.models.layers.rms_norm import RMSNorm
from aleator.models.layers.selective_scan import selective_scan

if TYPE_CHECKING:
    from aleator.models.weights import Weights


class MambaLayer:
    """One layer: projection, convolution over time, selective scan, gate, projection; added to its input.

    Where the model has them, a feed-forward part follows.
    """

    def __init__(self, decoder: Decoder, weights: Weights, layer: int) -> None:
        config, device, dtype = decoder.config, decoder.device, decoder.dtype
        ssm = config.ssm
        if ssm is None:
            raise UnsupportedModel(f"{weights.path}: a layer of a model without a state space")
        self.layer, self.ssm = len(decoder.recurrent), ssm  # counted apart: the states' layer
        inner, rank, state = ssm.d_inner, ssm.dt_rank, ssm.d_state
        at = f"blk.{layer}."

        def values(name: str, *shape: int) -> torch.Tensor:
            """Parameters of the convolution and the scan, which are computed in float32."""
            return parameter(weights, at + name, shape, device, torch.float32)

        self.norm = RMSNorm(
            parameter(weights, at + "attn_norm.weight", (config.n_embd,), device, dtype),
            config.rms_eps,
        )
        self.project = linear(weights, [at + "ssm_in"], config.n_embd, [2 * inner], device, dtype)
        self.conv_weight = values("ssm_conv1d.weight", inner, ssm.d_conv)
        self.conv_bias = (
            values("ssm_conv1d.bias", inner)
            if at + "ssm_conv1d.bias" in weights
            else torch.zeros(inner, device=device)
        )
        self.select = linear(weights, [at + "ssm_x"], inner, [rank + 2 * state], device, dtype)
        self.time_step = linear(weights, [at + "ssm_dt"], rank, [inner], device, dtype, bias=True)
        self.a = values("ssm_a", inner, state)
        self.d = values("ssm_d", inner)
        self.output = linear(weights, [at + "ssm_out"], inner, [config.n_embd], device, dtype)
        self.norms: list[RMSNorm] | None = None
        if decoder.architecture.state_norm:
            self.norms = [
                RMSNorm(values(f"ssm_{name}_norm.weight", n), config.rms_eps)
                for name, n in (("dt", rank), ("b", state), ("c", state))
            ]
        self.ffn: Any = None
        if config.n_ff:
            ffn_norm = parameter(weights, at + "ffn_norm.weight", (config.n_embd,), device, dtype)
            self.ffn_norm = RMSNorm(ffn_norm, config.rms_eps)
            self.ffn = feed_forward(decoder, weights, layer)

    @property
    def shape(self) -> RecurrentShape:
        """What the layer keeps of a sequence."""
        return RecurrentShape(self.ssm.d_inner, self.ssm.d_conv - 1, self.ssm.d_state)

    def __call__(self, x: torch.Tensor, batch: Pass, rows: torch.Tensor | None) -> torch.Tensor:
        """X [T, n_embd] -> [T, n_embd], or only ``rows`` of it; leaves the states of all T tokens."""
        states = batch.states
        inner, n = self.ssm.d_inner, self.ssm.d_state
        projected = self.project(self.norm(x))
        u, gate = projected[:, :inner].float(), projected[:, inner:]
        u = self._convolve(u, states)
        selected = self.select(u.to(x)).float()
        parts = torch.split(selected, [self.ssm.dt_rank, n, n], dim=1)
        eps = self.ssm.norm_eps
        if eps is not None:
            parts = tuple(F.rms_norm(part, part.shape[1:], None, eps) for part in parts)
        if self.norms is not None:
            parts = tuple(norm(part) for norm, part in zip(self.norms, parts, strict=True))
        step, b, c = parts
        y = self._scan(u, F.softplus(self.time_step(step.to(x)).float()), b, c, states)
        if rows is not None:
            x, y, u, gate = (each.index_select(0, rows) for each in (x, y, u, gate))
        y = (y + self.d * u) * F.silu(gate.float())
        x = x + self.output(y.to(x))
        return x if self.ffn is None else x + self.ffn(self.ffn_norm(x))

    def _convolve(self, u: torch.Tensor, states: RecurrentBatch) -> torch.Tensor:
        """Each channel's latest values, weighted: [T, inner]; keeps them for the tokens to come."""
        kept, width, out = states.conv[self.layer], self.ssm.d_conv, torch.empty_like(u)
        for run in states.runs:
            tokens = torch.tensor(run.tokens, device=u.device)
            fresh = run.source < 0
            before = u.new_zeros(width - 1, u.shape[1]) if fresh else kept[run.source].T
            values = torch.cat((before, u.index_select(0, tokens)))
            t = len(run.tokens)
            sums = sum(values[k : k + t] * self.conv_weight[:, k] for k in range(width))
            out[tokens] = F.silu(sums + self.conv_bias)
            for index, row in run.stores:
                kept[row] = values[index + 1 : index + width].T
        return out

    def _scan(
        self,
        u: torch.Tensor,
        dt: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        states: RecurrentBatch,
    ) -> torch.Tensor:
        kept, out = states.ssm[self.layer], torch.empty_like(u)
        for run in states.runs:
            at = torch.tensor(run.tokens, device=u.device)
            state = torch.zeros_like(kept[0]) if run.source < 0 else kept[run.source]
            y, after = selective_scan(
                u[at], dt[at], self.a, b[at], c[at], state, [index for index, _ in run.stores]
            )
            out[at] = y
            for (_, row), new in zip(run.stores, after, strict=True):
                kept[row] = new
        return out


ARCHITECTURE = Architecture("mamba", layer=MambaLayer)
