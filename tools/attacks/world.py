"""What the scenes share: models, texts that were made alone, and what was found."""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from make_models import SPECS, write_model

import aleator
from aleator.engine.replay import Made
from aleator.generate.generation import Generation
from aleator.models.hub.bundled import bundled_model

PATIENCE = 180.0
"""Seconds to wait for what should come at once: a busy machine is no fault."""
PROMPTS = (
    "ROMEO:",
    "JULIET:\nWhat",
    "First Citizen:\nHear me speak.\n" * 6,
    "KING RICHARD:\n",
    "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n\n",
)
N_VOCAB = 2048
"""Tokens of the bundled model, whose tokenizer the random models have."""


@dataclass
class World:
    """Where a scene is played.

    Attributes:
        seed: Of all that is random.
        folder: For files; it is removed afterwards.
        given: The model's file; None: the bundled model.
        connections: How many the scene ``connections`` opens.
        counts: How often each thing was checked or done.
        figures: Measurements, which nothing is asserted of.
        wrong: What must not have been.
    """

    seed: int
    folder: Path
    given: Path | None = None
    connections: int = 1000
    counts: Counter[str] = field(default_factory=Counter)
    figures: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def rng(self, *what: object) -> random.Random:
        """Random numbers that depend on the seed, and on what they are for."""
        return random.Random(" ".join(map(str, (self.seed, *what))))

    def count(self, what: str) -> None:
        """Count something that happened; from any thread."""
        with self._lock:
            self.counts[what] += 1

    def check(self, holds: bool, what: str, message: object = "") -> None:
        """Count a check, and note that it failed where it does not hold; from any thread."""
        self.count(what)
        if not holds:
            with self._lock:
                self.wrong.append(f"{what}: {message}")

    @property
    def levels(self) -> Path:
        """What the process under attack has allocated over time, where a scene notes it."""
        return self.folder / "levels"

    @cached_property
    def path(self) -> Path:
        """The model's file."""
        return self.given or bundled_model()

    @cached_property
    def model(self) -> aleator.LanguageModel:
        """The model, which caches prompts."""
        return aleator.load(self.path, n_threads=1)

    @cached_property
    def plain(self) -> aleator.LanguageModel:
        """The model, which caches nothing."""
        return aleator.load(self.path, n_threads=1, prompt_cache=False)

    def alone(self, prompt: Any, **options: Any) -> Made:
        """What comes of a request alone, with nothing cached."""
        return Made.of(self.plain.generate(prompt, **options))

    def same(self, generation: Generation, alone: Made, what: str, message: object = "") -> None:
        """Check that a generation is what was made alone, or its beginning where it was cut off."""
        found = unlike(generation, alone)
        self.check(not found, what, f"{message} {found}")

    def random_model(self, name: str) -> Path:
        """A model with random weights, such as llama:Q8_0, which reads and writes text."""
        return make_model(self.folder, name)


def unlike(generation: Generation, alone: Made) -> str:
    """How a generation differs from what was made alone; "" if it does not."""
    made, n = Made.of(generation), len(generation.tokens)
    if made.stop_reason in ("interrupted", "deadline") or generation.error is not None:
        return "" if made.tokens == alone.tokens[:n] else f"{made.tokens}, alone {alone.tokens}"
    return "" if made == alone else f"{made}, alone {alone}"


def make_model(folder: Path, name: str) -> Path:
    """Write a model with random weights, such as llama:Q8_0, with the bundled model's tokens."""
    arch, kind = name.split(":")
    path = folder / f"{arch}-{kind}.gguf"
    if not path.exists():
        spec = replace(SPECS[arch], type=kind, n_vocab=N_VOCAB, context=512)
        write_model(path, spec, tokenizer_from=bundled_model())
    return path


def settled(holds: Callable[[], bool]) -> bool:
    """Wait for something; returns whether it came."""
    end = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def changed(rng: random.Random, data: bytes) -> tuple[str, bytes]:
    """Bytes that are not these: bits flipped, cut off, made longer, or moved; and what was done."""
    made, what = bytearray(data), rng.choice(["bits", "cut", "longer", "zeros", "moved", "twice"])
    at = rng.choice([rng.randrange(len(data)), rng.randrange(min(len(data), 400))])
    n = rng.choice([1, 4, 100, len(data)])
    if what == "bits":
        for _ in range(rng.choice([1, 1, 8])):
            made[rng.choice([at, rng.randrange(len(data))])] ^= 1 << rng.randrange(8)
    elif what == "cut":
        del made[at:]
    elif what == "longer":
        made += rng.randbytes(min(n, 1000))
    elif what == "zeros":
        made[at : at + n] = bytes(len(made[at : at + n]))
    elif what == "moved":
        made = made[at:] + made[:at]
    else:
        made[at:at] = made[at : at + n]
    return what, bytes(made)


@dataclass(frozen=True)
class Held:
    """What a process holds.

    Attributes:
        kib: Memory.
        files: Open files and connections.
        threads: Threads.
    """

    kib: int
    files: int
    threads: int

    @classmethod
    def by(cls, pid: int | str = "self") -> Held:
        """What a process holds now."""
        status = Path(f"/proc/{pid}/status").read_text()
        found = {n: int(v) for n, v in re.findall(r"(VmRSS|Threads):\s*(\d+)", status)}
        return cls(found["VmRSS"], len(os.listdir(f"/proc/{pid}/fd")), found["Threads"])
