"""GBNF, llama.cpp's grammar notation, with llama.cpp's masks bit for bit: see docs/grammar.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from aleator.core import host
from aleator.core.errors import GrammarError, ParameterError

_TRIES: WeakKeyDictionary[Any, host.TokenTrie] = WeakKeyDictionary()


def token_trie(vocabulary: Any) -> host.TokenTrie:
    """The vocabulary's tokens as a tree, built at the first call and kept as long as the vocabulary."""
    vocab = getattr(vocabulary, "vocab", vocabulary)
    trie = _TRIES.get(vocab)
    if trie is None:
        pieces = [vocab.token_bytes(token) for token in range(len(vocab))]
        trie = _TRIES[vocab] = host.TokenTrie(pieces, sorted(vocab.eog))
    return trie


def compile_gbnf(
    text: str,
    root: str,
    vocabulary: Any,
    trigger_patterns: Sequence[str] = (),
    trigger_tokens: Sequence[int] = (),
) -> host.Constraint:
    """A constraint that lets through what llama.cpp lets through.

    A tokenizer as ``vocabulary`` can also say what ``<text>`` in a grammar is when that is no special token;
    what else has ``len``, ``token_bytes(id)``, ``eog`` and ``ids`` (text -> id) will do too.  With triggers
    everything is allowed until one of the regular expressions matches, or one of the tokens comes.

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

    return host.compile_gbnf(
        text, root, token_trie(vocabulary), token_of, list(trigger_patterns), list(trigger_tokens)
    )
