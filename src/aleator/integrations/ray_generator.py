"""Generate texts for the rows of a data set: the code that every worker of a Ray cluster runs.

Nothing here imports Ray: :mod:`aleator.integrations.ray` gives :class:`Generator` to ``Dataset.map_batches``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import aleator
from aleator.core.errors import AleatorError, ParameterError
from aleator.core.json_text import loads
from aleator.engine.options import EngineOptions
from aleator.engine.prompts import GENERATION, SAMPLING, check_without_model
from aleator.engine.replay import Record
from aleator.generate.generation import Generation, reader_of
from aleator.generate.options import of_loading
from aleator.models.placement import checked_dtype

if TYPE_CHECKING:
    import pyarrow


TIMEOUT = 10.0
"""Seconds to wait for a connection."""


def check_load(load: object) -> dict[str, Any]:
    """Check options of :func:`aleator.load`, as far as this machine can.

    Only the worker knows the number of threads and whether there is a GPU.  ParameterError names an option that
    is unknown or out of range.
    """
    given = mapped("load", load)
    chosen, _ = of_loading({k: v for k, v in given.items() if k != "progress"}, here=False)
    checked_dtype(chosen.dtype)
    return given


def check_engine(engine: object, **defaults: Any) -> dict[str, Any]:
    """Merge an engine's options over defaults; ParameterError if :class:`aleator.Engine` refuses them."""
    return EngineOptions.of({**defaults, **mapped("engine", engine)}).values()


