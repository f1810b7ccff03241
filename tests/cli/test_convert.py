"""aleator convert, and aleator quantize of a directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aleator import load
from aleator.models.directory import Directory
from aleator.models.files.gguf import GGUFFile
from aleator.text.converted import open_converted
from tests.cli.conftest import Command
from tests.models.builders import hugging_face_tensors, model_json, write_directory
from tests.text.test_huggingface import byte_level_backend
from tests.text.test_huggingface import write as write_tokenizer

N_VOCAB = 264


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch = pytest.importorskip("torch")
    tensors = hugging_face_tensors() | {"model.embed_tokens.weight": torch.randn(N_VOCAB, 32)}
    path = tmp_path / "small"
    write_directory(path, model_json(vocab_size=N_VOCAB), tensors)
    config = {"eos_token": "<|im_end|>", "chat_template": "{{ messages[0].content }}"}
    return write_tokenizer(path, byte_level_backend(), tokenizer_config=config)


def test_a_directory(aleator: Command, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    result = aleator("convert", str(folder), str(out), "-t", "1")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(
        "types as they are: 0.1 MB -> 0.1 MB, 32.00 bits a weight; tensors: "
    )
    model, theirs = load(out), load(folder)
    assert model.vocab.chat_template == "{{ messages[0].content }}"
    assert GGUFFile(out).get("general.name", "") == "small"
    text = "abc ab <|im_end|> cab"
    assert model.tokenizer.encode(text) == theirs.tokenizer.encode(text)
    small = tmp_path / "small.gguf"
    result = aleator("convert", str(folder), str(small), "--type", "q8_0", "--json")
    fields = json.loads(result.out)
    assert fields["type"] == "Q8_0"
    assert fields["tensors"]["blk.0.attn_q.weight"] == ["F32", "Q8_0"]
    assert small.stat().st_size < out.stat().st_size
    direct, after = tmp_path / "direct.gguf", tmp_path / "after.gguf"
    for source, to in ((folder, direct), (out, after)):
        assert aleator("quantize", str(source), str(to), "--type", "Q4_0").code == 0
    assert direct.read_bytes() == after.read_bytes()


def test_a_directory_is_opened_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, read = [], Directory.__init__

    def counted(self: Directory, path: Path) -> None:
        opened.append(path)
        read(self, path)

    monkeypatch.setattr(Directory, "__init__", counted)
    open_converted(folder)
    assert opened == [folder]


def test_dry_run(aleator: Command, folder: Path) -> None:
    before = sorted(folder.parent.rglob("*"))
    result = aleator("convert", str(folder), "--type", "BF16", "--dry-run")
    lines = [line.split() for line in result.out.splitlines()]
    assert ["blk.0.attn_q.weight", "F32", "->", "BF16"] in lines
    assert ["output_norm.weight", "F32"] in lines
    assert sorted(folder.parent.rglob("*")) == before


def test_what_is_left_out_is_told(aleator: Command, folder: Path, tmp_path: Path) -> None:
    path = folder / "config.json"
    fields = json.loads(path.read_text()) | {"model_type": "mistral", "sliding_window": 9}
    path.write_text(json.dumps(fields))
    result = aleator("convert", str(folder), str(tmp_path / "out.gguf"))
    assert result.code == 0
    assert "warning: the GGUF file leaves out windows of 9 positions" in result.err


def test_what_llama_cpp_does_not_load_is_told(
    aleator: Command, folder: Path, tmp_path: Path
) -> None:
    torch: Any = pytest.importorskip("torch")
    fields = json.loads((folder / "config.json").read_text())
    head_dim = 2 * fields["hidden_size"] // fields["num_attention_heads"]
    tensors = hugging_face_tensors() | {"model.embed_tokens.weight": torch.randn(N_VOCAB, 32)}
    for name, each in tensors.items():
        if ".self_attn." in name:  # twice as many channels
            tensors[name] = torch.cat((each, each), dim=int(".o_proj." in name))
    write_directory(folder, fields | {"model_type": "xverse", "head_dim": head_dim}, tensors)
    result = aleator("convert", str(folder), str(tmp_path / "out.gguf"))
    assert result.code == 0
    assert f"which lacks heads of {head_dim} channels" in result.err


def test_refused(aleator: Command, folder: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out.gguf")
    file = str(folder / "model.safetensors")
    none = str(tmp_path / "none")
    for words, code, message in (
        ((), 2, "no directory is given: aleator convert DIRECTORY OUT"),
        ((str(folder),), 2, "no out is given"),
        ((str(folder), out, "--type", "Q4_K_M"), 2, "aleator quantize takes a directory too"),
        ((file, out), 2, "is a file: give the directory that holds it with config.json"),
        ((none, out), 3, "none"),
        (("hf:none", out), 2, "hf:ORG/NAME"),
        ((str(folder), file), 2, "is the file that is read"),
        ((str(folder), str(tmp_path / "no" / "out.gguf")), 3, "no such directory: make it"),
    ):
        result = aleator("convert", *words)
        assert (result.code, message in result.err) == (code, True), (words, result.err)
    (folder / "tokenizer.json").unlink()
    result = aleator("convert", str(folder), out)
    assert (result.code, "has no tokenizer.json, tokenizer.model or" in result.err) == (3, True)
    (folder / "tiktoken.model").write_text("IQ== 0")
    result = aleator("convert", str(folder), out)
    assert (result.code, "tiktoken.model: how texts are cut is known of TikTok" in result.err) == (
        3,
        True,
    )
    assert [path.name for path in tmp_path.iterdir()] == ["small"]
