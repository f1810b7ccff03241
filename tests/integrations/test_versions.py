"""Adapters without their package, or with an old one, say so in one line."""

from __future__ import annotations

import importlib
import runpy
import sys
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


ADAPTERS = (
    "llama", "lm_eval", "mlx", "ray", "ray_serve", "sglang", "transformers", "transformers_cache", "vllm",
)  # fmt: skip


@pytest.mark.parametrize("name", ADAPTERS)
def test_every_adapter_asks_first(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The remedy brings a newer one: an extra of ours says how new, and so does a package without an extra.
    monkeypatch.delitem(sys.modules, f"aleator.integrations.{name}", raising=False)
    monkeypatch.setattr(metadata, "version", lambda name: "0.0.1")
    remedy = r'pip install "(aleator\[[a-z-]+\]|[a-z]+>=[0-9.]+)"$'
    with pytest.raises(ImportError, match=rf"^\S+ 0.0.1 is older than [0-9.]+, .*: {remedy}"):
        importlib.import_module(f"aleator.integrations.{name}")


@pytest.mark.parametrize("name", ["transformers", "transformers_cache"])
def test_transformers_without_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "torch":
            raise metadata.PackageNotFoundError(name)
        return "99"

    monkeypatch.delitem(sys.modules, f"aleator.integrations.{name}", raising=False)
    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(
        ImportError, match=r'^this adapter needs torch, .*"aleator\[transformers\]"$'
    ):
        importlib.import_module(f"aleator.integrations.{name}")


def test_the_harness_as_a_command_says_it_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "aleator.integrations.lm_eval", raising=False)
    monkeypatch.setattr(metadata, "version", lambda name: "0.0.1")
    with pytest.raises(SystemExit, match=r"^aleator: error: lm_eval 0.0.1 is older"):
        runpy.run_module("aleator.integrations.lm_eval", run_name="__main__")
