"""Short lives of models on one directory of the prompt cache; what they answer is what no cache answers.

A life is a process: a model of random weights with memory and disk below its cells, that answers branching
chats, edits of them and cancelled requests, alone and in engines, is loaded anew now and then, and ends in
order, without a word, or by a kill at a random moment.  Several live at the same time.  The texts and all
rows of logits are compared, bit for bit, with those of the same model without a cache.  The directory is
damaged, removed, and swapped for a link meanwhile; disks are full, small and read-only, calls of the system
fail, and the clock jumps.  After each trial a store is opened there: nothing half written is left, the quota
holds, and whatever can be read is sound.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import select
import shutil
import signal
import sqlite3
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wide_models import MODELS, SMALL, write_model

import aleator
import aleator.chat
import aleator.engine
from aleator.cache import disk_store
from aleator.generate import prefix_load, tiered_prefixes
from aleator.generate.generation import Generation
from aleator.generate.prompt_tiers import PromptTiers
from attacks.cache_directories import damage, examine
from attacks.disks import mounted_disk, read_only
from attacks.world import PATIENCE, World

TYPES = ("f16", "f16", "q8_0", "q4_0", "f32")
FAULTS = ("clock", "limit", "errors", "small disk", "read-only disk")
"""What a life may suffer alone."""
Asked = tuple[list[int], dict[str, Any], float | None]
PER_LIFE = 20
PER_HOME = 8
"""Trials with one directory."""
MOST_TOKENS = 6


@dataclass
class Home:
    """A directory that lives share, and which models they have.

    Attributes:
        folder: of the models' files, and of the directory.
        models: files, and options of loading.
        blocks: tokens of a block, and how many are worth to be brought up.
        seed: of all texts.
    """

    folder: Path
    models: list[tuple[Path, dict[str, Any]]]
    blocks: tuple[int, int]
    seed: int

    @classmethod
    def made(cls, folder: Path, rng: random.Random) -> Home:
        """A new one, in a folder that is not there."""
        folder.mkdir()
        models = []
        for _ in range(2):
            kind = rng.choice(TYPES)
            specs = MODELS if kind.startswith("q") else SMALL  # wide, for blocks of 32 numbers
            name = rng.choice(
                sorted(specs.keys() - {"gpt2"})
            )  # that one has positions for 128 tokens
            path = write_model(folder / f"{name} {kind}.gguf", specs[name])
            options = {"type_k": kind, "type_v": rng.choice([kind, "f16"])}
            models.append((path, {**options, "n_threads": 1, "n_ctx": rng.choice([256, 400])}))
        return cls(folder, models, rng.choice([(128, 32), (16, 8), (16, 4)]), rng.getrandbits(32))

    @property
    def directory(self) -> Path:
        """The prompt cache."""
        return self.folder / "prompts"

    def text(self, rng: random.Random) -> list[int]:
        """A way down a tree of pieces, which all lives share; perhaps with an edit or an end of its own."""
        way, text = str(self.seed), list[int]()
        for depth in range(rng.randint(1, 4)):
            way += rng.choice("ab") if depth else "a"
            piece = random.Random(way)
            text += [piece.randrange(3, 60) for _ in range(piece.randint(10, 60))]
        if rng.random() < 0.25:
            text[rng.randrange(len(text))] = rng.randrange(3, 60)
        if rng.random() < 0.25:
            text += [rng.randrange(3, 60) for _ in range(rng.randint(1, 40))]
        return text


class Life:
    """What a process does: it answers, and says so line by line.

    Args:
        home: where.
        seed: of all that is random.
        tell: takes what came of a request.
    """

    def __init__(self, home: Home, seed: int, tell: Callable[[dict[str, Any]], None]) -> None:
        self.home, self.rng, self.tell = home, random.Random(seed), tell
        rng = self.rng
        self.last = list[int]()
        self.path, self.same = rng.choice(home.models)
        for module in (prefix_load, tiered_prefixes):
            vars(module).update(zip(("BLOCK", "LEAST"), home.blocks, strict=True))
        self.cached: dict[str, Any] = {
            "cache_disk": rng.choice([200_000, 1_000_000, 2**24]),
            "cache_ram": rng.choice([0, 0, 300_000, 2**22]),
            "cache_dir": str(home.directory),
        }
        self.fault = rng.choice([*FAULTS, *["none"] * 6])
        self.plain = aleator.load(self.path, prompt_cache=False, **self.same)
        self.model: aleator.LanguageModel
        self.tiers: PromptTiers
        self.before = Counter[str]()

    def live(self) -> None:
        """Answer some requests, and end one way or another."""
        rng = self.rng
        self._suffer()
        self._load()
        for number in range(PER_LIFE):
            if rng.random() < 0.2:
                if rng.random() < 0.7:
                    self.tiers.close()
                self._load()
            if number == PER_LIFE // 2 and self.fault == "read-only disk":
                read_only(self.home.directory)
            self._ask()
        if rng.random() < 0.5:
            self.tiers.close()

    def _suffer(self) -> None:
        rng, directory = self.rng, self.home.directory
        match self.fault:
            case "clock":
                time.time = lambda: rng.uniform(-1e9, 1e10)
            case "limit":
                limit_file_size(rng.choice([0, 3_000, 40_000]))
            case "errors":
                fail_now_and_then(rng)
            case "small disk" | "read-only disk":
                disk_store.SPARED_SHARE = rng.choice([0.0, 0.05])
                directory.mkdir(mode=0o700, exist_ok=True)
                size = 100_000 if self.fault == "small disk" else 2**23
                if not mounted_disk(directory, size):
                    self.fault = "no small disk: not permitted"

    def _load(self) -> None:
        self.model = aleator.load(self.path, **self.same, **self.cached)
        if (tiers := self.model.prompt_tiers) is None:
            raise ValueError("the model has no tiers")
        self.tiers, self.before = tiers, Counter()

    def _ask(self) -> None:
        """One request, or several in an engine, beside the same from nothing."""
        rng, model = self.rng, self.model
        asked = [self._request() for _ in range(rng.choice([1, 1, 2, 4]))]
        rows: list[list[bytes]] = [[] for _ in asked]
        if len(asked) == 1 and rng.random() < 0.7:
            made = [model.generate(asked[0][0], on_logits=looks(rows[0]), **asked[0][1])]
            end(made, asked)
        else:
            sizes = {"n_seq_max": rng.randint(1, 4), "token_budget": rng.choice([8, 64, 512])}
            with model.engine(n_ctx=rng.choice([420, 512]), **sizes) as engine:
                made = [
                    engine.submit(text, on_logits=looks(seen), **options)
                    for (text, options, _), seen in zip(asked, rows, strict=True)
                ]
                end(made, asked)
        for (text, options, _), seen, each in zip(asked, rows, made, strict=True):
            self._compare(text, options, seen, each)

    def _request(self) -> Asked:
        """A text, options, and after how many seconds it is cancelled: None is never."""
        rng = self.rng
        text = self.home.text(rng)
        if self.last and rng.random() < 0.3:  # the next turn of a chat
            text = [*self.last, *text[: rng.randint(1, 40)]]
        text = text[: min(self.same["n_ctx"], self.plain.n_ctx) - MOST_TOKENS - 1]
        options = {
            "seed": rng.randrange(3), "temperature": rng.choice([0.0, 1.0]), "ignore_eos": True,
            "max_tokens": rng.randint(1, MOST_TOKENS), "namespace": rng.choice(["", "", "a"]),
        }  # fmt: skip
        return text, options, rng.choice([None, None, None, rng.random() * 0.02])

    def _compare(
        self, text: list[int], options: dict[str, Any], rows: list[bytes], made: Any
    ) -> None:
        wanted: list[bytes] = []
        alone = self.plain.generate(text, on_logits=looks(wanted), **options)
        alone.wait()
        ended = made.stop_reason == "interrupted"
        tokens, n = list(made.tokens), len(rows)
        same = (
            tokens == alone.tokens[: len(tokens)]
            and rows == wanted[:n]
            and (ended or (len(tokens), n) == (len(alone.tokens), len(wanted)))
        )
        self.last = [*text, *alone.tokens]
        now = Counter[str]()
        for tier, counts in {
            **self.tiers.tell(),
            "both": dict(self.tiers.counts),
        }.items():
            now.update({f"{tier}: {name}": n for name, n in counts.items()})
        told = now - self.before
        self.before = now
        told["cancelled"] += ended
        wrong = (
            "" if same and not told["both: errors"] else self._said(text, options, tokens, alone)
        )
        self.tell({"wrong": wrong, "counts": told, "fault": self.fault})

    def _said(self, text: list[int], options: Any, tokens: list[int], alone: Any) -> str:
        about = f"{self.path.stem} {self.same} {self.cached} {self.fault} {prefix_load.BLOCK}"
        return f"{about}: {text} {options}: {tokens}, alone {alone.tokens}"


def end(made: Sequence[Generation], asked: Sequence[Asked]) -> None:
    """Wait for some generations, and cancel those that are to be."""
    for each, (_, _, cancelled) in zip(made, asked, strict=True):
        if not each.wait(cancelled):
            each.cancel()
            each.wait()


def looks(rows: list[bytes]) -> Callable[[Any, Any], None]:
    """A callback that keeps every row of logits."""
    return lambda chain, row: rows.append(row.tobytes())


def limit_file_size(size: int) -> None:
    """Let this process write no file that is larger."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def fail_now_and_then(rng: random.Random) -> None:
    """Let calls of the system and of SQLite fail in this process."""
    codes = [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT, errno.EACCES, errno.ENOENT]

    def failing(call: Any) -> Any:
        def called(*args: Any, **options: Any) -> Any:
            within = str(args[:1])
            if rng.random() < 0.05 and ("prompts" in within or call is fsync):
                raise OSError(rng.choice(codes), "attack")
            return call(*args, **options)

        return called

    class Failing(disk_store.Index):
        def execute(self, *args: Any) -> Any:
            if rng.random() < 0.05:
                raise sqlite3.OperationalError("attack: disk I/O error")
            return super().execute(*args)

    fsync = os.fsync
    for name in ("open", "fsync", "replace", "unlink", "statvfs"):
        setattr(os, name, failing(getattr(os, name)))
    disk_store.Index = Failing  # type: ignore[misc]


