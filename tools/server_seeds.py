"""Asks a server for texts under every circumstance, and compares them with ``generate``'s, bit for bit.

    python tools/server_seeds.py [--seeds 8] [--models llama:F16,llama:F32,llama:Q8_0,llama:Q4_K_M] [FILE ...]

For each model, seed and set of parameters (the default chain; the full vocabulary at temperature 1) one text
and one list of log-probabilities must come: alone, from a cached prefix, beside three noisy clients, beside
clients that are cut off, with guesses, and from a restored slot.  What differs is printed, and the exit
status is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
from engine_mixes import make_model

import aleator
from aleator.server.app import create_app
from aleator.server.options import ServerOptions
from aleator.server.service import Service

MODELS = "llama:F16,llama:F32,llama:Q8_0,llama:Q4_K_M"
PROMPT = "ROMEO:\nO, she doth teach the torches. O, she doth teach"
PARAMETERS: dict[str, dict[str, Any]] = {
    "default chain": {},
    "full vocabulary": {"temperature": 1.0, "samplers": "temperature"},
}
N_TOKENS = 60

Told = tuple[str, list[float]]
"""A text, and the log-probabilities of its tokens."""
Ask = Callable[[dict[str, Any]], Awaitable[Told]]


class Asker:
    """Asks one model's servers.

    Args:
        model: Answers.
        engine: Of the model.
        folder: Where slots are saved.
    """

    def __init__(self, model: aleator.LanguageModel, engine: aleator.Engine, folder: Path) -> None:
        options = ServerOptions(slot_save_path=str(folder))
        self._engine = engine
        self._plain = create_app(Service(model, engine, options))
        self._guessing = create_app(Service(model, engine, options, {"spec_type": "ngram"}))

    def circumstances(self) -> dict[str, Ask]:
        """Every way in which a text is asked for, by name; the first one finds nothing cached."""
        return {
            "alone": self._completion,
            "cached": self._completion,
            "three noisy clients": self._beside,
            "beside cancels": self._beside_cancels,
            "guesses": self._guessed,
            "restored slot": self._restored,
        }

    async def _post(self, app: Any, path: str, body: dict[str, Any]) -> Any:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            response = await http.post(path, json=body)
        if response.status_code != 200:
            raise SystemExit(f"{path}: {response.text}")
        return response.json()

    async def _completion(self, body: dict[str, Any], app: Any = None) -> Told:
        asked = {**body, "prompt": PROMPT, "max_tokens": N_TOKENS, "logprobs": 0}
        (choice,) = (await self._post(app or self._plain, "/v1/completions", asked))["choices"]
        return choice["text"], choice["logprobs"]["token_logprobs"]

    async def _guessed(self, body: dict[str, Any]) -> Told:
        return await self._completion(body, self._guessing)

    def _noise(self, n: int) -> list[Any]:
        prompts = (PROMPT[: 9 * (i + 1)] for i in range(n))
        return [self._engine.submit(p, max_tokens=3 * N_TOKENS) for p in prompts]

    async def _beside(self, body: dict[str, Any]) -> Told:
        noise = self._noise(3)
        made = await self._completion(body)
        for each in noise:
            each.cancel()
        return made

    async def _beside_cancels(self, body: dict[str, Any]) -> Told:
        asked = asyncio.ensure_future(self._completion(body))
        for each in self._noise(6):
            await anext(each, None)
            each.cancel()
        return await asked

    async def _restored(self, body: dict[str, Any]) -> Told:
        asked = {**body, "prompt": PROMPT, "n_predict": N_TOKENS, "n_probs": 1, "id_slot": 0}
        await self._post(self._plain, "/completion", {**asked, "n_predict": 1})
        for action in ("save", "erase", "restore"):
            named = {} if action == "erase" else {"filename": "seeds"}
            await self._post(self._plain, f"/slots/0?action={action}", named)
        made = await self._post(self._plain, "/completion", asked)
        return made["content"], [each["logprob"] for each in made["completion_probabilities"]]


async def differences(model: aleator.LanguageModel, seeds: int, folder: Path) -> list[str]:
    """What differs, a line each."""
    found: list[str] = []
    alone = aleator.load(model.weights.path, n_threads=1, prompt_cache=False)
    for what, parameters in PARAMETERS.items():
        for seed in range(seeds):
            body = {**parameters, "seed": seed}
            offline = alone.generate(
                PROMPT, max_tokens=N_TOKENS, logprobs=0, parse_special=True, **body
            )
            wanted = offline.text, [each.chosen.logprob for each in offline.logprobs or []]
            with model.engine(n_seq_max=4) as engine:
                for name, ask in Asker(model, engine, folder).circumstances().items():
                    if await ask(dict(body)) != wanted:
                        found.append(f"{model.weights.path.name}, {what}, seed {seed}: {name}")
    return found


def main(argv: list[str] | None = None) -> int:
    """Compare everything; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="models in place of random ones")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--models", default=MODELS)
    arguments = parser.parse_args(argv)
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = arguments.files or [make_model(folder, m) for m in arguments.models.split(",")]
        for path in files:
            model = aleator.load(path, n_threads=1)
            found = asyncio.run(differences(model, arguments.seeds, folder))
            print(*found, sep="\n", end="\n" if found else "")
            n = arguments.seeds * len(PARAMETERS) * 6
            print(f"{path.name}: {n - len(found)} of {n} equal", flush=True)
            wrong += len(found)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
