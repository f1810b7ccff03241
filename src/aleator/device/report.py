"""The results of a step besides its tokens: log-probabilities before and after the samplers, kept tokens.

They are computed at the end, from the raw row and the remaining candidates, without help from samplers.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from aleator.core import host
from aleator.device.candidates import NOTHING, DeviceCandidates, order_keys
from aleator.device.fixed import MASK32, SIGN
from aleator.device.token_bits import pack, signed

_NEG_INF = float("-inf")


class Report:
    """Tensors of ``max_batch`` rows, allocated once; every step writes its first B.

    Log-probabilities are natural, float64, and within 1e-12 of those of the host
    (:mod:`aleator.generate.logprobs`).  The ``top`` ones are by logit descending, then token id ascending.

    Attributes:
        logprobs: float64 [B], of the chosen token in the distribution of the given logits, before masks and
            samplers.
        top_ids: int64 [B, n], the most probable tokens there.
        top_logprobs: float64 [B, n], their log-probabilities.
        kept_logprobs: float64 [B], of the chosen token among the candidates that it was drawn from: weight over
            mass, after all filters and temperatures.
        kept_top_ids: int64 [B, n], the most probable of these candidates; -1 if there are fewer.
        kept_top_logprobs: float64 [B, n], their log-probabilities; -inf if there are fewer.
        kept: int32 [B, ceil(V / 32)], these candidates: bit id % 32 of word id // 32.

    A row in which nothing could be chosen (token -1) has ``logprobs`` and ``kept_logprobs`` of -inf.  Tensors
    that were not requested are empty.
    """

    def __init__(
        self, max_batch: int, n_vocab: int, device: torch.device, logprobs: int | None, kept: bool
    ) -> None:
        self._asked = logprobs is not None
        top = min(logprobs or 0, n_vocab)
        rows = max_batch if self._asked else 0
        words = -(-n_vocab // 32) if kept else 0

        def tensor(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        self.logprobs = tensor(rows, dtype=torch.float64)
        self.kept_logprobs = tensor(rows, dtype=torch.float64)
        self.top_logprobs = tensor(rows, top, dtype=torch.float64)
        self.kept_top_logprobs = tensor(rows, top, dtype=torch.float64)
        self.top_ids = tensor(rows, top, dtype=torch.int64)
        self.kept_top_ids = tensor(rows, top, dtype=torch.int64)
        self.kept = tensor(max_batch if kept else 0, words, dtype=torch.int32)

    @property
    def wanted(self) -> bool:
        """Whether anything was requested."""
        return self._asked or len(self.kept) > 0

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(value.nbytes for value in vars(self).values() if isinstance(value, Tensor))

    def before(self, logits: Tensor, tokens: Tensor) -> None:
        """Record the distribution of logits [B, V], and tokens, int64 [B], in it."""
        if not self._asked:
            return
        z = logits.to(torch.float32)
        z = torch.where(z.isnan(), _NEG_INF, z) + 0.0
        x, largest = z.to(torch.float64), z.amax(1, keepdim=True)
        infinite = torch.where(x == float("inf"), 0.0, _NEG_INF)
        x = torch.where(largest == float("inf"), infinite, x - largest.clamp(min=-3e38))
        x = x - x.exp().sum(1, keepdim=True).log()
        x = torch.where(largest == _NEG_INF, _NEG_INF, x)
        batch, top = len(z), self.top_ids.shape[1]
        chosen = x.gather(1, tokens.clamp(min=0).unsqueeze(1)).squeeze(1)
        self.logprobs[:batch] = torch.where(tokens >= 0, chosen, _NEG_INF)
        if top:
            ids = torch.arange(z.shape[1], device=z.device)
            best = order_keys(z, ids).topk(top, 1).indices
            self.top_ids[:batch] = best
            self.top_logprobs[:batch] = x.gather(1, best)

    def after(self, data: DeviceCandidates, tokens: Tensor) -> None:
        """Record the candidates from which tokens, int64 [B], were drawn."""
        batch = len(tokens)
        if self._asked:
            w = data.weights
            x = w.to(torch.float64).log()
            x = x - data.mass.to(torch.float64).log().unsqueeze(1)
            chosen = x.gather(1, tokens.clamp(min=0).unsqueeze(1)).squeeze(1)
            self.kept_logprobs[:batch] = torch.where(tokens >= 0, chosen, _NEG_INF)
            if top := self.top_ids.shape[1]:
                best = data.keys().topk(top, 1).indices
                there = data.alive.gather(1, best)
                self.kept_top_ids[:batch] = torch.where(there, best, NOTHING)
                self.kept_top_logprobs[:batch] = torch.where(there, x.gather(1, best), _NEG_INF)
        if len(self.kept):
            self.kept[:batch] = pack(data.alive)

    def after_list(self, keys: Tensor, weights: Tensor, tokens: Tensor, first: int = 0) -> None:
        """Record the candidates from which tokens, int64 [B], of rows from ``first`` on were drawn.

        They are ``keys`` [B, N], SIGN where there is none, with ``weights``, int64 [B, N].
        """
        batch, n = keys.shape
        rows = slice(first, first + batch)
        ids, there = MASK32 - (keys & MASK32), keys > SIGN
        if self._asked:
            x = weights.to(torch.float64).log()
            x = x - weights.sum(1, keepdim=True).to(torch.float64).log()
            found = there & (ids == tokens.unsqueeze(1))
            self.kept_logprobs[rows] = torch.where(found, x, _NEG_INF).amax(1)
            if top := self.top_ids.shape[1]:
                best = keys.topk(min(top, n), 1).indices
                listed = there.gather(1, best)
                self.kept_top_ids[rows] = NOTHING
                self.kept_top_logprobs[rows] = _NEG_INF
                self.kept_top_ids[rows, :n] = torch.where(listed, ids.gather(1, best), NOTHING)
                self.kept_top_logprobs[rows, :n] = torch.where(listed, x.gather(1, best), _NEG_INF)
        if len(self.kept):
            ids = torch.where(there, ids, 0)
            bit = torch.where(there, torch.ones_like(ids) << (ids & 31), 0)
            words = torch.zeros(batch, self.kept.shape[1], dtype=torch.int64, device=keys.device)
            words.scatter_add_(1, ids >> 5, bit)
            self.kept[rows] = signed(words)

    def after_on_host(self, row: int, native: host.Candidates | None, token: int) -> None:
        """Record the candidates from which the host drew a row's token; None if there are none."""
        if not self.wanted:
            return
        keys, weights = torch.tensor([SIGN]), torch.tensor([0])
        if native is not None:
            ids, z = (torch.from_numpy(each) for each in native.state()[:2])
            keys, weights = order_keys(z, ids), torch.from_numpy(native.weights.astype(np.int64))
        device = self.kept.device
        drawn = torch.tensor([token], device=device)
        self.after_list(keys[None].to(device), weights[None].to(device), drawn, row)
