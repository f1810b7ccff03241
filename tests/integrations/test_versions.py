"""Adapters without their package, or with an old one, say so in one line."""

from __future__ import annotations

from importlib import metadata

import pytest

from aleator.integrations import versions


def test_an_old_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "5.9.1rc2")
    with pytest.raises(
        ImportError, match=r"^x 5.9.1rc2 is older than 5.23.*pip install \"y\[x\]\"$"
    ):
        versions.require("x", at_least="5.23", install="y[x]")
    assert versions.require("x", at_least="5.9.1", install="y") == "5.9.1rc2"


def test_a_missing_package() -> None:
    with pytest.raises(
        ImportError, match=r"needs no-such-thing, which is not installed: pip install"
    ):
        versions.require("no-such-thing", "no-other", at_least="1", install="y")


def test_any_name_will_do() -> None:
    assert versions.require("no-such-thing", "numpy", at_least="1", install="y")
