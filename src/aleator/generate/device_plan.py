"""What a step of ``dtype="exact"`` launches and reads on a GPU, found without one.

The decoder is made and run on PyTorch's device "meta", whose tensors have shapes and no memory: nothing is
computed, and no matrix is read.  What would be launched is counted as it is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from triton.runtime.jit import KernelInterface

from aleator.cache.devices import Device
from aleator.cache.kv_cache import KVCache, LayerShape
from aleator.cache.recurrent import RecurrentCache
from aleator.device.peak import PeakBytes
from aleator.generate.context import Batch, Context
from aleator.models.build import build_decoder
from aleator.models.config import ModelConfig
from aleator.models.exact import Stored, exact_types, step_bytes
from aleator.models.finite_check import Unchecked
from aleator.models.layers.recurrent_parts import state_shape
from aleator.models.placement import EXACT, Place
from aleator.models.torch_decoder import TorchDecoder
from aleator.models.weights import Weights

META = "meta"
BEFORE, AFTER, COPIES = "embedding", "norm and output", "copies from the host"
"""What is counted besides layers."""
_NO_WORK = {"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "detach"}


@dataclass(frozen=True)
class Machine:
    """A GPU as the estimate sees it."""

    bandwidth: float = 3.35e12  # bytes a second that it reads
    launch: float = 1.5e-6  # seconds that one launch takes

    def seconds(self, n_bytes: float, launches: float) -> float:
        """Of a step: what it reads, and what it launches, one after the other."""
        return n_bytes / self.bandwidth + launches * self.launch


@dataclass
class Part:
    """What the layers of one kind do in a step, in all."""

    layers: int = 0  # how many there are
    launches: int = 0  # of kernels, and of PyTorch's operations
    kernels: int = 0  # those of Triton's kernels among them
    weights: int = 0  # bytes of weights that are read
    cached: int = 0  # bytes of keys, values and states that are read and written

    @property
    def bytes(self) -> int:
        """All that goes through memory, but activations."""
        return self.weights + self.cached


@dataclass(frozen=True)
class StepPlan:
    """One step, which makes a token for each of some sequences."""

    sequences: int  # how many
    parts: dict[str, Part]  # by kind of layers, in the order of the layers
    cache: int  # bytes of the cache
    scratch: int  # bytes of the tensors that it makes, as many as there are at once
    prompt: int  # the same of the pieces of a prompt of ``n_ctx`` tokens

    @property
    def total(self) -> Part:
        """All parts together."""
        rows = map(astuple, self.parts.values())
        return Part(*map(sum, zip(*rows, strict=True)))


@dataclass(frozen=True)
class DevicePlan:
    """What a model takes on a GPU."""

    types: dict[str, Stored]  # the weights by their type in the file
    scratch: int  # bytes that a step takes besides, at most
    n_ctx: int  # positions of each sequence
    n_ubatch: int  # the most tokens of a step
    steps: list[StepPlan]  # for several numbers of sequences

    @property
    def weights(self) -> int:
        """Bytes of the weights on the GPU."""
        return sum(each.on_device for each in self.types.values())


def device_plan(
    weights: Weights,  # the open file, of which vectors are read, and no matrices
    n_ctx: int,  # tokens of each sequence, the one of the step included; 1 or more
    type_k: str,  # type of keys in the cache
    type_v: str,  # type of values
    n_ubatch: int,  # the most tokens of a step
    sequences: tuple[int, ...] = (1, 4, 16),  # of which there is a step each
) -> DevicePlan:
    """Count a model's steps; ``weights`` are of no use for anything else afterwards.

    Raises:
        FileFormatError: a tensor is missing or of the wrong shape; names it.
        UnsupportedModel: rotary scaling that is not supported.
    """
    weights.check = Unchecked(weights)
    places = [Place(Device(META), EXACT)] * weights.config.n_layers
    with _Made() as made:
        decoder = build_decoder(weights, places=places)
    if not isinstance(decoder, TorchDecoder):
        raise TypeError("a decoder on a device is PyTorch's or Triton's")
    types = {"type_k": type_k, "type_v": type_v}
    steps = [_step(decoder, made.memory, n, n_ctx, n_ubatch, **types) for n in sequences]
    of_step = step_bytes(weights, places, n_ubatch, n_ctx)
    return DevicePlan(exact_types(weights, places), of_step, n_ctx, n_ubatch, steps)


def _step(
    decoder: TorchDecoder,
    made: set[int],
    n: int,
    n_ctx: int,
    n_ubatch: int,
    type_k: str,
    type_v: str,
) -> StepPlan:
    """One step after ``n`` sequences of ``n_ctx`` - 1 tokens."""
    context = Context(
        decoder, n_ctx=n * n_ctx, n_seq_max=n, n_batch=n_ubatch, n_ubatch=n_ubatch, device=None,
        type_k=type_k, type_v=type_v,
    )  # fmt: skip
    counted = context.decoder
    if not isinstance(counted, TorchDecoder):
        raise TypeError("a context's decoder is of the model's form")
    layers, kinds = counted.layers, [_kind(counted, i) for i in range(len(counted.layers))]
    count = Launches(made)
    count.parts = {
        BEFORE: Part(),
        **{kind: Part() for kind in kinds},
        AFTER: Part(),
        COPIES: Part(),
    }
    with _launching(_nothing), PeakBytes() as prompt:
        _prompt(context, n_ctx - 1)
        for seq in range(1, n):
            context.cache.seq_cp(0, seq)
    batch = Batch()
    for seq in range(n):
        batch.add(0, n_ctx - 1, [seq], logits=True)
    try:
        counted.layers = [
            _noted(count, layer, kind, last=i == len(layers) - 1)
            for i, (layer, kind) in enumerate(zip(layers, kinds, strict=True))
        ]
        with _launching(count.kernel), count, PeakBytes() as peak:
            context.decode(batch)
    finally:
        counted.layers = layers
    for i, kind in enumerate(kinds):
        count.parts[kind].layers += 1
        count.parts[kind].cached += n * cached_bytes(counted.config, i, n_ctx, type_k, type_v)
    return StepPlan(n, count.parts, context.cache.device_bytes[META], peak.most, prompt.most)


def _prompt(context: Context, n: int) -> None:
    """Decode ``n`` tokens.  Of many pieces the first and the last two are computed, the others get cells.

    None of these takes more memory: they are as long as the first one, and see less than the last ones.
    """
    size = context.n_ubatch
    first = min(size, n)
    last = max(first, (n - 1) // size * size - size)
    for begin, end, computed in ((0, first, True), (first, last, False), (last, n, True)):
        if begin >= end:
            continue
        batch = Batch.one([0] * (end - begin), begin, logits=False)
        if computed:
            context.decode(batch)
            continue
        cache = context.cache
        at_once = end - begin if cache.window is None else size  # a window has room for no more
        with cache.step(cache.plan(batch, n_ubatch=at_once, rule=context.split)) as step:
            for _ in step:
                pass


def cached_bytes(config: ModelConfig, layer: int, n_ctx: int, type_k: str, type_v: str) -> int:
    """Bytes of keys, values and states that a layer reads and writes for one token at the end of a text."""
    made = 0
    if config.attends(layer):
        window = config.window
        seen = n_ctx if window is None or not window.layers[layer] else min(n_ctx, window.size)
        of = config.keys_of(layer)
        shape = LayerShape(config.n_kv_heads[of], *config.stored_head_dims(of))
        made += sum(KVCache.bytes_for([shape], seen, type_k, type_v))
    if (config.ssm is not None or config.delta is not None) and config.keeps_state(layer):
        made += 2 * RecurrentCache.bytes_for([state_shape(config)])
    return made


class _Made(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Knows the memory that tensors get; keeps it, so that no other has its name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.memory: set[int] = set()
        self._kept: list[torch.Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = func(*args, **(kwargs or {}))
        for each in _tensors(given):
            if each.device.type == META and _memory(each) not in self.memory:
                self.memory.add(_memory(each))
                self._kept.append(each)
        return given


class Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what a step launches, and the bytes of weights that its kernels read.

    Args:
        weights: the names of the memory of weights.

    Attributes:
        parts: by kind of layers.
        at: the kind that is counted now.
    """

    def __init__(self, weights: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.parts: dict[str, Part] = {}
        self.at = BEFORE
        self._weights = weights

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation of PyTorch's, and count it unless it is a view."""
        given = func(*args, **(kwargs or {}))
        taken = [each.device.type for each in _tensors((args, kwargs))]
        known = {_memory(each) for each in _tensors((args, kwargs)) if each.device.type == META}
        made = [_memory(each) for each in _tensors(given) if each.device.type == META]
        works = func._schema.is_mutable or any(each not in known for each in made)
        if made and works and func.overloadpacket.__name__ not in _NO_WORK:
            self.parts[self.at if META in taken or not taken else COPIES].launches += 1
        return given

    def kernel(self, kernel: Any, args: tuple[Any, ...], constants: dict[str, Any]) -> None:
        """Count a launch of one of Triton's kernels."""
        part = self.parts[self.at]
        part.launches += 1
        part.kernels += 1
        named = dict(zip(kernel.arg_names, args, strict=False)) | constants
        # Of several matrices only the first is one of experts, and its norm, a vector, is of all.
        first = _tensors(named["parts"][0]) if "parts" in named else _tensors(list(named.values()))
        for tensor in _tensors(list(named.values())):
            if _memory(tensor) in self._weights:
                stacked = tensor.ndim > 1 and any(tensor is each for each in first)
                part.weights += _read(named, tensor, stacked)


def _read(named: dict[str, Any], tensor: torch.Tensor, stacked: bool) -> int:
    """Bytes of a tensor of weights that a launch reads; ``stacked``: it may be one of experts."""
    expert, ids = named.get("expert", named.get("chosen")), named.get("ids")
    if expert is not None and stacked:  # no two tokens share an expert, as far as there are enough
        n = len(tensor)
        return int(tensor.nbytes // n * min(n, expert.numel()))
    if ids is not None:  # rows of an embedding
        return tensor.nbytes // int(named["n_out"]) * len(ids)
    return tensor.nbytes


def _noted(count: Launches, layer: Any, kind: str, last: bool) -> Callable[..., Any]:
    """A layer whose launches are counted as those of its kind."""

    def computed(*args: Any) -> Any:
        count.at = kind
        made = layer(*args)
        count.at = AFTER if last else kind
        return made

    return computed


def _kind(decoder: TorchDecoder, layer: int) -> str:
    """A layer in words."""
    config, words = decoder.config, []
    if config.attends(layer):
        words.append("attention in a window" if decoder.windowed(layer) else "attention")
    if decoder.keeps_state(layer):
        words.append("state")
    if not words:
        words.append("feed-forward alone")
    experts = re.compile(rf"blk\.{layer}\.ffn_\w+(_exps|\.\d+)\.weight")
    found = any(map(experts.fullmatch, decoder.weights.names()))
    return " and ".join(words) + (", experts" if found else "")


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(tree) if isinstance(each, torch.Tensor)]


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _nothing(kernel: Any, args: tuple[Any, ...], constants: dict[str, Any]) -> None:
    """A launch that is not counted."""


@contextmanager
def _launching(instead: Callable[..., None]) -> Iterator[None]:
    """Within, launches of Triton's kernels call ``instead``, in this process."""
    before = KernelInterface.__getitem__

    def chosen(kernel: Any, grid: Any) -> Callable[..., None]:
        return lambda *args, **constants: instead(kernel, args, constants)

    try:
        KernelInterface.__getitem__ = chosen
        yield
    finally:
        KernelInterface.__getitem__ = before
