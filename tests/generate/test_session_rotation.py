"""Sessions between contexts whose rotary tables differ: keys of the one are not taken for keys of the other."""

from __future__ import annotations

from pathlib import Path

import pytest
from dense_models import DENSE
from model_file import write_model

from aleator.cache.prefix_index import PrefixConfig
from aleator.generate import Batch, Context
from aleator.generate.session import Session, load_session, save_session
from aleator.models import build_decoder, open_weights

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.mark.parametrize(
    ("name", "sizes", "restored"),
    [
        ("phi3-longrope", (64, 48), len(TOKENS)),  # the short table
        ("phi3-longrope", (128, 256), len(TOKENS)),  # the long table
        ("phi3-longrope", (64, 256), 0),
        ("phi3-longrope", (256, 64), 0),
        ("phi3", (64, 256), len(TOKENS)),
    ],
)
def test_only_keys_of_the_same_table_are_restored(
    name: str, sizes: tuple[int, int], restored: int, tmp_path: Path
) -> None:
    weights = open_weights(write_model(tmp_path / "m.gguf", DENSE[name]))
    decoder, model = build_decoder(weights), weights.identity()
    contexts = [Context(decoder, n_ctx=n, n_threads=1, prefix=PrefixConfig()) for n in sizes]
    contexts[0].decode(Batch.one(TOKENS))
    contexts[0].cache.keep(0, TOKENS)
    contexts[0].cache.seq_rm(0)
    assert save_session(tmp_path / "s", contexts[0], Session((*TOKENS, 7), 9), model) == len(TOKENS)
    session = load_session(tmp_path / "s", contexts[1], model)
    assert session.restored == restored
    assert ("rotated for a context of another length" in session.why_not) == (restored == 0)
