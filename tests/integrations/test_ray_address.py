"""An address where no cluster is, is found out at once."""

from __future__ import annotations

import socket

import pytest

from aleator.integrations.ray_generator import require_listener


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "ray://localhost:{}"])
def test_nobody_listens(form: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        address = form.format(other.getsockname()[1])
        with pytest.raises(OSError, match=r"refused"):
            require_listener(address)
        if "localhost" not in form:
            other.listen()
            require_listener(address)


@pytest.mark.parametrize("address", ["auto", "local", "ray://"])
def test_others_are_left_to_ray(address: str) -> None:
    require_listener(address)
