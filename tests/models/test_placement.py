"""Which device computes, and what is refused about it."""

from __future__ import annotations

import pytest

import aleator
from aleator.core.errors import ParameterError
from aleator.models.placement import check_layers, placement


def test_no_layers_on_a_device_is_the_cpu() -> None:
    place, kind = placement(None, None, 0)
    assert (str(place), kind) == ("cpu", "float32")
    assert aleator.load(n_gpu_layers=0).decoder.device.type == "cpu"


def test_layers_on_a_device_that_is_none() -> None:
    with pytest.raises(ParameterError, match="n_gpu_layers=3 with device='cpu': give 0") as caught:
        placement("cpu", None, 3)
    assert caught.value.parameter == "n_gpu_layers"


def test_a_model_is_not_divided() -> None:
    check_layers(None, 4)
    check_layers(0, 4)
    check_layers(4, 4)
    check_layers(99, 4)
    with pytest.raises(
        ParameterError, match=r"n_gpu_layers=3: the model has 4 layers.*give 0 or 4"
    ):
        check_layers(3, 4)
    with pytest.raises(ParameterError, match=r"tensor_split='1,1': one device computes a model"):
        aleator.load(tensor_split="1,1")
    with pytest.raises(ParameterError, match="n_gpu_layers"):
        aleator.load(n_gpu_layers=-1)
