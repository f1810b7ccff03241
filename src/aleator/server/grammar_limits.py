"""Bounds the time and the memory of grammars.

Grammars are compiled by native code that no signal interrupts.  So a new one is first compiled in a process of
its own (grammar_trial.py), up to its first mask; the process is killed when the time is over.  Only grammars
that pass are compiled here.  They are kept for later requests while their memory is within bounds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from selectors import EVENT_READ, PollSelector

from aleator.core.errors import AleatorError, EngineClosed, GrammarError, ParameterError
from aleator.samplers.constrained import ConstraintSampler
from aleator.server.native_memory import allocated_bytes, return_memory

MOST_BYTES = 2**27
"""Most bytes of memory that one grammar may take, as measured in its trial."""
NOTICED_BYTES = 2**25
"""After a trial that took more, the process is restarted: where only memory in use can be measured, memory
that is used again would be missed."""
START_SECONDS = 120.0
"""Seconds that the trial process has to start, which includes reading the vocabulary."""
KEPT = 64
"""Most compiled grammars that are kept, the last used ones."""
KEPT_BYTES = 2**27
"""Most bytes of memory that kept grammars take together, as measured in the process."""
RETURNED_BYTES = 2**24
"""When more bytes are freed, the C library is asked to return them to the system; it would keep most."""


class Trials:
    """A process that compiles grammars, to check that this can be done in time."""

    def __init__(self, model: str, seconds: float) -> None:
        self._model, self.seconds = model, seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._greeted = self._cut = False  # it is ready; it is to end

    def begin(self) -> None:
        """Start the process without waiting for it, so that it is ready for the first grammar."""
        if self._process is None:
            self._greeted = False
            self._process = subprocess.Popen(
                [sys.executable, "-m", "aleator.server.grammar_trial", self._model],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                process_group=0,  # Ctrl-C is for the server, which ends it
            )

    def run(self, name: str, value: Mapping[str, object]) -> int:
        """Compile a grammar; return how many bytes of memory it took."""
        process = self._started()
        try:
            answer = self._ask(process, json.dumps(value).encode() + b"\n", self.seconds)
        except BaseException:
            self.close()
            raise
        if answer is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
            late = (
                f"{name} takes longer than {self.seconds:g} s to compile: simplify it, or start the server "
                "with a larger --grammar-timeout"
            )
            died = f"{name} ends the process that tries it: let fewer rules lead to one another"
            raise self._ended(name, late if process.returncode is None else died)
        found = json.loads(answer)
        if "error" in found:
            raise GrammarError(found["error"], found["line"], found["column"])
        if found["bytes"] > NOTICED_BYTES:
            self.close()
        if found["bytes"] > MOST_BYTES:
            raise GrammarError(
                f"the grammar asks for too much: {found['bytes'] >> 20} MiB of memory, and {MOST_BYTES >> 20} "
                "are the most: simplify it"
            )
        return int(found["bytes"])

    def cut(self) -> None:
        """End the process, even during a trial; may be called in any thread."""
        self._cut, process = True, self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the process; the next trial starts a new one."""
        process, self._process = self._process, None
        if process is not None:
            # A pipe may hold a question that the process did not read.
            with suppress(BrokenPipeError), process:
                process.kill()

    def _ended(self, name: str, message: str) -> AleatorError:
        """End a process that did not answer; return the reason as an error."""
        self.close()
        return EngineClosed("the server ends") if self._cut else ParameterError(name, message)

    def _started(self) -> subprocess.Popen[bytes]:
        self.begin()
        if self._cut:  # not earlier, as nothing else would end a process that is starting
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
        """Send a line, and receive one; None if none came in time."""
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the process has no pipes")
        try:
            process.stdin.write(question)
            process.stdin.flush()
        except BrokenPipeError:
            return None
        with PollSelector() as selector:  # opens no file, and takes those from number 1,024 on
            selector.register(process.stdout, EVENT_READ)
            answer = process.stdout.readline() if selector.select(seconds) else b""
        return answer if answer.endswith(b"\n") else None  # a killed process may leave half a line


class KeptGrammars:
    """Compiled grammars by their text: the last used ones, limited in number and memory.

    A grammar grows after it is compiled: llguidance makes states of its automaton when a text reaches them, and
    keeps them for the next text.  Multiples of 300,100, for example, begin with 45 MiB and have 130 after 512
    digits.  It does not report their size.  So the bound applies to what the whole process allocates beyond its
    allocation without grammars; other allocations count until all grammars have been dropped once.
    """

    def __init__(self, allocated: Callable[[], int] | None = None) -> None:
        self._made: OrderedDict[str, ConstraintSampler] = OrderedDict()
        self._allocated = allocated or allocated_bytes
        self._without = self._allocated()  # allocation without grammars
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._made)

    def find(self, key: str) -> ConstraintSampler | None:
        """A kept grammar, which becomes the last used one; None if it is not kept."""
        with self._lock:
            known = self._made.get(key)
            if known is not None:
                self._made.move_to_end(key)
            self._evict()
            return known

    def keep(self, key: str, grammar: ConstraintSampler) -> None:
        """Keep a newly compiled grammar."""
        with self._lock:
            self._made[key] = grammar
            self._evict()

    def _evict(self) -> None:
        now = first = self._allocated()
        while self._made and (len(self._made) > KEPT or now - self._without > KEPT_BYTES):
            self._made.popitem(last=False)
            now = self._allocated()
        if first - now > RETURNED_BYTES:
            return_memory()
        self._without = min(self._without, now) if self._made else now
