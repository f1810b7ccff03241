"""What device chains keep inside, for tests."""

from __future__ import annotations

from aleator.device.backends.torch.backend import TorchBackend
from aleator.device.chain import DeviceChain


def inside(chain: DeviceChain) -> TorchBackend:
    """Its rows and tensors."""
    backend = chain._backend
    assert isinstance(backend, TorchBackend)
    return backend
