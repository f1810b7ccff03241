"""Sessions: a text with its keys and values in a file, to go on with later."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from aleator.cache.formats.state_file import StateFile, read_state_file, write_state_file
from aleator.core.errors import CacheError, FileFormatError, Incompatible
from aleator.generate.context import Context


@dataclass(frozen=True)
class Session:
    """A text and how it came about.

    Attributes:
        tokens: all of it, the prompt first.
        n_prompt: how many of them were not drawn.
        seed: what the others were drawn with; None if nothing was.
        extra: whatever the writer added, JSON-ready (a chat its messages).
        restored: tokens whose keys and values came with the file; the others are computed anew.
        why_not: why it is not all but the last token.

    """

    tokens: tuple[int, ...]
    n_prompt: int
    seed: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    restored: int = 0
    why_not: str = ""


def save_session(
    path: str | os.PathLike[str], context: Context, session: Session, fingerprint: str
) -> int:
    """Write a session; the keys and values are those that the context's cache keeps of its text.

    Args:
        path: the file; one that exists is replaced once the new one is complete.
        context: its sequence 0 must be empty.
        session: what to write.
        fingerprint: of the model.

    Returns:
        How many tokens' keys and values were written.

    """
    cache = context.cache
    # What is asked for is one token longer: a match leaves the last one to be computed.
    held = cache.reuse(0, [*session.tokens, 0])
    try:
        rows = cache.state_write(0, format="llama") if held else b""
    finally:
        cache.seq_rm(0, -1, -1)
    header = {
        "kind": "session",
        "model": fingerprint,
        "held": held,
        "n_prompt": session.n_prompt,
        "seed": session.seed,
        "extra": session.extra,
    }
    tokens = np.asarray(session.tokens, "<i4").tobytes()
    write_state_file(path, header, {"tokens": tokens, "rows": rows})
    return held


def load_session(path: str | os.PathLike[str], context: Context, fingerprint: str) -> Session:
    """Read a session, and keep its text in the context's cache as far as it fits.

    Args:
        path: the file.
        context: keeps texts, and its sequence 0 is empty.
        fingerprint: of the model.

    Raises:
        FileFormatError: not a session, or a damaged one; nothing has changed.
        Incompatible: it was made with another model.

    """
    state = read_state_file(path)
    session = _session(state, context.n_vocab)
    if state.header.get("model") != fingerprint:
        raise Incompatible("model", state.header.get("model"), fingerprint)
    held, why_not = state.header["held"], ""
    if held:
        try:
            context.cache.state_read(state.sections["rows"], 0, format="llama")
            if not context.cache.stands_for(0, held):
                raise CacheError(f"its rows are not those of positions 0 to {held - 1}")
            context.cache.keep(0, session.tokens[:held])
        except CacheError as error:
            held, why_not = 0, str(error)
        finally:
            context.cache.seq_rm(0, -1, -1)
    return replace(session, restored=held, why_not=why_not)


def read_session(path: str | os.PathLike[str], n_vocab: int) -> Session:
    """Read a session without its keys and values; errors are those of :func:`load_session`."""
    return _session(read_state_file(path), n_vocab)


def _session(state: StateFile, n_vocab: int) -> Session:
    """The session of a file, with a look at everything that the file says."""

    def wrong(message: str, name: str) -> FileFormatError:
        return FileFormatError(state.name, message, field=name)

    header = state.header
    if header.get("kind") != "session" or not {"tokens", "rows"} <= state.sections.keys():
        raise wrong("the file is not a session", "kind")
    data = state.sections["tokens"]
    if len(data) % 4:
        raise wrong("the tokens end within a number", "tokens")
    tokens = np.frombuffer(data, "<i4")
    if len(tokens) and not (tokens.min() >= 0 and tokens.max() < n_vocab):
        raise wrong(f"there are tokens outside the vocabulary of {n_vocab}", "tokens")
    for name in ("held", "n_prompt"):
        value = header.get(name)
        if type(value) is not int or not 0 <= value <= len(tokens):
            raise wrong(f"{name} is {value!r}, with {len(tokens)} tokens", name)
    seed = header.get("seed")
    if seed is not None and (type(seed) is not int or not 0 <= seed < 2**64):
        raise wrong(f"seed is {seed!r}", "seed")
    if not isinstance(header.get("extra"), dict):
        raise wrong("extra is not an object", "extra")
    return Session(tuple(tokens.tolist()), header["n_prompt"], seed, header["extra"])
