"""The operations of layers in Triton, with the bits of docs/numerics.md, part 2, on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from aleator.cache.storage.tensors import as_tensor
from aleator.models.kernels import norms, recurrent, recurrent_parts, routing
from aleator.models.kernels.attention import attend
from aleator.models.kernels.floats import Work
from aleator.models.kernels.fused import product_of_few
from aleator.models.kernels.mixture import mixed_products
from aleator.models.kernels.norms import RowNorm
from aleator.models.kernels.operand import Operand
from aleator.models.kernels.own_steps import OwnSteps
from aleator.models.kernels.planes import planes, together
from aleator.models.kernels.product import FEW
from aleator.models.kernels.recurrent_parts import Convolution, PartNorm
from aleator.models.kernels.works import launch, route
from aleator.models.layers.linear import Linear
from aleator.models.layers.norms import Norm, as_it_is
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
from aleator.models.layers.passes import Pass
from aleator.models.layers.recurrent_parts import HeadSpace
from aleator.models.layers.scans import Deltas, Scanned
from aleator.models.triton.attention import (
    TritonAttention,
    joined_products,
    triton_pass,
    visible,
)
from aleator.models.triton.stacks import Stacked, TritonLinear
from aleator.models.triton.sums import alone, operand, part_norms, row_norm, sum_of

if TYPE_CHECKING:
    from aleator.models.config import ExpertsConfig
    from aleator.models.layers.ops import Spaces
    from aleator.models.layers.parts import FeedForward, Mixture
    from aleator.models.layers.recurrent_parts import DeltaNet, Stateful, StateSpace


class TritonOps(TritonAttention):
    """The operations by Triton's kernels, on float32 tensors."""

    activate = staticmethod(norms.activate)
    weighed = staticmethod(routing.sigmoid_of_dot)
    combine = staticmethod(routing.combine)
    unit_length = staticmethod(recurrent_parts.unit_length)

    def norm(self, kind: str, weight: Tensor | None, eps: float) -> Norm:
        if weight is None:
            return super().norm(kind, None, eps)
        scale, bias = weight.chunk(2, -1) if kind == "layer" else (weight, None)
        return RowNorm(kind, scale, bias, eps)

    def product(
        self,
        matrix: Linear,
        x: Tensor,
        norm: Norm = as_it_is,
        gate: str = "",
        gated: bool = False,
        residual: Residual | None = None,
    ) -> Tensor:
        """See :class:`TorchOps`; few rows take one launch, if what is added has no norm."""
        if not isinstance(matrix, TritonLinear):
            return super().product(matrix, x, norm, gate, gated, residual)
        single = len(matrix.parts) == 1
        plain = single and not gate and residual is not None and residual.norm is as_it_is
        after = residual if plain else None
        if len(x) <= FEW:
            if matrix.order is not None:
                x, norm = matrix.ordered(norm(x)), as_it_is
            y = self._of_few(matrix, x, norm, gate, gated, after, part_norms(norm))
        elif after is not None:
            y = torch.empty_like(after.x)
            matrix.into(y, norm(x), after.x, after.scale)
        else:
            y = matrix(norm(x))
            y = self.activated(y, gate, gated) if gate else y
        return y if residual is None or after is not None else self.add(y, residual)

    def _of_few(
        self,
        matrix: TritonLinear,
        x: Tensor,
        norm: Norm,
        gate: str,
        gated: bool,
        residual: Residual | None,
        parts: Sequence[PartNorm],
    ) -> Tensor:
        """A product of few rows; if a gate's rows have two types, their activation is a launch of its own."""
        within = len(matrix.parts) == 1 or not gated
        how = matrix.parts, x, row_norm(norm), gate if within else "", gated and within
        added, scale = (None, 1.0) if residual is None else (residual.x, residual.scale)
        y = product_of_few(*how, added, scale, parts=parts)
        return y if within else self.activated(y, gate, gated)

    def clamped(self, matrix: Linear, x: Tensor, norm: Norm, limit: float) -> Tensor:
        if not isinstance(matrix, TritonLinear) or matrix.order is not None or len(x) > FEW:
            return super().clamped(matrix, x, norm, limit)
        return product_of_few(matrix.parts, x, row_norm(norm), "clamped", scale=limit)

    def sum_product(
        self,
        y: Activations,
        residual: Residual,
        matrix: Linear,
        norm: Norm,
        gate: str = "",
        gated: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """See :class:`TorchOps`; few rows take one launch."""
        x, made = _sum_of_few(y, residual)
        if (
            made is None
            or not isinstance(matrix, TritonLinear)
            or len(matrix.parts) > 2
            or matrix.order is not None
        ):
            return super().sum_product(y, residual, matrix, norm, gate, gated)
        return x, self._of_few(matrix, made[0], norm, gate, gated, None, made[1])

    def left(self, y: Activations, residual: Residual) -> Activations:
        """See :class:`TorchOps`; of few rows, a sum after a norm is left to the next product."""
        few = len(residual.x) <= FEW and isinstance(residual.norm, RowNorm)
        return Sum(y, residual) if few else self.add(y, residual)

    def both(self, first: Factors, second: Factors, residual: Residual) -> Activations:
        """See :class:`TorchOps`; few rows take one launch, and the sum is left to the next product."""
        made = joined_products((first, second)) if residual.norm is as_it_is else []
        if not made:
            return super().both(first, second, residual)
        return Sum(made[1], residual._replace(first=made[0]))

    def products(self, matrices: Sequence[Linear]) -> Products:
        """See :class:`TorchOps`; few rows take one launch for every two types of matrices."""
        stored = [each for each in matrices if isinstance(each, TritonLinear)]
        if len(stored) < len(matrices) or any(each.order is not None for each in stored):
            return super().products(matrices)
        order = together([each.parts for each in stored])
        widths = [sum(part.n_out for part in stored[i].parts) for i in order]
        whole = TritonLinear([part for i in order for part in stored[i].parts])
        for each in stored:  # they are in the whole now
            each.parts.clear()

        def made(x: Tensor, norm: Norm) -> list[Tensor]:
            columns = torch.split(self.product(whole, x, norm), widths, -1)
            return [columns[order.index(i)] for i in range(len(order))]

        return made

    def each(self, listed: Sequence[Factors]) -> list[Tensor]:
        """See :class:`TorchOps`; two products of few rows take one launch, if each matrix has one type."""
        return joined_products(listed) or super().each(listed)

    def add(self, y: Activations, residual: Residual) -> Tensor:
        norm, plain = residual.norm, residual.first is None
        if isinstance(norm, RowNorm) and norm.kind == "rms" and plain:
            to = residual.own(residual.x).contiguous()
            x = norms.normalised(self.summed(y), norm, to, residual.scale)
            return x if residual.whole is None else x * residual.whole
        return super().add(y, residual)

    def gate(self, gate: Tensor, kind: str = "sigmoid") -> Norm:
        return PartNorm(gate.shape[2], gate=gate, kind=kind)

    def part_norm(
        self,
        size: int,
        weight: Tensor,
        eps: float,
        gate: Tensor | None = None,
        kind: str = "silu",
    ) -> Norm:
        parts = None if gate is None else gate.view(len(gate), gate.shape[1] // size, size)
        return PartNorm(size, weight, eps, parts, kind)

    def soften(self, x: Tensor, cap: float) -> Tensor:
        return norms.activate("soften", x, out=x, cap=cap)

    def chosen(self, matrices: Sequence[Linear]) -> Stacked:
        """See :class:`TorchOps`; nothing waits for the device."""
        return Stacked([each.parts for each in matrices if isinstance(each, TritonLinear)])

    def router(self, parts: Mixture[Linear, Tensor]) -> Router:
        """See :class:`TorchOps`; few rows take one launch: the experts' first product makes the choice."""
        plain, matrix, vector = super().router(parts), parts.router, parts.shared_router
        if not isinstance(matrix, TritonLinear):
            return plain
        n, matrices = parts.config.n_experts, [*matrix.parts]
        if vector is not None:  # its product comes after the logits
            matrices.append(planes(vector.view(torch.uint8), "F32", 1, len(vector)))

        def routed(x: Tensor, norm: Norm) -> Routed:
            if len(x) > FEW:
                return plain(x, norm)
            logits = product_of_few(matrices, x, row_norm(norm))
            shared = None if vector is None else logits[:, n]
            rest = parts.config, parts.choice_bias, parts.scales, shared
            return Routed(*routing.routing(logits[:, :n], *rest))

        return routed

    def route(
        self,
        logits: Tensor,
        config: ExpertsConfig,
        choice_bias: Tensor | None,
        scales: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        return route(logits, config, choice_bias, scales)[:2]

    def dense_and_route(
        self,
        y: Activations,
        residual: Residual,
        parts: Mixture[Linear, Tensor],
        dense: FeedForward[Linear],
        norms: tuple[Norm, Norm],
        router: Router,
    ) -> tuple[Tensor, Tensor, Routed]:
        """See :class:`TorchOps`; few rows take one launch, if each matrix has one type."""
        x, made = _sum_of_few(y, residual)
        first = alone(dense.gate_up, parts.router)
        if made is None or not first or parts.shared_router is not None:
            return super().dense_and_route(y, residual, parts, dense, norms, router)
        second = Operand(made[0], row_norm(norms[1]), made[1])
        how = row_norm(norms[0]), dense.gate, dense.gated
        both = product_of_few(first, made[0], *how, parts=made[1], second=second)
        n = parts.config.n_experts
        routed = routing.routing(both[:, -n:], parts.config, parts.choice_bias, parts.scales)
        return x, both[:, :-n], Routed(*routed)

    def mixture(self, parts: Mixture[Linear, Tensor], gate_up: Chosen, down: Chosen) -> Mixed:
        """See :class:`TorchOps`; few rows take two launches, if what is added has no norm."""
        plain, shared = super().mixture(parts, gate_up, down), parts.shared
        made: list[object] = [gate_up, down]
        if shared is not None:
            made += [shared.gate_up, shared.down]
        listed = [each.parts for each in made if isinstance(each, Stacked | TritonLinear)]
        # Whether the matrices of each part have one type.
        single = len(listed) == len(made) and all(len(each) == 1 for each in listed)
        before, after = ([of[0] for of in listed[i::2]] for i in (0, 1))
        weighs_input = parts.config.weighs_input

        def mixed(
            x: Tensor, norm: Norm, routed: Routed, residual: Residual, last: Factors | None
        ) -> Activations:
            more = [] if last is None or shared is not None else alone(last.matrix)
            if len(x) > FEW or not single or (last is not None and not more):
                launch(routed.work)
                return plain(x, norm, routed, residual, last)
            plainly = residual.norm is as_it_is
            times, weights = (routed.weights, None) if weighs_input else (None, routed.weights)
            how: Any = {"chosen": routed.chosen, "times": times, "beside": routed.work}
            if last is not None:
                how["second"] = operand(last)
            first = before + more
            inner = product_of_few(first, x, row_norm(norm), parts.gate, parts.gated, **how)
            if more:
                n = more[0].n_out
                inner, residual = inner[:, :-n], residual._replace(x=inner[:, -n:])
            added, scale = (residual.x, residual.scale) if plainly else (None, 1.0)
            y = mixed_products(after, inner, routed.chosen, weights, routed.shared, added, scale)
            return y if plainly else self.left(y, residual)

        return mixed

    def convolve(
        self,
        x: Tensor,
        parts: Stateful[Linear, Tensor],
        batch: Pass,
        activated: bool = True,
        gates: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        y, work = _convolving(x, parts, batch, activated, gates)
        launch(work)
        return y

    def finish_and_convolve(
        self,
        heads: tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]],
        how: Attending,
        batch: Pass,
        x: Tensor,
        parts: Stateful[Linear, Tensor],
    ) -> tuple[Tensor, Tensor]:
        """See :class:`TorchOps`; takes one launch where :meth:`finish` does."""
        y, work = _convolving(x, parts, batch, True, None)
        return self.finish(*heads, how, batch, beside=work), y

    def convolve_and_each(
        self, x: Tensor, parts: Stateful[Linear, Tensor], batch: Pass, listed: Sequence[Factors]
    ) -> tuple[Tensor, list[Tensor]]:
        """See :class:`TorchOps`; few rows take one launch where those of :meth:`each` do."""
        y, work = _convolving(x, parts, batch, True, None)
        made = joined_products(listed, work)
        if not made:
            launch(work)
        return y, made or super().each(listed)

    def attend_and_scan(
        self, q: Tensor, how: Attending, batch: Pass, of: Scanned, parts: Spaces
    ) -> tuple[Tensor, Tensor]:
        """See :class:`TorchOps`; takes one launch of few tokens and cells."""
        y, work = _scanning(of, parts, batch)
        return attend(q, *visible(how, triton_pass(batch)), beside=work), y

    def selective(
        self,
        projected: Tensor,
        parts: StateSpace[Linear, Tensor],
        batch: Pass,
        norms: tuple[Norm, Norm],
    ) -> Tensor:
        """See :class:`TorchOps`; few rows take two launches, if each matrix has one type."""
        t, ssm, matrices = len(projected), parts.ssm, alone(parts.select, parts.time_step)
        if t > FEW or not matrices:
            return super().selective(projected, parts, batch, norms)
        conv, kept = (as_tensor(of[parts.index]) for of in (batch.states.conv, batch.states.ssm))
        runs, of = triton_pass(batch).runs, (parts.conv_weight, parts.conv_bias)
        x, gate = projected.chunk(2, 1)
        room = torch.empty((t, ssm.d_inner), dtype=torch.float32, device=x.device)
        taken = Convolution(*of, conv, runs, room)
        selected = product_of_few(matrices[:1], x, parts=[taken])
        steps = Operand(selected[:, : ssm.dt_rank], row_norm(norms[0]))
        own = OwnSteps(matrices[1], steps, x, taken)
        b, c = selected[:, ssm.dt_rank :].chunk(2, 1)
        norm = row_norm(norms[1])
        normed = None if norm is None or norm.weight is None else (norm.weight, norm.eps)
        given = taken.y, own, parts.a, b, c, parts.d, gate, kept, runs
        y, work = recurrent.scanning(*given, normed=normed)
        launch(work)
        return y

    def scan(self, of: Scanned, parts: Spaces, batch: Pass) -> Tensor:
        y, work = _scanning(of, parts, batch)
        launch(work)
        return y

    def delta_scan(self, of: Deltas, parts: DeltaNet[Linear, Tensor], batch: Pass) -> Tensor:
        kept, runs = as_tensor(batch.states.ssm[parts.index]), triton_pass(batch).runs
        qk, v, net, within = of.qk, of.v, parts.net, len(of.v) <= FEW
        rates, of_rates = (of.beta, of.decay), (parts.time_bias, parts.a)
        if not within:  # each program would make them again
            qk = self.unit_length(qk, net.head_dim, net.unit_eps, net.n_key_heads)
            rates = recurrent_parts.delta_rates(*rates, *of_rates)
        q, k = qk.view(len(v), 2, net.n_key_heads, net.head_dim).unbind(1)
        last = (*of_rates, net.unit_eps) if within else ()
        return recurrent.delta_rule(q, k, v, *rates, kept, runs, net.tiled, *last)


def _sum_of_few(
    y: Activations, residual: Residual
) -> tuple[Tensor, tuple[Tensor, list[PartNorm]] | None]:
    """Where a sum of few rows is written to, and what it is made of; None: not in a product's launch."""
    if len(residual.x) > FEW:
        return residual.x, None
    x = torch.empty(residual.x.shape, dtype=residual.x.dtype, device=residual.x.device)
    return x, sum_of(y, residual, x)


def _convolving(
    x: Tensor,
    parts: Stateful[Linear, Tensor],
    batch: Pass,
    activated: bool,
    gates: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Work]:
    kept, of = as_tensor(batch.states.conv[parts.index]), (parts.conv_weight, parts.conv_bias)
    return recurrent_parts.convolving(x, *of, kept, triton_pass(batch).runs, activated, gates)


def _scanning(of: Scanned, parts: Spaces, batch: Pass) -> tuple[Tensor, Work]:
    """The scan's result, and what is to be launched to make it."""
    kept, runs = as_tensor(batch.states.ssm[parts.index]), triton_pass(batch).runs
    step, rate, bias, least, by_head = of.steps, parts.a, None, 0.0, False
    if isinstance(parts, HeadSpace):
        by_head, bias, least = True, parts.time_bias, parts.ssm.least_step
        if len(step) > FEW:  # each program would make them again
            step, rate = recurrent_parts.time_step(step, bias, rate, least)
            bias = None
    b, c = of.norm(of.both).unbind(1)
    given = of.u, step, rate, b, c, parts.d, of.gate, kept, runs
    return recurrent.scanning(*given, by_head, bias, least)
