"""Texts that branch off another one: what they share with it, and the token that takes the next one's place.

A branch is a request to the engine, not a sequence of its own: if the prompt cache gave up its beginning,
it costs its prompt.
"""

from __future__ import annotations

from aleator.core.errors import ParameterError
from aleator.generate.session import Session
from aleator.server.playground.memory import LogitsMemory
from aleator.server.playground.recording import MOST_BRANCHES, Recording
from aleator.server.playground.replay import chain_at
from aleator.text.tokenizer import Tokenizer


def branch(
    parent: Recording, at: int | None, pick: int | None, tokenizer: Tokenizer, memory: LogitsMemory
) -> tuple[Recording, Session]:
    """Begin a branch; nothing is written yet.

    Args:
        parent: The text that it branches off.
        at: How many of the parent's drawn tokens it shares; None: all.
        pick: The token that follows these; None: the chain draws it.
        tokenizer: Of the model.
        memory: Keeps the branch's logits.

    Returns:
        The branch, and what is to be continued for it.

    Raises:
        ParameterError: A place at which the text cannot branch, or a token that there is not.
        ConstraintError: The chain's grammar does not allow the token.
    """
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
