"""Grammars of requests: compiled once, and never for longer than the server allows.

What compiles a grammar is native code that no signal ends.  So a new one is first compiled in a process of
its own (grammar_trial.py), up to its first mask, which is killed when the time is over; only what passes is
compiled here.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from select import select
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from aleator.core.errors import AleatorError, EngineClosed, GrammarError, ParameterError
from aleator.samplers.as_json import constraint_as_json, constraint_from_json
from aleator.samplers.constrained import ConstraintSampler
from aleator.samplers.params import CHAIN_OPTIONS, CONSTRAINTS
from aleator.server.bodies import in_thread
from aleator.server.caller import current_caller
from aleator.server.fair_semaphore import FairSemaphore
from aleator.server.kept_grammars import KEPT, KeptGrammars
from aleator.text.tokenizer import Tokenizer

R = TypeVar("R")

MOST_BYTES = 2**27
"""Of memory that one grammar may take, as far as its trial shows."""
NOTICED_BYTES = 2**25
"""After a trial that took more the process begins anew: where only memory in use is told, what is used again
would not be seen."""
AT_ONCE = 2
"""New grammars that are compiled at the same time, each for another key, each in a process of its own."""
START_SECONDS = 120.0
"""That the process for trials has to begin: it reads the vocabulary."""


class Trials:
    """A process that compiles grammars, to see whether it can be done in time.

    Args:
        model: Path of the model whose vocabulary it reads.
        seconds: That a grammar has.
    """

    def __init__(self, model: str, seconds: float) -> None:
        self._model, self.seconds = model, seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._greeted = self._cut = False  # it has said that it is ready; it is to end

    def begin(self) -> None:
        """Start the process without waiting for it, so that the first grammar finds it ready."""
        if self._process is None:
            self._greeted = False
            self._process = subprocess.Popen(
                [sys.executable, "-m", "aleator.server.grammar_trial", self._model],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )

    def run(self, name: str, value: Mapping[str, object]) -> int:
        """Compile a grammar; returns how many bytes of memory it took.

        Args:
            name: Of the field that it came in.
            value: The grammar, as :func:`said` writes it.

        Raises:
            GrammarError: It is wrong, or asks for too much.
            ParameterError: It takes longer than it may.
            EngineClosed: :meth:`cut` was called.
        """
        process = self._started()
        try:
            answer = self._ask(process, json.dumps(value).encode() + b"\n", self.seconds)
        except BaseException:
            self.close()
            raise
        if answer is None:
            raise self._ended(
                name,
                f"{name} takes longer than {self.seconds:g} s to compile: simplify it, or start the server "
                "with a larger --grammar-timeout",
            )
        told = json.loads(answer)
        if "error" in told:
            raise GrammarError(told["error"], told["line"], told["column"])
        if told["bytes"] > NOTICED_BYTES:
            self.close()
        if told["bytes"] > MOST_BYTES:
            raise GrammarError(
                f"the grammar asks for too much: {told['bytes'] >> 20} MiB of memory, and {MOST_BYTES >> 20} "
                "are the most: simplify it"
            )
        return int(told["bytes"])

    def cut(self) -> None:
        """End the process, also while it tries a grammar; from any thread."""
        self._cut, process = True, self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the process; the next trial begins another one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _ended(self, name: str, message: str) -> AleatorError:
        """End a process that did not answer; returns why it did not."""
        self.close()
        return EngineClosed("the server ends") if self._cut else ParameterError(name, message)

    def _started(self) -> subprocess.Popen[bytes]:
        self.begin()
        if self._cut:  # not before: a process that begins now, nobody else ends
            raise self._ended("", "")
        process = self._process
        if process is None:
            raise RuntimeError("the process was ended by another thread")
        if not self._greeted:
            if self._ask(process, b"", START_SECONDS) is None:
                raise self._ended(
                    "grammar",
                    "grammars cannot be compiled: the process that tries them did not begin",
                )
            self._greeted = True
        return process

    @staticmethod
    def _ask(process: subprocess.Popen[bytes], question: bytes, seconds: float) -> bytes | None:
        """Send a line, and get one back; None: none came in time."""
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the process has no pipes")
        try:
            process.stdin.write(question)
            process.stdin.flush()
        except BrokenPipeError:
            return None
        ready, _, _ = select([process.stdout], [], [], seconds)
        return process.stdout.readline() or None if ready else None


class Grammars:
    """The grammars of a server's requests, compiled for its vocabulary.

    Args:
        tokenizer: Of the model.

    Attributes:
        trials: Try those that are new, one each at a time; none: they are compiled as they come.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.trials: Sequence[Trials] = ()
        self._tokenizer = tokenizer
        self._made = KeptGrammars()
        self._tried: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()  # for what was tried and is compiled; held for a moment
        # For what takes long, taken before the other: a lock for each grammar, and who uses the processes.
        self._compiling: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()
        self._busy: set[Trials] = set()
        self._freed = threading.Condition()
        self._semaphore = FairSemaphore(AT_ONCE)
        self._preparing: threading.Thread | None = None

    def begin(self) -> None:
        """Get ready for the first grammar, without waiting: it would hold up itself, and all others too."""
        for each in self.trials[:1]:
            each.begin()
        self._preparing = threading.Thread(target=self._prepare, daemon=True)
        self._preparing.start()

    def _prepare(self) -> None:
        with suppress(AleatorError):  # whoever gives a grammar is told
            prepare(self._tokenizer)

    def __len__(self) -> int:
        return len(self._made)

    async def in_thread(self, options: Mapping[str, Any], work: Callable[[], R]) -> R:
        """Do the work for a request in another thread; a new grammar waits for :class:`FairSemaphore`.

        So slow grammars do not take all threads, and requests with another key or a known grammar do not wait
        for them.

        Args:
            options: Of the request.
            work: What to do.
        """
        if not constrained(options) or await in_thread(self._known, options):
            return await in_thread(work)
        async with self._semaphore.acquire(current_caller().tenant):
            return await in_thread(work)

    async def tried(self, options: Mapping[str, Any]) -> None:
        """Do what :meth:`try_out` does, in another thread, after waiting for :class:`FairSemaphore`.

        Raises:
            GrammarError, ParameterError: As there.
        """
        if self.trials and constrained(options) and not await in_thread(self._all_passed, options):
            async with self._semaphore.acquire(current_caller().tenant):
                await in_thread(self.try_out, options)

    def try_out(self, options: Mapping[str, Any]) -> None:
        """See whether the grammar of a request can be compiled in time.

        Raises:
            GrammarError: It is wrong.
            ParameterError: It takes too long.
        """
        for name, told, key in _grammars_of(options):
            if self.trials and not self._passed(key):
                with self._alone(key):
                    self._try(name, told, key)

    def compiled(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options of a request with its grammar compiled, where it has one.

        Raises:
            GrammarError: It is wrong.
            ParameterError: It takes too long.
        """
        given = _grammars_of(options)
        return {**options, **{name: self._sampler(name, told, key) for name, told, key in given}}

    def cut(self) -> None:
        """Let nobody wait for a grammar any more: they are told that the server ends; in the event loop."""
        self._semaphore.close()
        for each in self.trials:
            each.cut()

    def close(self) -> None:
        """End the processes for trials, once they have nothing to do."""
        if self._preparing is not None:
            self._preparing.join()
        with self._freed:
            self._freed.wait_for(lambda: not self._busy)
            for each in self.trials:
                each.close()

    def _alone(self, key: str) -> threading.Lock:
        """A lock for what is done with one grammar; it is there for as long as somebody holds it."""
        with self._lock:
            lock = self._compiling.get(key)
            if lock is None:
                lock = self._compiling[key] = threading.Lock()
        return lock

    @contextmanager
    def _trial(self) -> Iterator[Trials]:
        """A process that nobody else uses meanwhile."""
        with self._freed:
            self._freed.wait_for(lambda: len(self._busy) < len(self.trials))
            mine = next(each for each in self.trials if each not in self._busy)
            self._busy.add(mine)
        try:
            yield mine
        finally:
            with self._freed:
                self._busy.discard(mine)
                self._freed.notify_all()

    def _known(self, options: Mapping[str, Any]) -> bool:
        """Whether the grammars of a request are compiled."""
        return all(self._made.find(key) is not None for _, _, key in _grammars_of(options))

    def _all_passed(self, options: Mapping[str, Any]) -> bool:
        """Whether the grammars of a request have been tried."""
        return all(self._passed(key) for _, _, key in _grammars_of(options))

    def _sampler(self, name: str, told: Mapping[str, Any], key: str) -> ConstraintSampler:
        known = self._made.find(key)
        if known is not None:
            return known
        with self._alone(key):
            known = self._made.find(key)
            if known is not None:  # another request has made it meanwhile
                return known
            self._try(name, told, key)
            known = sampler_of(told).bound(self._tokenizer)
            _ = known.constraint
            self._made.keep(key, known)
        return known

    def _passed(self, key: str) -> bool:
        with self._lock:
            if key in self._tried:
                self._tried.move_to_end(key)
            return key in self._tried

    def _try(self, name: str, told: Mapping[str, Any], key: str) -> None:
        """See whether a grammar can be compiled; its lock is held."""
        if self.trials and not self._passed(key):
            with self._trial() as trial:
                trial.run(name, told)
            with self._lock:
                self._tried[key] = None
                if len(self._tried) > 2 * KEPT:
                    self._tried.popitem(last=False)


def prepare(tokenizer: Tokenizer) -> None:
    """Make what all grammars of a vocabulary share."""
    _ = sampler_of({"option": "regex", "value": "a"}).bound(tokenizer).constraint


def constrained(options: Mapping[str, Any]) -> bool:
    """Whether options have a grammar, a schema or a regular expression."""
    return any(options.get(name) is not None for name in CONSTRAINTS)


def _grammars_of(options: Mapping[str, Any]) -> list[tuple[str, dict[str, Any], str]]:
    """The grammars of a request: the option, what it says, and what it is remembered by."""
    given = [(n, said(n, options[n])) for n in CONSTRAINTS if options.get(n) is not None]
    return [(name, told, digest(told)) for name, told in given]


def digest(told: Mapping[str, Any]) -> str:
    """What a grammar is remembered by: schemas can be megabytes long."""
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def said(name: str, value: Any) -> dict[str, Any]:
    """A grammar, JSON-ready: as a request has it, or as it was made of a chat's tools."""
    if isinstance(value, ConstraintSampler):
        return constraint_as_json(value)
    return {"option": name, "value": value}


def sampler_of(told: Mapping[str, Any]) -> ConstraintSampler:
    """What :func:`said` was made from, without a vocabulary.

    Raises:
        GrammarError: It is wrong.
    """
    if "option" not in told:
        return constraint_from_json(told)
    made = CHAIN_OPTIONS[told["option"]].check(told["value"])
    if not isinstance(made, ConstraintSampler):
        raise TypeError(f"{told['option']} is no grammar")
    return made
