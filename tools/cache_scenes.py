"""Small contexts in use, snapshots of their contents as plain values, and operations on them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from wide_models import SMALL, write_model

from aleator.cache import PrefixConfig
from aleator.cache.pools.attention import AttentionPool, first_of
from aleator.cache.pools.recurrent import RecurrentPool
from aleator.cache.sequence import Sequence
from aleator.cache.sequence_verbs import Checkpoint
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.decoder import Decoder

TEXT = tuple(int(t) for t in np.random.default_rng(5).integers(1, 60, 64))
PREFIX = PrefixConfig(block=4, texts=4, spacing=4)

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"prefix": PREFIX, "type_v": "f32"}),
    "llama-streams": ("llama", {"policy": "streams", "n_ctx": 144}),
    "llama-2024": ("llama", {"compat": "llama-2024", "prefix": PREFIX}),
    "gemma3": ("gemma3", {"prefix": PREFIX}),
    "gemma3-ring": ("gemma3", {}),
    "mamba": ("mamba", {"prefix": PREFIX, "n_rollback": 4}),
    "jamba": ("jamba", {"prefix": PREFIX, "n_rollback": 4}),
    "qwen35moe": ("qwen35moe", {"prefix": PREFIX, "n_rollback": 4}),
    "granitehybrid": ("granitehybrid", {"prefix": PREFIX, "n_rollback": 4}),
    "falcon-h1": ("falcon-h1", {"prefix": PREFIX, "n_rollback": 4}),
    "lfm2": ("lfm2", {"prefix": PREFIX, "n_rollback": 4}),
    "deepseek2": ("deepseek2", {"prefix": PREFIX}),
}
"""Names of contexts, each with its model's name and the context's other options."""


@functools.cache
def decoder_of(name: str) -> Decoder:
    """A small model with random weights."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(Path(folder) / "m.gguf", SMALL[name])
        return build_decoder(open_weights(path))


Snapshot = dict[str, Any]


def snapshot(context: Context, marks: Iterable[Checkpoint] = ()) -> Snapshot:
    """Cells, stored rows, states, cached prefixes, flags, handles, checkpoints and logits, by name.

    The contents of free cells and free rows are left out: nothing reads them.

    Args:
        context: the context.
        marks: checkpoints whose validity is to be compared.

    Returns:
        Plain values; equal if and only if nothing visible has changed.

    """
    cache: Any = context.cache
    found: Snapshot = {}
    for i, pool in enumerate(cache.pools):
        part = _states(pool) if isinstance(pool, RecurrentPool) else _cells(first_of(pool))
        found |= {f"pool {i} {name}": value for name, value in part.items()}
    found["cached prefixes"] = sorted(
        (t.seq, t.namespace, t.tokens.tolist(), list(t.digests), list(t.used), list(t.pins))
        for t in (cache.prefix or ())
    )
    found["step under way"] = cache.journal.current is not None
    found["handles"] = sorted(seq for seq, ref in cache._handles.items() if ref() is not None)
    found["checkpoints"] = [(m.seq, m.length, m.valid_to) for m in marks]
    found["logits"] = None if context.rows is None else _digest([np.asarray(context.rows)])
    found["inference mode"] = torch.is_inference_mode_enabled()
    return found


def difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Names of what differs between two snapshots."""
    return sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))


def _cells(pool: AttentionPool) -> Snapshot:
    cells = pool.cells
    used = np.flatnonzero(cells.positions >= 0)
    found: Snapshot = {
        "positions": cells.positions.tobytes(),
        "owners": cells.owners.tobytes(),
        "shifts": (cells.has_shift, cells.shifts[used].tobytes()),
        "head": (cells.head, cells.used, cells.top),
        "rotations": pool.rows.key_positions[used].tobytes(),
        "do_defrag": pool.do_defrag,
    }
    for name, side in (("keys", pool.rows.keys), ("values", pool.rows.values)) if len(used) else ():
        found[name] = _digest(side.parts[layer].bytes_of(used) for layer in range(len(side.layers)))
    return found


def _states(pool: RecurrentPool) -> Snapshot:
    states = {seq: tuple(history) for seq, history in pool.states.book().items()}
    rows = sorted({row for history in states.values() for row, _ in history})
    return {
        "states": states,
        "rows": _digest(t[rows] for t in [*pool.conv, *pool.ssm]),
    }


def _digest(arrays: Iterable[np.ndarray[Any, Any]]) -> bytes:
    made = hashlib.blake2b(digest_size=16)
    for array in arrays:
        made.update(np.ascontiguousarray(array).tobytes())
    return made.digest()


class Undone(Exception):
    """Raised in a step to roll it back."""


@dataclass
class Scene:
    """A context with three sequences, of which 1 and 2 have handles, and a cached prefix."""

    context: Context
    handles: list[Sequence] = field(default_factory=list)
    marks: list[Checkpoint] = field(default_factory=list)
    blobs: dict[str, Any] = field(default_factory=dict)

    @property
    def cache(self) -> Any:
        """The context's cache."""
        return self.context.cache

    def decode(self, tokens: tuple[int, ...], seq: int = 0) -> None:
        """Decode tokens of one sequence, all of which want logits."""
        self.context.decode(Batch.one(tokens, seq=seq, logits=True))

    def state(self) -> Snapshot:
        """A snapshot of the current state."""
        left: list[str] = self.blobs.get("left behind", [])
        return {**snapshot(self.context, self.marks), "files left behind": left}

    def probe(self) -> bytes:
        """The logits with which each sequence would continue, bit for bit; nothing changes."""
        batch = Batch()
        for seq in range(3):
            batch.add(7 + seq, seqs=[seq], logits=True)
        last = self.context._last
        with self.cache.step() as step:
            made: bytes = self.context.decode(batch).tobytes()
            step.cancel()
        self.context._last = last
        return made


