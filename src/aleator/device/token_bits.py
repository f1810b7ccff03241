"""Sets of tokens as bits: bit id % 32 of the int32 word id // 32."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor


def bits_of_tokens(tokens: Iterable[int], n_vocab: int) -> Tensor:
    """The bits of tokens, int32 [ceil(V / 32)]; tokens outside the vocabulary are left out."""
    bits = np.zeros(-(-n_vocab // 32) * 32, np.uint8)
    bits[[token for token in tokens if 0 <= token < n_vocab]] = 1
    return torch.from_numpy(np.packbits(bits, bitorder="little").view(np.int32))


def unpack(words: Tensor, ids: Tensor) -> Tensor:
    """Unpack int32 [B, ceil(n_vocab / 32)] to bool [B, V]: bit id % 32 of word id // 32."""
    word = words.gather(1, (ids // 32).to(torch.int64).expand(len(words), -1))
    return word >> (ids % 32).to(torch.int32) & 1 == 1


def allow(logits: Tensor, allowed: Tensor | None, ids: Tensor) -> Tensor:
    """Mask the logits [B, V] of tokens ``ids`` whose bits in ``allowed`` are not set.

    This comes before the canonical form, so that a +inf counts only if it is allowed.
    """
    if allowed is None:
        return logits
    return logits.masked_fill(~unpack(allowed, ids.unsqueeze(0)), float("-inf"))


def pack(bits: Tensor) -> Tensor:
    """Pack bool [B, V] to int32 [B, ceil(V / 32)], the form of masks."""
    batch, n = bits.shape
    padded = torch.nn.functional.pad(bits, (0, -n % 32)).view(batch, -1, 32)
    at = torch.arange(32, device=bits.device)
    return signed((padded.to(torch.int64) << at).sum(2))


def signed(words: Tensor) -> Tensor:
    """Reinterpret numbers below 2^32 as int32 with the same bits."""
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
