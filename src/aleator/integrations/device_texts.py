"""Draws on the device where another engine's logits are, for texts that it keeps."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from aleator.core.integers import shared
from aleator.device.chain import DeviceChain
from aleator.samplers import Dist, SamplerChain

MAX_TOKENS = 32768
"""Tokens, prompt and generated, that a text may have."""


class DeviceTexts:
    """Chains of ``n_rows`` texts, on a device; each text has at most ``max_tokens`` with its prompt.

    What :class:`~aleator.integrations.follower.Follower` does on the host, but that samplers which adapt
    (mirostat, adaptive-p) are only as they were if a text that is left for another one is not gone back to.
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
        """Give a row a chain, which has accepted the prompt."""
        self._chain.set_row(row, chain)
        self._tokens[row] = []

    def follow(self, row: int, generated: Sequence[int]) -> None:
        """Bring a row to what follows its prompt."""
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
        """Draw a token for each of different rows from logits [len(rows), V]: int64 [len(rows)], on the
        device.
        """
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
