"""Log-probabilities as OpenAI's plain completions have them: four lists, one entry for each token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aleator.generate.logprobs import Logprobs, TokenLogprob
from aleator.generate.request import Request
from aleator.language_model import LanguageModel

LEAST_LOGPROB = -9999.0
"""JSON has no infinity; OpenAI writes this for what cannot be."""

Lists = dict[str, list[Any]]
"""``tokens``, ``token_logprobs``, ``top_logprobs`` and ``text_offset``."""


class LegacyLogprobs:
    """Writes the log-probabilities of one completion, from its beginning on.

    ``text_offset`` counts the characters of the choice's text before a token, those of an echoed prompt
    included.  A token that has no text there, such as BOS, takes up none.

    Args:
        model: Whose tokens they are.
        request: The completion's.
        prompt: As the client gave it.
        echo: Whether the text begins with the prompt.
    """

    def __init__(
        self, model: LanguageModel, request: Request, prompt: str | Sequence[int], echo: bool
    ) -> None:
        self._model, self._request = model, request
        self._typed = prompt if isinstance(prompt, str) else None
        self._stream = model.tokenizer.stream(True, True, request.options.shown_tokens)
        self._offset = 0
        if not echo:  # the text goes on from the prompt
            self._stream = model.tokenizer.stream(True, False, request.options.shown_tokens)

    def of_prompt(self, entries: Sequence[Logprobs | None]) -> Lists:
        """The tokens of the prompt; of the first one nothing is known but its name.

        Args:
            entries: For each token of the prompt; empty where it is not echoed with them.
        """
        made = _lists()
        if not entries:
            return made
        tokens = self._request.tokens
        offsets = self._offsets(tokens)
        for token, entry, offset in zip(tokens, entries, offsets, strict=True):
            if entry is None:
                _add(made, self._name(token), None, None, offset)
            else:
                _add_entry(made, entry, offset)
        return made

    def of(self, entries: Sequence[Logprobs]) -> Lists:
        """The next tokens that were drawn."""
        made = _lists()
        for entry in entries:
            _add_entry(made, entry, self._offset)
            self._offset += len(self._stream.push(entry.chosen.token))
        return made

    def _offsets(self, tokens: Sequence[int]) -> list[int]:
        """Where each token of the prompt begins in its text."""
        tokenizer, vocab = self._model.tokenizer, self._model.vocab
        typed = self._typed
        # Names of control tokens are part of a text that has them, but BOS may have been put before it.
        stream = tokenizer.stream(typed is None, True, ())
        made: list[int] = []
        for i, token in enumerate(tokens):
            made.append(self._offset)
            added = i == 0 and token == vocab.bos and typed is not None
            if added and not (typed or "").startswith(self._name(token)):
                continue
            self._offset += len(stream.push(token))
        self._offset = len(self._request.echo) if self._request.echo else self._offset
        return made

    def _name(self, token: int) -> str:
        return self._model.vocab.token_bytes(token).decode("utf-8", "replace")


def _lists() -> Lists:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def _add_entry(made: Lists, entry: Logprobs, offset: int) -> None:
    top: dict[str, float] = {}
    for each in entry.top:
        top.setdefault(name_of(each), finite(each.logprob))
    _add(made, name_of(entry.chosen), finite(entry.chosen.logprob), top, offset)


def _add(
    made: Lists, name: str, logprob: float | None, top: dict[str, float] | None, offset: int
) -> None:
    made["tokens"].append(name)
    made["token_logprobs"].append(logprob)
    made["top_logprobs"].append(top)
    made["text_offset"].append(offset)


def name_of(entry: TokenLogprob) -> str:
    r"""A token's text; one that is not UTF-8 by itself is ``bytes:\xe2\x80``, as OpenAI writes it."""
    try:
        return entry.bytes.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in entry.bytes)


def finite(logprob: float) -> float:
    """A log-probability that JSON can say."""
    return max(logprob, LEAST_LOGPROB)


def joined(first: Lists, second: Lists) -> Lists:
    """Two lists of tokens, one after the other."""
    return {name: first[name] + second[name] for name in first}