def scene(model: str, *, full: bool = False) -> Scene:
    """A scene, always the same.

    Args:
        model: a name of :data:`MODELS`.
        full: cells are used up by cached prefixes, so that the next decode evicts.

    """
    name, options = MODELS[model]
    context = Context(
        decoder_of(name), **{"n_ctx": 96, "n_seq_max": 3, "n_batch": 8, "n_ubatch": 4, **options}
    )
    made = Scene(context)
    cache = made.cache
    made.decode(TEXT[:12])
    cache.keep(0, TEXT[:12])
    cache.seq_cp(0, 1)
    made.decode(TEXT[12:15], 0)
    made.decode(TEXT[20:23], 1)
    if cache.reuse(2, TEXT[:10]) == 0:
        made.decode(TEXT[:8], 2)
    made.decode(TEXT[30:36], 2)
    made.handles = [cache.sequence(1), cache.sequence(2)]
    made.marks = [handle.checkpoint() for handle in made.handles]
    made.decode(TEXT[36:38], 2)
    if full:
        for i in range(2):
            cache.seq_rm(0)
            made.decode(TEXT[40 + i : 64] + TEXT[:6])
            cache.keep(0, TEXT[40 + i : 64] + TEXT[:6])
        cache.seq_rm(0)
        made.decode(TEXT[:3])
    return made


@dataclass(frozen=True)
class Operation:
    """An operation on a scene.

    Attributes:
        run: performs it.
        prepare: runs before it.
        full: whether it needs a scene without free cells.

    """

    run: Callable[[Scene], object]
    prepare: Callable[[Scene], object] = lambda _: None
    full: bool = False

    def scene(self, model: str) -> Scene:
        """The scene for the operation."""
        made = scene(model, full=self.full)
        with contextlib.suppress(Exception):  # an operation that this cache refuses
            self.prepare(made)
        return made


def _several(s: Scene) -> None:
    batch = Batch()
    for i in range(3):
        for seq in range(3):
            batch.add(9 + i + seq, seqs=[seq], logits=True)
    s.context.decode(batch)


def _moved(s: Scene) -> None:
    s.cache.seq_rm(0, 2, 4)
    s.cache.seq_add(0, 4, -1, -2)


def _holes(s: Scene) -> None:
    s.cache.seq_rm(0, 13, -1)
    s.cache.seq_rm(2, 3, 5)
    s.cache.do_defrag = True


def _nested(s: Scene) -> None:
    with s.cache.step():
        s.decode(TEXT[15:18])
        with contextlib.suppress(Undone), s.cache.step():
            s.cache.keep(0, TEXT[:18])
            s.decode(TEXT[18:22])
            s.cache.seq_rm(1)
            raise Undone
        s.cache.seq_rm(2)
        s.decode(TEXT[22:24])


def _taken_back(s: Scene) -> None:
    with contextlib.suppress(Undone), s.cache.step():
        s.cache.keep(0, TEXT[:15])
        s.cache.seq_cp(0, 1) if s.cache.recurrent is None else s.cache.seq_rm(1)
        s.decode(TEXT[15:20])
        raise Undone


def _stored(name: str, write: Callable[[Any], Any]) -> Callable[[Scene], None]:
    def prepare(s: Scene) -> None:
        s.blobs[name] = write(s)
        s.decode(TEXT[50:53])

    return prepare


def _to_file(s: Scene) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.state"
        try:
            s.handles[1].save(path, tokens=())
        finally:
            s.blobs["left behind"] = [p.name for p in Path(folder).iterdir() if p != path]


def _matched(s: Scene) -> None:
    s.blobs["match"] = s.cache.match(TEXT[:9])


def _pinned(s: Scene) -> None:
    _matched(s)
    s.cache.prefix.pin(s.blobs["match"])


def _empty(seq: int) -> Callable[[Scene], object]:
    return lambda s: s.cache.seq_rm(seq)


