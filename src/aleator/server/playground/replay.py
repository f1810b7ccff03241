"""Chains over the steps of a text that was written, and texts that branch off one.

Nothing is decoded for a chain: it works on the kept logits.  So watching slows no text down, and any other
chain can be tried on the same rows.  A branch is a request to the engine, not a sequence of its own: if the
prompt cache gave up its beginning, it costs its prompt.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from aleator.core.errors import ConstraintError, ParameterError
from aleator.generate.session import Session, go_on
from aleator.samplers import Candidates, SamplerChain, SamplingParams
from aleator.samplers.explain import Explanation
from aleator.server.playground.recording import MOST_BRANCHES, LogitsMemory, Recording
from aleator.text.tokenizer import Tokenizer


class Replay:
    """Goes through a text's steps with a chain, which accepts the tokens that were written.

    With the text's own parameters it is where the chain that wrote it was, also where draws move it
    (mirostat) or generators count them (llama.cpp's numerics).
    """

    def __init__(
        self, recording: Recording, tokenizer: Tokenizer, params: SamplingParams | None = None
    ) -> None:
        self._recording, request = recording, recording.request
        self.chain = (params or request.params).chain(tokenizer, completion=request.completion)
        # A chain that draws move must draw at every step.
        self._draws = bool(self.chain.adapts) or self.chain.numerics != "portable"
        if params is None:
            go_on(self.chain, request.tokens, request.drawn, request.chain_state)
        else:
            self.chain.accept_many(recording.prompt)

    def draw(self, step: int) -> int:
        """The token that the chain draws at the step where it stands; accepts the one that was written."""
        written = self._recording.drawn[step]
        token = self.chain.sample(self._recording.logits(step))
        if token != written:
            self.chain.rollback(1)
            self.chain.accept(written, generated=True)
        return token

    def go_to(self, step: int) -> None:
        """Accept the tokens up to a step, which must not lie behind."""
        self._recording.logits(step)  # says whether there is such a step
        at = self.chain.position
        if self._draws:
            for each in range(at, step):
                self.draw(each)
        else:
            self.chain.accept_many(self._recording.drawn[at:step], generated=True)

    def explain(self, step: int, top: int) -> Explanation:
        """What the chain does at a step; see :meth:`aleator.SamplerChain.explain`."""
        self.go_to(step)
        return self.chain.explain(self._recording.logits(step), top=top)


def chain_at(
    recording: Recording, tokenizer: Tokenizer, step: int, params: SamplingParams | None
) -> Replay:
    """A chain at a step, for the text's own parameters in the state in which it drew."""
    owner = recording
    while params is None and owner.parent is not None and step < len(owner.inherited):
        owner = owner.parent
    replay = Replay(owner, tokenizer, params)
    replay.go_to(step)
    return replay


@dataclass(frozen=True)
class Resampled:
    """What a chain would have drawn at every step of a text.

    Attributes:
        steps: how many the text has.
        changed: the token by step, where it is another one than was written.
        forgotten: steps whose logits are not kept.
        refused: the first step whose token the chain's grammar does not allow; None: there is none.
    """

    steps: int
    changed: dict[int, int]
    forgotten: int
    refused: int | None


def resample(recording: Recording, tokenizer: Tokenizer, params: SamplingParams) -> Resampled:
    """Draw every token of a text again with another chain, each after the tokens that were written."""
    drawn = recording.drawn
    replay = Replay(recording, tokenizer, params)
    changed: dict[int, int] = {}
    forgotten, refused = 0, None
    for step, written in enumerate(drawn):
        try:
            if recording.rows[step].logits is None:
                forgotten += 1
                replay.chain.accept(written, generated=True)
                continue
            token = replay.draw(step)
            if token != written:
                changed[step] = token
        except ConstraintError:
            refused = step
            break
    return Resampled(len(drawn), changed, forgotten, refused)


def draws(chain: SamplerChain, logits: object, n: int) -> Counter[int]:
    """Draw at one step with a copy of a chain, at the positions 0 to n - 1 of its random stream."""
    copy = chain.clone()
    counts: Counter[int] = Counter()
    for position in range(n):
        if copy.numerics == "portable":
            copy.position = position
        candidates = Candidates(logits)
        copy.apply(candidates)
        if candidates.selected is not None:
            counts[candidates.selected] += 1
    return counts


def branch(
    parent: Recording, at: int | None, pick: int | None, tokenizer: Tokenizer, memory: LogitsMemory
) -> tuple[Recording, Session]:
    """Begin a branch; nothing is written yet.  Returns it, and what is to be continued for it."""
    if parent.depth >= MOST_BRANCHES:
        raise ParameterError(
            "parent",
            f"parent={parent.id!r} comes from {parent.depth} texts that branch off one another: begin a "
            "new one with its tokens as prompt",
        )
    drawn = parent.drawn
    at = len(drawn) if at is None else at
    most = len(drawn) if pick is None else len(drawn) - 1
    if not 0 <= at <= most:
        raise ParameterError(
            "at",
            f"at={at} is out of range: the text has drawn {len(drawn)} tokens, give 0 to {most}",
        )
    if pick is not None and not 0 <= pick < len(tokenizer.vocab):
        raise ParameterError("token", f"token={pick} is not in the vocabulary")
    inherited = (*drawn[:at], *(() if pick is None else (pick,)))
    prompt = parent.prompt
    replay = None
    if parent.request.params.chain(tokenizer).adapts and at < len(drawn):
        replay = chain_at(parent, tokenizer, at, None)
        if pick is not None:
            replay.chain.accept(pick, generated=True)
    session = Session(
        tokens=(*prompt, *inherited),
        n_prompt=len(prompt),
        seed=parent.request.params.values()["seed"],
        chain=b"" if replay is None else replay.chain.state_write(),
    )
    return Recording(memory, parent, at, inherited), session
