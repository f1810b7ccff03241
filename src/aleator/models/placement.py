"""Where the layers of a model compute, and in which type."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import dropwhile, pairwise
from typing import TYPE_CHECKING

from aleator.cache.devices import (
    CPU,
    Device,
    checked_device,
    cuda_devices,
    named_device,
    require_device,
    sizes_by_device,
)
from aleator.core.errors import ParameterError
from aleator.core.integers import exact
from aleator.core.records import dataclass
from aleator.models.files.tensor_types import SCALED_TYPES

if TYPE_CHECKING:
    from aleator.models.weights import Weights

DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Types to compute in, and the bytes of a number."""
EXACT = "exact"
"""Used instead of a type: weights as in the file, activations in float32, and the CPU's bits everywhere."""
AUTO = "auto"
"""The device that can compute: see :func:`placement`, and :func:`aleator.load` for "exact"."""
DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""Device files of drivers: CUDA, CUDA under Windows, and AMD, which PyTorch also calls CUDA."""

log = logging.getLogger(__name__)

_EXAMPLE = "'cpu=0:20,cuda:0=20:32' or [('cpu', 0, 20), ('cuda:0', 20, 32)]"
_PART = r"\s*([^=\s]+)=(\d{1,9}):(\d{1,9})\s*"


@dataclass(frozen=True)
class Place:
    """Where a layer computes."""

    device: Device  # where its weights and its part of the cache are
    dtype: str  # type of weights and activations there; "exact": see EXACT


ON_CPU = Place(CPU, "float32")
"""Where native code computes."""


@dataclass(frozen=True)
class DeviceMap:
    """Which layers each device has."""

    # (device, its first layer, the layer after its last), in the order of the layers, without gaps
    parts: tuple[tuple[Device, int, int], ...]

    def __str__(self) -> str:
        return ",".join(f"{device}={first}:{end}" for device, first, end in self.parts)

    @classmethod
    def of(cls, value: object) -> DeviceMap:
        """Parse a map from a string or a list, without checking that the devices exist.

        Args:
            value: ranges in any order, such as "cpu=0:20,cuda:0=20:32" or
                [("cpu", 0, 20), ("cuda:0", 20, 32)]; or a map.

        Raises:
            ParameterError: it is not a map, names an unknown device, or names layers twice or not at all.
        """
        if isinstance(value, DeviceMap):
            return value
        words = value.split(",") if isinstance(value, str) else value
        if not isinstance(words, Iterable) or not (listed := list(words)):
            raise _refused(value, f"give ranges of layers, such as {_EXAMPLE}")
        parts = sorted((_part(value, each) for each in listed), key=lambda part: part[1:])
        if parts[0][1] > 0:
            raise _refused(
                value, f"{_span(0, parts[0][1])} no device: let the first range begin at 0"
            )
        for (device, _, end), (other, first, _) in pairwise(parts):
            if first > end:
                raise _refused(
                    value, f"{_span(end, first)} no device: let the range of {other} begin at {end}"
                )
            if first < end:
                raise _refused(
                    value,
                    f"layer {first} is given to {device} and to {other}: a range ends before the layer after "
                    f"its colon, so let the one of {other} begin at {end}",
                )
        return cls(tuple(parts))

    def devices(self, n_layers: int) -> list[Device]:
        """The device of each layer; raise ParameterError if the map has another number of layers."""
        end = self.parts[-1][2]
        if end != n_layers:
            why = (
                f"{_span(end, n_layers)} no device"
                if end < n_layers
                else f"there is no layer {end - 1}"
            )
            raise _refused(
                self,
                f"the model has {n_layers} layers, 0 to {n_layers - 1}, and {why}: let the ranges end at "
                f"{n_layers}",
            )
        return [device for device, first, end in self.parts for _ in range(first, end)]


def _part(whole: object, part: object) -> tuple[Device, int, int]:
    """One range of a map."""
    if isinstance(part, str):
        found = re.fullmatch(_PART, part)
        part = found.groups() if found else None
        part = part and (part[0], int(part[1]), int(part[2]))
    if not isinstance(part, Sequence) or len(part) != 3:
        raise _refused(whole, f"give ranges of layers, such as {_EXAMPLE}")
    first, end = exact(part[1]), exact(part[2])
    if first is None or end is None or not 0 <= first < end:
        raise _refused(
            whole,
            f"the range of {part[0]} is {part[1]}:{part[2]}: give its first layer, counted from 0, and the "
            "layer after its last, which is larger",
        )
    return named_device("device_map", part[0]), first, end


def _span(first: int, end: int) -> str:
    """The beginning of a message about the layers from ``first`` to before ``end``."""
    return f"layer {first} has" if end == first + 1 else f"layers {first} to {end - 1} have"


def _refused(value: object, why: str) -> ParameterError:
    shown = f"{str(value) if isinstance(value, DeviceMap) else value!r:.80}"
    return ParameterError(f"device_map={shown}: {why}")


@dataclass(frozen=True)
class Placement:
    """Where a model computes, before its number of layers is known."""

    device: Device  # of the last ``n_gpu_layers`` layers, or of all
    # A type for all layers, or "exact"; None: float32 on the CPU, "exact" on CUDA, which are the same bits
    dtype: str | None = None
    n_gpu_layers: int | None = None  # how many; None: all
    device_map: DeviceMap | None = None  # used instead of these; None: not used

    def places(self, n_layers: int) -> list[Place]:
        """Where each of ``n_layers`` layers computes.

        Raises:
            ParameterError: the map has another number of layers; "exact" elsewhere than on the CPU followed by
                one GPU.
        """
        if self.device_map is not None:
            devices = self.device_map.devices(n_layers)
        else:
            on = n_layers if self.n_gpu_layers is None else min(self.n_gpu_layers, n_layers)
            devices = [CPU] * (n_layers - on) + [self.device] * on
        after = list(dropwhile(lambda device: device.type == "cpu", devices))
        on_gpu = self.dtype or EXACT
        gpus = [device for device in after if device.type != "cpu"]
        if on_gpu == EXACT and gpus and len(set(after)) > 1:
            name = "n_gpu_layers" if self.device_map is None else "device_map"
            raise ParameterError(
                name,
                "dtype='exact', the default on a GPU, computes the first layers on the CPU and the others on "
                f"one GPU: give n_gpu_layers of 0 to {n_layers} in place of {name}, or dtype='bfloat16'",
            )
        # Native code has these bits: it takes weights as they are stored.
        on_cpu = "float32" if self.dtype == EXACT else self.dtype or "float32"
        kinds = {"cpu": on_cpu, "cuda": on_gpu}
        return [Place(device, kinds[device.type]) for device in devices]


def placement(
    device: object, dtype: object, n_gpu_layers: int | None = None, device_map: object = None
) -> Placement:
    """Resolve where to compute, and find its devices.

    Args:
        device: "cpu", "cuda" or "cuda:N", or PyTorch's object for it; None: CUDA if there is one, else the
            CPU; "auto": the same, and the log says why it is the CPU.
        dtype: a type's name, or PyTorch's object for it, or "exact"; None: float32 on the CPU, "exact" on
            CUDA.
        n_gpu_layers: how many of the last layers are on a CUDA device, with the others on the CPU; None: all
            are on ``device``.
        device_map: which layers each device has, see :meth:`DeviceMap.of`; used instead of both.

    Raises:
        ParameterError: an unknown device or type, a missing CUDA device, an invalid map, or arguments that
            contradict each other.
        ImportError: a device or a type needs PyTorch, which is not installed.
    """
    if device_map is not None:
        made = DeviceMap.of(device_map)
        for name, value in (("device", device), ("n_gpu_layers", n_gpu_layers)):
            if value is not None:
                raise _refused(made, f"{name}={value!r} is given too: leave out one of the two")
        for each, _, _ in made.parts:
            require_device("device_map", each)
        return Placement(made.parts[-1][0], checked_dtype(dtype), device_map=made)
    if device is None or device == AUTO:
        found = n_gpu_layers != 0 and _has_cuda()
        if device == AUTO and not found:
            if n_gpu_layers != 0:
                log.info("device='auto': the CPU computes, as PyTorch finds no CUDA device")
            n_gpu_layers = 0
        device = "cuda" if found else "cpu"
    place = checked_device("device", device)
    if n_gpu_layers is not None and (n_gpu_layers == 0) != (place.type == "cpu"):
        remedy = (
            "leave out device"
            if n_gpu_layers == 0
            else "give 0, or device='cuda' where there is one"
        )
        raise ParameterError(f"n_gpu_layers={n_gpu_layers} with device={str(place)!r}: {remedy}")
    return Placement(place, checked_dtype(dtype), n_gpu_layers)


def checked_dtype(dtype: object) -> str | None:
    """The name of a type to compute in; None stays None; raise ParameterError for other values."""
    if dtype is None:
        return None
    name = str(dtype).removeprefix("torch.")
    if name not in (*DTYPES, EXACT):
        raise ParameterError(f"dtype={dtype!r}: give {', '.join(DTYPES)} or {EXACT}")
    return name


def weight_bytes(weights: Weights, places: Sequence[Place]) -> dict[str, int]:
    """The bytes that weights take on each device by its name, without reading them.

    On the CPU in float32 and at "exact" places, weights are used as stored, so these are the file's bytes; but
    "exact" places have FP8 and NF4 in float32.
    Elsewhere numbers count in the type of the place.  Embeddings are at the first place, the last norm and the
    output matrix at the last; a matrix that serves as both is counted at both if these differ.
    """
    sizes: list[tuple[Device, int]] = []
    for name, place in tensor_places(weights, places):
        stored = weights.stored(name)
        wide = place.dtype == EXACT and stored.type in SCALED_TYPES
        in_type = stored.n_elements * (4 if wide else DTYPES.get(place.dtype, 0))
        sizes.append(
            (place.device, stored.data.size if _as_stored(place) and not wide else in_type)
        )
    order = dict.fromkeys(str(place.device) for place in places)
    made = sizes_by_device(sizes)
    return {name: made[name] for name in order}


def tensor_places(weights: Weights, places: Sequence[Place]) -> Iterator[tuple[str, Place]]:
    """Each tensor's name and place; a matrix at two places comes twice.

    Layers that predict further tokens, after the model's own, are left out: decoders do not load them.
    """
    first, last = places[0], places[-1]
    for name in weights.names():
        if name.startswith("blk."):
            layer = int(name.split(".", 2)[1])
            if layer < len(places):
                yield name, places[layer]
        elif name.startswith("token_embd.") and weights.config.tied:
            yield from ((name, place) for place in {first, last})
        else:
            yield name, last if name.startswith("output") else first


def _as_stored(place: Place) -> bool:
    """Whether a place uses weights as they are stored."""
    return place.dtype == EXACT or (place.device.type == "cpu" and place.dtype == "float32")


def _has_cuda() -> bool:
    """Whether PyTorch finds a CUDA device; PyTorch is imported only if a driver is installed."""
    if sys.platform not in ("linux", "win32"):
        return False
    if sys.platform == "linux" and not any(map(os.path.exists, DRIVERS)):
        return False
    try:
        return cuda_devices("device=None") > 0
    except ImportError:
        return False
