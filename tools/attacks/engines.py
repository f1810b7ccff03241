"""Engines with raising callbacks, cancels, failing contexts, and interrupts thrown into their thread.

Some threads submit, read, cancel and forget requests, with deadlines, grammars, callbacks that raise and
prompts of all lengths; texts are saved as sessions and go on.  Meanwhile the context fails now and then
(MemoryError, CacheFull), and KeyboardInterrupt is thrown into the engine's own thread wherever it is.  A trial
is the life of one engine.  Afterwards no sequence holds a cell, the cache's own check finds nothing, requests
have the tokens that they have alone, no thread is left, and memory is as at the start: what is allocated is
counted by the allocators themselves, and resident memory, of which allocators keep what they once had, grows no
more in the second half.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import random
import threading
import time
from collections.abc import Generator, Sequence
from typing import Any
from weakref import WeakMethod

import aleator
from aleator.core.errors import AleatorError, CacheFull, EngineClosed, QueueFull
from aleator.engine.engine_core import count_used_cells
from aleator.engine.replay import Made
from aleator.generate.context import Batch
from aleator.generate.generation import Generation
from attacks.memory import Memory, note_levels
from attacks.world import PATIENCE, PROMPTS, World, settled

SEEDS = 4
MOST_TOKENS = 40
N_SEQ_MAX = 3
N_THREADS = 3
PER_THREAD = 40
"""Requests of a thread in the life of an engine."""
IN_USE = 2 * 2**20
"""Bytes by which native memory may have grown, beside :data:`PER_REQUEST`."""
BLOCKS = 6_000
"""Blocks of Python's allocator by which it may have grown."""
PER_REQUEST = 16
"""Bytes a request by which native memory may have grown: less than any object has."""
RESIDENT = 16 * 2**20
"""Bytes by which resident memory may grow in the second half."""
OTHERS: tuple[dict[str, Any], ...] = (
    {"grammar": 'root ::= "[" [0-9]+ ("," [0-9]+)* "]"'},
    {"logprobs": 3, "stop": ["th", "e a"]},
    {"guidance_scale": 1.5, "negative_prompt": "ROMEO:"},
    {"logit_bias": {5: float("nan")}},
    {"grammar": "root ::= ("},
    {"temprature": 1},
)
"""Options of requests that are not compared: the scene "mixes" does.  The last ones are refused.  None is
llguidance's: when an interrupt reaches it, it once reads all debugging symbols."""
FEW = 8
"""Engines after which resident memory has found its level."""


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
    """What the callbacks raise."""


def scene(world: World) -> Generator[None, None, None]:
    """Torment one engine after another."""
    note_levels(str(world.levels))
    alone = {
        (i, seed): world.alone(prompt, max_tokens=MOST_TOKENS, seed=seed)
        for i, prompt in enumerate(PROMPTS)
        for seed in range(SEEDS)
    }
    Life(world, alone, "before").live()  # so that what is made once is there
    gc.collect()
    start, threads, before = Memory.now(), threading.active_count(), world.counts["requests"]
    memory: list[Memory] = []
    try:
        for number in itertools.count():
            Life(world, alone, number).live()
            memory.append(Memory.now())
            yield
    finally:
        gc.collect()
        end = Memory.now()
        world.check(threading.active_count() == threads, "threads gone", threading.enumerate())
        found = grown(start, memory, end, world.counts["requests"] - before)
        world.check(not found, "memory", found)
        world.figures["memory"] = f"{start} at first, {end} at the end"


