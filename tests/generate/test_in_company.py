"""Ways to draw beside several completions, an engine, guesses, sessions and records.

Loops and kept tokens have such tests in files of their own.
"""

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
PHASES = {
    "code": {"begin": "e", "end": "t", "temperature": 1.4, "presence_penalty": 0.7},
    "answer": {"temperature": 0.6, "frequency_penalty": 0.4},
}
ALONE: dict[str, dict[str, Any]] = {
    "p_less": {"p_less": "on"},
    "p_less normalized": {"p_less": "normalized", "min_k_tau": 8.0},
    "top_h": {"top_h": 0.4},
    "min_k": {"min_k_tau": 3.0, "temperature": 1.5},
    "mirostat": {"mirostat": 2, "mirostat_tau": 3.0},
    "gumbel": {"draw": "gumbel"},
    "watermark": {"draw": "watermark", "watermark_key_file": KEY},
    "synthid": {"draw": "synthid", "watermark_key_file": KEY},
    "budget": {"reasoning_budget": 2, "reasoning_budget_message": "Enough.\n", "reasoning_budget_grace": 2},
    "guidance": {"guidance_scale": 1.5, "negative_prompt": "JULIET:"},
    "heal": {"heal": True},
    "phases": {"phases": PHASES},
    "phases with histories": {"phases": {**PHASES, "histories": "own"}},
    "banned_strings": {"banned_strings": ["our", "eat"]},
    "banned_regex": {"banned_regex": [r"\b[Tt]h\w{0,5}", {"regex": "[aeiou]", "probability": 0.2}]},
}  # fmt: skip
FORCED = ("budget", "banned_strings", "banned_regex")
"""Tokens that are not always what the chain draws of the row."""


@pytest.mark.parametrize("name", ALONE)
def test_a_text_is_the_same_in_any_company(model: LanguageModel, tmp_path: Path, name: str) -> None:
    if name == "banned_regex":
        pytest.importorskip("re2")
    asked: dict[str, Any] = {"preset": "neutral", "seed": 5, "max_tokens": 12, **ALONE[name]}
    drawn: list[int] = []

    def look(chain: SamplerChain, row: Any) -> None:
        draw = chain.explain(row).draw
        drawn.append(-1 if draw is None else draw.token.id)

    alone = model.generate(PROMPT, **asked, on_logits=look)
    tokens = alone.tokens
    assert tokens != model.generate(PROMPT, preset="neutral", seed=5, max_tokens=12).tokens
    assert name in FORCED or drawn == tokens
    assert model.generate(PROMPT, **asked, spec_type="ngram").tokens == tokens
    first, second = model.generate_batch([PROMPT], n=2, **asked)
    assert first.tokens == tokens
    with model.engine(n_seq_max=3) as engine:
        beside = engine.submit("JULIET:", max_tokens=12, seed=1)
        assert engine.submit(PROMPT, **asked).tokens == tokens
        assert len(beside.tokens) == 12
    for each in (alone, second):
        each.wait()
        record = Record.from_json(json.loads(json.dumps(Record.of(each, model, "1").as_json())))
        assert make_again(record, model) == record.made
        assert verify(record, model).ok
    if not name.startswith("banned"):  # nothing is taken back of the text before a session's end
        half = model.generate(PROMPT, **{**asked, "max_tokens": 5})
        model.save_session(tmp_path / "s", half)
        rest = model.generate(model.load_session(tmp_path / "s"), **{**asked, "max_tokens": 7})
        assert [*half.tokens, *rest.tokens] == tokens
