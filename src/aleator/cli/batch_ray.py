"""``aleator batch --ray``: the lines of a file, answered by the workers of a Ray cluster."""

from __future__ import annotations

import argparse
import copy
import json
import os
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from aleator.cli.batch_file import ResultFile
from aleator.cli.batch_work import EVERY, Line, Work
from aleator.cli.declared import given
from aleator.cli.options import load_model
from aleator.cli.terminal import note
from aleator.generate.options import LOADED

if TYPE_CHECKING:
    import pyarrow

LINES = 2
"""Lines that a worker takes at once, for each that it answers at the same time."""


class Worker:
    """Answers lines with a model of its own, as ``aleator batch`` does."""

    def __init__(self, arguments: argparse.Namespace, defaults: Mapping[str, Any]) -> None:
        self._model, self._defaults = load_model(arguments), defaults
        self._engine = self._model.engine(n_seq_max=arguments.parallel)

    def answers(self, lines: Sequence[str]) -> list[str]:
        """Results of lines, both as JSON."""
        made: list[dict[str, Any]] = []
        todo = [Line(**json.loads(line)) for line in lines]
        work = Work(self._model, todo, made.append, self._defaults)
        work.run(self._engine, self._engine.options.n_seq_max + 1)
        return [json.dumps(result, allow_nan=False) for result in made]

    def __call__(self, batch: pyarrow.Table) -> pyarrow.Table:
        """Answer a batch of rows."""
        import pyarrow as pa  # Ray's data sets bring it

        return pa.table({"result": pa.array(self.answers(batch["line"].to_pylist()), pa.string())})


def run_on_ray(
    arguments: argparse.Namespace,
    todo: Sequence[Line],
    results: ResultFile,
    defaults: Mapping[str, Any],
) -> None:
    """Have lines answered by a cluster; results are written as they come.

    Raises:
        ParameterError: No cluster answers.
        ImportError: Ray is not installed, or too old; in one line.
    """
    from aleator.integrations.ray import answered, connect  # Ray is optional

    connect(arguments.ray)
    threads: int = given(arguments, LOADED).get("n_threads", 1)
    theirs = copy.copy(arguments)
    theirs.n_threads = str(threads)
    if theirs.model is not None and os.path.exists(theirs.model):
        theirs.model = os.path.abspath(theirs.model)  # workers are started elsewhere
    rows = answered(
        [json.dumps({**vars(line), "body": dict(line.body)}) for line in todo],
        Worker,
        (theirs, dict(defaults)),
        workers=arguments.ray_workers or 1,
        num_cpus=threads,
        at_once=LINES * arguments.parallel,
    )
    began = told = monotonic()
    done = 0
    for text in rows:
        result = json.loads(text)
        if result["custom_id"] in results.done:
            continue
        results.append(result)
        done += 1
        if monotonic() - told > EVERY:
            told = monotonic()
            note(f"{done} of {len(todo)} requests, {done / (told - began):.2f} requests/s")
    note(f"{done} of {len(todo)} requests in {monotonic() - began:.1f} s")
