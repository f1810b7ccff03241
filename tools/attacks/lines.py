"""KeyboardInterrupt at a random line of generating, submitting and saving: what comes next is as ever."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

from interrupts import Raiser

import aleator
from aleator.engine.replay import Made
from attacks.world import PROMPTS, World, settled

OPTIONS: tuple[dict[str, Any], ...] = (
    {"max_tokens": 8},
    {"max_tokens": 6, "grammar": 'root ::= "yes, my lord" | "no, my lord"'},
    {"max_tokens": 8, "spec_type": "ngram", "temperature": 0.0},
    {"max_tokens": 8, "repetition_penalty": 1.3, "stop": ["zz"], "seed": 7},
)


class Interrupted:
    """A model and an engine whose user presses Ctrl-C.

    Args:
        world: Counts what happens.
    """

    def __init__(self, world: World) -> None:
        self.world, self.model = world, world.model
        self.engine = aleator.Engine(world.model, n_seq_max=2, n_ctx=512)
        self.path = world.folder / "interrupted.session"
        self.kept = self.model.generate(PROMPTS[3], max_tokens=12, seed=3)
        self.model.save_session(self.path, self.kept, new=True)

    def generate(self, prompt: str, options: dict[str, Any]) -> None:
        """A text in this thread."""
        self.model.generate(prompt, **options).wait()

    def batch(self, prompt: str, options: dict[str, Any]) -> None:
        """Texts in this thread."""
        for each in self.model.generate_batch([prompt, PROMPTS[0]], n=2, **options):
            each.wait()

    def submit(self, prompt: str, options: dict[str, Any]) -> None:
        """A text that the engine's thread makes."""
        self.engine.submit(prompt, **options).wait()

    def save(self, prompt: str, options: dict[str, Any]) -> None:
        """A file is written."""
        self.model.save_session(self.path, self.kept)

    def load(self, prompt: str, options: dict[str, Any]) -> None:
        """A file is read."""
        self.model.load_session(self.path)

    def after(self, prompt: str, options: dict[str, Any], alone: Made) -> None:
        """What must hold whatever was interrupted."""
        world, what = self.world, "texts after an interrupt"
        gc.collect()  # a frame that was interrupted may hold a generation
        world.same(self.model.generate(prompt, **options), alone, what, "by generate:")
        self.model.own_context().cache.check()
        world.same(self.engine.submit(prompt, **options), alone, what, "by the engine:")
        idle = settled(lambda: not self.engine.stats.running and not self.engine.stats.waiting)
        world.check(idle, "requests end", self.engine.stats)
        session = self.model.load_session(self.path)
        kept = (*self.kept.request.tokens, *self.kept.tokens)
        world.check(session.tokens == kept, "the saved session", session.tokens)


def scene(world: World) -> Generator[None, None, None]:
    """Interrupt one action after another."""
    user = Interrupted(world)
    actions: list[Callable[[str, dict[str, Any]], None]] = [
        user.generate, user.submit, user.batch, user.save, user.load,
    ]  # fmt: skip
    lines: dict[tuple[str, int], int] = {}
    try:
        for number in itertools.count():
            rng = world.rng("line", number)
            action, which = rng.choice(actions), rng.randrange(len(OPTIONS))
            prompt, options = rng.choice(PROMPTS[:3]), {"seed": 1, **OPTIONS[which], "logprobs": 0}
            key = action.__name__, which
            if key not in lines:
                counter = Raiser("line", None)
                counter.run(lambda a=action, p=prompt, o=options: a(p, o))  # type: ignore[misc]
                lines[key] = counter.count
            at = rng.randint(1, max(1, lines[key]))
            raiser = Raiser("line", at)
            error = raiser.run(lambda a=action, p=prompt, o=options: a(p, o))  # type: ignore[misc]
            fine = error is None or isinstance(error, KeyboardInterrupt)
            what = f"{action.__name__}, line {at}, {raiser.where}: {error!r}"
            world.check(fine, "interrupts", what)
            del error
            before = len(world.wrong)
            user.after(prompt, options, world.alone(prompt, **options))
            if len(world.wrong) > before:
                world.wrong.append(f"after {what}")
            yield
    finally:
        with suppress(Exception):
            user.engine.close()
