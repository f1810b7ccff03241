"""Draws on the device of another engine's logits, for sequences that the engine manages."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from aleator.core.integers import shared
from aleator.device.chain import DeviceChain
from aleator.samplers import Dist, SamplerChain

MAX_TOKENS = 32768
"""Maximum tokens of a sequence, prompt included."""


class DeviceTexts:
    """Chains of ``n_rows`` texts on a device; each text has at most ``max_tokens``, prompt included.

    It does what :class:`~aleator.integrations.follower.Follower` does on the host, except that samplers that
    adapt (mirostat, adaptive-p) do not recover their state when a row returns to a text that it left.
    """

    def __init__(
        self,
        n_rows: int,
        n_vocab: int,
        device: torch.device,
        max_tokens: int = MAX_TOKENS,
        kernels: str = "auto",
    ) -> None:
        self._chain = DeviceChain(
            [Dist()], n_rows, n_vocab, device=device, max_tokens=max_tokens, kernels=kernels
        )
        self._tokens: list[list[int]] = [[] for _ in range(n_rows)]

    def begin(self, row: int, chain: SamplerChain) -> None:
        """Give a row a chain that has accepted the prompt."""
        self._chain.set_row(row, chain)
        self._tokens[row] = []

    def follow(self, row: int, generated: Sequence[int]) -> None:
        """Bring a row to the state after its prompt and ``generated``."""
        own = self._tokens[row]
        if generated == own:
            return
        same = shared(own, generated)
        if same < len(own):
            self._chain.rollback(row, len(own) - same)
            del own[same:]
        if same < len(generated):
            self._chain.extend(row, generated[same:], generated=True)
            own += generated[same:]

    def draw(self, rows: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        """Draw a token for each of distinct rows from logits [len(rows), V]; int64 [len(rows)], same device."""
        n = self._chain.max_batch
        if list(rows) == list(range(len(rows))):
            tokens = self._chain.sample(logits)
        else:
            index = torch.as_tensor(rows, device=logits.device)
            every = logits.new_zeros(n, logits.shape[1])
            every[index] = logits
            live = torch.zeros(n, dtype=torch.bool, device=logits.device)
            live[index] = True
            tokens = self._chain.sample(every, live=live)[index]
        for row, token in zip(rows, tokens.tolist(), strict=True):
            if token >= 0:
                self._tokens[row].append(token)
        return tokens
