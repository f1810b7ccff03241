"""Packages of adapters that are missing, too old or too new."""

from __future__ import annotations

from importlib import metadata

import pytest

from aleator.integrations.packages import numbers, required


def test_a_package_that_will_do() -> None:
    assert required("numpy", "1.0", "numpy", "pip install numpy") == metadata.version("numpy")


def test_a_missing_package_is_one_line() -> None:
    with pytest.raises(ImportError) as raised:
        required("no_such_module", "1", "no-such", "pip install no-such")
    assert str(raised.value) == "this needs no-such, which is not installed: pip install no-such"
    assert raised.value.name == "no_such_module"


def test_a_version_out_of_range_is_one_line() -> None:
    version = metadata.version("numpy")
    with pytest.raises(
        ImportError, match=f"numpy {version} is installed, and this needs 99.1 or newer: x"
    ):
        required("numpy", "99.1", "numpy", "x")
    with pytest.raises(ImportError, match=r"this needs 1\.0 to below 1\.1: y"):
        required("numpy", "1.0", "numpy", "y", below="1.1")


def test_versions_are_compared_by_their_numbers() -> None:
    assert numbers("2.60.0rc1") == (2, 60, 0)
    assert numbers("2.9") < numbers("2.44")
    assert numbers("unknown") == ()
