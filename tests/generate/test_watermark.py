"""``draw="watermark"`` wherever a text is made: batches, sessions, records, completions, several steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aleator import LanguageModel, WatermarkKey, detect_watermark
from aleator.engine.replay import Record, differences, make_again

KEY = WatermarkKey(b"a key for tests only")
OPTIONS: dict[str, Any] = {
    "preset": "neutral", "seed": 11, "draw": "watermark", "watermark_key_file": KEY,
}  # fmt: skip


def test_alone_in_a_batch_and_after_a_session(model: LanguageModel, tmp_path: Path) -> None:
    whole = model.generate("ROMEO:", max_tokens=40, **OPTIONS)
    assert detect_watermark(whole.tokens, KEY).log10_p < -8
    batch = model.generate_batch(["ROMEO:", "JULIET:"], max_tokens=40, **OPTIONS)
    assert batch[0].tokens == whole.tokens
    guessed = model.generate("ROMEO:", max_tokens=40, spec_type="ngram", **OPTIONS)
    assert guessed.tokens == whole.tokens
    first = model.generate("ROMEO:", max_tokens=9, **OPTIONS)
    model.save_session(tmp_path / "s", first)
    rest = model.generate(model.load_session(tmp_path / "s"), max_tokens=31, **OPTIONS)
    assert [*first.tokens, *rest.tokens] == whole.tokens


def test_seeds_begin_texts(model: LanguageModel) -> None:
    texts = {
        model.generate("ROMEO:", max_tokens=20, **{**OPTIONS, "seed": seed}).text
        for seed in range(5)
    }
    assert len(texts) == 5


def test_a_record_makes_it_again_with_the_key_alone(model: LanguageModel) -> None:
    made = model.generate("ROMEO:", max_tokens=24, **OPTIONS)
    assert made.text
    written = json.dumps(Record.of(made, model, "").as_json())
    assert KEY in written
    assert "a key for tests" not in written
    record = Record.from_json(json.loads(written))
    assert record.made is not None
    assert differences(record.made, make_again(record, model)) == []
