"""GBNF, llama.cpp's grammar notation, with llama.cpp's masks bit for bit: see docs/grammar.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aleator.core import host
from aleator.core.errors import GrammarError, ParameterError
from aleator.grammar.spelling import once_each


@once_each
def token_trie(vocab: Any) -> host.TokenTrie:
    """The vocabulary's tokens as a trie, built at the first call and kept as long as the vocabulary."""
    pieces = [vocab.token_bytes(token) for token in range(len(vocab))]
    return host.TokenTrie(pieces, sorted(vocab.eog))


def compile_gbnf(
    text: str,
    root: str,
    vocabulary: Any,
    trigger_patterns: Sequence[str] = (),
    trigger_tokens: Sequence[int] = (),
) -> host.Constraint:
    """Compile a constraint that allows what llama.cpp allows.

    A tokenizer as ``vocabulary`` can also encode ``<text>`` in a grammar that is not a special token.
    Otherwise any object with ``len``, ``token_bytes(id)``, ``eog`` and ``ids`` (text -> id) works.
    With triggers everything is allowed until a regular expression matches or a trigger token comes.

    Raises:
        GrammarError: Names line, column and reason, and shows the line.
    """
    if vocabulary is None:
        raise ParameterError("vocabulary", "a grammar needs a vocabulary: pass vocabulary=...")
    if not isinstance(text, str):
        raise ParameterError(f"grammar must be a str, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise GrammarError(f"the grammar is not valid Unicode: {error}") from None

    def token_of(token: str) -> int:
        if hasattr(vocabulary, "encode"):
            ids = vocabulary.encode(token, add_special=False, parse_special=True)
            return int(ids[0]) if len(ids) == 1 else -1
        return int(vocabulary.ids.get(token, -1))

    trie = token_trie(getattr(vocabulary, "vocab", vocabulary))
    return host.compile_gbnf(
        text, root, trie, token_of, list(trigger_patterns), list(trigger_tokens)
    )
