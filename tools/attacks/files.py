"""Damaged session and slot files: each is refused by name, or is the text that was saved, unchanged.

Bits are flipped, and bytes cut off, added, zeroed, moved and repeated, anywhere and near the beginning.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Generator
from pathlib import Path

import aleator
from aleator.core.errors import AleatorError, FileFormatError, Incompatible
from aleator.engine.replay import Made
from attacks.world import PROMPTS, World, changed

N_TOKENS = 12


def scene(world: World) -> Generator[None, None, None]:
    """Damage one file after another; of each kind by turns."""
    from tests.server.live import in_thread

    folder = world.folder / "slots"
    folder.mkdir()
    options = {"n_seq_max": 2, "n_ctx": 1024}
    with in_thread(world.model, engine=options, slot_save_path=str(folder)) as live:
        for number in itertools.count():
            rng = world.rng("file", number)
            session(world, rng)
            slot(world, rng, live, folder)
            yield


def session(world: World, rng: random.Random) -> None:
    """Save a text, damage its file, and go on with what can be loaded."""
    path, seed, prompt = world.folder / "a.session", rng.randrange(2**32), rng.choice(PROMPTS)
    # Each has a cache of its own: what is read is what the file says.
    writer = aleator.load(world.path, n_threads=1)
    generation = writer.generate(prompt, max_tokens=N_TOKENS, seed=seed)
    writer.save_session(path, generation, {"title": "A text"}, new=True)
    good, saved = path.read_bytes(), writer.load_session(path)
    alone = world.alone(saved, max_tokens=N_TOKENS, logprobs=0)
    for _ in range(12):
        what, data = changed(rng, good)
        path.write_bytes(data)
        reader = aleator.load(world.path, n_threads=1)
        try:
            found = reader.load_session(path)
        except (FileFormatError, Incompatible):
            world.count("sessions refused")
        except AleatorError as error:
            world.check(False, "sessions refused", f"{what}: {error!r}")
        else:
            same = (found.tokens, found.n_prompt, found.seed, found.extra, found.chain) == (
                saved.tokens, saved.n_prompt, saved.seed, saved.extra, saved.chain
            )  # fmt: skip
            world.check(same and data == good, "damaged sessions unchanged", f"{what}: {found}")
            again = reader.generate(found, max_tokens=N_TOKENS, logprobs=0)
            world.same(again, alone, "sessions gone on with", what)
        other = Made.of(reader.generate(prompt, max_tokens=N_TOKENS, seed=seed))
        world.check(other == Made.of(generation), "texts after a damaged session", what)
    path.write_bytes(good)
    reader = aleator.load(world.path, n_threads=1)
    again = reader.generate(reader.load_session(path), max_tokens=N_TOKENS, logprobs=0)
    world.same(again, alone, "sessions gone on with")


def slot(world: World, rng: random.Random, live: object, folder: Path) -> None:
    """Save a slot, damage its file, and restore it."""
    post = live.post  # type: ignore[attr-defined]
    prompt, seed = rng.choice(PROMPTS), rng.randrange(2**32)
    body = {"prompt": prompt, "n_predict": N_TOKENS, "id_slot": 0, "seed": seed, "n_probs": 1}

    def completion() -> tuple[object, ...]:
        status, _, answer = post("/completion", body)
        made = json.loads(answer)
        return status, made.get("content"), made.get("completion_probabilities")

    alone = completion()
    world.check(alone[0] == 200, "slots", alone)
    status, _, answer = post("/slots/0?action=save", {"filename": "a"})
    world.check(status == 200, "slots saved", answer)
    [path] = folder.rglob("a")
    good = path.read_bytes()
    for _ in range(12):
        what, data = changed(rng, good)
        path.write_bytes(data)
        if rng.random() < 0.5:
            post("/slots/0?action=erase", {})
        status, _, answer = post("/slots/0?action=restore", {"filename": "a"})
        world.count(f"slots restored: {status}")
        proper = status == 200 and data == good
        if status == 400:
            proper = "cannot be restored" in json.loads(answer)["error"]["message"]
        world.check(proper, "damaged slots refused", f"{what}: {status} {answer!r:.500}")
        again = completion()
        world.check(again == alone, "texts of damaged slots", f"{what}: {again}, before {alone}")
    path.write_bytes(good)
    status, _, answer = post("/slots/0?action=restore", {"filename": "a"})
    world.check(status == 200 and completion() == alone, "slots restored", answer)