def mapped(name: str, given: object) -> dict[str, Any]:
    """Return options as a mapping; ParameterError if they are something else."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ParameterError(f"{name}={given!r:.80}: give a mapping of options and their values")
    return dict(given)


def require_listener(address: str) -> None:
    """Raise OSError if nothing listens at "host:port" or "ray://host:port"; leave other addresses to Ray."""
    found = re.fullmatch(r"(?:ray://)?\[?([^\[\]/]+?)\]?:(\d{1,5})", address)
    if found is not None:
        with socket.create_connection((found[1], int(found[2])), timeout=TIMEOUT):
            pass


PROMPT, MESSAGES = "prompt", "messages"
"""Columns of the input; a row has one of them."""
MADE = ("text", "tokens", "logprobs", "stop_reason", "seed", "replay", "error")
"""Columns of the result."""
MAX_QUEUE = 2**20
"""Maximum number of waiting requests of a batch of rows."""


def seed_of(seed: int, key: object) -> int:
    """The seed of a row: 32 bits of a hash of the data set's seed and of ``str(key)``, the row's key.

    It does not depend on the worker, the time, or the other rows.
    """
    digest = hashlib.sha256(f"{seed}:{key}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:4], "little") % (2**32 - 1)


@dataclass(frozen=True)
class WorkerMemory:
    """Memory of a worker, in MiB."""

    worker: str  # Its node and process
    rss: float  # Resident memory, shared parts included
    # Resident pages shared with other processes, such as weights in the file's memory map
    shared: float
    private: float  # Resident pages of its own

    @classmethod
    def now(cls) -> WorkerMemory:
        """The memory of this process; zeros if the system does not report it (only Linux does)."""
        found = dict.fromkeys(("Rss", "Shared", "Private"), 0.0)
        with suppress(OSError):
            rollup = Path("/proc/self/smaps_rollup").read_text()
            for kind, size in re.findall(r"^(Rss|Shared|Private)\w*: +(\d+) kB$", rollup, re.M):
                found[kind] += int(size) / 1024
        worker = f"{socket.gethostname()}/{os.getpid()}"
        return cls(worker, *(round(found[each], 1) for each in ("Rss", "Shared", "Private")))


class Generator:
    """Generates texts for rows; each gets the tokens that it would get alone: for ``Dataset.map_batches``.

    A row has a column ``prompt`` (text or token ids) or ``messages`` (as in OpenAI's interface, or JSON of
    these).  It keeps its columns and gets these: ``text``, ``tokens``, ``logprobs`` (natural, of the drawn
    tokens, before sampling), ``stop_reason``, ``seed``, ``replay`` (a record for ``aleator replay``, JSON),
    ``error`` (the reason if the row failed, with the other columns empty; else "").

    Its seed is in its column ``seed`` if ``option_columns`` names that, else it is :func:`seed_of` of ``seed``
    and its key.

    Args:
        model: A GGUF file or a Hugging Face directory, which every node has; None takes the model that comes
            with the package.
        key: Column that identifies rows; None uses a row's request as its key.
        seed: Seed of the whole data set.
        option_columns: Columns that hold an option of a row; for nulls ``options`` count.
        load: Options of :func:`aleator.load`.
        engine: Options of :class:`aleator.Engine`; ``n_seq_max`` rows are generated at the same time.
        memory: Add a column ``worker`` with the memory of the process, JSON of :class:`WorkerMemory`.
        options: Options of every row: those of ``generate``, and sampling parameters.

    Attributes:
        model: The model that generates.

    Raises:
        ParameterError: An option is unknown or out of range.
        ModelNotFound, FileFormatError, UnsupportedModel: As :func:`aleator.load`.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        key: str | None = "id",
        seed: int = 0,
        option_columns: Iterable[str] = (),
        load: Mapping[str, Any] | None = None,
        engine: Mapping[str, Any] | None = None,
        memory: bool = False,
        **options: Any,
    ) -> None:
        check(options, option_columns)
        loading, running = check_load(load), check_engine(engine, max_queue=MAX_QUEUE)
        self._key, self._seed, self._memory = key, seed, memory
        self._option_columns = tuple(option_columns)
        self._options = {"logprobs": 0, **options}
        self.model = aleator.load(model, **loading)
        self.model.check_options(**options)
        self._engine = self.model.engine(**running)

    def __call__(self, batch: Any) -> Any:
        """Add the columns of results to a batch, a ``pyarrow.Table`` or a dictionary of arrays.

        ParameterError for another kind of batch.
        """
        if isinstance(batch, Mapping):
            columns = {name: list(values) for name, values in batch.items()}
            rows = [
                dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
            ]
            made = self.rows(rows)
            return {**batch, **{name: _array([row[name] for row in made]) for name in self.columns}}
        arrow = sys.modules.get("pyarrow")  # a caller with a table has imported it
        if arrow is None or not isinstance(batch, arrow.Table):
            raise ParameterError(
                "batch_format",
                f"a batch is a {type(batch).__name__}: give map_batches batch_format='pyarrow' or 'numpy'",
            )
        return self._as_table(batch, self.rows(batch.to_pylist()))

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the result columns."""
        return (*MADE, "worker") if self._memory else MADE

    def rows(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Generate the results of rows together; return them in order."""
        begun = [self._begin(row) for row in rows]
        return [self._made(each) for each in begun]

    def close(self) -> None:
        """End the engine."""
        self._engine.close()

    def _begin(self, row: Mapping[str, Any]) -> Generation | str:
        """Start to generate a row; return what is wrong if that fails."""
        try:
            options = {**self._options, **self._own_options(row)}
            messages, prompt = row.get(MESSAGES), row.get(PROMPT)
            if (messages is None) == (prompt is None):
                raise ParameterError(
                    PROMPT, "a row has either a prompt or messages: give one of them"
                )
            if "seed" not in options or options["seed"] is None:
                asked = json.dumps(_plain(prompt if messages is None else messages))
                options["seed"] = seed_of(self._seed, row[self._key] if self._key else asked)
            if prompt is not None:
                text = prompt if isinstance(prompt, str) else [int(token) for token in prompt]
                return self._engine.submit(text, **options)
            said = loads(messages) if isinstance(messages, str) else _plain(messages)
            return self.model.chat(said, engine=self._engine, **options).generation
        except KeyError as error:
            wrong = f"a row has no column {error}: name its key with key=, or give None"
            return _told(ParameterError("key", wrong))
        except AleatorError as error:
            return _told(error)
        except (TypeError, ValueError) as error:  # values that the checks do not know
            return _told(ParameterError(PROMPT, f"the row cannot be read: {_told(error)}"))

    def _own_options(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Options in a row's columns, without nulls."""
        own = {name: _plain(row[name]) for name in self._option_columns}
        return {name: value for name, value in own.items() if value is not None}

    def _made(self, begun: Generation | str) -> dict[str, Any]:
        """Wait for the result of a row."""
        try:
            found = {"error": begun} if isinstance(begun, str) else self._read(begun)
        except AleatorError as error:
            found = {"error": _told(error)}
        if self._memory:
            found["worker"] = json.dumps(vars(WorkerMemory.now()))
        return {**_EMPTY, **found}

    def _read(self, begun: Generation) -> dict[str, Any]:
        begun.wait()
        logprobs = [each.chosen.logprob for each in begun.logprobs or []]
        return {
            "text": begun.text if reader_of(begun).completion.has_text else "",
            "tokens": begun.tokens,
            "logprobs": logprobs,
            "stop_reason": begun.stop_reason,
            "seed": begun.seed,
            "replay": json.dumps(Record.of(begun, self.model).as_json()),
        }

    def _as_table(self, table: pyarrow.Table, made: Sequence[Mapping[str, Any]]) -> pyarrow.Table:
        """A table with the result columns, whose types do not depend on the values."""
        import pyarrow as pa  # installed with Ray's data sets

        types = {
            "tokens": pa.list_(pa.int32()),
            "logprobs": pa.list_(pa.float64()),
            "seed": pa.uint64(),
        }
        for name in self.columns:
            values = pa.array([row[name] for row in made], types.get(name, pa.string()))
            if name in table.column_names:
                table = table.drop_columns([name])
            table = table.append_column(name, values)
        return table


_EMPTY = {**dict.fromkeys(MADE, ""), "tokens": [], "logprobs": [], "seed": 0}


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def check(options: Mapping[str, Any], option_columns: Iterable[str]) -> None:
    """Check options on the machine that starts the work, before any worker loads a model."""
    if "seed" in options:
        raise ParameterError("seed: it is an argument of its own, and an integer")
    check_without_model(options)
    known = GENERATION.keys() | SAMPLING.keys()
    for name in option_columns:
        if name not in known:
            raise ParameterError(
                f"option_columns={name!r}: no option of generate has this name (docs/options.md)"
            )


def _plain(value: Any) -> Any:
    """A value without NumPy types: lists, numbers, texts."""
    if isinstance(value, np.ndarray):
        return [_plain(each) for each in value.tolist()]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items() if each is not None}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _array(values: Sequence[Any]) -> np.ndarray[Any, Any]:
    """A column of a dictionary; lists and texts stay unchanged."""
    made = np.empty(len(values), object)
    for i, value in enumerate(values):
        made[i] = value
    return made
