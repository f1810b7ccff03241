"""Sessions: a text with its keys and values in a file, to go on with later."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, field, replace
from itertools import count, pairwise
from typing import Any

import numpy as np

from aleator.cache.cache import Cache
from aleator.cache.formats import llama
from aleator.cache.formats.state_file import StateFile, read_state_file, write_state_file
from aleator.cache.pools.attention import AttentionPool
from aleator.cache.pools.kept_states import MAX_ENDS, KeptStates
from aleator.cache.pools.recurrent import RecurrentPool
from aleator.core.arithmetic import FIRST_VERSION
from aleator.core.arrays import Int64s
from aleator.core.errors import CacheError, FileFormatError, Incompatible, ParameterError
from aleator.core.records import dataclass
from aleator.generate.completion import OWN, Forgotten, remaining
from aleator.generate.context import Context
from aleator.models.adapters import Chosen, chosen_adapters, key_of
from aleator.models.fingerprint import ModelIdentity
from aleator.samplers.chain import SamplerChain


@dataclass(frozen=True)
class Rows:
    """What a cache keeps of a text."""

    n_tokens: int  # the number of the text's first tokens whose keys and values these are
    rows: bytes = field(repr=False)  # their cells, in llama.cpp's layout
    # The positions that their keys are rotated to, if these differ from their own
    key_positions: bytes = field(repr=False)
    states: bytes = field(repr=False)  # earlier states of recurrent layers
    rotation: str = ""  # tells what rotated their keys, see rotation_identity


def rows_of(context: Context, tokens: Sequence[int], namespace: str = "", seq: int = 0) -> Rows:
    """Copy what a context's cache keeps of a text, by means of an empty sequence; the cache does not change."""
    # Nothing of it stays in the cache, whatever happens meanwhile.
    cache = context.cache
    rows: Rows = cache.journal.attempt(_rows, cache, tokens, namespace, seq)
    return replace(rows, rotation=context.decoder.rotation_identity)


def put_rows(context: Context, seq: int, state: StateFile, n_tokens: int) -> None:
    """Give an empty sequence what :func:`rows_of` copied; if this raises, the caller empties it.

    Raises:
        CacheError: the rows do not fit this cache, there is no room for them, or their keys were rotated for a
            context of another length.
    """
    if state.header.get("rotation", "") != context.decoder.rotation_identity:
        raise CacheError(
            "its keys were rotated for a context of another length: the model has other frequencies there, and "
            f"the context here has n_ctx={context.n_ctx}"
        )
    cache = context.cache
    cache.state_read(state.sections["rows"], seq, format="llama")
    if not cache.has_exactly(seq, n_tokens):
        raise CacheError(f"its rows are not those of positions 0 to {n_tokens - 1}")
    _set_key_positions(cache, seq, state.sections.get("turned", b""))
    _put_states(cache, seq, state.sections.get("states", b""), n_tokens)


def _rows(cache: Cache, tokens: Sequence[int], namespace: str, seq: int) -> Rows:
    """See :func:`rows_of`.

    Changes the cache; it is called by ``journal.attempt``, which undoes that.
    """
    # Matched with one token more, because a match leaves the last one to be computed.
    n_tokens = cache.reuse(seq, [*tokens, 0], namespace)
    if not n_tokens:
        return Rows(0, b"", b"", b"")
    key_positions = _without_shift(cache, seq)
    rows = llama.write(cache.pool, seq, windows_only=False)
    return Rows(n_tokens, rows, key_positions, _earlier_states(cache, seq, n_tokens))


def _without_shift(cache: Cache, seq: int) -> bytes:
    """Mark a sequence's pending shifts as done; return the positions its keys are rotated to, "" if none is.

    So the keys are stored as they are: rotating and rounding would change the bits of the first run.
    """
    pools = [(pool, cells) for pool, cells in _cells(cache, seq) if pool.rows.k_storage != "raw"]
    rotations = [pool.rows.key_positions[cells] for pool, cells in pools]
    moved = False
    for (pool, cells), at in zip(pools, rotations, strict=True):
        own = pool.cells.positions[cells]
        moved = moved or bool((own != at).any())
        pool.journal.undo(pool.rows.key_positions.__setitem__, cells, at)
        pool.rows.key_positions[cells] = own
    return b"".join(at.astype("<i4").tobytes() for at in rotations) if moved else b""


