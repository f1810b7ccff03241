"""Adapters on the command line: llama.cpp's flags."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from aleator import load
from aleator.cli.serve import options_of_loading
from aleator.core.errors import ParameterError
from aleator.models.hub.bundled import bundled_model
from tests.cli.conftest import Command
from tests.cli.test_serve import ended, started
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


def test_numbers_are_rounded_when_asked(aleator: Command, tmp_path: Path) -> None:
    pairs = {name: (3 * a, b) for name, (a, b) in bundled_pairs(0).items()}
    halves = {n: (a.astype(np.float16), b.astype(np.float16)) for n, (a, b) in pairs.items()}
    file, half = (str(write_adapter(tmp_path / n, p)) for n, p in (("a", pairs), ("b", halves)))
    words = ("generate", "-p", PROMPT, "-n", "8", "--logprobs", "1", "-t", "1", "--temp", "0")
    rounded = aleator(*words, "--lora", file, "--lora-type", "f16").out
    assert rounded == aleator(*words, "--lora", half).out
    result = aleator(*words, "--lora", file, "--lora-type", "f8")
    assert result.code == 2
    assert "adapter_type='f8' must be one of auto, stored, f16, q8_0" in result.err


def test_a_type_without_adapters_is_refused(aleator: Command, tmp_path: Path) -> None:
    told = "adapter_type='f16' is for adapters, and there are none: give adapters, too"
    result = aleator("generate", "-p", PROMPT, "--lora-type", "f16")
    assert (result.code, told in result.err) == (2, True)
    (tmp_path / "file.toml").write_text("[a]\npath = 'x'\nadapter_type = 'f16'")
    result = aleator("serve", "--port", "0", "--models", str(tmp_path / "file.toml"))
    assert (result.code, f"'a': {told}" in result.err) == (2, True)
    with pytest.raises(ParameterError, match=told):
        load(adapter_type="f16")
    with pytest.raises(ParameterError, match=told):
        load(adapters={}, adapter_type="f16")


def test_a_type_for_several_models_is_for_those_with_adapters(
    aleator: Command, tmp_path: Path
) -> None:
    file = tmp_path / "file.toml"
    words = ("serve", "--lora-type", "f16", "-m", "none")  # a name that is checked last
    file.write_text("[a]\npath = 'x'\n[b]\npath = 'x'\nadapters = { c = 'c.gguf' }")
    for more in ((), ("--lora", "d.gguf")):
        assert "model='none'" in aleator(*words, "--models", str(file), *more).err
    file.write_text("[a]\npath = 'x'\n[b]\npath = 'x'\nadapters = {}")
    result = aleator(*words, "--models", str(file))
    assert (result.code, "--lora-type f16 is for adapters, and no model" in result.err) == (2, True)
    plain, own = {"n_ctx": 8}, {"adapters": (("c", "c.gguf", 0.0),)}
    given = {"adapter_type": "f16"}
    assert options_of_loading(given, plain) == plain
    assert options_of_loading(given, own) == given | own
    assert options_of_loading(given | own, plain) == given | own | plain
    assert options_of_loading(given | own, {"adapters": ()}) == {"adapters": ()}
    assert options_of_loading({}, given) == given  # the model's own, which loading refuses


def test_a_server_of_several_models_rounds_those_of_one(tmp_path: Path) -> None:
    pairs = {name: (3 * a, b) for name, (a, b) in bundled_pairs(0).items()}
    halves = {n: (a.astype(np.float16), b.astype(np.float16)) for n, (a, b) in pairs.items()}
    write_adapter(tmp_path / "whole.gguf", pairs), write_adapter(tmp_path / "half.gguf", halves)
    tables = {
        "rounded": ("whole", 'adapter_type = "f16"'),
        "half": ("half", ""),
        "whole": ("whole", ""),
    }
    (tmp_path / "file.toml").write_text(
        "\n".join(
            f"[{name}]\npath = {str(bundled_model())!r}\nadapters = {{ {name}-own = '{file}.gguf' }}\n{more}"
            for name, (file, more) in tables.items()
        )
    )
    process, printed = started("--port", "0", "--models", str(tmp_path / "file.toml"), "-m", "half")
    try:
        where = next(each for each in printed if each.startswith("listening on ")).split()[-1]
        with httpx.Client(base_url=where, timeout=60) as http:
            body = {"prompt": PROMPT, "max_tokens": 4, "temperature": 0, "logprobs": 1}
            sent = [
                http.post("/v1/completions", json={"model": f"{name}-own", **body})
                for name in tables
            ]
        choices = [each.json()["choices"] for each in sent]
    finally:
        assert ended(process) == 0
    assert choices[0] == choices[1] != choices[2]


def test_one_adapter_for_all_models_of_a_directory(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    for name in "ab":
        shutil.copy(bundled_model(), models / f"{name}.gguf")
    file = write_adapter(tmp_path / "poet.gguf", bundled_pairs(0))
    process, printed = started("--port", "0", "--models", str(models), "--lora", str(file))
    try:
        where = next(each for each in printed if each.startswith("listening on ")).split()[-1]
        with httpx.Client(base_url=where, timeout=60) as http:

            def sent(**more: Any) -> httpx.Response:
                body = {"prompt": PROMPT, "max_tokens": 4, "temperature": 0, "logprobs": 1}
                return http.post("/v1/completions", json=body | more)

            chosen: list[dict[str, Any]] = [{"adapters": "poet"}, {}, {"adapters": {}}]
            told = sent(model="poet")
            choices = [
                sent(model=name, **more).json()["choices"] for name in "ab" for more in chosen
            ]
            listed = [
                [each["id"] for each in http.get("/v1/models").json()["data"]],
                [each["name"] for each in http.get("/api/tags").json()["models"]],
            ]
    finally:
        assert ended(process) == 0
    assert (told.status_code, "is an adapter of 'a' and 'b'" in told.text) == (404, True)
    with_it, by_default, without = choices[:3]
    assert with_it == by_default != without
    assert choices[3:] == choices[:3]
    assert listed == [["a", "b"], ["a", "b"]]


def test_lines_of_a_batch(aleator: Command, tmp_path: Path) -> None:
    files = [f"{i}={write_adapter(tmp_path / f'{i}.gguf', bundled_pairs(i))}:0" for i in (0, 1)]
    choices = [{}, {"model": "0"}, {"adapters": "0"}, {"model": "0", "adapters": "1"}]
    lines = [{"prompt": PROMPT, "max_tokens": 8, "temperature": 0, **each} for each in choices]
    requests, results = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    requests.write_text("".join(json.dumps(each) + "\n" for each in lines))
    aleator("batch", str(requests), str(results), "--lora", ",".join(files), "-t", "1")
    read = [json.loads(line) for line in results.read_text().splitlines()]
    made = [each["response"]["body"] for each in sorted(read, key=lambda each: each["custom_id"])]
    plain, named, chosen = (each["choices"][0]["text"] for each in made[:3])
    assert named == chosen != plain
    assert "both given" in made[3]["error"]["message"]
