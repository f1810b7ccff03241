"""Inputs of a step of Triton's kernels, in one block of host memory that is copied at once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from aleator.cache.pools.hybrid import HybridBatch, parts_of
from aleator.cache.pools.recurrent_rows import RecurrentBatch
from aleator.cache.rows.batch import MicroBatch
from aleator.models.kernels.attention import FEW
from aleator.models.kernels.rotation import RotationAngles
from aleator.models.kernels.runs import Runs, numbers_of
from aleator.models.kernels.seen import SeenTensors, apart, visible_cells
from aleator.models.layers.passes import Pass
from aleator.models.layers.rotary import Rotary
from aleator.models.step import Draw, Inputs

if TYPE_CHECKING:
    from aleator.models.torch_decoder import TorchDecoder

K = TypeVar("K", bound=Hashable)
_APART = 16  # alignment of a place, in bytes
_TYPES = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
}


class Packed(Generic[K]):
    """Arrays of int32, int64 or float32 by name; only their sizes determine their places in the block."""

    def __init__(self, arrays: Mapping[K, npt.NDArray[Any]]) -> None:
        self._arrays, self._begins, self.size = arrays, list[int](), 0
        for each in arrays.values():
            self._begins.append(self.size)
            self.size += -(-each.nbytes // _APART) * _APART

    def on(self, device: torch.device, into: torch.Tensor | None = None) -> dict[K, torch.Tensor]:
        """Copy them, without waiting for the device; ``into``: uint8, the block of an earlier call."""
        pinned = device.type == "cuda"
        flat = torch.empty(self.size, dtype=torch.uint8, pin_memory=pinned)
        to = flat.numpy()
        begins = list(zip(self._arrays.items(), self._begins, strict=True))
        for (_, each), begin in begins:
            to[begin : begin + each.nbytes] = np.ascontiguousarray(each).reshape(-1).view(np.uint8)
        block = flat.to(device, non_blocking=pinned) if into is None else into
        if into is not None:
            into.copy_(flat, non_blocking=pinned)
        return {
            name: block[begin : begin + each.nbytes].view(_TYPES[each.dtype]).view(each.shape)
            for (name, each), begin in begins
        }


ROWS = (1, 2, 4, 8, 16, 32, 64)
"""Steps of few tokens are padded to these sizes, so that few shapes occur."""
CHUNKS = (128, 256, 512, 1024, 2048)
"""Pieces of prompts are padded to these sizes if they fill three quarters of one."""
MOST_TURNS = 8
"""Steps over keys that lag behind by more distances than this have no graph: queries are copied for each."""
_SHORTEST = 256  # the least room for cells that a token of such a step may see


class Shape(NamedTuple):
    """Sizes that a step's kernels are launched for."""

    # Number of tokens; padding tokens store nothing, and their results are unused
    tokens: int
    vectors: bool  # inputs are vectors instead of tokens
    # The most cells that a token sees, for each kind of layers that attend
    longest: tuple[int, ...]
    listed: tuple[int, ...]  # cells in the lists of what is seen, for each kind
    # Rotations of keys that have moved, or of raw keys, for each kind; 1: none
    rotations: tuple[int, ...]
    runs: int  # of layers that keep a state
    outputs: int  # tokens whose logits are computed; -1: all
    apart: bool = False  # see :class:`TritonPass`


class TritonPass(Pass):
    """What layers share in one micro-batch; all of it is on the device before the first layer."""

    rotation_angles: dict[Rotary, RotationAngles]  # of the tokens' positions
    # Where each token is stored, int64 [T], by whether layers have a window; -1: nowhere
    cell_ids: dict[bool, torch.Tensor]
    seen: dict[bool, SeenTensors]  # what tokens see, likewise
    # Angles that rotate queries back by how far keys lag behind their cells, or of raw keys to their positions
    angles_back: dict[bool, RotationAngles | None]
    runs: Runs  # runs of layers that keep a state
    # Of few tokens: the last cell that each sees is its own new one, the others are older
    apart: bool

    def stored(self, windowed: bool) -> MicroBatch:
        """The cells of one kind of layers, on the host."""
        cells = self.cells(windowed)
        if not isinstance(cells, MicroBatch):
            raise TypeError("kernels read the cells of a micro-batch")
        return cells