def _set_key_positions(cache: Cache, seq: int, data: bytes | memoryview) -> None:
    """Record the positions that a sequence's keys are rotated to, as :func:`_without_shift` returned them."""
    if len(data) == 0:
        return
    pools = _cells(cache, seq)
    n = sum(len(cells) for _, cells in pools)
    positions = np.frombuffer(data, "<i4") if len(data) == 4 * n else np.empty(0, "<i4")
    if n == 0 or len(positions) != n or positions.min() < 0:
        raise CacheError("what its keys are rotated to does not fit its rows")
    if any(pool.rows.k_storage == "raw" for pool, _ in pools):
        raise CacheError("its keys are rotated, and k_storage='raw' has those of position 0")
    for pool, cells in pools:
        pool.rows.key_positions[cells], positions = positions[: len(cells)], positions[len(cells) :]


def _cells(cache: Cache, seq: int) -> list[tuple[AttentionPool, Int64s]]:
    """The pools of cells, each with the cells in a sequence's state, by position."""
    pools = [pool for pool in cache.pools if isinstance(pool, AttentionPool)]
    return [(pool, pool.cells.seq_cell_list(seq)) for pool in pools]


def _earlier_states(cache: Cache, seq: int, n_tokens: int) -> bytes:
    """The latest recurrent states kept of a sequence's text before its end: positions, and rows by layer."""
    found = _recurrent(cache)
    if found is None:
        return b""
    states, keeper = found
    kept = [each for each in keeper.of(seq) if each[1] < n_tokens - 1][-MAX_ENDS:]
    rows = [row for row, _ in kept]
    parts = [np.asarray([position for _, position in kept], "<i4").tobytes()]
    parts += [arrays.host(t, rows).astype("<f4").tobytes() for arrays, t in states.rows.made]
    return b"".join(parts)


def _put_states(cache: Cache, seq: int, data: bytes | memoryview, n_tokens: int) -> None:
    """Give a sequence the states that :func:`_earlier_states` gave, as far as there is room."""
    found = _recurrent(cache)
    if len(data) == 0 or found is None:
        return
    states, keeper = found
    sizes = [math.prod(t.shape[1:]) for t in states.conv + states.ssm]
    n, rest = divmod(len(data), 4 * (1 + sum(sizes)))
    at = np.frombuffer(data, "<i4")[:n].tolist() if rest == 0 else []
    values = np.frombuffer(data, "<f4")[n:] if rest == 0 else np.empty(0, "<f4")
    ascending = all(a < b for a, b in pairwise([-1, *at, n_tokens - 1]))
    if rest or not ascending or not np.isfinite(values).all():
        raise CacheError("its earlier states are none of its text")
    rows = states.rows.free_rows(min(n, max(0, keeper.limit - keeper.held())))
    for (arrays, t), size in zip(states.rows.made, sizes, strict=True):
        latest = values[: n * size].reshape(n, *t.shape[1:])[n - len(rows) :]
        t[rows] = arrays.of_host(latest.astype(np.float32))
        values = values[n * size :]
    states.states.change({keeper.number(seq): tuple(zip(rows, at[n - len(rows) :], strict=True))})


def _recurrent(cache: Cache) -> tuple[RecurrentPool, KeptStates] | None:
    """The pool of recurrent states and those of cached prefixes, if the cache has them."""
    for pool in cache.pools:
        if isinstance(pool, RecurrentPool) and isinstance(pool.keeper, KeptStates):
            return pool, pool.keeper
    return None


FORMAT, ADAPTED = 2, 3
"""Formats of sessions; the second has adapters, which versions that know no more than the first refuse."""
_loaded = count(1)


