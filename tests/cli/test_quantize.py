"""aleator quantize and aleator imatrix."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from make_models import SPECS, write_model

from aleator import load
from aleator.generate import Batch
from aleator.models.files.gguf import GGUFFile
from aleator.models.files.imatrix import read_imatrix
from aleator.models.hub.bundled import bundled_model
from tests.cli.conftest import Command

TEXT = str(Path(__file__).parents[1] / "data" / "coriolanus.txt")


def test_a_file(aleator: Command, tmp_path: Path) -> None:
    source, out = str(bundled_model()), str(tmp_path / "out.gguf")
    result = aleator("quantize", source, out, "--type", "q4_k_m", "-t", "1")
    assert result.code == 0, result.err
    assert result.out.startswith("Q4_K_M: 9.9 MB -> 3.")
    assert "bits a weight; tensors: " in result.out
    assert GGUFFile(out).get("general.file_type", 0) == 15
    again = aleator("quantize", out, str(tmp_path / "again.gguf"), "--type", "Q8_0", "--json")
    assert "tensors are stored in Q4_K already" in again.err
    fields = json.loads(again.out)
    assert fields["tensors"]["blk.0.attn_q.weight"] == ["Q4_K", "Q8_0"]
    assert fields["bits"] == pytest.approx(8.5, abs=0.05)


def test_dry_run(aleator: Command, tmp_path: Path) -> None:
    result = aleator("quantize", str(bundled_model()), "--type", "Q4_K_M", "--dry-run")
    lines = [line.split() for line in result.out.splitlines()]
    assert ["blk.0.attn_q.weight", "F16", "->", "Q4_K"] in lines
    assert ["blk.2.ffn_down.weight", "F16", "->", "Q8_0"] in lines  # rows of 704
    assert ["output_norm.weight", "F32"] in lines


def test_refused(aleator: Command, tmp_path: Path) -> None:
    source = str(bundled_model())
    for words, code, message in (
        ((), 2, "no source is given: aleator quantize SOURCE OUT"),
        ((source, "--type", "Q8_0"), 2, "no out is given"),
        ((source, "x.gguf"), 2, "no type is given"),
        ((source, "x.gguf", "--type", "Q9"), 2, "give one of Q8_0, Q6_K"),
        ((source, source, "--type", "Q8_0"), 2, "is the file that is read"),
        ((TEXT, str(tmp_path / "x.gguf"), "--type", "Q8_0"), 3, "not a GGUF file"),
        (
            (source, str(tmp_path / "no" / "x.gguf"), "--type", "Q8_0"),
            3,
            "no such directory: make it",
        ),
        ((source, "x.gguf", "--type", "Q8_0", "--imatrix", source), 3, "no importance matrix"),
    ):
        result = aleator("quantize", *words)
        assert (result.code, message in result.err) == (code, True), result.err
    assert list(tmp_path.iterdir()) == []


def test_imatrix(aleator: Command, tmp_path: Path) -> None:
    out = str(tmp_path / "i.gguf")
    result = aleator("imatrix", "-f", TEXT, "-o", out, "-c", "64", "--chunks", "3")
    assert result.out == f"{out}: 42 tensors from 3 chunks of 64 tokens\n"
    found = read_imatrix(out)
    assert (found.datasets, found.chunks) == ((TEXT,), 3)
    assert found.means["blk.5.ffn_down.weight"].shape == (704,)
    one = found.means["blk.3.attn_q.weight"]
    assert np.array_equal(one, found.means["blk.3.attn_v.weight"])
    assert (one > 0).all()
    made = str(tmp_path / "out.gguf")
    words = ("quantize", str(bundled_model()), made, "--type", "Q2_K", "--imatrix", out)
    result = aleator(*words)
    assert (result.code, "lacks" in result.err) == (0, False), result.err
    assert GGUFFile(made).get("quantize.imatrix.chunks_count", 0) == 3
    assert "is the file that is read" in aleator(*words[:2], out, *words[3:]).err


def test_imatrix_refused(aleator: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = str(tmp_path / "i.gguf")
    assert "no output is given" in aleator("imatrix", "-f", TEXT).err
    result = aleator("imatrix", "-p", "too short", "-o", out)
    assert (result.code, "fewer than one chunk" in result.err) == (2, True)
    assert not list(tmp_path.iterdir())
    with monkeypatch.context() as patch:
        read = "aleator.generate.imatrix.InputSums.read"
        patch.setattr(read, lambda *args: (1 // (2 - n) for n in (1, 2)))  # fails if read on
        result = aleator("imatrix", "-f", TEXT, "-o", out, "-c", "64")
        assert (result.code, "nothing is seen" in result.err) == (2, True)
    # What cannot be written is refused before the text is read, which may take hours.
    monkeypatch.delattr("aleator.generate.imatrix.InputSums.read")
    for name, code, message in (
        (str(tmp_path), 2, "is no file"),
        (str(tmp_path / "no" / "i.gguf"), 3, "no such directory: make it"),
        (TEXT, 2, "is the file that is read"),
        (str(bundled_model()), 2, "is the file that is read"),
    ):
        result = aleator("imatrix", "-f", TEXT, "-o", name)
        assert (result.code, message in result.err) == (code, True), result.err
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    assert "1,000 are free" in aleator("imatrix", "-f", TEXT, "-o", out).err
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are Unicode elsewhere")
def test_names_of_files_that_are_no_text(aleator: Command, tmp_path: Path) -> None:
    text, out, made = (str(tmp_path / f"{name}\udcfe") for name in "iom")
    Path(text).write_bytes(Path(TEXT).read_bytes())
    result = aleator("imatrix", "-f", text, "-o", out, "-c", "64", "--chunks", "1")
    assert result.code == 0, result.err
    assert read_imatrix(out).datasets == (text.replace("\udcfe", "?"),)
    words = ("quantize", str(bundled_model()), made, "--type", "Q4_0", "--imatrix", out)
    assert aleator(*words).code == 0
    expected = out.replace("\udcfe", "?")[:127]
    assert GGUFFile(made).get("quantize.imatrix.file", "") == expected


def test_an_embedding_is_the_first_layers_input(tmp_path: Path) -> None:
    """By hand: the first norm of the embeddings is what attn_q is multiplied with."""
    from aleator.generate.imatrix import InputSums

    path = write_model(tmp_path / "m.gguf", SPECS["llama-one-layer"])
    model = load(path)
    tokens = [5, 9, 9, 60]
    sums = InputSums(model.weights)
    assert list(sums.read(model.context(8), tokens * 2, 4, 2, None)) == [1, 2]
    rows = model.weights.floats("token_embd.weight")[tokens].astype(np.float64)
    normed = rows / np.sqrt((rows**2).mean(1, keepdims=True) + 1e-5)
    normed *= model.weights.floats("blk.0.attn_norm.weight")
    squares, counts = sums.found()["blk.0.attn_q.weight"]
    assert counts.tolist() == [8]
    assert np.allclose(squares[0], 2 * (normed**2).sum(0), rtol=1e-5)


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_experts_are_told_apart(kind: str, tmp_path: Path) -> None:
    from aleator.generate.imatrix import InputSums

    path = write_model(tmp_path / "m.gguf", replace(SPECS["qwen3moe"], type=kind))
    model, sums = load(path), None
    sums = InputSums(model.weights)
    tokens = np.random.default_rng(3).integers(0, 64, 40).tolist()
    list(sums.read(model.context(64), tokens, 40, 1, None))
    for layer in range(2):
        up = sums.found()[f"blk.{layer}.ffn_up_exps.weight"]
        down = sums.found()[f"blk.{layer}.ffn_down_exps.weight"]
        router = sums.found()[f"blk.{layer}.ffn_gate_inp.weight"]
        assert up[1].sum() == down[1].sum() == 2 * 40
        # Every token's row is given to two experts.
        assert np.allclose(up[0].sum(0), 2 * router[0][0], rtol=1e-5)
        assert ((up[0] > 0).all(1) == (up[1] > 0)).all()


def test_a_shared_experts_gate_has_the_routers_input(tmp_path: Path) -> None:
    from aleator.generate.imatrix import InputSums

    model = load(write_model(tmp_path / "m.gguf", SPECS["qwen2moe"]))
    sums = InputSums(model.weights)
    list(sums.read(model.context(8), [1, 2, 3, 4], 4, 1, None))
    for name in ("blk.0.ffn_gate_inp", "blk.1.ffn_gate_inp"):
        of_gate, of_router = (sums.found()[f"{name}{end}.weight"] for end in ("_shexp", ""))
        assert of_gate[1].tolist() == [4]
        assert np.array_equal(of_gate[0], of_router[0])


def test_nothing_is_counted_afterwards(tmp_path: Path) -> None:
    from aleator.generate.imatrix import InputSums

    model = load(write_model(tmp_path / "m.gguf", SPECS["llama"]))
    sums = InputSums(model.weights)
    reading = sums.read(model.context(8), [1, 2, 3, 4] * 2, 4, 2, None)
    next(reading)
    with pytest.raises(ValueError, match="another collection is running"):
        next(InputSums(model.weights).read(model.context(8), [1, 2, 3, 4], 4, 1, None))
    reading.close()
    model.context(8).decode(Batch.one([1, 2, 3], 0))
    assert sums.found()["blk.0.attn_q.weight"][1].tolist() == [4]


def test_an_interrupted_imatrix_is_of_the_chunks_that_were_read(
    aleator: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aleator.generate.imatrix import InputSums

    out, read = tmp_path / "i.gguf", InputSums.read

    def stopped(*given: Any) -> Iterator[int]:
        for done in read(*given):
            if done > most:
                raise KeyboardInterrupt
            yield done

    monkeypatch.setattr(InputSums, "read", stopped)
    words = ("imatrix", "-f", TEXT, "-o", str(out), "-c", "64", "--chunks", "3")
    most = 0
    assert aleator(*words).code == 130
    assert not out.exists()
    most = 2
    result = aleator(*words)
    assert (result.code, "of the chunks read so far" in result.err) == (130, True)
    assert read_imatrix(out).chunks == 2


def test_experts_that_a_text_does_not_reach_are_told(aleator: Command, tmp_path: Path) -> None:
    spec = replace(SPECS["qwen3moe"], n_vocab=2048)
    path = write_model(tmp_path / "m.gguf", spec, tokenizer_from=bundled_model())
    out = str(tmp_path / "i.gguf")
    result = aleator(
        "imatrix", "-m", str(path), "-p", "a b c d", "-o", out, "-c", "4", "--chunks", "1"
    )
    assert (result.code, "did not reach every expert" in result.err) == (0, True), result.err
