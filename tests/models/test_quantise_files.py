"""Quantising files: what the new one holds, and what is left when it fails."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
from encoder_models import ENCODERS, write_encoder
from make_models import SPECS, Spec, write_model

from aleator import load
from aleator.core.errors import FileFormatError, ModelNotFound, ParameterError
from aleator.models import build_decoder, open_weights
from aleator.models.conversion.quantise import Quantisation
from aleator.models.files.gguf import GGUFFile
from aleator.models.files.imatrix import ImportanceMatrix, read_imatrix, write_imatrix
from aleator.models.hub.bundled import bundled_model
from tests.models.builders import model_metadata, model_tensors, write_gguf
from tests.models.test_adapters import logits

SMALL = Spec(n_embd=256, n_ff=512, head_dim=64, n_layers=2, seed=3)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("quantise") / "small.gguf", SMALL)


def test_values_and_metadata(small: Path, tmp_path: Path) -> None:
    out, seen = tmp_path / "out.gguf", []
    plan = Quantisation(small, "Q4_K_M")
    size = plan.write(out, 1, lambda done, total: seen.append((done, total)))
    assert out.stat().st_size == size
    assert seen[-1] == (plan.size[0], plan.size[0])
    before, after = GGUFFile(small), GGUFFile(out)
    assert after.get("general.file_type", -1) == 15
    assert after.get("general.quantization_version", -1) == 2
    for key in before.metadata:
        assert after.metadata[key] == before.metadata[key]
    for name in before.tensors:
        old, new = before.stored(name).floats(), after.stored(name)
        error = np.abs(new.floats() - old).max() / np.abs(old).max()
        assert error == 0 if new.type == "F32" else 0 < error < 0.15, name
    assert {after.stored(name).type for name in after.tensors} == {"F32", "Q4_K", "Q6_K"}
    readers = {t.name: t for t in gguf.GGUFReader(out).tensors}
    assert readers["output.weight"].tensor_type == gguf.GGMLQuantizationType.Q6_K


@pytest.mark.parametrize("kind", ["Q8_0", "Q5_K_M", "Q3_K_M"])
def test_the_bundled_model_still_writes(kind: str, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    Quantisation(bundled_model(), kind).write(out)
    model = load(out)
    assert model.vocab.chat_template == load().vocab.chat_template
    text = (Path(__file__).parents[1] / "data" / "coriolanus.txt").read_text()
    wanted = load().perplexity(text, n_ctx=128, chunks=4).value
    lost = model.perplexity(text, n_ctx=128, chunks=4).value / wanted - 1
    assert abs(lost) < {"Q8_0": 0.01, "Q5_K_M": 0.03, "Q3_K_M": 0.15}[kind]


def test_a_split_model_becomes_one_file(small: Path, tmp_path: Path) -> None:
    tensors = model_tensors()
    half = len(tensors) // 2
    names = list(tensors)
    for number, part in enumerate((names[:half], names[half:])):
        split = {"split.no": number, "split.count": 2, "split.tensors.count": len(tensors)}
        metadata = {**(split if number else model_metadata()), **split}
        path = tmp_path / f"m-{number + 1:05}-of-00002.gguf"
        write_gguf(path, metadata, {name: tensors[name] for name in part})
    out = tmp_path / "out.gguf"
    Quantisation(tmp_path / "m-00001-of-00002.gguf", "Q8_0").write(out, 1)
    made = GGUFFile(out)
    assert made.tensors.keys() == tensors.keys()
    assert not any(key.startswith("split.") for key in made.metadata)


def test_what_is_quantised_already_is_widened_and_told(small: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.gguf", tmp_path / "second.gguf"
    Quantisation(small, "Q4_1").write(first, 1)
    plan = Quantisation(first, "Q8_0")
    assert plan.widened == {"Q4_1": 15, "Q6_K": 1}
    plan.write(second, 1)
    old, new = (GGUFFile(path).stored("blk.1.attn_q.weight").floats() for path in (first, second))
    assert np.abs(new - old).max() < np.abs(old).max() / 200
    again = Quantisation(first, "Q4_1")
    assert not again.widened
    again.write(second, 1)
    assert second.read_bytes() == first.read_bytes()


def weighed(path: Path, tensors: dict[str, np.ndarray]) -> ImportanceMatrix:
    sums = {n: (v.astype(np.float64), np.full(len(v), 2, np.int64)) for n, v in tensors.items()}
    write_imatrix(path, sums, ["texts.txt"], 3, 512)
    return read_imatrix(path)


def test_importances_lessen_the_error_where_they_are_large(small: Path, tmp_path: Path) -> None:
    importance = np.full((1, 256), 1.0)
    importance[0, ::8] = 1000
    name = "blk.0.attn_q.weight"
    found = weighed(tmp_path / "i.gguf", {name: importance, "token_embd.weight": importance[:, :9]})
    out = tmp_path / "out.gguf"
    plan = Quantisation(small, "Q3_K_S", found)
    assert not {name, "token_embd.weight", "output.weight"} & {*plan.unweighed}
    assert "blk.1.attn_q.weight" in plan.unweighed
    plan.write(out, 1)
    made = GGUFFile(out)
    assert made.get("quantize.imatrix.chunks_count", 0) == 3
    assert made.get("quantize.imatrix.entries_count", 0) == 2
    assert made.get("quantize.imatrix.dataset", "") == "texts.txt"
    old = GGUFFile(small).stored(name).floats()
    squares = (made.stored(name).floats() - old) ** 2
    assert squares[:, ::8].mean() < 0.6 * squares.mean()


def test_names_are_kept_up_to_127_bytes(small: Path, tmp_path: Path) -> None:
    """llama.cpp's buffer has 128; a letter that is cut apart is left out."""
    sums = {"blk.0.attn_q.weight": (np.ones((1, 256)), np.array([1]))}
    for extra in ("", "x", "xx", "xé"):
        name = "n" * 126 + extra
        write_imatrix(tmp_path / "i.gguf", sums, [name], 0, 512)
        out = tmp_path / "out.gguf"
        Quantisation(small, "Q8_0", read_imatrix(tmp_path / "i.gguf")).write(out, 1)
        made = GGUFFile(out)
        assert made.get("quantize.imatrix.dataset", "") == ("n" * 126 + extra[:1])
        assert "quantize.imatrix.chunks_count" not in made.metadata


