"""The operations of a decoder's layers in PyTorch.

This is the readable form; its low bits are PyTorch's.  Forms with the bits of docs/numerics.md are other
classes with the same methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from aleator.models.layers import scans
from aleator.models.layers.attention_ops import AttentionOps
from aleator.models.layers.norms import Norm, as_it_is, norm
from aleator.models.layers.operands import (
    Activations,
    Attending,
    Chosen,
    Factors,
    Mixed,
    Products,
    Residual,
    Routed,
    Router,
    Sum,
)
from aleator.models.layers.recurrent_parts import HeadSpace
from aleator.models.layers.routing import route
from aleator.models.layers.scans import Deltas, Scanned

if TYPE_CHECKING:
    from aleator.models.config import ExpertsConfig
    from aleator.models.layers.linear import Linear
    from aleator.models.layers.parts import FeedForward, Mixture
    from aleator.models.layers.passes import Pass
    from aleator.models.layers.recurrent_parts import DeltaNet, Stateful, StateSpace

    Spaces = StateSpace[Linear, Tensor] | HeadSpace[Linear, Tensor]

CLAMPED_LIMIT = 7.0
CLAMPED_SLOPE = 1.702


class TorchOps(AttentionOps):
    """The operations; T is the number of tokens."""

    def product(
        self,
        matrix: Linear,
        x: Tensor,
        norm: Norm = as_it_is,
        gate: str = "",
        gated: bool = False,
        residual: Residual | None = None,
    ) -> Tensor:
        """``x`` [T, n_in], normalised, times a matrix, activated, and added; [T, n_out], half as wide if gated.

        ``gate``: an activation, see :meth:`activate`; ``gated``: applied to the first half, times the second.
        """
        y = matrix(norm(x).to(x if residual is None else residual.x))
        if gate:
            y = self.activated(y, gate, gated)
        return y if residual is None else self.add(y, residual)

    def clamped(self, matrix: Linear, x: Tensor, norm: Norm, limit: float) -> Tensor:
        """The :meth:`product`, whose numbers become those from ``-limit`` to ``limit`` that are nearest."""
        return self.product(matrix, x, norm).clamp(-limit, limit)

    def sum_product(
        self,
        y: Activations,
        residual: Residual,
        matrix: Linear,
        norm: Norm,
        gate: str = "",
        gated: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """What ``y`` makes with ``residual``, see :meth:`add`, and the :meth:`product` of that."""
        x = self.add(y, residual)
        return x, self.product(matrix, x, norm, gate, gated)

    def taken(self, x: Activations, matrix: Linear, norm: Norm) -> tuple[Tensor, Tensor]:
        """A layer's input, made if it is not yet, and the :meth:`product` of it."""
        if isinstance(x, Sum):
            return self.sum_product(*x, matrix, norm)
        return x, self.product(matrix, x, norm)

    def left(self, y: Activations, residual: Residual) -> Activations:
        """What ``y`` makes with ``residual`` at the end of a layer, made or not."""
        return self.add(y, residual)

    def summed(self, x: Activations) -> Tensor:
        """A layer's input, made if it is not yet."""
        return self.add(*x) if isinstance(x, Sum) else x

    def products(self, matrices: Sequence[Linear]) -> Products:
        """A function that computes the products of one input with some matrices, which it takes over."""

        def made(x: Tensor, norm: Norm) -> list[Tensor]:
            x = norm(x)
            return [matrix(x) for matrix in matrices]

        return made

    def each(self, listed: Sequence[Factors]) -> list[Tensor]:
        """The :meth:`product` of each."""
        return [self.product(*of) for of in listed]

    def activated(self, y: Tensor, gate: str, gated: bool) -> Tensor:
        """f(y) [..., n], or f(gate) * up [..., n / 2] from gate and up side by side."""
        if not gated:
            return self.activate(gate, y)
        half = y.shape[-1] // 2
        return self.activate(gate, y[..., :half], y[..., half:])

    def both(self, first: Factors, second: Factors, residual: Residual) -> Activations:
        """``residual`` with the first :meth:`product`, and that sum with the second, which no norm meets."""
        x = self.product(*first, residual=residual)
        return self.product(*second, residual=Residual(x, residual.scale))

    def add(self, y: Activations, residual: Residual) -> Tensor:
        """The sum that :class:`Residual` says, of the product ``y``."""
        x, scale, norm, whole, own, first = residual
        if first is not None:
            x = self.add(first, Residual(x, scale))
        y = norm(self.summed(y))
        y = own(x) + (y if scale == 1.0 else y * scale)
        return y if whole is None else y * whole.to(y)

    def norm(self, kind: str, weight: Tensor | None, eps: float) -> Norm:
        """A norm, see :func:`~aleator.models.layers.norms.norm`."""
        return norm(kind, weight, eps)

    def activate(self, kind: str, gate: Tensor, up: Tensor | None = None) -> Tensor:
        """``f(gate) * up``, or f(gate), by the names of :func:`~aleator.models.layers.parts.gate_of`.

        "gelu_rounded" is GELU as llama.cpp computes it, from a table of float16 values (ggml_vec_gelu_f32):
        arguments and results are rounded to float16, except beyond -10 and 10, where it is 0 or the identity.
        "silu_clamped" is gpt-oss's, which clamps gate and up, has a steeper gate and adds 1 to up
        (https://openai.com/index/introducing-gpt-oss).
        """
        if kind == "silu_clamped" and up is not None:
            gate, up = gate.clamp(max=CLAMPED_LIMIT), up.clamp(-CLAMPED_LIMIT, CLAMPED_LIMIT)
            return gate * torch.sigmoid(CLAMPED_SLOPE * gate) * (up + 1.0)
        if kind == "silu":
            y = F.silu(gate)
        elif kind == "gelu_rounded":
            inside = F.gelu(gate.half().float(), approximate="tanh").half().to(gate)
            y = torch.where(gate.abs() < 10.0, inside, gate.clamp_min(0.0))
        elif kind == "relu_squared":
            y = F.relu(gate).square()
        else:
            y = F.gelu(gate, approximate="none" if kind == "gelu_exact" else "tanh")
        return y if up is None else y.mul_(up)

    def gate(self, gate: Tensor, kind: str = "sigmoid") -> Norm:
        """A function that multiplies x [T, heads * n] by f(``gate``) [T, heads, n].

        ``kind``: "sigmoid", or that of :meth:`activate`.
        """
        if kind == "sigmoid":
            return lambda x: x * torch.sigmoid(gate).reshape(x.shape)
        return lambda x: self.activate(kind, gate.reshape(x.shape), x)

    def soften(self, x: Tensor, cap: float) -> Tensor:
        """``cap * tanh(x / cap)``, in place."""
        return x.div_(cap).tanh_().mul_(cap)

    def weighed(self, x: Tensor, vector: Tensor) -> Tensor:
        """The sigmoid of each token's product with a vector, [T, n] -> [T]."""
        return torch.sigmoid(x.float() @ vector).to(x)

    def chosen(self, matrices: Sequence[Linear]) -> Chosen:
        """A product of every token with the matrices chosen for it.

        Each call reads the choice from the device, so no graph can capture it.
        """

        def product(x: Tensor, numbers: Tensor) -> Tensor:
            made: Tensor | None = None
            for number in sorted(set(numbers.flatten().tolist())):
                token, place = (numbers == number).nonzero(as_tuple=True)
                given = matrices[number](x[token, place])
                if made is None:
                    made = given.new_empty(*numbers.shape, given.shape[1])
                made[token, place] = given
            return x if made is None else made

        return product

    def router(self, parts: Mixture[Linear, Tensor]) -> Router:
        """A router that chooses the experts of a mixture, see :func:`route`, and weighs the shared one.

        ``parts.scales`` [experts] multiply the weights.
        """

        def routed(x: Tensor, norm: Norm) -> Routed:
            x = norm(x)
            chosen, weights = self.route(
                parts.router(x), parts.config, parts.choice_bias, parts.scales
            )
            vector = parts.shared_router
            return Routed(chosen, weights, None if vector is None else self.weighed(x, vector))

        return routed

    def route(
        self,
        logits: Tensor,
        config: ExpertsConfig,
        choice_bias: Tensor | None,
        scales: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Experts and their weights, see :func:`~aleator.models.layers.routing.route`.

        ``scales`` [experts] multiply the weights.
        """
        chosen, weights = route(logits.float(), config, choice_bias)
        return chosen, weights if scales is None else weights * scales[chosen]

    def dense_and_route(
        self,
        y: Activations,
        residual: Residual,
        parts: Mixture[Linear, Tensor],
        dense: FeedForward[Linear],
        norms: tuple[Norm, Norm],
        router: Router,
    ) -> tuple[Tensor, Tensor, Routed]:
        """What ``y`` makes with ``residual``, what goes through ``dense.down`` of that, and its experts.

        ``norms``: of what the dense part and the router take.
        """
        x, inner = self.sum_product(y, residual, dense.gate_up, norms[0], dense.gate, dense.gated)
        return x, inner, router(x, norms[1])

    def mixture(self, parts: Mixture[Linear, Tensor], gate_up: Chosen, down: Chosen) -> Mixed:
        """A function that computes and adds a mixture's experts; ``gate_up`` and ``down`` have all matrices."""
        shared = parts.shared

        def mixed(
            x: Tensor, norm: Norm, routed: Routed, residual: Residual, last: Factors | None
        ) -> Activations:
            if last is not None:
                residual = residual._replace(x=self.product(*last))
            x, chosen, weights = norm(x), routed.chosen, routed.weights.to(x)
            taken, of_shared, own = x[:, None].expand(-1, chosen.shape[1], -1), None, None
            if parts.config.weighs_input:
                taken = taken * weights[:, :, None]
            else:
                own = weights
            both = gate_up(taken, chosen)
            given = down(self.activated(both, parts.gate, parts.gated), chosen)
            if shared is not None:
                inner = self.product(shared.gate_up, x, gate=shared.gate, gated=shared.gated)
                of_shared = self.product(shared.down, inner)
            return self.left(self.combine(given, own, of_shared, routed.shared), residual)

        return mixed

    def combine(
        self,
        given: Tensor,
        weights: Tensor | None,
        shared: Tensor | None,
        shared_weight: Tensor | None,
    ) -> Tensor:
        """The sum of the experts' outputs, [T, n_used, n] -> [T, n].

        ``weights`` [T, n_used] and ``shared_weight`` [T] multiply the outputs of the chosen experts and of the
        shared one [T, n]; None: 1.
        """
        total = (given if weights is None else given * weights[:, :, None]).sum(1)
        if shared is None:
            return total
        return total + (shared if shared_weight is None else shared_weight[:, None] * shared)

    def keep_and_each(
        self,
        k: Sequence[Tensor],
        v: Sequence[Tensor],
        how: Attending,
        batch: Pass,
        listed: Sequence[Factors],
    ) -> list[Tensor]:
        """Do as :meth:`keep`; the results of :meth:`each`."""
        self.keep(k, v, how, batch)
        return self.each(listed)

    def convolve(
        self,
        x: Tensor,
        parts: Stateful[Linear, Tensor],
        batch: Pass,
        activated: bool = True,
        gates: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """A convolution over time, see :func:`~aleator.models.layers.scans.convolve`.

        ``gates`` multiply x [T, n] and the result; they are parts of one tensor with x.
        """
        of = parts.conv_weight, parts.conv_bias
        x = x if gates is None else gates[0] * x
        y = scans.convolve(x, *of, batch.states, parts.index, activated)
        return y if gates is None else gates[1] * y

    def finish_and_convolve(
        self,
        heads: tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]],
        how: Attending,
        batch: Pass,
        x: Tensor,
        parts: Stateful[Linear, Tensor],
    ) -> tuple[Tensor, Tensor]:
        """The results of :meth:`finish` and of :meth:`convolve`."""
        return self.finish(*heads, how, batch), self.convolve(x, parts, batch)

    def convolve_and_each(
        self, x: Tensor, parts: Stateful[Linear, Tensor], batch: Pass, listed: Sequence[Factors]
    ) -> tuple[Tensor, list[Tensor]]:
        """The results of :meth:`convolve` and of :meth:`each`."""
        return self.convolve(x, parts, batch), self.each(listed)

    def selective(
        self,
        projected: Tensor,
        parts: StateSpace[Linear, Tensor],
        batch: Pass,
        norms: tuple[Norm, Norm],
    ) -> Tensor:
        """Convolution, products and scan of a state space.

        Args:
            projected: what is convolved, and the gate, [T, 2 D].
            parts: its tensors.
            batch: what layers share.
            norms: of what time steps are made of, and of B and C.

        Returns:
            [T, D].
        """
        ssm = parts.ssm
        u, gate = projected[:, : ssm.d_inner].float(), projected[:, ssm.d_inner :]
        u = self.convolve(u, parts, batch)
        selected = self.product(parts.select, u.to(projected))
        steps = self.product(parts.time_step, selected[:, : ssm.dt_rank], norms[0])
        both = selected[:, ssm.dt_rank :].float().view(len(u), 2, ssm.d_state)
        return self.scan(Scanned(u, steps, both, gate, norms[1]), parts, batch)

    def scan(self, of: Scanned, parts: Spaces, batch: Pass) -> Tensor:
        """The selective scan: ``(y + d u) * silu(gate)`` [T, D].

        Time steps are softplus(steps); with one decay per head, max(softplus(steps + bias), ``least_step``).
        See :func:`~aleator.models.layers.scans.scan`.
        """
        u, steps, both, gate, norm = of
        b, c = norm(both).unbind(1)
        steps, d = steps.float(), parts.d
        if isinstance(parts, HeadSpace):
            dt = F.softplus(steps + parts.time_bias).clamp_min(parts.ssm.least_step)
            d = d.repeat_interleave(u.shape[1] // len(d))
        else:
            dt = F.softplus(steps)
        y = scans.scan(u, dt, parts.a, b, c, batch.states, parts.index)
        return (y + d * u) * F.silu(gate.float())

    def attend_and_scan(
        self, q: Tensor, how: Attending, batch: Pass, of: Scanned, parts: Spaces
    ) -> tuple[Tensor, Tensor]:
        """The results of :meth:`attend` and of :meth:`scan`."""
        return self.attend(q, how, batch), self.scan(of, parts, batch)

    def delta_scan(self, of: Deltas, parts: DeltaNet[Linear, Tensor], batch: Pass) -> Tensor:
        """The delta rule, see :func:`~aleator.models.layers.scans.delta_scan`, [T, H, Dv].

        Updates are multiplied by the sigmoid of beta, the state by e^(a softplus(decay + bias)).
        """
        (qk, v, beta, decay), net = of, parts.net
        qk = self.unit_length(qk, net.head_dim, net.unit_eps, net.n_key_heads)
        q, k = qk.view(len(v), 2, net.n_key_heads, net.head_dim).unbind(1)
        shared = v.shape[1] // k.shape[1]
        if parts.net.tiled:
            q, k = q.repeat(1, shared, 1), k.repeat(1, shared, 1)
        else:
            q, k = q.repeat_interleave(shared, 1), k.repeat_interleave(shared, 1)
        a = parts.a.repeat_interleave(decay.shape[1] // len(parts.a))
        stays = torch.exp(F.softplus(decay + parts.time_bias) * a).view(*beta.shape, -1)
        return scans.delta_scan(q, k, v, torch.sigmoid(beta), stays, batch.states, parts.index)

    def unit_length(self, x: Tensor, size: int, eps: float, queries: int) -> Tensor:
        """Parts [T, n * size] divided by their length, the first ``queries`` parts also by sqrt(size)."""
        parts = x.view(len(x), -1, size)
        unit = parts * torch.rsqrt((parts * parts).sum(-1, keepdim=True) + eps)
        unit[:, :queries] *= size**-0.5
        return unit.flatten(1)

    def part_norm(
        self,
        size: int,
        weight: Tensor,
        eps: float,
        gate: Tensor | None = None,
        kind: str = "silu",
    ) -> Norm:
        """A norm of parts of rows [T, parts * size], times f(gate): "silu", or "sigmoid".

        ``weight``: [size], for all parts, or [parts * size].
        """

        def normed(x: Tensor) -> Tensor:
            parts = x.view(len(x), x.shape[1] // size, size)
            y = (F.rms_norm(parts, (size,), None, eps) * weight.view(-1, size)).flatten(1)
            if gate is None:
                return y
            return y * (F.silu(gate.float()) if kind == "silu" else gate.float().sigmoid())

        return normed


TORCH = TorchOps()
