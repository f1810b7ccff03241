"""What each worker of a Ray cluster does, without Ray."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import aleator
from aleator.core.errors import ParameterError
from aleator.engine.replay import Record, make_again
from aleator.integrations.ray_generator import MADE, Generator, WorkerMemory, seed_of

ROWS: list[dict[str, Any]] = [
    {"id": "a", "prompt": "ROMEO:"},
    {"id": "b", "prompt": "JULIET:", "seed": 7},
    {"id": "c", "messages": [{"role": "user", "content": "Who goes there?"}]},
]


@pytest.fixture(scope="module")
def generator() -> Iterator[Generator]:
    made = Generator(
        seed=3,
        option_columns=("seed",),
        load={"n_threads": 1},
        engine={"n_seq_max": 2},
        max_tokens=8,
    )
    yield made
    made.close()


def whole(row: dict[str, Any]) -> dict[str, Any]:
    """Every row has all columns, as in a data set."""
    return {"prompt": None, "messages": None, "seed": None, **row}


def test_texts_are_those_of_the_rows_alone(generator: Generator) -> None:
    made = generator.rows([whole(row) for row in ROWS])
    model = generator.model
    alone = [
        model.generate("ROMEO:", max_tokens=8, seed=seed_of(3, "a"), logprobs=0),
        model.generate("JULIET:", max_tokens=8, seed=7, logprobs=0),
        model.chat(ROWS[2]["messages"], max_tokens=8, seed=seed_of(3, "c"), logprobs=0).generation,
    ]
    for row, one in zip(made, alone, strict=True):
        assert row["error"] == ""
        assert row["text"] == one.text
        assert row["tokens"] == one.tokens
        assert row["logprobs"] == [each.chosen.logprob for each in one.logprobs or []]
        assert row["seed"] == one.seed
        assert row["stop_reason"] == "length"


def test_no_text_depends_on_the_batch(generator: Generator) -> None:
    together = generator.rows([whole(row) for row in ROWS])
    apart = [generator.rows([whole(row)])[0] for row in reversed(ROWS)]
    assert together == apart[::-1]


def test_a_record_makes_the_row_again(generator: Generator) -> None:
    row = generator.rows([whole(ROWS[0])])[0]
    record = Record.from_json(json.loads(row["replay"]))
    assert record.made is not None
    assert make_again(record, generator.model) == record.made


def test_columns_of_arrays(generator: Generator) -> None:
    batch = {
        "id": np.array(["a", "x"]),
        "prompt": np.array(["ROMEO:", None], object),
        "seed": np.array([1, 2]),
    }
    made = generator(batch)
    assert list(made) == ["id", "prompt", "seed", *(name for name in MADE if name != "seed")]
    assert made["text"][0] == generator.model.generate("ROMEO:", max_tokens=8, seed=1).text
    assert made["error"][0] == ""
    assert made["error"][1].startswith("ParameterError: a row has either a prompt or messages")
    assert made["text"][1] == ""


def test_another_kind_of_batch_is_refused(generator: Generator) -> None:
    with pytest.raises(ParameterError, match=r"batch is a list: .*batch_format='pyarrow'"):
        generator([{"prompt": "ROMEO:"}])


def test_token_ids_and_messages_as_json(generator: Generator) -> None:
    tokens = generator.model.prompt_tokens("ROMEO:")
    ids, text = generator.rows(
        [whole({"id": "a", "prompt": np.array(tokens)}), whole({"id": "a", "prompt": "ROMEO:"})]
    )
    assert ids["text"] == text["text"]
    said = json.dumps(ROWS[2]["messages"])
    first, second = generator.rows([whole(ROWS[2]), whole({"id": "c", "messages": said})])
    assert first["text"] == second["text"]


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ({"id": "a"}, "either a prompt or messages"),
        ({"id": "a", "prompt": "x", "messages": []}, "either a prompt or messages"),
        ({"id": "a", "prompt": [10**6]}, "TokenizerError"),
        ({"id": "a", "prompt": "x " * 6000}, "ContextFull"),
        ({"id": "a", "messages": "{"}, "the row cannot be read"),
        ({"prompt": "x"}, "no column 'id'"),
    ],
)
def test_an_error_is_the_row_s_own(generator: Generator, row: dict[str, Any], error: str) -> None:
    wrong, right = generator.rows([whole(row), whole(ROWS[1])])
    assert error in wrong["error"]
    assert wrong["tokens"] == []
    assert right["error"] == ""


def test_failed_rows_leave_nothing_to_the_collector(generator: Generator) -> None:
    gc.collect()
    gc.disable()
    try:
        generator.rows([whole({"id": "a"}), whole({"id": "a", "prompt": "x " * 6000})])
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_wrong_options_are_refused_at_the_start() -> None:
    with pytest.raises(aleator.ParameterError, match="temperatur"):
        Generator(temperatur=1)
    with pytest.raises(aleator.ParameterError, match="max_tokens"):
        Generator(max_tokens=-5, load={"n_threads": 1})
    with pytest.raises(aleator.ParameterError, match="option_columns='sed'"):
        Generator(option_columns=("sed",))
    with pytest.raises(TypeError):
        Generator(option_columns=None)  # type: ignore[arg-type]


def test_seeds_of_rows_are_fixed() -> None:
    assert (seed_of(0, "a"), seed_of(1, 17)) == (4207276957, 1441689692)
    assert len({seed_of(seed, key) for seed in range(3) for key in range(100)}) == 300
    assert all(0 <= seed_of(1, key) < 2**32 - 1 for key in range(100))


def test_memory_of_a_worker() -> None:
    now = WorkerMemory.now()
    assert now.rss >= now.shared >= 0
    assert now.private > 1
    assert abs(now.rss - now.shared - now.private) < 1
