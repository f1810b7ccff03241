"""Torments engines: random submits, cancels, failing samplers, interrupts, errors of the context.

    python tools/engine_soak.py [--seconds 1800] [--seed 1] [--threads 3]

Some threads submit, read, cancel and forget requests, with deadlines, callbacks that raise and prompts of all
lengths.  Meanwhile the context fails now and then (MemoryError, CacheFull), and KeyboardInterrupt is thrown
into the engine's own thread wherever it is.  Every few hundred requests the engine is closed and another one
made.  Afterwards no sequence holds a cell, the cache's own check finds nothing, requests that met no error
have the tokens that they have alone, no thread is left, and memory is as at the start: what is allocated is
counted by the allocators themselves (:class:`Memory`), and resident memory, of which allocators keep what they
once had, grows no more in the second half.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakMethod

import aleator
from aleator.core.errors import AleatorError, CacheFull, EngineClosed, QueueFull
from aleator.engine.core import cells_held
from aleator.generate.batch import Batch
from aleator.generate.generation import Generation

PROMPTS = ("ROMEO:", "JULIET:\nWhat", "First Citizen:\nHear me speak.\n" * 6, "KING RICHARD:")
SEEDS = 4
MOST_TOKENS = 40
N_SEQ_MAX = 3
PER_ENGINE = 300
"""Requests after which an engine is closed."""
IN_USE = 2 * 2**20
"""Bytes by which native memory may have grown, beside :data:`PER_REQUEST`."""
BLOCKS = 6_000
"""Blocks of Python's allocator by which it may have grown."""
PER_REQUEST = 16
"""Bytes a request by which native memory may have grown: less than any object has."""
RESIDENT = 16 * 2**20
"""Bytes by which resident memory may grow in the second half."""
FEW = 8
"""Engines after which resident memory has found its level."""


MALLOC_INFO = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
"""Fields of what ``mallinfo2`` of the C library returns."""


