"""Where the bundled model and its draft head are."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from aleator.models.hub import bundled


def test_they_lie_in_the_tree_or_in_a_package_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert bundled._bundled("shakespeare-eagle3").is_dir()
    origin = str(tmp_path / "__init__.py")
    monkeypatch.setattr(bundled, "find_spec", lambda _: SimpleNamespace(origin=origin))
    assert bundled._bundled("another") == tmp_path / "another"


@pytest.mark.parametrize("package", [None, SimpleNamespace(origin=None)])
def test_without_the_package_its_name_is_said(
    monkeypatch: pytest.MonkeyPatch, package: object
) -> None:
    monkeypatch.setattr(bundled, "find_spec", lambda _: package)
    with pytest.raises(ImportError, match="aleator-shakespeare"):
        bundled._bundled("another")
