"""A user's sampler on the device: an object with ``apply_device(data)`` and ``device_bytes(B, V)``."""

from __future__ import annotations

from typing import Any

from aleator.core.errors import ParameterError
from aleator.device.candidates import DeviceCandidates
from aleator.device.places import DeviceSampler, DeviceStep


class DeviceUser(DeviceSampler):
    """Calls ``apply_device`` once for all rows; rows without the sampler stay as they are."""

    user: Any = None

    @property
    def nbytes(self) -> int:
        """What the user's sampler says it takes."""
        own = self.user.device_bytes(self.max_batch, self.n_vocab) if self.user is not None else 0
        return super().nbytes + int(own)

    def bind(self, user: Any) -> None:
        """Use one object for all rows."""
        if not callable(getattr(user, "device_bytes", None)):
            raise ParameterError(
                "samplers",
                f"{user!r} has apply_device but no device_bytes(B, V): memory must be known beforehand",
            )
        self.user = user

    def values(self, sampler: Any, place: Any) -> dict[str, Any]:
        """The object itself must be the one the chain was made with."""
        if sampler.user is not self.user:
            raise ParameterError(
                "samplers",
                f"{sampler.name}: rows share the object that the device chain was made with",
            )
        return {}

    def apply(self, data: DeviceCandidates, step: DeviceStep) -> None:
        """Call it."""
        before = data.snapshot()
        self.user.apply_device(data)
        data.restore(before, ~self.get("active", step))
