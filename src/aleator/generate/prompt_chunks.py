"""Chunks of prompts, which a step computes."""

from __future__ import annotations

from collections.abc import Sequence

from aleator.core.records import dataclass
from aleator.generate.context import Batch
from aleator.generate.request_state import RequestState


@dataclass(frozen=True)
class Chunk:
    """A chunk of a prompt."""

    state: RequestState
    n: int  # Tokens to compute; those of a second prompt come first
    # Requests with the same prompt and empty sequences, which share its cells at the end
    followers: Sequence[RequestState] = ()


def add_chunks(batch: Batch, chunks: Sequence[Chunk], row: int) -> list[tuple[int, int, range]]:
    """Add chunks to a batch whose next row of logits is ``row``.

    Returns:
        For each chunk: the row of logits after the last token of the second prompt, and the row after the last
        token of the prompt (-1: not in the chunk); and the rows after all its prompt tokens, if the request
        wants them.
    """
    ends = []
    for chunk in chunks:
        state, n, guided, own = chunk.state, chunk.n, -1, -1
        if state.guidance is not None:
            other, at = state.guidance.prompt, state.guidance.computed
            piece = other[at : at + n]
            for pos, token in enumerate(piece, at):
                last = pos == len(other) - 1
                batch.add(token, pos, [state.guidance.seq], logits=last)
                if last:
                    guided, row = row, row + 1
            n -= len(piece)
        prompt, start, first = state.request.remaining, len(state.tokens), row
        for pos in range(start, start + n):
            last = pos == len(prompt) - 1
            batch.add(prompt[pos], pos, [state.seq], logits=last or state.wants_prompt)
            if last:
                own = row
            row += last or state.wants_prompt
        ends.append((guided, own, range(first, row) if state.wants_prompt else range(0)))
    return ends
