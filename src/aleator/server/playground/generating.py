"""Texts and searches of the playground as they are generated: a line of JSON for each step."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from aleator.chat.prompt import ChatPrompt, PreparedChat, prepare_chat
from aleator.core.errors import ConstraintError, ParameterError
from aleator.engine.prompts import SAMPLING
from aleator.generate.beam_generation import BeamGeneration
from aleator.generate.completion import Stats
from aleator.generate.session import Session
from aleator.samplers import SamplingParams
from aleator.server.auth import own_namespace
from aleator.server.bodies import in_thread
from aleator.server.errors import readable
from aleator.server.fields import only_one
from aleator.server.playground.as_json import StepFormatter
from aleator.server.playground.recording import (
    Forgotten,
    Recording,
    Recordings,
    Replay,
    branch,
    chain_at,
)
from aleator.server.service import FIRM, OF_SEARCH, Service
from aleator.text.tokenizer import Tokenizer

LINE_STEPS = 32
"""Steps that are explained before the event loop checks again whether the client is still connected."""


def line(event: Mapping[str, Any]) -> bytes:
    """One line of a stream."""
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


class Playground:
    """What the endpoints share: the recorded texts, how they start and branch, and how steps are sent."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.recordings = Recordings(service.options.playground_memory << 20)
        self.tokenizer: Tokenizer = service.model.tokenizer
        self.formatter = StepFormatter(service.model.vocab)

    @readable()
    def params(self, options: dict[str, Any], seed: int | None = None) -> SamplingParams:
        """The sampling parameters of a request; ``seed`` is the default seed."""
        maker = self.service.model.request_maker

        def make(given: Mapping[str, Any]) -> SamplingParams:
            sampling = dict(given)
            return maker.sampling_params(sampling.pop("preset", None), None, seed, **sampling)

        enforced = {k: v for k, v in self.service.enforced(options).items() if k in SAMPLING}
        compiled = self.service.grammars.compiled(options)
        return self.service.fitting(options, {**enforced, **compiled}, make)

    def chain_at(self, recording: Recording, step: int, options: dict[str, Any]) -> Replay:
        """A chain at a step of a text: the text's own if a request gives no options."""
        own = recording.request.params.values()["seed"]
        params = self.params(options, own) if options else None
        return chain_at(recording, self.tokenizer, step, params)

    def chat(self, messages: Any, options: Mapping[str, Any]) -> PreparedChat:
        """Prepare a chat."""
        self.service.grammars.try_out(options)
        return prepare_chat(ChatPrompt(messages), self.service.chat_format, self.tokenizer, options)

    @readable()
    def begin(self, own: Mapping[str, Any], options: Mapping[str, Any]) -> Recording:
        """Start a text from a prompt or messages, or a branch of the text ``parent``."""
        only_one(own, "prompt", "messages", "parent")
        given: str | list[int] | Session
        service, asked = self.service, options
        if own["messages"] is not None:
            asked_chat = self.chat(own["messages"], options)
            given, options = asked_chat.tokens, asked_chat.options
            recording = Recording(self.recordings.memory)
        elif own["prompt"] is not None:
            given, recording = own["prompt"], Recording(self.recordings.memory)
        else:
            parent = self.recordings[own["parent"]]
            recording, given = branch(
                parent, own["at"], own["token"], self.tokenizer, self.recordings.memory
            )
        try:
            generation = service.fitting(
                options,
                {**service.enforced(options), **self.completed(options)},
                lambda own: service.engine.submit(given, on_logits=recording.look, **own),
            )
        except ConstraintError as error:
            raise ParameterError("token", str(error)) from None
        service.watch([generation])
        recording.begin(generation, asked)
        self.recordings.add(recording)
        return recording

    def completed(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options with their grammar compiled, and with the server's own."""
        return {
            **self.service.grammars.compiled(options),
            "namespace": own_namespace(),
            "deadline": self.service.options.request_timeout,
        }

    def started(self, recording: Recording) -> dict[str, Any]:
        """The first line of a text."""
        generation = recording.generation
        return {
            "event": "start",
            "id": recording.id,
            "parent": None if recording.parent is None else recording.parent.id,
            "at": recording.at,
            "prompt": self.formatter.tokens(recording.prompt),
            "inherited": len(recording.inherited),
            "seed": generation.seed,
            "chain": generation.chain.describe(),
        }

    def ended(self, recording: Recording) -> dict[str, Any]:
        """The last line of a text."""
        generation, memory = recording.generation, self.recordings.memory
        return {
            "event": "end",
            "reason": generation.stop_reason,
            "steps": len(recording.drawn),
            "complete": generation.complete,
            **_cost(generation.stats),
            "kept_bytes": memory.used,
            "kept_limit": memory.limit,
        }

    async def lines(self, recording: Recording, top: int) -> AsyncGenerator[bytes, None]:
        """Yield a text as it is generated: its start, a line per step, and its end."""
        yield line(self.started(recording))
        generation = recording.generation
        replay = await in_thread(Replay, recording, self.tokenizer)
        step = len(recording.inherited)
        ended = False
        while not ended:
            ended = await anext(generation, None) is None
            while step < len(recording.drawn):
                made = await in_thread(self._steps, recording, replay, step, top)
                step += len(made)
                for each in made:
                    yield each
        yield line(self.ended(recording))

    def _steps(self, recording: Recording, replay: Replay, begin: int, top: int) -> list[bytes]:
        """Lines of the drawn steps from ``begin`` on, at most :data:`LINE_STEPS`."""
        end = min(len(recording.drawn), begin + LINE_STEPS)
        lines = []
        for step in range(begin, end):
            try:
                found = replay.explain(step, max(top, 1))
            except Forgotten:  # the text is generated faster than it is sent
                of_step = self.formatter.forgotten(recording, step)
            else:
                of_step = self.formatter.step(recording, step, found, top)
            lines.append(line({"event": "step", **of_step}))
        return lines

    @readable()
    def begin_search(self, own: Mapping[str, Any], options: Mapping[str, Any]) -> BeamGeneration:
        """Start a search from a prompt or messages."""
        only_one(own, "prompt", "messages")
        service, given = self.service, own["prompt"]
        if given is None:
            asked = self.chat(own["messages"], options)
            given = asked.tokens
            options = {name: value for name, value in asked.options.items() if name in OF_SEARCH}
        service.check_beams()
        enforced = service.enforced(options)
        enforced = {name: value for name, value in enforced.items() if name in FIRM}
        made = service.fitting(
            options,
            {**enforced, **self.completed(options)},
            lambda own: service.engine.beams(given, noted=True, **own),
        )
        service.watch([made])
        return made

    async def search_lines(self, made: BeamGeneration) -> AsyncGenerator[bytes, None]:
        """Yield a search as it runs: its start, a line for each step, and the texts that it found."""
        prompt = self.formatter.tokens(made.request.tokens)
        about = {"prompt": prompt, "seed": made.seed, "chain": made.chain.describe()}
        yield line({"event": "start", **about})
        step = 0
        async for beams in made.steps_async():
            yield line({"event": "step", "step": step, "beams": self.formatter.grown(beams)})
            step += 1
        yield line(
            {
                "event": "end",
                "reason": made.stop_reason,
                "texts": [self.formatter.beam(each) for each in made.beams],
                **_cost(made.stats),
            }
        )


def _cost(stats: Stats) -> dict[str, Any]:
    """Tokens of a prompt and seconds that a text or a search took."""
    return {
        "computed": stats.prompt_tokens,
        "reused": stats.reused_tokens,
        "seconds": stats.prompt_seconds + stats.decode_seconds,
    }