@dataclass(frozen=True)
class Session:
    """A text, and how it was generated.

    Attributes:
        tokens: all its tokens, the prompt first.
        n_prompt: how many of them belong to the prompt.
        seed: the seed of the others' draws; None if nothing was drawn.
        extra: what the writer added, JSON-ready, such as a chat's messages.
        forgotten: what context shifts have removed from the text, in order, as (where, how many); the keys
            and values are those of ``remaining``.
        namespace: the namespace of the cached prefixes after context shifts.
        restored: tokens whose keys and values came with the file; the others are computed again.
        why_not: why these are not all but the last token.
        chain: the state of the chain that drew the text; b"" if it could not be written.
        adapters: the adapters with which the text was computed.
    """

    tokens: tuple[int, ...]
    n_prompt: int
    seed: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    forgotten: Forgotten = ()
    namespace: str = ""
    restored: int = 0
    why_not: str = ""
    chain: bytes = field(default=b"", repr=False)
    adapters: Chosen = ()

    @property
    def remaining(self) -> tuple[int, ...]:
        """The tokens without the forgotten ones."""
        return remaining(self.tokens, self.forgotten)


def write_session(
    path: str | os.PathLike[str], session: Session, contents: Rows, model: ModelIdentity
) -> None:
    """Write a session; an existing file is replaced once the new one is complete.

    The caller has checked that it may be (:class:`~aleator.generate.session_file.SessionFile`).
    """
    header = {
        "kind": "session",
        "format": ADAPTED if session.adapters else FORMAT,
        "model": asdict(model),
        "held": contents.n_tokens,
        "n_prompt": session.n_prompt,
        "seed": session.seed,
        "extra": session.extra,
        "forgotten": session.forgotten,
        "rotation": contents.rotation,
        **({"adapters": session.adapters} if session.adapters else {}),
    }
    sections = {
        "tokens": np.asarray(session.tokens, "<i4").tobytes(),
        "rows": contents.rows,
        "turned": contents.key_positions,
        "states": contents.states,
        "chain": session.chain,
    }
    write_state_file(path, header, sections)


def save_session(
    path: str | os.PathLike[str], context: Context, session: Session, model: ModelIdentity
) -> int:
    """Write a session, with the keys and values that the context's cache keeps of its text.

    Sequence 0 of the context must be empty.  Returns how many tokens' keys and values were written.
    """
    contents = rows_of(context, session.remaining, session.namespace)
    write_session(path, session, contents, model)
    return contents.n_tokens


def state_of(chain: SamplerChain, tokens: Sequence[int], drawn_here: int) -> bytes:
    """The state of a chain after a text, of which it drew ``drawn_here`` tokens, to be saved with its session.

    The chain has accepted the text, and perhaps an end that is not part of it.  The state is b"" if the chain
    has accepted another text, or a user's sampler has no state methods.

    Raises:
        ParameterError: a device drew, and only it knew the state of an adaptive sampler.
    """
    history = chain.history
    if drawn_here and not chain.n_sampled and chain.adapts:
        raise ParameterError(
            f"sampling_device='device' drew this text, and what {chain.adapts} learned from it is gone with "
            "the row of the device: a session of it could not go on as the text would have; generate with "
            "sampling_device='host' to save it"
        )
    if history[: len(tokens)] != list(tokens):
        return b""
    try:
        if len(history) > len(tokens):
            chain = chain.clone()
            chain.rollback(len(history) - len(tokens))
        return chain.state_write()
    except ParameterError:
        return b""


def open_session(
    path: str | os.PathLike[str], n_vocab: int, model: ModelIdentity, *, mapped: bool = True
) -> tuple[StateFile, Session]:
    """Read a session, and check that it is sound and of this model.

    ``mapped``: see :func:`~aleator.cache.formats.state_file.read_state_file`.

    Returns:
        The file, for :func:`restore_session`, and the session; nothing of it is restored yet.

    Raises:
        FileFormatError: not a session, one of an older format, or a damaged one.
        Incompatible: it was made with another model; says which.
    """
    state = read_state_file(path, mapped=mapped)
    session = _session(state, n_vocab)
    then = _check_model(state, model).arithmetic
    if then != model.arithmetic:
        this = f"version {then} of the decoder's arithmetic, this is {model.arithmetic}"
        session = replace(session, why_not=f"its keys and values are of {this}")
    return state, session


