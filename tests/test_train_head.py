"""tools/train_head.py: one seed gives one head, which guesses for the bundled model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import aleator
from aleator.generate.speculative import Speculation

torch: Any = pytest.importorskip("torch")
pytest.importorskip("gguf")
train_head = import_module("train_head")


@pytest.fixture
def settings() -> Iterator[None]:
    """What the tool sets in PyTorch, set back."""
    threads = torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.usefixtures("settings")
def test_a_seed_gives_a_head_that_guesses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_head, "GROUP", 12)
    monkeypatch.setattr(train_head, "LENGTH", 16)
    files = []
    for run, seed in (("first", 3), ("again", 3), ("other", 4)):
        few = ["--texts", "24", "--steps", "3", "--batch", "4", "--threads", "1"]
        words = ["train_head.py", "--out", str(tmp_path / run), "--seed", str(seed), *few]
        monkeypatch.setattr(sys, "argv", words)
        train_head.main()
        files.append({each.name: each.read_bytes() for each in (tmp_path / run).iterdir()})
    first, again, other = files
    assert set(first) == {"config.json", "model.safetensors"}
    assert first == again
    assert first["model.safetensors"] != other["model.safetensors"]
    monkeypatch.setattr(Speculation, "n_guesses", lambda _, room, *others: min(room, 3))
    monkeypatch.setattr(Speculation, "least_probability", lambda *others: 0.0)
    model = aleator.load(n_threads=1, model_draft=str(tmp_path / "first"))
    plain = model.generate("ROMEO:", max_tokens=24, temperature=0)
    guessed = model.generate("ROMEO:", max_tokens=24, temperature=0, spec_type="draft")
    assert guessed.tokens == plain.tokens
    assert guessed.stats.draft_n > 0
