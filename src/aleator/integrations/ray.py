"""Generate texts for data sets on the workers of a Ray cluster.

::

    import ray
    from aleator.integrations.ray import generate, write

    rows = ray.data.from_items([{"id": i, "prompt": "ROMEO:"} for i in range(1000)])
    texts = generate(rows, "model.gguf", workers=4, max_tokens=100)          # a data set
    write(rows, "texts.jsonl", "model.gguf", workers=4, max_tokens=100)      # a file that can be resumed

A row's text is a function of the model, the row and the seed: it is the same on any number of workers, in any
batch, and when it is generated again after the loss of a worker or a node.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aleator.integrations.versions import require

require("ray", at_least="2.60", install="aleator[ray]")
require("pyarrow", at_least="17", install="aleator[ray]")

import ray
import ray.data

from aleator.core.errors import ParameterError
from aleator.integrations.ray_generator import (
    MADE,
    MAX_QUEUE,
    Generator,
    WorkerMemory,
    check,
    check_engine,
    check_load,
    require_listener,
    seed_of,
)
from aleator.integrations.row_file import RowFile

__all__ = [
    "Generator",
    "WorkerMemory",
    "Written",
    "answered",
    "connect",
    "generate",
    "seed_of",
    "write",
]


@dataclass(frozen=True)
class Written:
    """The result of :func:`write`."""

    rows: int  # Results written
    before: int  # Results already in the file
    errors: int  # Written results that are errors
    # Memory of each worker after its last row
    workers: list[WorkerMemory] = field(default_factory=list)


def connect(address: str) -> None:
    """Make this process a driver of a cluster, unless it is one.

    Args:
        address: The cluster's: "auto", "host:port", "ray://host:port"; "local" starts one on this machine.

    Raises:
        ParameterError: No cluster answers there.
    """
    if ray.is_initialized():
        return
    try:
        require_listener(address)  # Ray itself tries for minutes, and logs each time
        ray.init(address=address, log_to_driver=False, logging_level="warning")
    except (OSError, ValueError) as error:
        raise ParameterError(
            f"ray={address!r}: {error}; give the address of a cluster, or local"
        ) from error


def generate(
    rows: Any,
    model: str | None = None,
    *,
    workers: int | tuple[int, int] = 1,
    num_cpus: float = 1,
    batch_size: int = 32,
    load: Mapping[str, Any] | None = None,
    resources: Mapping[str, Any] | None = None,
    **given: Any,
) -> Any:
    """Return a data set with texts for rows, which are generated when it is read.

    Args:
        rows: A ``ray.data.Dataset`` whose rows have ``prompt`` or ``messages``.
        model: As for :class:`Generator`.
        workers: Number of actors, each with a model; (least, most) adapts it to the work.
        num_cpus: Cores per actor, and its threads unless ``load`` has ``n_threads``.
        batch_size: Rows that a worker takes at once; no text depends on it.
        load: Options of :func:`aleator.load`.
        resources: Other arguments of ``map_batches`` about workers, such as ``memory`` or ``num_gpus``.
        given: As for :class:`Generator`: ``key``, ``seed``, ``option_columns``, ``engine``,
            and options of rows.

    Returns:
        A ``ray.data.Dataset``.

    Raises:
        ParameterError: An option is unknown or out of range.
    """
    of_generator = {"key", "seed", "option_columns", "engine", "memory"}
    check(
        {k: v for k, v in given.items() if k not in of_generator}, given.get("option_columns", ())
    )
    least, most = (workers, workers) if isinstance(workers, int) else workers
    if not 1 <= least <= most:
        raise ParameterError(f"workers={workers!r}: give 1 or more, or (least, most)")
    if batch_size < 1:
        raise ParameterError(f"batch_size={batch_size}: give 1 or more")
    loading = {"n_threads": max(1, int(num_cpus)), **check_load(load)}
    check_engine(given.get("engine"), max_queue=MAX_QUEUE)
    return rows.map_batches(
        Generator,
        fn_constructor_args=(model,),
        fn_constructor_kwargs={"load": loading, **given},
        compute=ray.data.ActorPoolStrategy(min_size=least, max_size=most),
        num_cpus=num_cpus,
        batch_size=batch_size,
        batch_format="pyarrow",
        **(resources or {}),
    )


def write(
    rows: Any,
    path: str | os.PathLike[str],
    model: str | None = None,
    *,
    key: str = "id",
    progress: Callable[[int, int], None] | None = None,
    **given: Any,
) -> Written:
    """Write the results of rows into a file of JSON lines, in the order in which they are generated.

    Another run generates only rows that are not in the file.  Each row is there once, whatever failed before.

    Args:
        rows: As for :func:`generate`.
        path: The file.
        model: As for :func:`generate`.
        key: Column that identifies rows.
        progress: Called with (results in the file, rows) after each result.
        given: As for :func:`generate`.

    Returns:
        The number of results, and the memory of the workers.

    Raises:
        ParameterError: Two rows have the same key; or an option is unknown or out of range.
        FileFormatError: The file holds something else.
    """
    keys = _keys(rows, key)
    n_rows, errors, before = len(keys), 0, 0
    workers: dict[str, WorkerMemory] = {}
    with RowFile(path, key) as file:
        done = file.done & keys
        before = written = len(done)
        if before < n_rows:
            known = [ray.put(done)]  # in a list, Ray passes the reference on as it is
            left = rows
            if done:  # in batches of tables: the keys are fetched once per table, and may be many
                left = rows.map_batches(
                    _without, fn_args=(key, known), batch_format="pyarrow", num_cpus=0
                )
            made = generate(left, model, key=key, memory=True, **given)
            for row in made.iter_rows():
                about = WorkerMemory(**json.loads(row["worker"]))
                workers[about.worker] = about
                if file.append({key: row[key], **{name: _json(row[name]) for name in MADE}}):
                    written += 1
                    errors += bool(row["error"])
                    if progress is not None:
                        progress(written, n_rows)
    return Written(written - before, before, errors, list(workers.values()))


def answered(
    lines: Sequence[str],
    worker: type,
    arguments: tuple[Any, ...],
    *,
    workers: int,
    num_cpus: float,
    at_once: int,
) -> Iterator[str]:
    """Let actors process lines: they turn the column ``line`` into the column ``result``.

    ``worker`` is a class for ``map_batches``, called with tables of ``at_once`` lines.
    """
    blocks = max(1, min(len(lines), -(-len(lines) // at_once)))
    rows = ray.data.from_items([{"line": line} for line in lines], override_num_blocks=blocks)
    made = rows.map_batches(
        worker,
        fn_constructor_args=arguments,
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_cpus=num_cpus,
        batch_size=at_once,
        batch_format="pyarrow",
    )
    for row in made.iter_rows():
        yield row["result"]


def _without(table: Any, key: str, known: Sequence[Any]) -> Any:
    """The rows of a table whose keys are not in the set that ``known`` refers to."""
    there = ray.get(known[0])
    return table.filter([str(each) not in there for each in table[key].to_pylist()])


def _keys(rows: Any, key: str) -> set[str]:
    """Return the keys of rows; ParameterError if two are equal."""
    names: Iterable[str] = rows.columns() or ()
    if key not in names:
        raise ParameterError(f"key={key!r}: the rows have {', '.join(names)}: name one of these")
    counts = Counter(str(row[key]) for row in rows.select_columns([key]).iter_rows())
    twice = next((name for name, n in counts.items() if n > 1), None)
    if twice is not None:
        raise ParameterError(f"key={key!r}: {twice!r:.80} occurs twice: give each row its own")
    return set(counts)


def _json(value: Any) -> Any:
    """A value of a row in JSON's types."""
    return value.tolist() if hasattr(value, "tolist") else value