class StepInputs:
    """One micro-batch on the host.

    Attributes:
        shape: its own shape.
        bucket: the shape that it is padded to, for which a graph can be captured; None: there is no graph, as
            kernels do not store the cache's type, keys lag behind by many distances, or a piece of a prompt
            would need too much padding or wants the logits of more than 64 tokens.
        states: states of layers that keep one, if there are any.
    """

    def __init__(
        self,
        decoder: TorchDecoder,
        inputs: Inputs,
        positions: npt.NDArray[np.int32],
        cells: MicroBatch | HybridBatch | RecurrentBatch,
        outputs: npt.NDArray[np.int64],
    ) -> None:
        self._decoder, self._inputs = decoder, inputs
        self._positions, self._cells = positions, cells
        self._outputs = outputs if len(outputs) < len(inputs) else None
        base, window, states = parts_of(cells)
        self.states = states if decoder.recurrent else None
        self._kinds: dict[bool, MicroBatch] = {}
        for windowed in sorted({block.attending.windowed for block in decoder.blocks}):
            if (part := window if windowed else base) is not None:
                self._kinds[windowed] = part
        leans = decoder.slopes is not None
        self._visible = {
            w: visible_cells(part, part.rows.k_storage == "raw", leans)
            for w, part in self._kinds.items()
        }
        visible = list(self._visible.values())
        runs = 0 if self.states is None else len(self.states.sources)
        longest = tuple(int(each.tokens[3].max(initial=0)) for each in visible)
        listed = tuple(len(each.cells) for each in visible)
        rotations = tuple(map(self._rotations, self._kinds))
        n, vectors = len(inputs), inputs.ndim == 2
        n_outputs = -1 if self._outputs is None else len(outputs)
        few = n <= FEW and max(longest, default=0) > 0
        alone = few and all(map(apart, self._kinds.values()))
        self.shape = Shape(n, vectors, longest, listed, rotations, runs, n_outputs, alone)
        self.bucket: Shape | None = None
        if not self._fixed:
            return
        rooms = vectors, _room(longest), _room(listed), tuple(map(_power, rotations))
        padded = n_outputs if self._outputs is None else _power(n_outputs)
        if n <= ROWS[-1]:
            n = next(rows for rows in ROWS if rows >= n)
            self.bucket = Shape(n, *rooms, n if runs else 0, padded, alone)
        elif 0 <= n_outputs <= ROWS[-1]:  # logits of more take much memory
            size = next((size for size in CHUNKS if size >= n), 0)
            if 4 * n >= 3 * size > 0:
                self.bucket = Shape(size, *rooms, _power(runs), padded, alone)

    @property
    def _fixed(self) -> bool:
        """Whether kernels store all keys and values, and few distances of moved keys are to be read."""
        return all(
            "iq4_nl" not in (part.rows.keys.type.name, part.rows.values.type.name)
            and (seen.deltas is None or len(seen.deltas) <= MOST_TURNS)
            for seen, part in zip(self._visible.values(), self._kinds.values(), strict=True)
        )

    def packed(self, shape: Shape, draw: Draw | None = None) -> Packed[Any]:
        """The arrays, padded to ``shape``, and those of ``draw``."""
        decoder, n, positions = self._decoder, shape.tokens, _longer(self._positions, shape.tokens)
        arrays: dict[Any, npt.NDArray[Any]] = {"inputs": _longer(self._inputs, n)}
        if decoder.n_positions is not None:
            arrays["positions"] = positions
        if self._outputs is not None:
            arrays["outputs"] = _longer(self._outputs, shape.outputs)
        scales = decoder.query_scales(positions)
        if scales is not None:
            arrays["scales"] = scales
        if self.states is not None:
            arrays["runs"] = numbers_of(self.states, shape.runs, n)
        for rotary in self._rotaries.values():
            arrays["angles", rotary] = rotary.rotation.angles(positions, rotary.rotation.magnitude)
        sizes = zip(self._kinds.items(), shape.listed, shape.rotations, strict=True)
        for (windowed, part), listed, rotations in sizes:
            arrays["cells", windowed] = _longer(part.cell_ids, n, -1)
            seen, back = self._visible[windowed], self._back(windowed)
            arrays["seen", windowed] = _longer(seen.tokens.T, n).T
            arrays["listed", windowed] = _longer(seen.cells, listed)
            if seen.positions is not None:
                arrays["at", windowed] = _longer(seen.positions, listed)
            if back is not None and seen.rows is not None:
                arrays["rows", windowed] = _longer(seen.rows, listed)
                arrays["back", windowed] = _longer(back, rotations)
        if draw is not None:
            arrays.update(draw.arrays(n))
        return Packed(arrays)

    def given(
        self, on: Mapping[Any, torch.Tensor], shape: Shape
    ) -> tuple[torch.Tensor, TritonPass, torch.Tensor | None]:
        """The arguments of :meth:`TorchDecoder.compute`, from :meth:`packed`'s arrays on the device."""
        made = TritonPass(
            on.get("positions", on["inputs"]), 0, self._cells, False, on.get("scales")
        )
        made.rotation_angles = {
            rotary: _angles(rotary, on["angles", rotary]) for rotary in self._rotaries.values()
        }
        made.cell_ids, made.seen, made.angles_back, made.apart = {}, {}, {}, shape.apart
        kinds = zip(self._visible.items(), shape.longest, shape.rotations, strict=True)
        for (windowed, seen), longest, rotations in kinds:
            made.cell_ids[windowed] = on["cells", windowed]
            tokens, listed = on["seen", windowed], on["listed", windowed]
            rest = on.get(("rows", windowed)), on.get(("at", windowed)), longest, rotations
            made.seen[windowed] = SeenTensors(seen, tokens, listed, *rest)
            back = on.get(("back", windowed))
            made.angles_back[windowed] = (
                None if back is None else _angles(self._rotaries[windowed], back)
            )
        if self.states is not None:
            made.runs = Runs.within(on["runs"], shape.runs, shape.tokens)
        return on["inputs"], made, on.get("outputs")

    @property
    def _rotaries(self) -> dict[bool, Rotary]:
        """The rotations of each kind of layers."""
        return {windowed: self._decoder.rotary_of(windowed) for windowed in self._kinds}

    def _rotations(self, windowed: bool) -> int:
        """How many rotations :meth:`_back` has; 1: none is needed."""
        deltas, far = self._visible[windowed].deltas, self._kinds[windowed].seen.deltas
        if deltas is not None:
            return len(deltas)
        return 1 + (0 if far is None else int(far.max(initial=0)))

    def _back(self, windowed: bool) -> npt.NDArray[np.float32] | None:
        """The angles of :attr:`TritonPass.angles_back`; None: no key has moved."""
        rotation, deltas = self._rotaries[windowed].rotation, self._visible[windowed].deltas
        if deltas is not None:
            return rotation.angles(-deltas, 1.0) if len(deltas) > 1 else None
        return rotation.angles(np.arange(self._rotations(windowed), dtype=np.int32), 1.0)


def _angles(rotary: Rotary, cos_sin: torch.Tensor) -> RotationAngles:
    return RotationAngles(cos_sin, rotary.rotation.offset, rotary.rotation.interleaved)


def _longer(array: npt.NDArray[Any], n: int, value: int = 0) -> npt.NDArray[Any]:
    """An array padded to ``n`` entries with ``value``."""
    if len(array) == n:
        return array
    made = np.full((n, *array.shape[1:]), value, array.dtype)
    made[: len(array)] = array
    return made


def _room(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The next powers of two."""
    return tuple(max(_SHORTEST, _power(n)) for n in sizes)


def _power(n: int) -> int:
    """The least power of two that is large enough; 0 for 0."""
    return 1 << (n - 1).bit_length() if n else 0