def restore_session(
    context: Context, state: StateFile, session: Session, seq: int = 0, namespace: str = ""
) -> Session:
    """Keep a session's text in the context's cache as far as it fits; the session returned says how far.

    The sequence must be empty, and is emptied again afterwards.  A text that no context shift has changed is
    kept in ``namespace``, or in one of its own if it has adapters.
    """
    why_not, cache = session.why_not, context.cache
    held = 0 if why_not else state.header["held"]
    namespace += key_of(session.adapters)
    if held:
        try:
            put_rows(context, seq, state, held)
            if session.forgotten:
                namespace = f"{OWN}session {next(_loaded)}"
            cache.keep(seq, session.remaining[:held], namespace)
            session = replace(session, namespace=namespace)
        except CacheError as error:
            held, why_not = 0, str(error)
        finally:
            cache.seq_rm(seq)
    return replace(session, restored=held, why_not=why_not)


def load_session(path: str | os.PathLike[str], context: Context, model: ModelIdentity) -> Session:
    """Read a session, and keep its text in the cache of a context whose sequence 0 is empty, as far as it fits.

    Raises:
        FileFormatError: not a session, one of an older format, or a damaged one; nothing has changed.
        Incompatible: it was made with another model; says which.
    """
    state, session = open_session(path, context.n_vocab, model)
    return restore_session(context, state, session)


def _check_model(state: StateFile, model: ModelIdentity) -> ModelIdentity:
    """Refuse a session that was made with another model, and return the one it was made with."""
    about = state.header.get("model")
    types = {"fingerprint": str, "name": str, "path": str, "arithmetic": int}
    about = {"arithmetic": FIRST_VERSION, **about} if isinstance(about, dict) else {}
    if {name: type(value) for name, value in about.items()} != types:
        raise FileFormatError(state.name, "it does not say which model it is of", field="model")
    made_by = ModelIdentity(**about)
    if made_by.fingerprint != model.fingerprint:
        same = " (the file has changed since)" if made_by.path == model.path else ""
        raise Incompatible(
            "model",
            str(made_by),
            str(model),
            f"{state.name}: the session was made with the model {made_by}, and {model} is loaded{same}: load "
            "that one, or ask for a new session (--session-new, new=True)",
        )
    return made_by


def _session(state: StateFile, n_vocab: int) -> Session:
    """The session of a file; everything in the file is checked."""

    def wrong(message: str, name: str) -> FileFormatError:
        return FileFormatError(state.name, message, field=name)

    header = state.header
    if header.get("kind") == "session" and header.get("format", 1) not in (FORMAT, ADAPTED):
        raise wrong(
            f"the session is of format {header.get('format', 1)!r:.20}, and this version reads {FORMAT} only: "
            "make it anew (--session-new, new=True)",
            "format",
        )
    if header.get("kind") != "session" or not {"tokens", "rows"} <= state.sections.keys():
        raise wrong("the file is not a session", "kind")
    data = state.sections["tokens"]
    if len(data) % 4:
        raise wrong("the tokens end within a number", "tokens")
    tokens = np.frombuffer(data, "<i4")
    if len(tokens) and not (tokens.min() >= 0 and tokens.max() < n_vocab):
        raise wrong(f"there are tokens outside the vocabulary of {n_vocab}", "tokens")
    forgotten, left = header.get("forgotten", []), len(tokens)
    for each in forgotten if isinstance(forgotten, list) else [forgotten]:
        pair = isinstance(each, list) and len(each) == 2 and {*map(type, each)} == {int}
        if not pair or each[0] < 0 or each[1] < 1 or sum(each) > left:
            raise wrong(f"forgotten is {forgotten!r:.80}, with {len(tokens)} tokens", "forgotten")
        left -= each[1]
    for name, most in (("held", left), ("n_prompt", len(tokens))):
        value = header.get(name)
        if type(value) is not int or not 0 <= value <= most:
            raise wrong(f"{name} is {value!r}, with {most} tokens", name)
    seed = header.get("seed")
    if seed is not None and (type(seed) is not int or not 0 <= seed < 2**64):
        raise wrong(f"seed is {seed!r}", "seed")
    if not isinstance(header.get("extra"), dict):
        raise wrong("extra is not an object", "extra")
    try:
        adapters = chosen_adapters(header.get("adapters", []))
    except ParameterError as error:
        raise wrong(str(error), "adapters") from None
    return Session(
        tuple(tokens.tolist()),
        header["n_prompt"],
        seed,
        header["extra"],
        tuple((at, n) for at, n in forgotten),
        chain=bytes(state.sections.get("chain", b"")),
        adapters=adapters,
    )
