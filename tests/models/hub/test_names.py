"""A name that is no file is that of an installed package."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest

import aleator
from aleator.cli import main
from aleator.core.errors import FileFormatError, ModelNotFound
from aleator.models.hub.located import located
from tests.models.builders import write_gguf


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package llm-smollm9 with a model; the folder where it is installed."""
    site = tmp_path / "site"
    about = site / "llm_smollm9-1.0.dist-info"
    (site / "llm_smollm9").mkdir(parents=True)
    about.mkdir()
    write_gguf(site / "llm_smollm9" / "m.Q4_1.gguf")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm9\nVersion: 1.0\n")
    (about / "RECORD").write_text("llm_smollm9/m.Q4_1.gguf,,\nllm_smollm9-1.0.dist-info/RECORD,,\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    return site


def test_a_package_is_found_by_its_name(package: Path) -> None:
    path = package / "llm_smollm9" / "m.Q4_1.gguf"
    assert located("smollm9") == located("llm-smollm9") == path
    assert located(Path("smollm9")) == Path("smollm9")


def test_a_file_of_that_name_comes_first(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm9").touch()
    assert located("smollm9") == Path("smollm9")


def test_several_models_are_refused(package: Path) -> None:
    record = package / "llm_smollm9-1.0.dist-info" / "RECORD"
    record.write_text("llm_smollm9/m.Q4_1.gguf,,\nllm_smollm9/n.gguf,,\n")
    with pytest.raises(FileFormatError, match="several models"):
        located("smollm9")


def test_it_is_listed(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    assert '"name": "smollm9"' in capsys.readouterr().out


def test_what_is_nowhere_is_told_with_what_could_be() -> None:
    with pytest.raises(ModelNotFound, match="hf:ORG/NAME"):
        aleator.load("no-such-model")
    assert metadata.version("aleator")
