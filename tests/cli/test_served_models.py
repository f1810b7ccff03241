from __future__ import annotations

import re
from pathlib import Path

import pytest

from aleator.cli.serve import OF_A_MODEL
from aleator.cli.served_models import MOST_BYTES, found_models
from aleator.core.errors import ParameterError
from aleator.models.files.gguf_writer import field, write_gguf
from aleator.samplers.watermark import WatermarkKey
from tests.cli.conftest import Command

FILE = """
[small]
path = "models/small.gguf"
aliases = ["tiny", "s"]
keep_loaded = true
n_ctx = 2048
n_seq_max = 4
type_k = "q8_0"
cache_ram = "2G"
adapters = { poet = "poet.gguf", prose = ["/else/prose.gguf", 0.5] }
chat_template = "{{ messages }}"
temperature = 0.2
preset = "llama.cpp"

["org/large"]
path = "hf:org/large:Q4_K_M"
adapters = ["old=poet.gguf:0.5"]

[package]
path = "tiny-stories"
model_draft = "bundled"
"""


def refused(file: Path, text: str | bytes) -> str:
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ParameterError) as caught:
        found_models(str(file), OF_A_MODEL)
    assert caught.value.parameter == "models"
    return str(caught.value).removeprefix(f"{file}: ")


def test_a_file_lists_models_and_their_options(tmp_path: Path) -> None:
    (tmp_path / "file.toml").write_text(FILE)
    small, large, package = found_models(str(tmp_path / "file.toml"), OF_A_MODEL)
    assert (small.name, small.path) == ("small", str(tmp_path / "models/small.gguf"))
    assert (small.aliases, small.keep_loaded) == (("tiny", "s"), True)
    poet = str(tmp_path / "poet.gguf")
    assert small.options == {
        "n_ctx": 2048,
        "n_seq_max": 4,
        "type_k": "q8_0",
        "cache_ram": 2 * 2**30,
        "adapters": (("poet", poet, 0.0), ("prose", "/else/prose.gguf", 0.5)),
        "chat_template": "{{ messages }}",
        "temperature": 0.2,
        "preset": "llama.cpp",
    }
    assert (large.name, large.path) == ("org/large", "hf:org/large:Q4_K_M")
    assert large.options == {"adapters": (("old", poet, 0.5),)}
    assert (package.path, package.aliases, package.keep_loaded) == ("tiny-stories", (), False)
    assert package.options == {"model_draft": "bundled", "spec_type": "draft"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "there is no model"),
        ("[a", "is not TOML"),
        (b"[a]\npath = '\xff'", "is not TOML"),
        ("a = 1", "[a]: 1 is not a table"),
        ("[[a]]\npath = 'x'", "is not a table"),
        ("[a]\nn_ctx = 5", "[a]: path=None: give a file"),
        ("[a]\npath = ''", "[a]: path='': give a file"),
        ("[a]\npath = 'x'\nkeep_loaded = 1", "[a]: keep_loaded=1: give true or false"),
        ("[a]\npath = 'x'\nn_ctz = 1", "[a]: there is no option 'n_ctz': did you mean n_ctx"),
        ("[a]\npath = 'x'\napi_key = 'k'", "[a]: there is no option 'api_key'"),
        ("[a]\npath = 'x'\nn_ctx = -1", "[a]: n_ctx=-1 is out of range: give 0 or more"),
        ("[a]\npath = 'x'\ncache_ram = 'much'", "[a]: cache_ram"),
        ("[a]\npath = 'x'\naliases = [1]", "[a]: alias=[1]: give a text"),
        ("[a]\npath = 'x'\nadapters = { b = 1 }", "[a]: adapters"),
        ("[a]\npath = 'x'\nadapters = { b = ['f', 'loud'] }", "[a]: "),
        ("[a]\npath = 'x'\nstop_loops = 1979-05-27", "[a]: stop_loops"),
        ("[a]\npath = 'x'\n[a.n_ctx]\nb = 1", "[a]: n_ctx={'b': 1} is of type dict"),
        ("#" * (MOST_BYTES + 1), "more than 1048576 bytes"),
        ("a = 1" + "0" * 5000, "is not TOML"),
        (
            f"[a]\npath = 'x'\nmodel_draft = {'d' * 9999!r}\nn_ctx = -1",
            "[a]: n_ctx=-1 is out of range",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_the_model_and_the_key(
    tmp_path: Path, text: str | bytes, told: str
) -> None:
    assert told in refused(tmp_path / "file.toml", text)


def test_files_are_relative_to_the_file_even_if_they_are_missing(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(bytes(range(32)))
    (tmp_path / "file.toml").write_text(
        "[a]\npath = 'x.gguf'\ncache_dir = 'prompts'\nwatermark_key_file = 'key'\nmodel_draft = 'package'"
    )
    (found,) = found_models(str(tmp_path / "file.toml"), OF_A_MODEL)
    assert found.path == str(tmp_path / "x.gguf")
    options = found.options
    assert options["cache_dir"] == str(tmp_path / "prompts")
    assert options["watermark_key_file"] == WatermarkKey.from_file(str(tmp_path / "key"))
    assert options["model_draft"] == "package"


def test_a_directory_lists_what_are_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (
        "b.gguf", "a.gguf", "big-00001-of-00002.gguf", "big-00002-of-00002.gguf", "mmproj-a.gguf", ".h.gguf",
        "imatrix.gguf",
        "notes.txt", "one/x.gguf", "one/mmproj-x.gguf", "two/x.gguf", "two/y.gguf", "none/x.txt",
        "split/m-00001-of-00002.gguf", "split/m-00002-of-00002.gguf", "hf/config.json", "d.gguf/x",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for name, kind in {
        "poet.gguf": "adapter",
        "one/poet.gguf": "adapter",
        "m.gguf": "model",
    }.items():
        write_gguf(tmp_path / name, [field("general.type", kind)], [], lambda each: [])
    found = {
        each.name: (str(Path(each.path).relative_to(tmp_path)), each.aliases)
        for each in found_models(str(tmp_path), OF_A_MODEL)
    }
    assert found == {
        "a": ("a.gguf", ("a.gguf",)),
        "b": ("b.gguf", ("b.gguf",)),
        "big": ("big-00001-of-00002.gguf", ("big-00001-of-00002.gguf",)),
        "hf": ("hf", ()),
        "m": ("m.gguf", ("m.gguf",)),
        "one": ("one/x.gguf", ()),
        "split": ("split/m-00001-of-00002.gguf", ()),
    }
    left_out = capsys.readouterr().err
    assert left_out.count("poet.gguf: left out of --models: of the type adapter") == 2
    assert left_out.count("\n") == 2


def test_nothing_to_serve_is_refused(tmp_path: Path, aleator: Command) -> None:
    def told(*words: str) -> str:
        result = aleator("serve", "--port", "0", *words)
        assert result.code == 2
        return result.err

    assert "--models-max is for several models: give --models" in told("--models-max", "2")
    assert "there is no such directory or file" in told("--models", str(tmp_path / "none"))
    assert "there is no model: put a GGUF file" in told("--models", str(tmp_path))
    (tmp_path / "a.gguf").touch()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.json").touch()
    assert re.search(
        r"'a' names two models, 'a' \(.*\) and 'a' \(.*a\.gguf\)", told("--models", str(tmp_path))
    )
    (tmp_path / "a" / "config.json").unlink()
    assert "model='b': --models has 'a' and 'a.gguf'" in told("--models", str(tmp_path), "-m", "b")
    assert "--alias is for one model" in told("--models", str(tmp_path), "--alias", "x")
    assert "--hf-repo is for one model" in told("--models", str(tmp_path), "-hf", "o/n")
    file = tmp_path / "file.toml"
    file.write_text("[a]\npath = 'x'\nn_seq_max = 512\ntoken_budget = 16")
    assert "'a': token_budget=16: give more than n_seq_max=512" in told("--models", str(file))
    file.write_text("[' a']\npath = 'x'")
    assert "models: ' a' is no model's name" in told("--models", str(file))
