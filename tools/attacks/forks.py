"""Forks in the middle of everything: the child is told, and writes the same texts; the parent goes on."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Generator
from pathlib import Path

import aleator
from aleator.core.errors import AleatorError, EngineClosed
from aleator.engine.replay import Made
from aleator.generate.generation import Generation
from attacks.world import PATIENCE, PROMPTS, World

N_TOKENS = 40
SEEDS = 3
RIGHT = 3
"""Exit code of a child that found nothing wrong: neither that of an end nor that of an error."""


class Fork:
    """One engine, threads that submit, a text that is half read, and a fork.

    Args:
        world: Counts what happens.
        alone: What is made of (prompt, seed) alone.
        rng: Of this trial.
    """

    def __init__(
        self, world: World, alone: dict[tuple[str, int], Made], rng: random.Random
    ) -> None:
        self.world, self.alone, self.rng = world, alone, rng

    def scene(self) -> None:
        """Fork, and look at both."""
        world, model = self.world, self.world.model
        with aleator.Engine(model, n_seq_max=3, n_ctx=640) as engine:
            over, made = threading.Event(), list[Generation]()
            running = [self._submit(engine) for _ in range(4)]
            threads = [
                threading.Thread(target=self._keep_submitting, args=(engine, over, made, i))
                for i in range(2)
            ]
            for thread in threads:
                thread.start()
            own = model.generate(PROMPTS[1], max_tokens=N_TOKENS, seed=1, logprobs=0)
            for _ in range(self.rng.randrange(10)):
                next(own, None)
            time.sleep(self.rng.random() * 0.03)
            said = world.folder / "child"
            said.unlink(missing_ok=True)
            child = os.fork()
            if not child:
                self._in_child(engine, running, own, said)
            code = waited(child)
            message = said.read_text() if said.exists() else ""
            world.check(code == RIGHT, "children of forks", f"exit code {code}: {message}")
            over.set()
            for thread in threads:
                thread.join()
            world.same(own, self.alone[PROMPTS[1], 1], "texts of the parent", "half read")
            for each in running + made:
                prompt = each.request.tokens
                alone = next(
                    self.alone[p, s]
                    for p, s in self.alone
                    if s == each.seed and tuple(model.prompt_tokens(p)) == tuple(prompt)
                )
                each.wait()
                world.same(each, alone, "texts of the parent")

    def _submit(self, engine: aleator.Engine, rng: random.Random | None = None) -> Generation:
        rng = rng or self.rng
        seed = rng.randrange(SEEDS)
        return engine.submit(rng.choice(PROMPTS), max_tokens=N_TOKENS, seed=seed, logprobs=0)

    def _keep_submitting(
        self, engine: aleator.Engine, over: threading.Event, made: list[Generation], number: int
    ) -> None:
        rng = self.world.rng("thread", number)
        while not over.is_set() and len(made) < 12:
            made.append(self._submit(engine, rng))
            time.sleep(0.002)

    def _in_child(
        self, engine: aleator.Engine, running: list[Generation], own: Generation, said: Path
    ) -> None:
        signal.alarm(int(PATIENCE))  # ends a child that waits for ever
        try:
            wrong = self._wrong_in_child(engine, running, own)
            said.write_text("\n".join(wrong))
            os._exit(RIGHT if not wrong else RIGHT + 1)
        except BaseException:
            said.write_text(traceback.format_exc())
            os._exit(RIGHT + 2)

    def _wrong_in_child(
        self, engine: aleator.Engine, running: list[Generation], own: Generation
    ) -> list[str]:
        wrong = []
        for each in running:
            done = each.done and each.error is None
            try:
                each.wait()
                if not done:
                    wrong.append(f"a request of the parent's engine ended: {each.stop_reason}")
            except EngineClosed:
                pass
        try:
            engine.submit("ROMEO:")
            wrong.append("the parent's engine took a request")
        except EngineClosed:
            pass
        if Made.of(own) != self.alone[PROMPTS[1], 1]:
            wrong.append(f"the text that was half read goes on as {own.text!r}")
        asked = {"max_tokens": N_TOKENS, "seed": 2, "logprobs": 0}
        alone, model = self.alone[PROMPTS[0], 2], self.world.model
        if Made.of(model.generate(PROMPTS[0], **asked)) != alone:  # type: ignore[arg-type]
            wrong.append("another text by generate")
        try:
            with aleator.Engine(model, n_seq_max=2, n_ctx=256) as mine:
                if Made.of(mine.submit(PROMPTS[0], **asked)) != alone:  # type: ignore[arg-type]
                    wrong.append("another text by an engine of the child's")
        except AleatorError as error:
            wrong.append(f"an engine of the child's: {error}")
        return wrong


def waited(child: int) -> int:
    """The exit code of a child; of one that hangs, that of its end by force."""
    end = time.monotonic() + PATIENCE + 20
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def scene(world: World) -> Generator[None, None, None]:
    """Fork again and again."""
    alone = {
        (prompt, seed): world.alone(prompt, max_tokens=N_TOKENS, seed=seed, logprobs=0)
        for prompt in PROMPTS
        for seed in range(SEEDS)
    }
    for number in itertools.count():
        Fork(world, alone, world.rng("fork", number)).scene()
        yield
