"""Random models of every architecture, and the walk that two decoders of each take."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import equality_architectures
import pytest
from decoder_walk import Walk
from equality_architectures import compared, drawn, drawn_caches
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


def test_lines_are_added_as_they_come(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "out.md"
    with pytest.raises(KeyboardInterrupt):
        called(monkeypatch, out, {"gemma": KeyboardInterrupt()})
    lines = out.read_text().splitlines()
    assert lines[0].startswith("# ")
    assert [line.split(" | ")[:2] for line in lines if "| small |" in line] == [
        ["| llama", "0"], ["| llama", "1"], ["| mamba", "0"], ["| mamba", "1"],
    ]  # fmt: skip


def test_parts_add_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What failed or differed is compared again, what was equal is not."""
    out = tmp_path / "out.md"
    part = called(monkeypatch, out, {}, "--part", "0", "2")
    assert part == (0, [("llama", 0), ("llama", 1), ("gemma", 0), ("gemma", 1)])
    before = out.read_text()
    assert called(monkeypatch, out, {"mamba": ValueError("no")}) == (
        1,
        [("mamba", 0), ("mamba", 1)],
    )
    assert called(monkeypatch, out, {"mamba": 2}) == (1, [("mamba", 0), ("mamba", 1)])
    assert called(monkeypatch, out, {}) == (0, [("mamba", 0), ("mamba", 1)])
    assert called(monkeypatch, out, {}) == (0, [])
    assert out.read_text().startswith(before)
    assert out.read_text().count("# Random") == 1


def test_a_file_of_other_draws_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "out.md"
    called(monkeypatch, out, {})
    before = out.read_text()
    with pytest.raises(SystemExit, match=r"seed 2, .*give another --out"):
        called(monkeypatch, out, {}, "--seed", "2")
    with pytest.raises(SystemExit, match=r"seed 1, matrices in BF16, .*give another --out"):
        called(monkeypatch, out, {}, "--type", "BF16")
    assert out.read_text() == before


def test_all_matrices_can_have_one_type(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def written(path: Path, spec: Any) -> Path:
        made.append(spec.type)
        raise KeyboardInterrupt

    monkeypatch.setattr(equality_architectures, "write_model", written)
    for number in range(4):
        with pytest.raises(KeyboardInterrupt):
            compared("llama", number, equality_architectures.parsed(["--type", "BF16"]))
    assert made == ["BF16"] * 4
