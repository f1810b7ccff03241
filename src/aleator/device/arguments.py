"""Checks of the arguments of device chains."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from aleator.core.contract import MAX_VOCAB
from aleator.core.errors import LogitsError, ParameterError
from aleator.core.records import dataclass
from aleator.device.selection import KERNELS
from aleator.samplers.chain import SamplerChain

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class ChainOptions:
    """The arguments of a device chain; see :class:`aleator.DeviceChain`."""

    max_batch: int
    n_vocab: int
    device: torch.device
    max_tokens: int
    kernels: str
    logprobs: int | None
    kept: bool

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("max_batch", self.max_batch, 1, 2**16),
            ("n_vocab", self.n_vocab, 1, MAX_VOCAB),
            ("max_tokens", self.max_tokens, 1, 2**24),
            ("logprobs", 0 if self.logprobs is None else self.logprobs, 0, MAX_VOCAB),
        ):
            check_in(name, value, low, high)
        if not isinstance(self.kept, bool):
            raise ParameterError(f"kept={self.kept!r}: give True or False")
        if self.kernels not in KERNELS:
            raise ParameterError(f"kernels={self.kernels!r}: choose auto, triton, torch or host")
        if self.kernels == "host" and self.device.type != "cpu":
            raise ParameterError(f"kernels='host' is for the CPU, not {self.device}")

    def check_row(self, row: int) -> None:
        """Refuse a row that does not exist."""
        check_in("row", row, 0, self.max_batch - 1)

    def check_token(self, token: int) -> None:
        """Refuse a token that does not exist."""
        check_in("token", token, 0, self.n_vocab - 1, (int, np.integer))


def check_in(
    name: str, value: object, low: int, high: int, kinds: type | tuple[type, ...] = int
) -> None:
    """Refuse a value that is not an integer in [low, high]."""
    whole = isinstance(value, kinds) and not isinstance(value, bool)
    if not whole or not low <= value <= high:  # type: ignore[operator]
        raise ParameterError(f"{name}={value!r} is out of range: give {low} to {high}")


def device_of(device: torch.device | str) -> torch.device:
    """The torch device of a name."""
    try:
        return torch.device(device)
    except (RuntimeError, TypeError):
        raise ParameterError(
            f"device={device!r}: give a device of torch, such as 'cuda:0'"
        ) from None


def present(device: torch.device) -> torch.device:
    """The device; a CUDA device gets its number."""
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise ParameterError(f"device='{device}': torch finds no CUDA device")
    return device if device.index is not None else torch.device("cuda", torch.cuda.current_device())


def chain_of(template: SamplerChain | Iterable[object]) -> SamplerChain:
    """A chain with portable numerics, from a chain or from samplers."""
    if not isinstance(template, SamplerChain):
        if not isinstance(template, Iterable):
            raise ParameterError(f"template={template!r}: give a SamplerChain, or samplers")
        template = SamplerChain(template, seed=0)
    return portable(template)


def portable(chain: SamplerChain) -> SamplerChain:
    """Refuse a chain with other numerics."""
    if chain.numerics != "portable":
        raise ParameterError(
            "numerics", "a device chain has portable numerics: llama.cpp's run on the host only"
        )
    return chain


def check_logits(
    options: ChainOptions, logits: Tensor, allowed: Tensor | None, live: Tensor | None
) -> None:
    """Refuse logits that :meth:`aleator.DeviceChain.sample` cannot take; columns are checked elsewhere."""
    if not isinstance(logits, Tensor) or logits.dtype not in FLOATS or logits.dim() != 2:
        raise LogitsError(
            f"logits ({described(logits)}) must be [B, V] of float32, float16 or bfloat16"
        )
    batch = int(logits.shape[0])
    if not 1 <= batch <= options.max_batch:
        raise LogitsError(f"logits have {batch} rows: this chain takes 1 to {options.max_batch}")
    shapes = {"allowed": (batch, -(-options.n_vocab // 32)), "live": (batch,)}
    types = {"allowed": torch.int32, "live": torch.bool}
    for name, given in (("logits", logits), ("allowed", allowed), ("live", live)):
        if given is None:
            continue
        if name != "logits" and (
            not isinstance(given, Tensor)
            or given.dtype != types[name]
            or tuple(given.shape) != shapes[name]
        ):
            raise LogitsError(
                f"{name} ({described(given)}) must be {types[name]} {list(shapes[name])}"
            )
        if not same_device(given.device, options.device):
            raise LogitsError(f"{name} are on {given.device}, the chain on {options.device}")


def described(given: object) -> str:
    """Shape and type of a value given as a tensor."""
    return f"{tuple(getattr(given, 'shape', ()))}, {getattr(given, 'dtype', type(given))}"


def same_device(a: torch.device, b: torch.device) -> bool:
    """Whether two names mean the same device."""
    return a.type == b.type and (a.index == b.index or None in (a.index, b.index))
