"""The corpus of draws that every machine is compared with, and the tools that compare."""

from __future__ import annotations

import json
from pathlib import Path

import corpus
import decoder_bits
import pytest
from equality_rows import CHAINS
from instruction_sets import X86, here, supported

from aleator.core import host

LARGEST = 1024
"""Rows of more tokens take seconds: `make machines` and `make wheel` compare them."""


def test_recorded_draws_are_drawn_here_too() -> None:
    golden = json.loads(corpus.GOLDEN.read_text())
    assert [(each["chain"], each["n"]) for each in golden] == corpus.blocks()
    assert {each["chain"] for each in golden} == set(CHAINS)
    small = [each for each in golden if each["n"] <= LARGEST]
    made = [corpus.drawn(each["chain"], each["n"]) for each in small]
    assert corpus.differences(made, small) == []
    assert sum(len(set(each["tokens"])) for each in small) > 1000  # not the same token each time


def test_differences_of_draws() -> None:
    right = [{"chain": "a", "n": 2, "logits": "0", "tokens": [1, 0]}]
    assert corpus.differences(right, right) == []
    assert corpus.differences([], right) == ["0 blocks, not 1"]
    assert "other logits" in corpus.differences([{**right[0], "logits": "1"}], right)[0]
    wrong = corpus.differences([{**right[0], "tokens": [1, 1]}], right)
    assert wrong == ["a, V = 2: 1 draws differ; 1: 1, not 0"]


def test_an_instruction_set_that_does_not_run_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ALEATOR_ISA", "")
    assert corpus.main(["--isa", "nonesuch"]) == 1
    assert f"asked for nonesuch, and the native module runs {host.isa()}" in capsys.readouterr().out


def test_instruction_sets_by_the_kernels_account() -> None:
    v3, v4 = " ".join(X86["v3"]), " ".join(X86["v4"])
    line = "flags\t\t: fpu "
    assert supported(line, "x86_64", "linux") == ["base"]
    assert supported(line + v3, "x86_64", "linux") == ["base", "v3"]
    assert supported(f"{line}{v3} {v4}", "x86_64", "linux") == ["base", "v3", "v4"]
    assert supported(line + v4, "x86_64", "linux") == ["base"]
    assert supported("Features\t: fp asimd asimddp", "aarch64", "linux") == ["base", "dotprod"]
    assert supported("Features\t: fp asimd", "aarch64", "linux") == ["base"]
    assert supported("", "arm64", "darwin") == ["base", "dotprod"]
    assert supported("", "AMD64", "win32") == ["base"]


def test_the_best_set_is_the_one_that_runs_unasked() -> None:
    assert host.isa() in here()


def test_recorded_models_have_their_bits_here_too(tmp_path: Path) -> None:
    """Files that have changed, and new ones, are left to ``make machines``, which records them."""
    pytest.importorskip("gguf")
    golden = json.loads(decoder_bits.GOLDEN.read_text())
    decoder_bits.make(tmp_path)
    made = {path.stem: decoder_bits.bits(path) for path in tmp_path.glob("*.gguf")}
    known = {
        name: right
        for name, right in golden.items()
        if made.get(name, {}).get("file") == right["file"]
    }
    assert len(known) > 0.9 * len(golden), "python tools/decoder_bits.py --record FOLDER"
    assert decoder_bits.differences({name: made[name] for name in known}, known) == []


def test_differences_of_models() -> None:
    right = {"a": {"file": "1", "logits": "2"}}
    assert decoder_bits.differences(right, right) == []
    assert decoder_bits.differences({}, right) == ["a: is missing"]
    assert decoder_bits.differences(right, {}) == ["a: was not recorded"]
    assert "another file" in decoder_bits.differences({"a": {"file": "0", "logits": "2"}}, right)[0]
    assert "one by one" in decoder_bits.differences({"a": {"file": "1", "logits": ""}}, right)[0]
    assert "other bits" in decoder_bits.differences({"a": {"file": "1", "logits": "3"}}, right)[0]
