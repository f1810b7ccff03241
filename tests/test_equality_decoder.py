"""What tools/equality_decoder.py counts over 100,000 rows, here over some thousands."""

from __future__ import annotations

from pathlib import Path

import equality_decoder
import pytest
from equality_decoder import TYPES, Work, do, right_rows
from wide_models import MODELS

from aleator.core import host
from aleator.models.index import ARCHITECTURES

EQUAL = [
    ("llama", "F32"), ("llama", "Q4_K"), ("qwen2", "F16"), ("qwen3", "Q6_K"), ("gemma3", "BF16"),
    ("gemma3", "Q5_K"), ("mamba", "Q8_0"), ("jamba", "Q4_1"),
]  # fmt: skip


def work_of(name: str, kind: str, rows: int) -> Work:
    return Work(name, kind, ("f16", "q8_0"), host.isa(), rows, 3)


FEWER = [
    ("mixtral", "Q4_K"), ("gpt-oss", "MXFP4"), ("gemma2", "Q8_0"), ("phi3-longrope", "Q5_0"), ("mpt", "Q4_0"),
    ("deepseek2", "Q6_K"), ("minicpm3", "Q8_0"), ("llama4", "Q3_K"), ("qwen3next", "Q4_K"),
    ("qwen35moe", "IQ4_XS"), ("mamba2", "Q2_K"), ("granitehybrid-experts", "Q5_K"), ("nemotron_h", "Q8_0"),
    ("falcon-h1", "IQ4_NL"), ("lfm2moe", "Q4_1"), ("gemma4", "IQ3_S"),
]  # fmt: skip
"""One of each kind of step that those above do not have."""


def test_every_architecture_has_a_model() -> None:
    assert {spec.arch for spec in MODELS.values()} == set(ARCHITECTURES)


@pytest.mark.parametrize(("name", "kind"), FEWER)
def test_no_row_of_another_architecture_differs(tmp_path: Path, name: str, kind: str) -> None:
    found = do(str(tmp_path), work_of(name, kind, 300))
    assert found.examples == []
    assert not +found.wrong


@pytest.mark.parametrize(("name", "kind"), EQUAL)
def test_no_row_differs(tmp_path: Path, name: str, kind: str) -> None:
    found = do(str(tmp_path), work_of(name, kind, 1500))
    assert found.examples == []
    assert not +found.wrong
    assert found.n_rows >= 1500
    rows = {what: n for (title, what), n in found.rows.items() if title == "composition"}
    assert {"fresh", "forked", "beside others", "more tokens"} <= set(rows)


def test_no_row_differs_between_instruction_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALEATOR_ISA", raising=False)
    words = ["--rows", "400", "--models", "llama", "mamba", "--types", "Q5_1", "--workers", "1"]
    found, ended = equality_decoder.run(equality_decoder.parsed(words), show=False)
    assert (found.examples, ended) == ([], "")
    isas = {what for title, what in found.rows if title == "instruction set"}
    assert isas == set(equality_decoder.ISAS[host.isa()])


def test_a_mismatch_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = work_of("llama", "Q8_0", 200)
    right = right_rows(tmp_path, work)
    right[0, 5, 7] *= 2
    monkeypatch.setattr(equality_decoder, "right_rows", lambda *_: right)
    found = do(str(tmp_path), work)
    assert 0 < found.n_wrong < found.n_rows
    assert found.wrong["composition", "token by token"] == 1
    assert "token by token, position 5" in found.examples[0]


def test_works_cover_every_model_type_and_instruction_set_with_crowds() -> None:
    isas = equality_decoder.ISAS["v4"]
    todo = list(equality_decoder.works(equality_decoder.parsed([]), isas))
    assert {w.name for w in todo} == set(MODELS)
    assert {w.type for w in todo} == set(TYPES)
    assert {w.cache for w in todo} == set(equality_decoder.CACHE_TYPES)
    assert len(todo) == len(isas) * len({(w.name, w.type) for w in todo})
    assert min(w.rows for w in todo) > equality_decoder.LENGTH  # what is left goes to a crowd
    assert 95_000 < sum(w.rows for w in todo) < 105_000


@pytest.mark.parametrize(("n", "n_pairs"), [(0, 5), (7, 7), (100, 15)])
def test_pairs_have_each_model_and_type(n: int, n_pairs: int) -> None:
    for models, types in ("abcde", "xyz"), ("xyz", "abcde"):
        pairs = equality_decoder.some_pairs(models, types, n)
        assert len(pairs) == len(set(pairs)) == n_pairs
        assert ({a for a, _ in pairs}, {b for _, b in pairs}) == (set(models), set(types))
