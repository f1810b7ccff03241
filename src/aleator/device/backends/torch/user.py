"""Users' samplers on the device: objects with ``apply_device(data)`` and ``device_bytes(B, V)``.

The class declares what differs between rows, as tensors that are allocated once:

``device_fields``     parameters: ``{name: Field(dtype, neutral, shape)}``
``device_state``      state between tokens, in the same form; rolled back with the tokens
``device_values()``   an object's values of both, by name, for the rows that have it

In ``apply_device`` they are in ``data.own``, an :class:`OwnRows`, for all rows at once.  Rows with objects of
one class share a place, and the object of the first row is called, so it must not use its own attributes.  If a
class has no ``device_values``, each of its objects takes its own place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from aleator.core.contract import Purpose
from aleator.core.errors import ParameterError
from aleator.device.arguments import ChainOptions
from aleator.device.candidates import DeviceCandidates
from aleator.device.device_sampler import RANDOM, DeviceSampler, Field, Fields, Values, key
from aleator.device.step import DeviceStep
from aleator.device.step import OwnRows as OwnRows
from aleator.samplers.base import Place, Sampler
from aleator.samplers.user import UserSampler

RESERVED = ("active", *RANDOM)
"""Names that a user's tensors cannot have."""


@runtime_checkable
class OnDevice(Protocol):
    """A user's object that can run on a device."""

    def apply_device(self, data: DeviceCandidates) -> None:
        """Do for all rows of ``data`` what ``apply`` does for one."""

    def device_bytes(self, batch: int, n_vocab: int) -> int:
        """Bytes of the tensors that the object itself keeps for ``batch`` rows."""


class DeviceUser(DeviceSampler):
    """Calls ``apply_device`` once for all rows; rows without the sampler do not change."""

    def __init__(self, sampler: UserSampler, options: ChainOptions) -> None:
        user = sampler.user
        if not isinstance(user, OnDevice):
            raise ParameterError(
                "samplers",
                f"{user!r} has apply_device but no device_bytes(B, V): memory must be known beforehand",
            )
        self.user: OnDevice = user
        self.own_fields, self.own_state = declared_by(user)
        super().__init__(sampler, options)
        self._bytes = int(user.device_bytes(self.max_batch, self.n_vocab))

    def declared(self, sampler: Sampler) -> tuple[Fields, Fields]:
        return {**RANDOM, **self.own_fields}, self.own_state

    @property
    def nbytes(self) -> int:
        return super().nbytes + self._bytes

    def values(self, sampler: UserSampler, place: Place) -> Values:
        make = getattr(sampler.user, "device_values", None)
        given = make() if callable(make) else {}
        names = {*self.own_fields, *self.own_state}
        if not isinstance(given, Mapping) or not given.keys() <= names:
            raise ParameterError(
                "samplers",
                f"{sampler.name}: device_values() must be a mapping with names of device_fields and "
                f"device_state, not {given!r:.80}",
            )
        return {**key(place.seed, Purpose.USER, place), **given}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        before = data.snapshot()
        data.own = OwnRows(
            self.get("active", step),
            {name: self.get(name, step) for name in self.own_fields},
            {name: self.get_state(name, step) for name in self.own_state},
            {name: self.get(f"next_{name}", step) for name in self.own_state},
            self.get("seed", step),
            self.get("stream", step),
            step,
        )
        self.user.apply_device(data)
        data.own = None
        data.restore(before, ~self.get("active", step))


def declared_by(user: object) -> tuple[Fields, Fields]:
    """The ``device_fields`` and ``device_state`` that a user's class declares."""
    found: list[Fields] = []
    for name in ("device_fields", "device_state"):
        given = getattr(type(user), name, {})
        if not isinstance(given, Mapping) or not all(isinstance(f, Field) for f in given.values()):
            raise ParameterError(
                "samplers",
                f"{type(user).__name__}.{name} must map names to Field(dtype, neutral, shape)",
            )
        found.append(dict(given))
    names = [*found[0], *found[1], *(f"next_{name}" for name in found[1])]
    if len({*names, *RESERVED}) < len(names) + len(RESERVED):
        raise ParameterError(
            "samplers",
            f"{type(user).__name__}: names of device_fields and device_state must differ from one another and "
            f"from {', '.join(RESERVED)}",
        )
    return found[0], found[1]


def place_of(user: object) -> object:
    """The key that rows' objects must have in common to share a place."""
    return type(user) if callable(getattr(user, "device_values", None)) else user
