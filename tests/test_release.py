"""What makes a release: packing, bills of materials, and what refuses a checkout."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import tomllib
import zipfile
from pathlib import Path

import build_wheel
import pytest
from native_module import ROOT
from release import bill_of, unready
from sbom import sbom

ABOUT = "aleator-1.0.dist-info"


def test_a_checkout_that_is_not_ready() -> None:
    assert unready("1.0.0", "## 1.0.0 (2026-11-22)\n", "") == []
    assert "has changes" in unready("1.0.0", "## 1.0.0 (2026-11-22)\n", " M README.md")[0]
    assert "no line '## 1.0.0" in unready("1.0.0", "## Unreleased\n## 1.0.01 (2026-11-22)\n", "")[0]


def test_a_bill_of_materials_names_what_others_wrote() -> None:
    text = sbom("a.whl", "1.0", "3.1.0", "12.2.0", ["numpy"])
    assert text == sbom("a.whl", "1.0", "3.1.0", "12.2.0", ["numpy"])
    bill = json.loads(text)
    parts = {each["name"]: each for each in bill["components"]}
    assert {"nanobind", "ggml-common.h", "libstdc++", "preact", "htm", "numpy"} <= set(parts)
    assert parts["htm"]["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    assert parts["libstdc++"]["licenses"] == [
        {"expression": "GPL-3.0-or-later WITH GCC-exception-3.1"}
    ]
    assert set(bill["dependencies"][0]["dependsOn"]) == {each["bom-ref"] for each in parts.values()}
    assert "libstdc++" not in sbom("a.whl", "1.0", "3.1.0", "", [])


def test_wheels_are_packed_in_one_order_with_one_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_wheel, "epoch", lambda: "1700000000")
    monkeypatch.setattr(build_wheel, "run", lambda *command: "3.1.0\n")
    monkeypatch.setattr(build_wheel, "tools", lambda: tmp_path)
    files = {
        "aleator/b.py": "b = 1\n",
        "aleator/a.py": "a = 1\n",
        f"{ABOUT}/METADATA": "Name: aleator\nVersion: 1.0\nRequires-Dist: numpy>=2.0\n"
        'Requires-Dist: rich>=13; extra == "cli"\n\nRequires-Dist: not-this\n',
        f"{ABOUT}/RECORD": "what it was\n",
    }
    made = []
    for turn, names in enumerate((list(files), list(reversed(files)))):
        given = tmp_path / f"given-{turn}" / "a.whl"
        given.parent.mkdir()
        with zipfile.ZipFile(given, "w") as packed:
            for name in names:
                packed.writestr(zipfile.ZipInfo(name, (2000 + turn, 1, 1, 0, 0, 0)), files[name])
        made.append(build_wheel.finished(given, "x86_64", tmp_path / f"made-{turn}"))
    assert made[0].read_bytes() == made[1].read_bytes()
    with zipfile.ZipFile(made[0]) as packed:
        assert packed.namelist()[-1] == f"{ABOUT}/RECORD"
        record = dict(
            line.split(",", 1) for line in packed.read(f"{ABOUT}/RECORD").decode().splitlines()
        )
        assert set(record) == set(packed.namelist())
        for name, entry in record.items():
            if entry != ",":
                digest, size = entry.removeprefix("sha256=").split(",")
                data = packed.read(name)
                wanted = (
                    base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                )
                assert (digest, int(size)) == (wanted, len(data))
        bill = json.loads(packed.read(f"{ABOUT}/sboms/aleator.cdx.json"))
        assert {"numpy"} == {
            each["name"] for each in bill["components"] if each["purl"].startswith("pkg:pypi/n")
        } - {"nanobind"}


def test_every_required_tool_has_one_version() -> None:
    lines = (ROOT / "requirements" / "wheel.txt").read_text().splitlines()
    assert all("==" in line for line in lines if line and not line.startswith("#"))


def test_the_model_moves_to_its_own_package_and_the_extra_needs_it(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    (copy / "src" / "aleator" / "data").mkdir(parents=True)
    (copy / "src" / "aleator" / "data" / "shakespeare.gguf").write_bytes(b"GGUF")
    (copy / "src" / "aleator" / "data" / "shakespeare-eagle3").mkdir()
    package = ROOT / "packages" / "aleator-shakespeare"
    shutil.copytree(package, copy / "packages" / package.name)
    shutil.copy(ROOT / "pyproject.toml", copy)
    build_wheel.without_model(copy)
    extras = tomllib.loads((copy / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    built = tomllib.loads((package / "pyproject.toml").read_text())
    own, included = built["project"], built["tool"]["hatch"]["build"]["artifacts"]
    assert extras["cli"][0] == "aleator-shakespeare>=1,<2"
    assert own["version"].startswith("1.")
    for name in ("shakespeare.gguf", "shakespeare-eagle3"):
        assert f"src/aleator_shakespeare/{name}" in included
        assert not (copy / "src" / "aleator" / "data" / name).exists()
        assert (copy / "packages" / package.name / "src" / "aleator_shakespeare" / name).exists()


def test_the_models_wheel_has_no_bill_and_a_release_goes_on(tmp_path: Path) -> None:
    wheel = tmp_path / "aleator_shakespeare-1.0.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr("aleator_shakespeare/shakespeare.gguf", b"GGUF")
    assert bill_of(wheel, tmp_path) is None
    assert [each.name for each in tmp_path.iterdir()] == [wheel.name]


def test_every_wheel_of_two_builds_is_compared(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    for folder in (first, second):
        folder.mkdir()
        (folder / "a.whl").write_bytes(b"a")
        (folder / "model.whl").write_bytes(b"m")
    (first / "a.tar.gz").write_bytes(b"only here")
    assert build_wheel.differing(first, second) == []
    (second / "model.whl").write_bytes(b"n")
    (second / "b.whl").write_bytes(b"only here")
    assert build_wheel.differing(first, second) == ["b.whl", "model.whl"]
