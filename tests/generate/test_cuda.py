"""Text from a model on a CUDA device; skipped without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import aleator
from aleator.device import selection

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"seed": 4},
    {"seed": 4, "draw": "gumbel"},
    {"seed": 5, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"seed": 6, "repetition_penalty": 1.2, "logprobs": 2},
]


@pytest.fixture(scope="module")
def host() -> aleator.LanguageModel:
    return aleator.load(device="cpu")


@pytest.fixture(scope="module")
def device() -> aleator.LanguageModel:
    return aleator.load(device="cuda", dtype="float32")


@pytest.fixture(params=["checked", "not checked"])
def results(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """With kernels and graphs that have passed their checks, and with PyTorch's operations."""
    monkeypatch.setenv(selection.RESULTS, str(tmp_path / "gpu.json"))
    passed = ["triton", "graphs"] if request.param == "checked" else ["torch"]
    selection.write_results(selection.this_machine(torch.device("cuda", 0)), passed)
    yield
    selection.passed_on.cache_clear()


def text(model: aleator.LanguageModel, **options: Any) -> str:
    return model.generate("ROMEO:", max_tokens=40, **options).text


@pytest.mark.parametrize("options", OPTIONS)
def test_float32_gives_the_text_of_the_cpu(
    results: None, host: aleator.LanguageModel, device: aleator.LanguageModel, options: dict[str, Any]
) -> None:  # fmt: skip
    """Logits differ in their last bits; here no token hangs on them."""
    expected = text(host, **options)
    assert text(device, **options) == expected
    assert text(device, **options, sampling_device="host") == expected
    assert text(device, **options, multi_step=8) == expected


def test_a_batch(results: None, host: aleator.LanguageModel, device: aleator.LanguageModel) -> None:
    prompts = ["ROMEO:", "JULIET:\nO", "First Citizen:\nBefore", "KING"]
    options: dict[str, Any] = {"max_tokens": 24, "seed": 3}
    expected = [one.text for one in host.generate_batch(prompts, **options)]
    assert [one.text for one in device.generate_batch(prompts, **options)] == expected
    several = device.generate_batch(prompts, **options, multi_step=6)
    assert [one.text for one in several] == expected


def test_a_grammar(
    results: None, host: aleator.LanguageModel, device: aleator.LanguageModel
) -> None:
    options: dict[str, Any] = {"seed": 2, "grammar": 'root ::= "yes" | "no" | [a-f]+ "."'}
    assert text(device, **options) == text(host, **options)
