"""Rotation of heads in Triton under its interpreter: the contract's bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from decoder_numerics import floats as reference

from aleator.models.config import RopeConfig
from aleator.models.kernels.rotation import RotationAngles, hadamard, rotate, rotation_angles
from aleator.models.layers.rotation import Rotation

pytestmark = pytest.mark.usefixtures("small_programs")


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("dim", "pairs", "offset"),
    [(64, 32, 0), (80, 20, 0), (192, 32, 128), (22, 11, 0), (96, 5, 3), (4, 1, 1)],
)
@pytest.mark.parametrize("tokens", [0, 1, 3, 17])
def test_rotation_is_the_reference(
    tokens: int, dim: int, pairs: int, offset: int, interleaved: bool
) -> None:
    rng = np.random.default_rng(dim)
    x = rng.standard_normal((tokens, 3, dim)).astype(np.float32)
    x[:, 1] = rng.choice(np.array([0.0, -0.0, 1e-40, 1e38, -2.0], np.float32), x[:, 1].shape)
    angles = rng.standard_normal((29, pairs, 2)).astype(np.float32)
    for rows, every in ((None, 1), (rng.integers(0, 29, tokens), 1), (None, 4)):
        taken = np.arange(tokens) // every if rows is None else rows
        expected = x.copy()
        expected[..., offset:] = reference.rotate(
            x[..., offset:], angles[taken][:, None], interleaved=interleaved
        )
        wide = torch.from_numpy(np.concatenate((x, x), 1))  # heads of a larger tensor
        by = RotationAngles(torch.from_numpy(angles), offset, interleaved)
        index = None if rows is None else torch.from_numpy(rows)
        got = rotate(wide[:, :3], by, index, every)
        assert got.numpy().tobytes() == expected.tobytes()
        assert wide[:, 3:].numpy().tobytes() == x.tobytes()


def test_channels_that_lie_apart_are_refused() -> None:
    by = RotationAngles(torch.zeros(2, 2, 2), 0, False)
    with pytest.raises(ValueError, match="must lie side by side"):
        rotate(torch.zeros(2, 4, 3).transpose(1, 2), by)


def test_angles_are_those_of_the_host() -> None:
    rotation = Rotation(RopeConfig(dim=8, style="norm"))
    at = np.array([5, -3], np.int32)
    by = rotation_angles(rotation, at, 1.25, torch.device("cpu"))
    assert by.cos_sin.numpy().tobytes() == rotation.angles(at, 1.25).tobytes()
    assert (by.offset, by.interleaved) == (0, True)


@pytest.mark.parametrize("block", [2, 4, 32, 64, 128, 256, 512])
def test_hadamard_is_the_reference(block: int) -> None:
    x = np.random.default_rng(block).standard_normal((5, 3, 512)).astype(np.float32)
    x[0] = -0.0
    got = hadamard(torch.from_numpy(x.copy()), block)
    assert got.numpy().tobytes() == reference.hadamard(x, block).tobytes()
    assert hadamard(torch.from_numpy(x), 0).numpy() is not None