OPERATIONS: dict[str, Operation] = {
    "decode one": Operation(lambda s: s.decode(TEXT[15:16])),
    "decode many": Operation(lambda s: s.decode(TEXT[15:26])),
    "decode sequences": Operation(_several),
    "decode, shifted": Operation(lambda s: s.decode(TEXT[15:17]), _moved),
    "decode, divided": Operation(
        lambda s: s.decode(TEXT[15:17]), lambda s: s.cache.seq_div(0, 3, -1, 2)
    ),
    "decode, defrag": Operation(lambda s: s.decode(TEXT[15:17], 1), _holes),
    "decode, evicting": Operation(lambda s: s.decode(TEXT[3:23]), full=True),
    "decode, refused": Operation(lambda s: s.decode(TEXT * 3)),
    "seq_rm end": Operation(lambda s: s.cache.seq_rm(0, 13, -1)),
    "seq_rm middle": Operation(lambda s: s.cache.seq_rm(0, 3, 6)),
    "seq_rm all": Operation(lambda s: s.cache.seq_rm(-1)),
    "seq_cp": Operation(lambda s: s.cache.seq_cp(0, 1), _empty(1)),
    "seq_cp part": Operation(lambda s: s.cache.seq_cp(0, 1, 0, 13), _empty(1)),
    "seq_keep": Operation(lambda s: s.cache.seq_keep(2)),
    "seq_add": Operation(lambda s: s.cache.seq_add(0, 4, -1, 3)),
    "seq_add below 0": Operation(lambda s: s.cache.seq_add(2, 0, -1, -5)),
    "seq_div": Operation(lambda s: s.cache.seq_div(0, 2, -1, 3)),
    "clear": Operation(lambda s: s.cache.clear()),
    "clear, nested": Operation(lambda s: s.cache.journal.run(s.cache.clear)),
    "update": Operation(lambda s: s.cache.update(), _moved),
    "defrag": Operation(lambda s: s.cache.defrag(), _holes),
    "unshare": Operation(lambda s: s.cache.unshare(0)),
    "keep": Operation(lambda s: s.cache.keep(0, TEXT[:15])),
    "keep, evicting": Operation(
        lambda s: s.cache.keep(2, TEXT[:7], "b"), lambda s: s.cache.keep(0, TEXT[:3]), full=True
    ),
    "match": Operation(lambda s: s.cache.match(TEXT[:14])),
    "reuse": Operation(lambda s: s.cache.reuse(0, TEXT[:14]), _empty(0)),
    "evict": Operation(lambda s: s.cache.prefix.evict_block(), full=True),
    "pin": Operation(lambda s: s.cache.prefix.pin(s.blobs["match"]), _matched),
    "unpin": Operation(
        lambda s: s.cache.prefix.unpin(s.blobs["match"]),
        _pinned,
    ),
    "sequence": Operation(lambda s: s.cache.sequence(), _empty(0)),
    "fork": Operation(lambda s: s.handles[0].fork(), _empty(0)),
    "fork part": Operation(lambda s: s.handles[0].fork(13), _empty(0)),
    "truncate": Operation(lambda s: s.handles[0].truncate(13)),
    "drop": Operation(lambda s: s.handles[1].drop(4, 6)),
    "shift": Operation(lambda s: s.handles[1].shift(4, 12, 2)),
    "divide": Operation(lambda s: s.handles[1].divide(4, 12, 2)),
    "slide": Operation(lambda s: s.handles[1].slide(2, 4)),
    "close": Operation(lambda s: s.handles[1].close()),
    "checkpoint": Operation(lambda s: s.marks.append(s.handles[0].checkpoint())),
    "restore": Operation(lambda s: s.handles[1].restore(s.marks[1])),
    "restore far": Operation(
        lambda s: s.handles[1].restore(s.marks[1]), lambda s: s.decode(TEXT[:9], 2)
    ),
    "save": Operation(lambda s: s.handles[1].save()),
    "save file": Operation(_to_file),
    "load": Operation(
        lambda s: s.handles[1].load(s.blobs["one"]), _stored("one", lambda s: s.handles[1].save())
    ),
    "state_write": Operation(lambda s: [s.cache.state_write(), s.cache.state_write(2)]),
    "state_read": Operation(
        lambda s: s.cache.state_read(s.blobs["whole"]),
        _stored("whole", lambda s: s.cache.state_write()),
    ),
    "state_read one": Operation(
        lambda s: s.cache.state_read(s.blobs["one"], 1),
        _stored("one", lambda s: s.cache.state_write(2)),
    ),
    "state_read partial": Operation(
        lambda s: s.cache.state_read(s.blobs["part"], 2, partial=True),
        _stored("part", lambda s: s.cache.state_write(2, partial=True)),
    ),
    "state_read damaged": Operation(
        lambda s: s.cache.state_read(s.blobs["whole"]),
        _stored("whole", lambda s: s.cache.state_write()[:-3] + b"abc"),
    ),
    "session_write": Operation(lambda s: s.cache.session_write(TEXT[:15])),
    "session_read": Operation(
        lambda s: s.cache.session_read(s.blobs["session"]),
        _stored("session", lambda s: s.cache.session_write(TEXT[:15])),
    ),
    "nested steps": Operation(_nested),
    "step taken back": Operation(_taken_back),
}
"""Operations by name; one that a cache lacks raises an error, and then nothing may have changed."""