# The parent


@dataclass
class Child:
    """A process with a life, and when it is killed: after so many lines and seconds; -1: never."""

    pid: int
    pipe: int
    killed_after: int
    moment: float
    lines: int = 0
    rest: bytes = b""


def born(home: Home, seed: int, rng: random.Random) -> Child:
    """Begin a life in a process of its own."""
    pipe, out = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(int(PATIENCE))
        code = 1

        def tell(about: dict[str, Any]) -> None:
            os.write(out, json.dumps(about).encode()[:60_000] + b"\n")

        try:
            Life(home, seed, tell).live()
            code = 0
        except BaseException:
            tell({"wrong": traceback.format_exc(), "counts": {}, "fault": ""})
        finally:
            os._exit(code)
    os.close(out)
    killed = rng.random() < 0.6
    after = rng.randrange(PER_LIFE) if killed else -1
    return Child(pid, pipe, after, rng.random() * 0.05)


def trial(world: World, home: Home, rng: random.Random) -> None:
    """Some lives at the same time, and what befalls their directory; then a look at it."""
    lives = [born(home, rng.getrandbits(64), rng) for _ in range(rng.choice([1, 2, 2, 3]))]
    vandal = rng.randrange(30) if rng.random() < 0.5 else -1
    lines, damaged = 0, False
    while lives:
        ready, _, _ = select.select([each.pipe for each in lives], [], [], 1.0)
        for each in [one for one in lives if one.pipe in ready]:
            data = os.read(each.pipe, 1 << 16)
            *whole, each.rest = (each.rest + data).split(b"\n")
            for line in whole:
                heard(world, json.loads(line))
            each.lines, lines = each.lines + len(whole), lines + len(whole)
            if data and -1 < each.killed_after <= each.lines:
                time.sleep(each.moment)
                os.kill(each.pid, signal.SIGKILL)
            if not data:
                lives.remove(each)
                gone(world, each)
        if -1 < vandal <= lines:
            damaged, vandal = True, -1
            damage(world, home.directory, rng)
    examine(world, home.directory, rng, damaged)


def heard(world: World, told: dict[str, Any]) -> None:
    """Count a request."""
    world.check(not told["wrong"], "requests as without a cache", told["wrong"])
    for name, n in told["counts"].items():
        world.counts[name] += n
    if told["fault"] not in ("", "none"):
        world.count(f"requests with {told['fault']}")


def gone(world: World, child: Child) -> None:
    """See how a life ended."""
    os.close(child.pipe)
    code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
    if code == -signal.SIGKILL:
        world.count("killed")
    else:
        world.check(code == 0, "ended", f"exit code {code}")


def scene(world: World) -> Generator[None, None, None]:
    """One directory after another, with some trials each."""
    for number in itertools.count():
        rng = world.rng("lives", number)
        if number % PER_HOME == 0:
            home = Home.made(world.folder / f"home {number}", rng)
        trial(world, home, rng)
        if number % PER_HOME == PER_HOME - 1:
            shutil.rmtree(home.folder)
        yield
