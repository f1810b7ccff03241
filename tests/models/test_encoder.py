"""How an encoder divides its work: texts that are computed together, and the step that it keeps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from encoder_models import ENCODERS, write_encoder

from aleator.core.errors import UnsupportedModel
from aleator.models import build_decoder, open_weights
from aleator.models.architectures import bert
from aleator.models.encoder import Encoder


def test_texts_are_computed_together_up_to_so_many_tokens(tmp_path: Path, monkeypatch: Any) -> None:
    decoder = build_decoder(open_weights(write_encoder(tmp_path / "m.gguf", ENCODERS["bert"])))
    assert isinstance(decoder, Encoder)
    monkeypatch.setattr("aleator.models.encoder.TOKENS", 7)
    compute, parts = decoder._together, list[list[int]]()

    def together(texts: Any, marks: Any) -> Any:
        assert len(texts) == len(marks)
        parts.append([len(text) for text in texts])
        return compute(texts, marks)

    monkeypatch.setattr(decoder, "_together", together)
    lengths = [3, 4, 1, 8, 2, 5, 1, 9]
    found = list(decoder.states([[5] * n for n in lengths]))
    assert [len(states) for states in found] == lengths
    assert parts == [[3, 4], [1], [8], [2, 5], [1], [9]]
    assert list(decoder.states([])) == []


def test_the_step_is_kept_until_texts_need_more_room(tmp_path: Path) -> None:
    decoder = build_decoder(open_weights(write_encoder(tmp_path / "m.gguf", ENCODERS["bert"])))
    assert isinstance(decoder, Encoder)
    rooms = []
    for n in (1, 40, 64, 65, 128, 2, 129):
        decoder._step(n)
        assert decoder._made is not None
        rooms.append(decoder._made[0])
    assert rooms == [64, 64, 64, 128, 128, 128, 256]


def test_windows_lie_around_each_token(tmp_path: Path) -> None:
    """A token sees half a window before it and behind it: what is further away changes nothing."""
    path = write_encoder(tmp_path / "m.gguf", ENCODERS["modern-bert"])
    weights = open_weights(path)
    window = weights.config.window
    assert window is not None
    one = [layer for layer, near in enumerate(window.layers) if near]
    assert one
    decoder = build_decoder(weights)
    assert isinstance(decoder, Encoder)
    sees: list[Any] = []
    step = decoder._step(20)

    class Noted:
        def run(self, *given: Any, **named: Any) -> None:
            sees.append(named["window"])
            step.run(*given, **named)

    decoder._made = decoder._made[0], decoder._made[1], Noted()  # type: ignore[index,assignment]
    list(decoder.states([[5] * 12, [6] * 3]))
    ((_, cells, ends, which, count, _, first, _),) = sees
    half = window.size // 2
    assert cells.tolist() == list(range(15))
    assert (ends.tolist(), which.tolist()) == ([0, 12, 15], [0] * 12 + [1] * 3)
    at = [*range(12), *range(3)]
    lengths = [12] * 12 + [3] * 3
    assert first.tolist() == [max(0, i - half) for i in at]
    assert count.tolist() == [min(n, i + half + 1) for i, n in zip(at, lengths, strict=True)]


def test_a_step_whose_room_is_just_enough_is_kept(tmp_path: Path) -> None:
    decoder = build_decoder(open_weights(write_encoder(tmp_path / "m.gguf", ENCODERS["bert"])))
    assert isinstance(decoder, Encoder)
    decoder._step(1)
    made = decoder._made
    decoder._step(64)
    assert decoder._made is made


@pytest.mark.parametrize("name", ["blk.0.attn_norm_2.weight", "blk.1.ffn_up_exps.weight"])
def test_parts_that_are_not_known_are_named(name: str) -> None:
    gguf: Any = SimpleNamespace(path=Path("m.gguf"), tensors={name: None})
    with pytest.raises(UnsupportedModel, match=name):
        bert.read_gguf(gguf, bert.BERT)
