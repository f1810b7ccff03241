"""The model that comes with the package."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def bundled_model() -> Path:
    """Path of the model that comes with the package: a checkout's own, else that of aleator-shakespeare."""
    return _bundled("shakespeare.gguf")


def bundled_head() -> Path:
    """Path of that model's draft head (docs/engine.md)."""
    return _bundled("shakespeare-eagle3")


def _bundled(name: str) -> Path:
    path = Path(__file__).parents[2] / "data" / name
    if path.exists():
        return path
    package = find_spec("aleator_shakespeare")
    if package is None or package.origin is None:
        raise ImportError(
            "the bundled model is the package aleator-shakespeare: install its wheel, which lies beside "
            "aleator's, or name another model",
            name="aleator_shakespeare",
        )
    return Path(package.origin).parent / path.name
