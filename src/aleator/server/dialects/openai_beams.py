"""Beams in completions and chats: vLLM's fields, and a choice's report on its beam."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aleator.core.errors import ParameterError
from aleator.core.options import Option, declarations
from aleator.engine.prompts import GENERATION
from aleator.generate.beam_generation import BeamGeneration
from aleator.generate.beam_options import BeamOptions
from aleator.generate.generation import Generation
from aleator.server.errors import ApiError
from aleator.server.fields import MOST_COMPLETIONS, Body, Field, switch, whole
from aleator.server.service import OF_SEARCH

WANTED = "use_beam_search"
COUNTS = ("num_beams", "num_return_sequences")
"""Options of a search that vLLM derives from numbers of completions: ``best_of``, else ``n``; and ``n``."""
OPTIONS = {name: each for name, each in declarations(BeamOptions).items() if name not in COUNTS}
NOT_OF_BEAMS: Mapping[str, Any] = {
    "stream": False,
    "echo": False,
    "aleator_replay": False,
    "id_slot": -1,
}
"""Fields that do not work with a search, and their neutral values."""


def _checked(declared: Option) -> Callable[[str, Any], Any]:
    return lambda name, value: declared.check(value)


BEAMS = (
    Field(WANTED, switch, False),
    Field("best_of", whole(1, MOST_COMPLETIONS)),
    *(Field(name, _checked(declared)) for name, declared in OPTIONS.items()),
)


def search_of(body: Body) -> dict[str, Any] | None:
    """The options of the search that a body asks for; None if it asks for none.

    ParameterError names fields that do not work together.
    """
    own = body.own
    given = {name: own[name] for name in OPTIONS if own[name] is not None}
    if not own[WANTED]:
        for name, value in given.items():
            if value != OPTIONS[name].neutral:
                raise ParameterError(name, f"{name} needs {WANTED}=true: give it too")
        return None
    asked = [name for name, none in NOT_OF_BEAMS.items() if own.get(name, none) != none]
    with body.spelling():
        asked += [name for name, value in body.options.items() if _steers(name, value)]
    for name in asked:
        word = body.spelled.get(name, name)
        raise ParameterError(word, f"{word} and {WANTED} do not go together: give one")
    body.spelled |= zip(COUNTS, ("best_of" if own["best_of"] else "n", "n"), strict=True)
    return dict(zip(COUNTS, (own["best_of"] or own["n"], own["n"]), strict=True)) | given


def _steers(name: str, value: Any) -> bool:
    """Whether an option asks for something that a search does not support."""
    if name in OF_SEARCH or value is False:
        return False
    return bool(GENERATION[name].check(value) != GENERATION[name].neutral)


async def found_by(searches: Sequence[Generation]) -> list[tuple[Generation, dict[str, Any]]]:
    """Wait for the texts that searches find, each with its choice's report; ApiError if one is cut off."""
    made: list[tuple[Generation, dict[str, Any]]] = []
    for search in searches:
        await search
        if not isinstance(search, BeamGeneration) or not search.beams:
            late = search.stop_reason == "deadline"  # the same request would be late again
            remedy = "give a smaller max_tokens, or a longer deadline, up to --request-timeout of the server"
            raise ApiError(
                400 if late else 503,
                f"the search of beams was cut off ({search.stop_reason}) before it had a text: "
                f"{remedy if late else 'ask again'}",
                "deadline" if late else None,
                "cut_off",
            )
        for generation, beam in zip(search.generations, search.beams, strict=True):
            scores = {"score": beam.score, "logprob": beam.logprob, "logprobs": beam.logprobs}
            made.append((generation, {"aleator_beam": scores}))
    return made
