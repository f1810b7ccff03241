"""What tools/gpu_decoder_items.py does with a model on a GPU, here under Triton's interpreter."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_decoder_items
import pytest
from wide_models import MODELS

from aleator import models

# The interpreter computes both sides of a choice.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(autouse=True)
def one_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    small: Any = MODELS["llama"]
    monkeypatch.setitem(MODELS, "llama", replace(small, n_layers=1))


def test_a_child(tmp_path: Path) -> None:
    item = {"model": "llama", "type": "Q8_0", "cache": ("f16", "q8_0"), "device": "cpu"}
    events, work = tmp_path / "events", tmp_path / "work"
    wrong = {**item, "model": "none"}
    work.write_text(json.dumps({"kind": "logits", "items": [item, wrong], "events": str(events)}))
    gpu_decoder_items.child(work)
    lines = events.read_text()
    assert lines.count("\n") == 4, lines
    begun, found, _, failed = (json.loads(line) for line in lines.splitlines())
    assert begun["begun"]["model"] == "llama"
    assert (found["outcome"], found["wrong"]) == ("passed", 0)
    assert found["rows"] > 20
    assert failed["outcome"] == "failed"
    assert "KeyError" in failed["said"]


def test_other_bits_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    made = models.build_decoder

    # The same model with another scale of its logits stands for a wrong kernel.
    def other(weights: models.Weights, device: str, form: str = "auto") -> models.Decoder:
        if form == "triton":
            weights.config = replace(weights.config, logit_scale=2.0)
        return made(weights, device)

    monkeypatch.setattr(models, "build_decoder", other)
    found = gpu_decoder_items.logits(
        {"model": "llama", "type": "F32", "cache": ("f16", "f16"), "device": "cpu"}
    )
    assert found["wrong"] > 0
    assert found["wrong"] == found["rows"] - 1  # all but the saved bytes
    assert found["where"].startswith("prompt, row 0, off by ")
