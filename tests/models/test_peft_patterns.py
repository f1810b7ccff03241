"""Names and expressions of rank_pattern and alpha_pattern, against what PEFT asks of Python's ``re``."""

from __future__ import annotations

import re

import pytest

from aleator.core.errors import FileFormatError, UnsupportedModel
from aleator.models import peft_patterns
from aleator.models.files.fields import Fields
from aleator.models.peft_patterns import Patterns

MODULES = [
    *(f"model.layers.{i}.self_attn.{name}_proj" for i in (0, 1, 11) for name in "qkvo"),
    *(f"model.layers.{i}.mlp.experts.{name}_proj" for i in (2, 12) for name in ("gate_up", "down")),
    "lm_head", "model.embed_tokens", "proj", "",
]  # fmt: skip
NAMES = [
    "q_proj",
    "proj",
    "lm_head",
    "layers.1.self_attn.q_proj",
    "^model.embed_tokens",
    "^lm_head",
    "^q_proj",
    "q.proj",
    "lm.head",
]
EXPRESSIONS = [
    r".*\.gate_up_proj", r".*", r".+", r"layers\.\d+\.self_attn\.(q|v)_proj", r"(q|k|v|o)_proj", r"[qk]_proj",
    r".*layers\.[0-1]\..*", r"layers\.1?1\..*_proj", r"^model\.layers\.1\..*", r"lm_head|embed_tokens",
    r"l.*d$",
    r"((q|v)_|down_)proj", r"[^qk]_proj", r"(|x)lm_head", r".*.*.*proj", r"\d+", r"q_proj$",
    r"(^lm_head|q_proj)",
    r"a^b", r"[.]proj", r"(self_attn\.(q|k)|mlp\.experts\.down)_proj", r"x*",
]  # fmt: skip


def patterns(values: object) -> Patterns:
    return Patterns(Fields("adapter_config.json", {"alpha_pattern": values}), "alpha_pattern", 100)


@pytest.mark.parametrize("text", NAMES + EXPRESSIONS)
def test_what_fits_is_what_fits_for_peft(text: str) -> None:
    ours = patterns({text: 2.0})
    for module in MODULES:
        theirs = re.match(rf"(.*\.)?({text})$", module)
        assert (ours.value(module, 1.0) == 2.0) == (theirs is not None), module


def test_the_first_that_fits_counts() -> None:
    ours = patterns({"k_proj": 5, r".*\.q_proj": 2, "q_proj": 3, r"(k|q)_proj": 4})
    assert [ours.value(f"model.{name}_proj", 1.0) for name in "qkv"] == [2, 5, 1]


@pytest.mark.parametrize(
    "text",
    [
        "(a+)+", "(a|b)*", "a{2}", "(?i)a", "(a", "a)", "a)(", "[z-a]", "[a", "a**", "^*a", r"\w", r"\1",
    ],
)  # fmt: skip
def test_expressions_that_are_not_matched(text: str) -> None:
    with pytest.raises(UnsupportedModel, match=r"alpha_pattern: .*: write out the modules' names"):
        patterns({text: 2.0})


def test_time_grows_with_lengths_alone() -> None:
    slow = "(.|.)" * 10 + ".*" * 70 + "x" * 10
    assert patterns({slow: 2.0}).value("model." + "a" * 400, 1.0) == 1.0


def test_there_may_be_many_names_and_some_expressions() -> None:
    patterns({f"layers.{i}": 1 for i in range(4032)} | {f"x{i}.*": 1 for i in range(64)})
    patterns({"a" * 200: 1, "b*" * 100: 1})


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({f"layers.{i}": 1 for i in range(4097)}, "has 4097 entries, and at most 4096 are read"),
        ({f"x{i}.*": 1 for i in range(65)}, "more than 64 expressions: write out"),
        (
            {"q_proj": 1, "a." * 101: 1},
            "'a.a.*has 202 characters, and names of at most 200 are read",
        ),
        ({"a*" * 10_000: 1}, "has 20000 characters, and names of at most 200 are read"),
    ],
)
def test_too_many_or_too_long_ones_are_refused_before_they_are_read(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, int], told: str
) -> None:
    monkeypatch.setattr(peft_patterns, "_PART", None)
    with pytest.raises(UnsupportedModel, match=f"adapter_config.json: alpha_pattern.*{told}"):
        patterns(values)


@pytest.mark.parametrize("value", ["2", 101, float("nan"), None])
def test_values(value: object) -> None:
    with pytest.raises(FileFormatError, match="q_proj"):
        patterns({"q_proj": value})
