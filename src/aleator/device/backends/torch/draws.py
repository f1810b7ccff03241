"""Device samplers that choose a token; the contracts are in aleator.samplers, one module for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from aleator.core import contract
from aleator.core.contract import ADAPTIVE_PEAK, ADAPTIVE_SLOPE, ADAPTIVE_WIDTH, Purpose
from aleator.core.numerics import log2_double as log2_of_number
from aleator.device.arguments import ChainOptions
from aleator.device.candidates import DeviceCandidates
from aleator.device.device_sampler import (
    RANDOM,
    DeviceSampler,
    DeviceStep,
    Field,
    Fields,
    Values,
    key,
    signed64,
)
from aleator.device.fixed import double_of, exp2_double, log2_double, log2_q32, philox
from aleator.samplers.adaptive_p import AdaptiveP
from aleator.samplers.base import Place, Sampler
from aleator.samplers.dist import Dist
from aleator.samplers.mirostat import Mirostat
from aleator.samplers.synthid import MULTIPLIER, table
from aleator.samplers.watermark import DRAWN, HASH, MOST_NUMBERS


class DeviceGreedy(DeviceSampler):
    """Selects the token with the largest logit."""

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        data.select(data.first(), self.get("active", step))


class DeviceDist(DeviceSampler):
    """Draws in proportion to weight, by inverse cumulative mass."""

    fields: ClassVar[Fields] = RANDOM
    purpose: ClassVar[Purpose] = Purpose.DIST

    def values(self, sampler: Dist, place: Place) -> Values:
        return key(sampler.seed_in(place), self.purpose, place)

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        data.draw(self.uniform(step), self.get("active", step))


class DeviceGumbel(DeviceDist):
    """Draws by a race: the smallest E / weight wins."""

    purpose: ClassVar[Purpose] = Purpose.GUMBEL

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        self.race(data, step, step.position, self.get("stream", step), self.get("seed", step))

    def race(
        self,
        data: DeviceCandidates,
        step: DeviceStep,
        position: Tensor,
        stream: Tensor,
        seed: Tensor,
    ) -> None:
        """Race by uniforms of these, int64 [B] each."""
        ids = data.ids.to(torch.int64)
        u = philox(ids, position.unsqueeze(1), stream.unsqueeze(1), seed.unsqueeze(1))
        e = (64 << 32) - log2_q32(torch.where(u == 0, 1, u))
        ids = data.ids.expand_as(e)
        best = _smallest_quotient(e, data.weights)
        e, w, ids = (data.per_part(x.gather(1, best).squeeze(1)) for x in (e, data.weights, ids))
        winner = ids.gather(1, _smallest_quotient(e, w)).squeeze(1)
        data.select(winner, self.get("active", step))


class LastTokens:
    """The tokens that keyed draws of some rows depend on: each row's last ``n``, int64 [B]."""

    def __init__(self, step: DeviceStep, n: Tensor, most: int) -> None:
        tokens, length = step.history, step.length.unsqueeze(1)
        at = torch.arange(tokens.shape[1], device=tokens.device)
        # Where the last token of an earlier run may stand.
        seen = (at < length - 1) & (at >= n.unsqueeze(1) - 1)
        newest = [tokens.gather(1, (length - 1 - i).clamp(min=0)) for i in range(most)]
        for i in range(most):
            seen = seen & ((tokens.roll(i, 1) == newest[i]) | (n.unsqueeze(1) <= i))
        self.new = (step.position >= n) & (step.length >= n) & ~seen.any(1)
        """Whether they key the draw, bool [B]: there are so many, and they did not stand together before."""
        self.n, self.newest = n, [each.squeeze(1).to(torch.int64) for each in newest]

    def hashed(self, begin: Tensor, hashes: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """int64 [B]: a hash that takes them in, the oldest first, by ``hashes(h, token)``."""
        for i in reversed(range(len(self.newest))):
            begin = torch.where(self.n > i, hashes(begin, self.newest[i]), begin)
        return begin


class DeviceWatermark(DeviceGumbel):
    """Races by uniforms of a key and the last tokens, or as the Gumbel race does."""

    fields: ClassVar[Fields] = {
        **RANDOM,
        "key": Field(torch.int64, 0),
        "ngram": Field(torch.int64, 1),
    }

    def needs(self, sampler: Dist) -> tuple[int, ...]:
        """How many tokens a draw is keyed by."""
        return (sampler.watermark_ngram,)

    def values(self, sampler: Dist, place: Place) -> Values:
        """Both keys."""
        secret = signed64(sampler.watermark_key_file.seed)
        return {**super().values(sampler, place), "key": secret, "ngram": sampler.watermark_ngram}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        (most,) = self.launch
        n, own = self.get("ngram", step), self.get("key", step)
        last = LastTokens(step, n, most)
        word = torch.full_like(n, HASH)
        position = last.hashed(n, lambda h, token: philox(token, h, word, own))
        self.race(
            data,
            step,
            torch.where(last.new, position, step.position),
            torch.where(last.new, DRAWN, self.get("stream", step)),
            torch.where(last.new, own, self.get("seed", step)),
        )


class DeviceSynthID(DeviceDist):
    """Draws by mass after SynthID's tournament."""

    fields: ClassVar[Fields] = {
        **RANDOM,
        "keys": Field(torch.int64, 0, (MOST_NUMBERS,)),
        "layers": Field(torch.int64, 0),
        "ngram": Field(torch.int64, 1),
    }

    def __init__(self, sampler: Sampler, options: ChainOptions) -> None:
        super().__init__(sampler, options)
        self.tables["coins"] = torch.from_numpy(table()).to(self.device)

    def needs(self, sampler: Dist) -> tuple[int, ...]:
        """How many tokens a draw is keyed by, and how many layers it has."""
        return sampler.watermark_ngram, len(sampler.watermark_key_file.numbers)

    def values(self, sampler: Dist, place: Place) -> Values:
        """Of the draw, and SynthID's."""
        numbers = sampler.watermark_key_file.numbers
        keys = torch.zeros(MOST_NUMBERS, dtype=torch.int64)
        keys[: len(numbers)] = torch.tensor(numbers)
        drawn, ngram = super().values(sampler, place), sampler.watermark_ngram
        return {**drawn, "keys": keys, "layers": len(numbers), "ngram": ngram}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        most, layers = self.launch
        last = LastTokens(step, self.get("ngram", step), most)
        h = last.hashed(torch.ones_like(last.n), _coin_hash).unsqueeze(1)
        h = _coin_hash(h, data.ids.to(torch.int64))
        depth = torch.where(last.new, self.get("layers", step), 0).unsqueeze(1)
        bits = torch.arange(contract.WEIGHT_BITS, 63, device=self.device)
        shift = (data.mass.unsqueeze(1) >> bits > 0).sum(1, keepdim=True)
        shares = torch.where(depth > 0, data.weights >> shift, data.weights)
        for layer in range(layers):
            keyed = _coin_hash(h, self.get("keys", step)[:, layer].unsqueeze(1))
            coins = self.tables["coins"][keyed].to(torch.int64)
            shares = torch.where(depth > layer, _played(data, shares, coins), shares)
        data.draw(self.uniform(step), self.get("active", step), shares)


def _coin_hash(h: Tensor, number: Tensor) -> Tensor:
    """The 16 bits of SynthID's hash that coins depend on."""
    return ((h + number) * (MULTIPLIER & 0xFFFF) + 1) & 0xFFFF


def _played(data: DeviceCandidates, shares: Tensor, coins: Tensor) -> Tensor:
    """Shares after a layer: those with the coin 1 gain what the others lose."""
    total = data.total(shares).unsqueeze(1)
    rest = total - data.total(shares * coins).unsqueeze(1)
    total = total.clamp(min=1)
    # floor(rest * 2^40 / total) and floor(share * factor / 2^40), by halves of 20 bits.
    high, rest = (rest << 20) // total, (rest << 20) % total
    low = (rest << 20) // total
    factor = (high << 20) + low
    high, low = factor >> 20, factor & 0xFFFFF
    return coins * shares + ((shares * high + (shares * low >> 20)) >> 20)


def _smallest_quotient(e: Tensor, w: Tensor) -> Tensor:
    """int64 [B, 1]: the first column with the smallest e / w, exactly; w = 0 never wins.

    e is at most 2^38 and w at most 2^40, so quotients that differ do so by at least 2^-80: they are
    compared digit by digit, 24 + 22 + 22 + 22 bits after the point.
    """
    left, divisor = w > 0, w.clamp(min=1)
    remainder = e
    for bits in (24, 22, 22, 22):
        digit = torch.where(left, (remainder << bits) // divisor, 2**63 - 1)
        remainder = (remainder << bits) % divisor
        left = left & (digit == digit.amin(1, keepdim=True))
    return left.to(torch.int8).argmax(1, keepdim=True)


class DeviceAdaptiveP(DeviceSampler):
    """Draws tokens whose probability is near a target."""

    fields: ClassVar[Fields] = {
        **RANDOM,
        "target": Field(torch.float64, -1.0),
        "decay": Field(torch.float64, 0.0),
    }
    state: ClassVar[Fields] = {
        "total": Field(torch.float64, 0.0),  # of past probabilities, and of their
        "weight": Field(torch.float64, 1.0),  # weights
    }

    def values(self, sampler: AdaptiveP, place: Place) -> Values:
        target, decay = sampler.adaptive_target, sampler.adaptive_decay
        return {
            **key(sampler.seed_in(place), Purpose.ADAPTIVE_P, place),
            "target": target,
            "decay": decay,
            "total": min(max(target, 0.0), 1.0) / (1 - decay),
            "weight": 1 / (1 - decay),
        }

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        active, target = self.get("active", step), self.get("target", step)
        on = active & (target >= 0)
        total, count = self.get_state("total", step), self.get_state("weight", step)
        p, size = data.probs, data.size
        wanted = (2 * target - total / count).clamp(0.0, 1.0).to(torch.float32).unsqueeze(1)
        data.materialise(on & (data.temperature != 1))
        # Lost: the temperature before it is too small, which is an error on the host.
        lost = on & (data.size != size)
        distance = (p - wanted).abs()
        # A quotient by a plain number would be a product with its reciprocal.
        distance = distance / torch.full_like(distance, ADAPTIVE_WIDTH)

        def favour(z: Tensor) -> Tensor:
            above = distance * distance * ADAPTIVE_SLOPE
            return ADAPTIVE_PEAK - above / (distance + 1.0)

        data.write(on, favour)
        data.keep(~lost.unsqueeze(1))
        data.draw(self.uniform(step), active)
        chosen = data.total(torch.where(data.ids == data.selected.unsqueeze(1), p, 0.0))
        decay = self.get("decay", step)
        moved = chosen.to(torch.float64) + decay * total
        self.propose("total", torch.where(target >= 0, moved, total), step)
        moved = 1.0 + decay * count
        self.propose("weight", torch.where(target >= 0, moved, count), step)


class DeviceMirostatSampler(DeviceSampler):
    """Draws, and moves mu by the surprise of the drawn token."""

    fields: ClassVar[Fields] = {
        **RANDOM,
        "tau": Field(torch.float64, 0.0),
        "eta": Field(torch.float64, 0.0),
    }
    state: ClassVar[Fields] = {"mu": Field(torch.float64, 0.0)}

    def values(self, sampler: Any, place: Place) -> Values:
        return {
            **key(sampler.seed_in(place), sampler.purpose, place),
            "tau": sampler.mirostat_tau,
            "eta": sampler.mirostat_eta,
            "mu": 2 * sampler.mirostat_tau,
        }

    def draw(self, data: DeviceCandidates, mu: Tensor, step: DeviceStep) -> None:
        """Draw from the remaining candidates."""
        data.draw(self.uniform(step), self.get("active", step))
        at_selected = data.ids == data.selected.unsqueeze(1)
        chosen = data.total(torch.where(at_selected, data.weights, 0))
        bits = log2_q32(data.mass.clamp(min=1)) - log2_q32(chosen.clamp(min=1))
        surprise = bits.to(torch.float64) / 2.0**32
        moved = mu - self.get("eta", step) * (surprise - self.get("tau", step))
        self.propose("mu", moved, step)


class DeviceMirostatV2(DeviceMirostatSampler):
    """Removes tokens with more than mu bits of surprise, and draws."""

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        mu = self.get_state("mu", step)
        q = (mu.clamp(-contract.MU_LIMIT, contract.MU_LIMIT) * 2.0**32).floor().to(torch.int64)
        level = log2_q32(data.mass.clamp(min=1)) - q
        data.keep_run(_least(level), self.get("active", step) & (level > 0))
        self.draw(data, mu, step)


def _least(level: Tensor) -> Tensor:
    """The least weight, int64 [B], whose log2 in Q32 reaches ``level``; above 2^40 if there is none."""
    low, high = torch.ones_like(level), torch.full_like(level, (1 << contract.WEIGHT_BITS) + 1)
    for _ in range(contract.WEIGHT_BITS + 1):
        middle = low + high >> 1
        reached = log2_q32(middle) >= level
        high = torch.where(reached, middle, high)
        low = torch.where(reached, low, middle + 1).minimum(high)
    return high


class DeviceMirostat(DeviceMirostatSampler):
    """Keeps as many tokens as a Zipf distribution of the same shape has within mu bits, and draws."""

    fields: ClassVar[Fields] = {**DeviceMirostatSampler.fields, "m": Field(torch.int64, 0)}

    def needs(self, sampler: Mirostat) -> tuple[int, ...]:
        return (min(sampler.mirostat_m, self.n_vocab),)

    def values(self, sampler: Mirostat, place: Place) -> Values:
        return {**super().values(sampler, place), "m": sampler.mirostat_m}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        mu = self.get_state("mu", step)
        k = self._bound(data, mu, step)
        data.keep_first(torch.where(self.get("active", step), k, 2**62))
        self.draw(data, mu, step)

    def _bound(self, data: DeviceCandidates, mu: Tensor, step: DeviceStep) -> Tensor:
        """The number of candidates to keep, int64 [B]."""
        s = self._exponent(data, step)
        e, vocabulary = s - 1, log2_of_number(float(self.n_vocab))
        near = e.abs() < 2**-20
        safe = torch.where(near, 1.0, e)
        limit = torch.full_like(
            mu, log2_of_number(vocabulary / contract.LOG2_E) if vocabulary > 0 else 0.0
        )
        rest = (1 - exp2_double(-safe * vocabulary)).abs()
        rest = torch.where(rest > 0, rest, 1.0)
        log_k = torch.where(near, mu - limit, log2_double(safe.abs()) + mu - log2_double(rest))
        k = exp2_double((log_k / torch.where(s > 0, s, 1.0)).clamp(-1.0, 40.0))
        k = k.floor().to(torch.int64).clamp(min=1)
        k = torch.where(s < 2**-10, 2**62, k)
        return torch.where(s.isinf(), 1, k)

    def _exponent(self, data: DeviceCandidates, step: DeviceStep) -> Tensor:
        """The paper's s, float64 [B]: a quotient of two exact sums; inf if there is nothing to sum."""
        # Not data.ranked: among the first there may be tokens that were masked since the order was made.
        keys = data.keys()
        columns = keys.topk(min(self.launch[0], keys.shape[1]), 1).indices
        w = data.weights.gather(1, columns)
        i = torch.arange(w.shape[1] - 1, device=self.device)
        logs = log2_q32(w.clamp(min=1))
        fall = logs[:, :-1] - logs[:, 1:]
        t = log2_q32(i + 2) - log2_q32(i + 1)
        there = (w[:, 1:] > 0) & (i < self.get("m", step).unsqueeze(1) - 1)
        there = there.to(torch.int64).cumprod(1) == 1
        fall, t = torch.where(there, fall, 0), torch.where(there, t, 0)
        # Products have up to 70 bits: t is taken in two parts, whose sums stay below 2^55.
        high, low = t >> 16, t & 0xFFFF
        numerator = double_of((high * fall).sum(1), (low * fall).sum(1))
        denominator = double_of((high * t).sum(1), (low * t).sum(1))
        return torch.where(denominator > 0, numerator / denominator, float("inf"))
