"""Random models of every architecture, and the walk that two decoders of each take."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import equality_architectures
import pytest
from decoder_walk import Walk
from equality_architectures import drawn, drawn_caches
from wide_models import SMALL, write_model

from aleator.models import build_decoder, open_weights
from aleator.models.index import ARCHITECTURES


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_is_drawn_can_be_computed(name: str, tmp_path: Path) -> None:
    r = random.Random(f"test {name}")
    spec = drawn(name, False, r)
    assert spec.arch == name
    decoder = build_decoder(open_weights(write_model(tmp_path / "m.gguf", spec)))
    assert decoder.config.architecture == name
    k, v = drawn_caches(decoder, r)
    Walk([decoder, decoder], 1, type_k=k, type_v=v)


def test_draws_differ() -> None:
    r = random.Random(1)
    specs: list[Any] = [drawn("llama", False, r) for _ in range(20)]
    for field in ("type", "seed", "n_vocab", "n_embd", "n_ff"):
        assert len({getattr(spec, field) for spec in specs}) > 2, field
    wide: Any = drawn("llama", True, r)
    assert wide.n_embd % 256 == wide.n_ff % 256 == 0


@pytest.mark.parametrize(
    ("name", "refused"), [("llama", []), ("mamba", ["rewind"]), ("qwen2vl", ["shift"])]
)
def test_a_walk(name: str, refused: list[str], tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", SMALL[name])
    decoders = [build_decoder(open_weights(path)) for _ in range(2)]
    found = Walk(decoders, 3).run()
    assert (found.wrong, found.where) == (0, "")
    assert found.rows > 20
    assert found.refused == refused
    steps = {
        "prompt",
        "one token",
        "few tokens",
        "copy",
        "interleaved",
        "sequences",
        "exchange",
        "the end",
    }
    assert steps <= set(found.done)
    edits = {"removal", "shift", "rewind"}
    assert edits & set(found.done) == edits - set(refused)


def test_a_difference_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that is shifted by one side only stands for a wrong kernel."""
    path = write_model(tmp_path / "m.gguf", SMALL["llama"])
    decoders = [build_decoder(open_weights(path)) for _ in range(2)]
    monkeypatch.setattr(decoders[1], "shift_keys", lambda layer, keys, deltas: keys)
    found = Walk(decoders, 3).run()
    assert found.wrong > 0
    assert found.where


def called(
    monkeypatch: pytest.MonkeyPatch, out: Path, found: dict[str, Any], *more: str
) -> tuple[int, list[tuple[str, int]]]:
    """The status of a call in which models are compared as ``found`` says, and those that were."""
    told: list[tuple[str, int]] = []

    def compared(name: str, number: int, options: Any) -> Any:
        told.append((name, number))
        wrong = found.get(name, 0)
        if isinstance(wrong, BaseException):
            raise wrong
        return not wrong, ["small", "F32", "f16, f16", 18, 40, wrong, "", "1"]

    monkeypatch.setattr(equality_architectures, "compared", compared)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    names = ("--names", "llama", "mamba", "gemma", "--each", "2")
    return equality_architectures.main([*names, "--out", str(out), *more]), told


def test_a_failure_is_no_success(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "out.md"
    assert called(monkeypatch, out, {"llama": ValueError("no")})[0] == 1
    assert "| llama | 0 | failed |" in out.read_text()
    assert called(monkeypatch, tmp_path / "other.md", {"mamba": 3})[0] == 1
    assert called(monkeypatch, tmp_path / "equal.md", {})[0] == 0
