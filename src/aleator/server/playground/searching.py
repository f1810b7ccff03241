"""Beam searches on the playground: a line of JSON for each step."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from aleator.generate.beam_generation import BeamGeneration
from aleator.server.errors import readable
from aleator.server.fields import only_one
from aleator.server.playground.generating import Playground, line
from aleator.server.service import FIRM, OF_SEARCH


@readable()
def begin(
    playground: Playground, own: Mapping[str, Any], options: Mapping[str, Any]
) -> BeamGeneration:
    """Start a search from a prompt or messages."""
    only_one(own, "prompt", "messages")
    given: Any = own["prompt"]
    if given is None:
        asked = playground.chat(own["messages"], options)
        given = asked.tokens
        options = {name: value for name, value in asked.options.items() if name in OF_SEARCH}
    service = playground.service
    service.check_beams()
    enforced = {name: value for name, value in service.enforced(options).items() if name in FIRM}
    made = service.fitting(
        options,
        {**enforced, **playground.completed(options)},
        lambda own: service.engine.beams(given, noted=True, **own),
    )
    service.watch([made])
    return made


async def lines(playground: Playground, made: BeamGeneration) -> AsyncGenerator[bytes, None]:
    """Yield a search as it runs: its start, a line for each step, and the texts that it found."""
    formatter, request = playground.formatter, made.request
    yield line(
        {
            "event": "start",
            "prompt": formatter.tokens(request.tokens),
            "seed": made.seed,
            "chain": made.chain.describe(),
        }
    )
    step = 0
    async for beams in made.steps_async():
        yield line({"event": "step", "step": step, "beams": formatter.grown(beams)})
        step += 1
    stats = made.stats
    yield line(
        {
            "event": "end",
            "reason": made.stop_reason,
            "texts": [formatter.beam(each) for each in made.beams],
            "computed": stats.prompt_tokens,
            "reused": stats.reused_tokens,
            "seconds": stats.prompt_seconds + stats.decode_seconds,
        }
    )