class Life:
    """One engine under torment.

    Args:
        world: Counts what happens.
        alone: What is made of (prompt, seed) alone.
        number: Of the engine.
    """

    def __init__(self, world: World, alone: dict[tuple[int, int], Made], number: object) -> None:
        self.world, self.alone, self.number = world, alone, number

    def live(self) -> None:
        """Make an engine, use it, and look at what is left."""
        world, rng = self.world, self.world.rng("life", self.number)
        engine = aleator.Engine(world.model, n_seq_max=N_SEQ_MAX, n_ctx=640, max_queue=6)
        loop = engine._loop
        if loop is None:
            raise AssertionError("a new engine is closed")
        context, thread = loop.context, loop._thread
        fail = self._failing(context, rng)
        users = [
            threading.Thread(target=self._use, args=(engine, world.rng(self.number, i)))
            for i in range(N_THREADS)
        ]
        for user in users:
            user.start()
        while any(user.is_alive() for user in users):
            time.sleep(rng.random() * 0.2)
            if rng.random() < 0.3 and thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt)
                )
                world.count("interrupts")
        fail.clear()
        idle = settled(lambda: not engine.stats.running and not engine.stats.waiting)
        world.check(idle, "requests end", engine.stats)
        engine.close()
        context.cache.check()
        held = count_used_cells(context.cache, range(N_SEQ_MAX))
        world.check(not held, "cells given back", held)
        world.check(not thread.is_alive(), "engine's thread gone")
        del context.decode  # by which it holds itself
        self._session(rng)

    def _session(self, rng: random.Random) -> None:
        """Save a text as a session, and let it go on."""
        model, path = self.world.model, self.world.folder / "session"
        options: dict[str, Any] = {"max_tokens": MOST_TOKENS, "seed": rng.randrange(SEEDS)}
        model.save_session(path, model.generate(rng.choice(PROMPTS), **options), new=True)
        model.generate(model.load_session(path), **options).wait()
        self.world.count("sessions")

    def _failing(self, context: Any, rng: random.Random) -> threading.Event:
        """Let the context fail now and then, while the event is set."""
        decode, on, world = WeakMethod(context.decode), threading.Event(), self.world
        on.set()  # weak, or the errors' frames keep the context until they are collected

        def decode_or_fail(batch: Batch) -> Any:
            if on.is_set() and rng.random() < 0.003:
                world.count("errors of the context")
                raise rng.choice([MemoryError("attack"), CacheFull(9, 0), RuntimeError("attack")])
            decodes = decode()
            if decodes is None:
                raise AssertionError("a closed engine decodes")
            return decodes(batch)

        context.decode = decode_or_fail
        return on

    def _use(self, engine: aleator.Engine, rng: random.Random) -> None:
        held: list[Generation] = []
        for _ in range(PER_THREAD):
            self._request(engine, rng, held)
        for generation in held:
            generation.cancel()

    def _other(self, engine: aleator.Engine, rng: random.Random) -> None:
        """A request with an option of another kind, read to its end or cancelled in the middle."""
        options = {**rng.choice(OTHERS), "max_tokens": MOST_TOKENS, "seed": rng.randrange(SEEDS)}
        try:
            generation = engine.submit(rng.choice(PROMPTS), **options)
            self.world.count("requests")
            stops = rng.randrange(2 * MOST_TOKENS)
            for i, _ in enumerate(generation):
                if i == stops:
                    generation.cancel()
        except (MemoryError, RuntimeError, KeyboardInterrupt, AleatorError):
            self.world.count("errors raised")

    def _request(self, engine: aleator.Engine, rng: random.Random, held: list[Generation]) -> None:
        if rng.random() < 0.1:
            self._other(engine, rng)
            return
        prompt, seed = rng.randrange(len(PROMPTS)), rng.randrange(SEEDS)
        options: dict[str, Any] = {"max_tokens": rng.randint(1, MOST_TOKENS), "seed": seed}
        if rng.random() < 0.1:
            options["on_logits"] = raises_after(rng.randint(1, 20))
        if rng.random() < 0.1:
            options["deadline"] = rng.random() * 0.1
        if rng.random() < 0.2:
            options["spec_type"] = "ngram"
        try:
            generation = engine.submit(PROMPTS[prompt], priority=rng.randint(-1, 1), **options)
        except QueueFull:
            self.world.count("refused")
            time.sleep(0.01)
            return
        except EngineClosed:
            return
        self.world.count("requests")
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
            self.world.count("errors raised")
        if not generation.wait(timeout=PATIENCE):
            self.world.check(False, "a request ends", generation.stats)
            return
        tokens, wanted = generation.tokens, self.alone[prompt, seed].tokens
        equal = tuple(tokens) == wanted[: len(tokens)]
        self.world.check(equal, "tokens as alone", f"prompt {prompt}, seed {seed}: {tokens}")


def raises_after(n: int) -> Any:
    """A callback that raises when it is called so often."""
    left = [n]

    def on_logits(chain: Any, logits: Any) -> None:
        left[0] -= 1
        if left[0] <= 0:
            raise Refused("as agreed")

    return on_logits
