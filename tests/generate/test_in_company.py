"""What says how a text is drawn, each beside several completions, an engine, guesses, sessions and records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aleator import LanguageModel, SamplerChain, WatermarkKey
from aleator.engine.replay import Record, make_again
from aleator.engine.verify import verify

PROMPT = "ROMEO: <think>\nI th"
KEY = WatermarkKey(b"a key for tests only")
ALONE: dict[str, dict[str, Any]] = {
    "phases": {"phases": {"thinking": {"top_k": 5}, "answer": {"temperature": 1.4}}, "reasoning_budget": 9},
    "budget": {
        "reasoning_budget": 4,
        "reasoning_budget_message": "Enough.\n",
        "reasoning_budget_grace": 3,
    },
    "loops": {"stop_loops": {"repeats": 2, "min_tokens": 4}, "top_k": 1},
    "warm": {"stop_loops": {"repeats": 2, "min_tokens": 4, "temperature": 2, "for": 5}, "top_k": 2},
    "p_less": {"p_less": "on"},
    "p_less normalized": {"p_less": "normalized", "min_k_tau": 8.0},
    "top_h": {"top_h": 0.4},
    "min_k": {"min_k_tau": 3.0, "temperature": 1.5},
    "watermark": {"draw": "watermark", "watermark_key_file": KEY},
    "synthid": {"draw": "synthid", "watermark_key_file": KEY},
    "banned_strings": {"banned_strings": ["th", "and"]},
    "banned_regex": {"banned_regex": [("[aeiou]{2}", 0.5), r"\bI\b"]},
    "heal": {"heal": True},
    "kept": {"logprobs": 1, "kept": True, "top_k": 9},
}  # fmt: skip
FORCED = ("phases", "budget", "banned_strings", "banned_regex", "heal")
"""Tokens that are not always what the chain draws of the row."""
REWRITTEN = ("banned_strings", "banned_regex")
"""Of the text before a session's end nothing is taken back."""


@pytest.mark.parametrize("name", ALONE)
def test_a_text_is_the_same_in_any_company(model: LanguageModel, tmp_path: Path, name: str) -> None:
    asked: dict[str, Any] = {"preset": "neutral", "seed": 5, "max_tokens": 24, **ALONE[name]}
    drawn: list[int] = []

    def look(chain: SamplerChain, row: Any) -> None:
        draw = chain.explain(row).draw
        drawn.append(-1 if draw is None else draw.token.id)

    alone = model.generate(PROMPT, **asked, on_logits=look)
    tokens = alone.tokens
    assert tokens != model.generate(PROMPT, seed=5, max_tokens=24, preset="neutral").tokens
    assert name in FORCED or drawn == tokens
    assert model.generate(PROMPT, **asked, spec_type="ngram").tokens == tokens
    first, second = model.generate_batch([PROMPT], n=2, **asked)
    assert first.tokens == tokens
    with model.engine(n_seq_max=3) as engine:
        made = [engine.submit(prompt, **asked) for prompt in (PROMPT, "JULIET:", PROMPT)]
        assert made[0].tokens == made[2].tokens == tokens
    for each in (alone, second):
        each.wait()
        record = Record.from_json(json.loads(json.dumps(Record.of(each, model, "1").as_json())))
        assert make_again(record, model) == record.made
        assert verify(record, model).ok
    if name not in REWRITTEN:
        half = model.generate(PROMPT, **{**asked, "max_tokens": 7})
        model.save_session(tmp_path / "s", half)
        rest = model.generate(model.load_session(tmp_path / "s"), **{**asked, "max_tokens": 17})
        assert [*half.tokens, *rest.tokens] == tokens
