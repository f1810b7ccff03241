"""The values of a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import cached_property

from aleator.core.records import dataclass
from aleator.generate.options import GenerateOptions
from aleator.samplers import SamplingParams

Forgotten = tuple[tuple[int, int], ...]
"""What context shifts have removed from a text: (index, number of tokens), one after the other."""


@dataclass(frozen=True)
class Request:
    """One completion to make.

    :class:`~aleator.generate.request_state.RequestState` has the state while it is made.

    Attributes:
        tokens: the prompt, at least one token, those in the cache included.
        params: sampling parameters, with a seed.
        options: everything else that was asked for.
        completion: index among the completions of one prompt, which have random streams of their own.
        drawn: how many of the prompt's last tokens were drawn by an earlier generation, which goes on here.
        chain_state: state of the chain that drew them; b"" if it is not known.
        forgotten: what context shifts of the earlier generation removed; the model sees ``remaining`` only.
        namespace: namespace of the prompt cache that has what those context shifts left; "" without them.
        n_keep: positions at the beginning that a context shift never forgets.
        echo: text to give before the generated text.
    """

    tokens: tuple[int, ...]
    params: SamplingParams
    options: GenerateOptions = field(default_factory=GenerateOptions)
    completion: int = 0
    drawn: int = 0
    chain_state: bytes = field(default=b"", repr=False)
    forgotten: Forgotten = ()
    namespace: str = ""
    n_keep: int = 0
    echo: str = ""

    @cached_property
    def remaining(self) -> tuple[int, ...]:
        """The tokens that context shifts have left."""
        return remaining(self.tokens, self.forgotten)

    @property
    def where(self) -> str:
        """The namespace of the prompt cache in which to look for the prompt."""
        return self.namespace or self.options.namespace


def remaining(tokens: Sequence[int], forgotten: Forgotten) -> tuple[int, ...]:
    """The tokens that context shifts have left of a text."""
    left = list(tokens)
    for at, n in forgotten:
        del left[at : at + n]
    return tuple(left)