class MallocInfo(ctypes.Structure):
    """What ``mallinfo2`` of the C library returns."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in MALLOC_INFO.split())


@dataclass(frozen=True)
class Memory:
    """What is allocated at a moment; 0 where the system does not say.

    Attributes:
        in_use: Bytes that native code has allocated and not freed.
        blocks: Blocks that Python has allocated and not freed.
        resident: Bytes that the process has of the system.
    """

    in_use: int
    blocks: int
    resident: int

    def __str__(self) -> str:
        native, held = self.in_use / 2**20, self.resident / 2**20
        return f"{native:.2f} MiB native, {self.blocks} blocks, {held:.1f} MiB resident"

    @classmethod
    def now(cls) -> Memory:
        """What is allocated now."""
        in_use = 0
        with suppress(AttributeError, OSError):  # another C library than glibc
            mallinfo = ctypes.CDLL(None).mallinfo2
            mallinfo.restype = MallocInfo
            found = mallinfo()
            in_use = found.uordblks + found.hblkhd
        return cls(in_use, sys.getallocatedblocks(), resident())


def grown(start: Memory, meanwhile: Sequence[Memory], end: Memory, requests: int) -> list[str]:
    """What has grown more than it may.

    Args:
        start: Before the first engine, with all garbage collected.
        meanwhile: After each engine.
        end: After the last one, with all garbage collected.
        requests: How many were made.
    """
    wrong = []
    more = end.in_use - start.in_use
    if more > IN_USE + PER_REQUEST * requests:
        wrong.append(f"{more / 2**20:.1f} MiB more of native memory are in use")
    more = end.blocks - start.blocks
    if more > BLOCKS + requests / 10:
        wrong.append(f"{more} more blocks of Python's memory are in use")
    half = len(meanwhile) // 2
    if half >= FEW:
        first, later = meanwhile[:half], meanwhile[half:]
        more = max(each.resident for each in later) - max(each.resident for each in first)
        if more > RESIDENT:
            wrong.append(f"resident memory still grew, by {more / 2**20:.1f} MiB")
    return wrong


class Refused(Exception):
    """What the callbacks of the soak raise."""


@dataclass
class Soak:
    """Engines under torment.

    Attributes:
        model: what is served.
        expected: tokens of (prompt, seed) alone.
        counts: what happened.
        wrong: what must not have.
        memory: after each engine.
    """

    model: aleator.LanguageModel
    expected: dict[tuple[int, int], list[int]]
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)

    def serve(self, seconds: float, seed: int, n_threads: int) -> None:
        """Make engine after engine until the time is over."""
        end, number = time.monotonic() + seconds, 0
        while time.monotonic() < end and not self.wrong:
            engine = aleator.Engine(self.model, n_seq_max=N_SEQ_MAX, n_ctx=640, max_queue=6)
            owner = engine._owner
            if owner is None:
                raise AssertionError("a new engine is closed")
            context, thread = owner._context, owner._thread
            rng = random.Random(f"{seed} {number}")
            fail = self._failing(context, rng)
            users = [
                threading.Thread(
                    target=self._use, args=(engine, random.Random(f"{seed} {number} {i}"), end)
                )
                for i in range(n_threads)
            ]
            for user in users:
                user.start()
            while any(user.is_alive() for user in users):
                time.sleep(rng.random() * 0.2)
                if rng.random() < 0.3 and thread.ident is not None:
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(
                        ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt)
                    )
                    self.counts["interrupts"] += 1
            fail.clear()
            for _ in range(4000):
                stats = engine.stats
                if not stats.running and not stats.waiting:
                    break
                time.sleep(0.005)
            else:
                self.wrong.append(f"requests do not end: {engine.stats}")
            engine.close()
            context.cache.check()
            held = cells_held(context.cache, range(N_SEQ_MAX))
            if held:
                self.wrong.append(f"{held} cells are still held")
            if thread.is_alive():
                self.wrong.append("the engine's thread is still there")
            del context.decode  # by which it holds itself
            del engine, context, owner
            self.memory.append(Memory.now())
            number += 1
            print(f"{self.counts['requests']} requests, {self.memory[-1]}", flush=True)
        self.counts["engines"] += number

    def _failing(self, context: Any, rng: random.Random) -> threading.Event:
        """Let the context fail now and then, while the event is set."""
        decode, on = WeakMethod(context.decode), threading.Event()
        on.set()  # weak, or the errors' frames keep the context until they are collected

        def decode_or_fail(batch: Batch) -> Any:
            if on.is_set() and rng.random() < 0.003:
                self.counts["errors of the context"] += 1
                raise rng.choice([MemoryError("soak"), CacheFull(9, 0), RuntimeError("soak")])
            decodes = decode()
            if decodes is None:
                raise AssertionError("a closed engine decodes")
            return decodes(batch)

        context.decode = decode_or_fail
        return on

    def _use(self, engine: aleator.Engine, rng: random.Random, end: float) -> None:
        held: list[Generation] = []
        for _ in range(PER_ENGINE):
            if time.monotonic() > end:
                break
            self._request(engine, rng, held)
        for generation in held:
            generation.cancel()

    def _request(self, engine: aleator.Engine, rng: random.Random, held: list[Generation]) -> None:
        prompt, seed = rng.randrange(len(PROMPTS)), rng.randrange(SEEDS)
        options: dict[str, Any] = {"max_tokens": rng.randint(1, MOST_TOKENS), "seed": seed}
        if rng.random() < 0.1:
            options["on_logits"] = _raises(rng.randint(1, 20))
        if rng.random() < 0.1:
            options["deadline"] = rng.random() * 0.1
        try:
            generation = engine.submit(PROMPTS[prompt], priority=rng.randint(-1, 1), **options)
        except QueueFull:
            self.counts["refused"] += 1
            time.sleep(0.01)
            return
        except EngineClosed:
            return
        self.counts["requests"] += 1
        way = rng.random()
        if way < 0.1:
            return  # forgotten
        if way < 0.2:
            held.append(generation)  # goes on unread
            return
        try:
            for i, _ in enumerate(generation):
                if way < 0.35 and i == 3:
                    generation.cancel()
        except (Refused, MemoryError, RuntimeError, KeyboardInterrupt, AleatorError):
            self.counts["errors raised"] += 1
        if not generation.wait(timeout=60):
            self.wrong.append("a request does not end")
            return
        tokens = generation.tokens
        if tokens != self.expected[prompt, seed][: len(tokens)]:
            self.wrong.append(f"other tokens: prompt {prompt}, seed {seed}: {tokens}")


def _raises(after: int) -> Any:
    left = [after]

    def on_logits(chain: Any, logits: Any) -> None:
        left[0] -= 1
        if left[0] <= 0:
            raise Refused("as agreed")

    return on_logits


def resident() -> int:
    """Bytes of memory in use; 0 where the system does not say."""
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * 4096 if status.exists() else 0


def soak(seconds: float, seed: int, n_threads: int) -> Soak:
    """Torment engines for so many seconds; see :attr:`Soak.wrong`."""
    model = aleator.load(n_threads=1)
    expected = {
        (i, s): model.generate(prompt, max_tokens=MOST_TOKENS, seed=s).tokens
        for i, prompt in enumerate(PROMPTS)
        for s in range(SEEDS)
    }
    made = Soak(model, expected)
    made.serve(max(2.0, seconds / 20), seed + 1, n_threads)  # so that what is made once is there
    gc.collect()
    start, threads = Memory.now(), threading.active_count()
    made.memory.clear()
    before = made.counts["requests"]
    made.serve(seconds, seed, n_threads)
    gc.collect()
    end = Memory.now()
    if threading.active_count() != threads:
        made.wrong.append(f"threads are left: {threading.enumerate()}")
    made.counts["bytes of native memory, more"] = end.in_use - start.in_use
    made.counts["blocks of Python's memory, more"] = end.blocks - start.blocks
    made.counts["bytes resident, more"] = end.resident - start.resident
    made.wrong += grown(start, made.memory, end, made.counts["requests"] - before)
    return made


def main() -> int:
    """Torment engines for as long as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=3)
    args = parser.parse_args()
    made = soak(args.seconds, args.seed, args.threads)
    for name, n in made.counts.items():
        print(f"{name}: {n}")
    for each in made.wrong:
        print("WRONG:", each)
    return bool(made.wrong)


if __name__ == "__main__":
    sys.exit(main())
