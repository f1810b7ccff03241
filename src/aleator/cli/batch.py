"""``aleator batch``: answer the requests in a file."""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from aleator.cli import INTERRUPTED
from aleator.cli.arguments import Parser
from aleator.cli.batch_work import EVERY, Line, Work, read_lines
from aleator.cli.declared import add_declared, given
from aleator.cli.options import STEERING, add_model_options, generation_options, load_model, pick
from aleator.cli.sampling import add_sampling_options, sampling_arguments
from aleator.cli.terminal import note, on_interrupt
from aleator.core.errors import ParameterError
from aleator.generate.options import LOADED
from aleator.integrations.row_file import ResultFile

if TYPE_CHECKING:
    import pyarrow

EXAMPLES = """\
Each line of IN is a JSON object: a request as in OpenAI's batches
  {"custom_id": "a", "url": "/v1/chat/completions", "body": {"messages": [...]}}
or only its body, with "messages" or "prompt" and any option of generate; or a text
in quotes.  Results are appended to OUT as they are made, a line each, under their
custom_id (line-1, line-2, ... where none is given).  Started again, it goes on
with what is not in OUT.  What a line says wins over the options given here.  A line
that is wrong has an error as its result; one that failed otherwise (status 500) is
made again when it is started again.  A result does not depend on --parallel.

exit codes: 0 done; 1 done, but lines have errors; 130 interrupted: start again

examples:
  aleator batch requests.jsonl results.jsonl -m model.gguf --parallel 16
  aleator batch prompts.jsonl texts.jsonl -n 100 --seed 1
"""

LINES = 2
"""Lines that a cluster worker takes at once, for each that it answers concurrently."""
TEXT = ("max_tokens", "stop", "stop_loops", "logprobs", *STEERING)


def add_arguments(parser: Parser) -> None:
    parser.positional("input", "the requests, a JSON object a line; -: standard input")
    parser.positional("output", "where the results go")
    group = parser.group("what is made")
    group.number("--parallel, -np N", "requests that are made together", high=1024, default=8)
    add_declared(group, pick(TEXT))
    group.switch("--no-escape", r"take \n, \t and \r in --stop literally")
    cluster = parser.group("on a Ray cluster (docs/integrations.md)")
    cluster.option(
        "--ray ADDRESS",
        "its workers answer: auto, host:port or ray://host:port; local: a cluster of this machine",
    )
    cluster.number(
        "--ray-workers N",
        "workers, each with a model and as many cores as --threads says (default: 1, of 1 core)",
        high=10**6,
    )
    add_sampling_options(parser)
    add_model_options(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.input is None or arguments.output is None:
        raise ParameterError("input", "give two files: requests, and where the results go")
    both = arguments.input, arguments.output
    if all(map(os.path.exists, both)) and os.path.samefile(*both):
        raise ParameterError(
            f"output={arguments.output}: it is the file of the requests: choose another for the results"
        )
    if arguments.ray is None and arguments.ray_workers is not None:
        raise ParameterError(
            f"ray_workers={arguments.ray_workers}: workers are those of a cluster: give its address, --ray"
        )
    defaults = {**generation_options(arguments, TEXT), **sampling_arguments(arguments)}
    if arguments.input == "-":
        data = sys.stdin.buffer.read()
    else:
        with open(arguments.input, "rb") as file:  # a Path would change the name
            data = file.read()
    lines = list(read_lines(data))
    with ResultFile(arguments.output) as results:
        todo = [line for line in lines if line.name not in results.done]
        if results.again:
            n = len(results.again)
            verb = "result that failed before is" if n == 1 else "results that failed before are"
            note(f"{n} {verb} made again")
        if len(todo) < len(lines):
            note(f"{len(lines) - len(todo)} of {len(lines)} results are there already")
        if not todo:
            return _code(lines, results)
        if arguments.ray is not None:
            run_on_ray(arguments, todo, results, defaults)
            return _code(lines, results)
        model = load_model(arguments)
        work = Work(model, todo, results.append, defaults)
        with model.engine(n_seq_max=arguments.parallel) as engine, on_interrupt(work.stop):
            work.run(engine, arguments.parallel + 1)
    work.report(last=True)
    if work.stopped:
        return INTERRUPTED
    return _code(lines, results)


def _code(lines: list[Line], results: ResultFile) -> int:
    """The exit code when all is done; errors of an earlier run count too."""
    return int(any(line.name in results.errors for line in lines))


class Worker:
    """A worker of a Ray cluster, with a model of its own."""

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
        import pyarrow as pa  # a dependency of Ray's data sets

        return pa.table({"result": pa.array(self.answers(batch["line"].to_pylist()), pa.string())})


def run_on_ray(
    arguments: argparse.Namespace,
    todo: Sequence[Line],
    results: ResultFile,
    defaults: Mapping[str, Any],
) -> None:
    """Let a cluster answer lines; results are written as they come.

    Raises:
        ParameterError: No cluster responds.
        ImportError: Ray is not installed, or too old; a one-line message.
    """
    from aleator.integrations.ray import answered, connect  # Ray is optional

    connect(arguments.ray)
    threads: int = given(arguments, LOADED).get("n_threads", 1)
    of_worker = copy.copy(arguments)
    of_worker.n_threads = str(threads)
    if of_worker.model is not None and os.path.exists(of_worker.model):
        of_worker.model = os.path.abspath(of_worker.model)  # workers start in other directories
    rows = answered(
        [json.dumps({**vars(line), "body": dict(line.body)}) for line in todo],
        Worker,
        (of_worker, dict(defaults)),
        workers=arguments.ray_workers or 1,
        num_cpus=threads,
        at_once=LINES * arguments.parallel,
    )
    began = last_report = monotonic()
    done = 0
    for text in rows:
        result = json.loads(text)
        if result["custom_id"] in results.done:
            continue
        results.append(result)
        done += 1
        if monotonic() - last_report > EVERY:
            last_report = monotonic()
            note(f"{done} of {len(todo)} requests, {done / (last_report - began):.2f} requests/s")
    note(f"{done} of {len(todo)} requests in {monotonic() - began:.1f} s")
