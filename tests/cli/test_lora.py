"""Adapters on the command line: llama.cpp's flags."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Command
from tests.language_model.test_adapters import PROMPT, bundled_pairs
from tests.models.adapters import write_adapter


def test_flags_of_llama_cpp(aleator: Command, tmp_path: Path) -> None:
    files = [str(write_adapter(tmp_path / f"{i}.gguf", bundled_pairs(i))) for i in (0, 1)]
    words = ("generate", "-p", PROMPT, "-n", "8", "--seed", "1", "-t", "1", "--temp", "0")
    plain = aleator(*words).out
    one = aleator(*words, "--lora", files[0]).out
    half = aleator(*words, "--lora-scaled", f"{files[0]}:0.5").out
    both = aleator(*words, "--lora", files[0], "--lora-scaled", f"x={files[1]}:0.5").out
    assert len({plain, one, half, both}) == 4
    assert aleator(*words, "--lora", f"{files[0]}:0,{files[1]}:0").out == plain
    result = aleator(*words, "--lora", files[0], "--lora", files[0])
    assert result.code == 2
    assert "two are called '0'" in result.err
