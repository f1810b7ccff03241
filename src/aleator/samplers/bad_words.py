"""Bad words: sequences of tokens that must not occur.

Masks      the last token of each sequence when the tokens accepted last, prompt included, are all those before
           it; the token of a sequence of one is always masked.
Text       is encoded twice: as it stands, and after a space if that gives other tokens.  The same text spelled
           by other tokens is not found.
Masked     stay masked.  If nothing is left, the step raises ``LogitsError``.
Errors     a last token outside the vocabulary is refused when logits arrive.
Order      before everything else in a chain that SamplingParams builds; a pending temperature is materialised
           first.
Elsewhere  vLLM looks at generated tokens only, and uses the encoding after a space only if it has as many
           tokens; transformers looks at all tokens (``bad_words_ids``); llama.cpp does not have it.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from aleator.core.errors import ParameterError
from aleator.samplers.base import Parameter, Place, Row, Sampler, Step, dataclass, declare, host
from aleator.samplers.token_arguments import Tokenizer, check_sequences, require_tokenizer

BAD_WORDS = Parameter(
    "bad_words", tuple, (), "text that never occurs, as the tokenizer spells it; may be repeated",
    most=4096, aliases=("bad_words_ids",), flags=("--bad-words",),
    checker=lambda value: check_sequences("bad_words", value), escapes=True, metavar="TEXT",
    annotation="Sequence[str | Sequence[int]]",
    schema={"type": "array", "items": {"type": ["string", "array"], "items": {"type": "integer"}}},
)  # fmt: skip


@dataclass(frozen=True)
class BadWords(Sampler):
    """Mask tokens that would complete a forbidden sequence.

    Attributes:
        bad_words: Texts, which need ``tokenizer``, or sequences of token ids.
        tokenizer: An object with ``encode``; None if all bad words are given as ids.
        sequences: The bad words as sequences of ids.
    """

    name = "bad_words"
    writes = True
    switch = BAD_WORDS
    kernel = host.BadWords
    bad_words: Any = declare(BAD_WORDS)
    tokenizer: Any = field(default=None, repr=False, compare=False)
    sequences: tuple[tuple[int, ...], ...] = field(
        init=False, repr=False, compare=False, default=()
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        found: dict[tuple[int, ...], None] = {}
        for word in self.bad_words:
            if isinstance(word, str):
                found |= dict.fromkeys(
                    spelled(word, require_tokenizer("bad_words", self.tokenizer))
                )
            else:
                found[word] = None
        object.__setattr__(self, "sequences", tuple(found))

    def arguments(self, place: Place) -> tuple[Any, ...]:
        return (self.sequences,)

    def reference(self, row: Row, step: Step, place: Place) -> None:
        last = max((sequence[-1] for sequence in self.sequences), default=0)
        if self.sequences and last >= step.n_vocab:
            raise ParameterError(f"bad_words names token {last}")
        history = tuple(step.history)
        row.mask({s[-1] for s in self.sequences if (*history, s[-1])[-len(s) :] == s})


def spelled(text: str, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """The tokens of a text as it stands, and after a space if that is how it looks inside a sentence."""
    plain, spaced = (
        tuple(tokenizer.encode(before + text.lstrip(), add_special=False, parse_special=False))
        for before in (text[: len(text) - len(text.lstrip())], " ")
    )
    return [plain] if spaced[-len(plain) :] == plain else [plain, spaced]