def test_progress_is_told_piece_by_piece(small: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    for kind in ("Q8_0", None):
        plan = Quantisation(small, kind)
        seen.clear()
        plan.write(tmp_path / "out.gguf", 1, lambda done, total: seen.append((done, total)))
        steps = [b - a for (a, _), (b, _) in zip([(0, 0), *seen], seen, strict=False)]
        assert all(step > 0 for step in steps)
        assert sum(steps) == plan.size[0]
        assert {total for _, total in seen} == {plan.size[0]}
        assert plan.n_elements == sum(
            each.new.nbytes // 4 for each in Quantisation(small, "F32").changes
        )


def test_pieces_make_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows of a matrix at a time; of experts each has its own importances."""
    source = write_model(tmp_path / "m.gguf", Spec(n_experts=3, n_embd=256, seed=4))
    name = "blk.0.ffn_up_exps.weight"
    importance = np.random.default_rng(1).uniform(0.1, 9, (3, 256))
    seen: list[int] = []
    for kind, found in (
        ("Q4_0", weighed(tmp_path / "i.gguf", {name: importance})),
        ("Q8_0", None),
        (None, None),
    ):
        files = []
        for columns, at_once in ((1 << 22, 1 << 24), (256 * 7, 1000), (1, 10**5)):
            monkeypatch.setattr("aleator.models.files.tensor_types._READ_AT_ONCE", columns)
            monkeypatch.setattr("aleator.models.conversion.quantise._AT_ONCE", at_once)
            out = tmp_path / "out.gguf"
            plan = Quantisation(source, kind, found)
            plan.write(out, 1, lambda done, _: seen.append(done))
            assert seen[-1] == plan.size[0]
            files.append(out.read_bytes())
        assert files[0] == files[1] == files[2]


def test_each_expert_has_its_own_importances(tmp_path: Path) -> None:
    source = write_model(tmp_path / "m.gguf", Spec(n_experts=3, n_embd=256, seed=4))
    name = "blk.0.ffn_up_exps.weight"
    importance = np.ones((3, 256))
    importance[1, ::3] = 100
    found = weighed(tmp_path / "i.gguf", {name: importance})
    plain, out = tmp_path / "plain.gguf", tmp_path / "out.gguf"
    Quantisation(source, "Q4_0", weighed(tmp_path / "j.gguf", {name: np.ones((3, 256))})).write(
        plain
    )
    Quantisation(source, "Q4_0", found).write(out)
    one, other = (GGUFFile(path).stored(name).floats() for path in (plain, out))
    assert [np.array_equal(one[i], other[i]) for i in range(3)] == [True, False, True]


def test_refused(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.gguf"
    plan = Quantisation(small, "Q8_0")
    link = tmp_path / "link.gguf"
    link.symlink_to(small)
    for same in (small, link):
        with pytest.raises(ParameterError, match="is the file that is read"):
            plan.write(same)
    with pytest.raises(ParameterError, match="is no file"):
        plan.write(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(ParameterError, match="1,000 are free on its disk"):
        plan.write(out)
    empty = write_gguf(tmp_path / "empty.gguf", model_metadata(), {})
    with pytest.raises(FileFormatError, match="has no tensors"):
        Quantisation(empty, "Q8_0")
    with pytest.raises(ModelNotFound):
        Quantisation(tmp_path / "none.gguf", "Q8_0")
    with pytest.raises(FileFormatError, match="made of another model"):
        Quantisation(small, "Q8_0", weighed_other(tmp_path, "x", 256))
    with pytest.raises(FileFormatError, match="64 numbers for 1 matrices of 256 columns"):
        Quantisation(small, "Q8_0", weighed_other(tmp_path, "blk.0.attn_q.weight", 64))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.gguf", "i.gguf", "link.gguf"]


def test_a_name_may_be_as_long_as_the_system_allows(small: Path, tmp_path: Path) -> None:
    out = tmp_path / ("n" * 255)
    Quantisation(small, "Q8_0").write(out, 1)
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def weighed_other(directory: Path, name: str, columns: int) -> ImportanceMatrix:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 30))
        return weighed(directory / "i.gguf", {name: np.ones((1, columns))})


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (np.nan, "Q8_0", "NaN or an infinity at or after element 0"),
        (1e9, "Q4_0", "too large for Q4_0: give a type of a larger range, as BF16"),
        (1e9, "Q4_K_M", "too large for Q4_K"),
    ],
)
def test_numbers_that_cannot_be_stored(
    value: float, kind: str, message: str, tmp_path: Path
) -> None:
    tensors = dict(SMALL.each_tensor())
    tensors["blk.0.attn_q.weight"][0, 0] = value
    source, out = tmp_path / "m.gguf", tmp_path / "out.gguf"
    write_model(source, SMALL, tensors)
    out.write_bytes(b"before")
    with pytest.raises(FileFormatError, match=message):
        Quantisation(source, kind).write(out, 1)
    assert out.read_bytes() == b"before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.gguf", "out.gguf"]


KILLED = """
import os, signal, sys
from aleator.models.conversion.quantise import Quantisation
def stop(done, total):
    if done * 2 > total:
        os.kill(os.getpid(), getattr(signal, sys.argv[3]))
Quantisation(sys.argv[1], "Q8_0").write(sys.argv[2], 1, stop)
"""


@pytest.mark.parametrize("how", ["SIGKILL", "SIGINT"])
def test_nothing_is_left_of_a_killed_run(how: str, small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(small), str(out), how], capture_output=True
    )
    assert done.returncode != 0
    assert how == "SIGINT" or done.returncode == -signal.SIGKILL
    left = [path.name for path in tmp_path.iterdir()]
    assert left == [] or (how == "SIGKILL" and not hasattr(os, "O_TMPFILE"))


def test_architectures(tmp_path: Path) -> None:
    for name in ("mamba", "gpt-oss", "qwen2moe"):
        source, out = write_model(tmp_path / f"{name}.gguf", SPECS[name]), tmp_path / "out.gguf"
        Quantisation(source, "Q4_0").write(out, 1)
        model = load(out)
        assert model.weights.config.architecture == name


@pytest.mark.parametrize(
    "name", ["bert", "nomic-bert", "jina-bert-v2", "jina-bert-v3", "modern-bert", "xlm-roberta"]
)
def test_encoders(name: str, tmp_path: Path) -> None:
    source, out = write_encoder(tmp_path / "m.gguf", ENCODERS[name]), tmp_path / "out.gguf"
    Quantisation(source, "Q8_0").write(out, 1)
    types = {each: GGUFFile(out).type_of(each) for each in GGUFFile(out).tensors}
    assert types["blk.0.attn_output.weight"] == types["token_embd.weight"] == "Q8_0"
    assert {types[each] for each in types if "norm" in each or each.endswith("bias")} == {"F32"}
    small, whole = (load(each).embed(["the king of ale"])[0] for each in (out, source))
    assert 0.99 < np.dot(small, whole) < 1


def test_single_rows_have_one_dimension_as_ggml_writes_them(tmp_path: Path) -> None:
    source = write_encoder(tmp_path / "m.gguf", ENCODERS["xlm-roberta"])
    out = tmp_path / "out.gguf"
    Quantisation(source, "Q8_0").write(out, 1)
    before, after = GGUFFile(source).tensors, GGUFFile(out).tensors
    for name in ("token_types.weight", "cls.output.weight"):
        assert before[name].shape == (1, *after[name].shape)
    assert load(out).rerank("king", ["the queen of ale", "storm"], top_n=1)[0].n_tokens > 2


def test_a_single_expert(tmp_path: Path) -> None:
    spec = replace(SPECS["qwen3moe"], n_experts=1, n_used=1)
    source, out = write_model(tmp_path / "m.gguf", spec), tmp_path / "out.gguf"
    Quantisation(source, "F32").write(out, 1)
    assert GGUFFile(out).tensors["blk.0.ffn_up_exps.weight"].shape == (32, 64)
    small, whole = (logits(build_decoder(open_weights(each))) for each in (out, source))
    assert small.tobytes() == whole.tobytes()
