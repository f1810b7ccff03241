"""Low-rank adapters: what each adds to a model's matrices, and which a sequence uses, at what scales.

docs/numerics.md defines the computation, docs/adapters.md explains the use.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aleator.core.errors import ParameterError
from aleator.core.records import dataclass
from aleator.models.files.tensor_types import StoredTensor

Floats = npt.NDArray[np.float32]
AdapterFile = tuple[str, str, float]
"""An adapter's name, its file, and its scale in sequences that do not choose adapters."""
Chosen = tuple[tuple[str, float, str], ...]
"""Adapters of a sequence: name, scale, and the adapter's digest; "": any adapter of that name.

After the digest of one with invocation tokens (aLoRA) stand "@" and the position where they begin, from which
on it holds; nothing after "@": it is not known yet, and it holds nowhere.
"""
Rows = tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], Floats]
"""Adapters of a micro-batch: where each token's entries begin, the adapters' numbers, and their scales."""
MOST, LONGEST_NAME, LARGEST_SCALE = 1024, 200, 1e4


@dataclass(frozen=True)
class LowRank:
    """What an adapter adds to W x: B (factor * scale * (A x)), and with DoRA a multiple of W x."""

    # [rank, n_in], of embeddings [n_vocab, rank]; in floats or Q8_0, as is b
    a: StoredTensor
    # The columns of every sixteen rows of B, [n_out / 16 * rank, 16]; in Q8_0 with scales, see adapters.hpp
    b: StoredTensor
    factor: float  # alpha / rank
    grows: Floats | None = None  # [n_out]: the multiple of W x, without the bias, that is added too


@dataclass(frozen=True, eq=False)
class Adapter:
    """A loaded adapter."""

    name: str
    path: str
    digest: str  # of all its numbers
    matrices: Mapping[str, LowRank]  # by the GGUF names of the matrices that it changes
    about: Mapping[str, str]  # its file's notes for people: a task's name, a prompt's prefix
    fixed: bool  # whether it can be used only at scale 1, without other adapters (DoRA)
    # The tokens from whose last place in a prompt on it holds (aLoRA)
    invocation: tuple[int, ...] = ()


class Adapters:
    """The adapters of a model, in the order in which they were loaded.

    Attributes:
        loaded: all of them.
        scales: scale of each in sequences that do not choose adapters; replaced as a whole.
    """

    def __init__(self, loaded: Sequence[Adapter] = (), scales: Sequence[float] = ()) -> None:
        self.loaded, self.scales = tuple(loaded), tuple(scales)

    def __bool__(self) -> bool:
        return bool(self.loaded)

    @property
    def names(self) -> list[str]:
        """The adapters' names."""
        return [each.name for each in self.loaded]

    def use(self, scales: Sequence[float]) -> None:
        """Set the scales for sequences that do not choose adapters."""
        pairs = zip(self.names, scales, strict=True)
        self.chosen(tuple((name, checked_scale(scale), "") for name, scale in pairs))
        self.scales = tuple(scales)

    def chosen(self, given: Chosen | None) -> Chosen:
        """The adapters of a sequence in the order of loading, without those at scale 0; None: the default.

        Raises:
            ParameterError: an adapter is not loaded, is another one of that name, or cannot be combined
                with the others.
        """
        if given is None:
            given = tuple((n, s, "") for n, s in zip(self.names, self.scales, strict=True))
        for name, _, digest in given:
            if name not in self.names:
                known = ", ".join(self.names) or "none: load the model with adapters={name: file}"
                raise ParameterError(
                    f"adapters: there is no adapter {name!r:.80}; loaded are {known}"
                )
            own = self.loaded[self.names.index(name)]
            digest, _, start = digest.partition("@")
            if digest not in ("", own.digest) or (start and not (own.invocation and _known(start))):
                raise ParameterError(
                    f"adapters: {name!r} is another adapter than the one that this was made with "
                    f"({digest}), or has another adapter_type: load that one, as it was loaded; sessions "
                    "older than adapter_type='auto' need 'stored' (command line: --lora-type stored)"
                )
        wanted = {name: float(np.float32(scale)) for name, scale, _ in given}
        starts = {name: digest.partition("@")[2] for name, _, digest in given}
        made = [(each, wanted.get(each.name, 0.0)) for each in self.loaded]
        used = [(each, scale) for each, scale in made if scale]
        for each, scale in used:
            if each.fixed and (scale != 1 or len(used) > 1):
                raise ParameterError(
                    f"adapters: {each.name!r} is a DoRA adapter, whose rows are normalised for scale 1 and no "
                    "other adapter: give it alone and with scale 1"
                )
        return tuple(
            (e.name, scale, f"{e.digest}@{starts[e.name]}" if e.invocation else e.digest)
            for e, scale in used
        )

    def begun(self, chosen: Chosen, tokens: Sequence[int]) -> Chosen:
        """The adapters of a text with this prompt: those with invocation tokens from the last of these on.

        One whose tokens are not in the prompt is left out.
        """
        made = []
        for name, scale, digest in chosen:
            if digest.endswith("@"):
                wanted, text = self.loaded[self.names.index(name)].invocation, tuple(tokens)
                n, starts = len(wanted), range(len(text) - len(wanted), -1, -1)
                start = next((i for i in starts if text[i : i + n] == wanted), None)
                if start is None:
                    continue
                digest += str(start)
            made.append((name, scale, digest))
        return tuple(made)

    def rows(self, of_tokens: Sequence[Chosen]) -> Rows | None:
        """The adapters of a micro-batch, from each token's adapters; None: no token has any."""
        if not any(of_tokens):
            return None
        numbers = {name: i for i, name in enumerate(self.names)}
        starts = np.cumsum([0, *map(len, of_tokens)])
        all_of = [each for chosen in of_tokens for each in chosen]
        return (
            starts.astype(np.int64),
            np.array([numbers[name] for name, _, _ in all_of], np.int32),
            np.array([scale for _, scale, _ in all_of], np.float32),
        )


def _known(start: str) -> bool:
    return start.isascii() and start.isdecimal() and len(start) < 10


def held_at(chosen: Chosen, position: int) -> Chosen:
    """Those adapters of a sequence that its token at this position has."""
    if not any("@" in digest for _, _, digest in chosen):
        return chosen
    made = []
    for each in chosen:
        _, at, start = each[2].partition("@")
        if not at or (start and position >= int(start)):
            made.append(each)
    return tuple(made)


def key_of(chosen: Chosen | None) -> str:
    """A key that tells apart results of different adapters; "": without adapters."""
    return "\x1fadapters " + " ".join(f"{d}*{s!r}" for _, s, d in chosen) if chosen else ""


def before_all(chosen: Chosen | None, namespace: str) -> tuple[int, str]:
    """How many tokens come before an adapter begins, and where the prompt cache has texts without it.

    ``namespace``: where it has those with all, which ends with :func:`key_of` them.  0: none begins later.
    """
    starts = [int(start) for *_, digest in chosen or () if (start := digest.partition("@")[2])]
    if chosen is None or not starts:
        return 0, namespace
    before = held_at(chosen, min(starts) - 1)
    return min(starts), namespace.removesuffix(key_of(chosen)) + key_of(before)


def checked_scale(value: Any) -> float:
    """Return ``value`` as a scale; raise ParameterError if it is not one."""
    number = isinstance(value, int | float | np.floating) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or abs(value) > LARGEST_SCALE:
        raise ParameterError(
            f"adapters: the scale {value!r:.40} is out of range: give a number, "
            f"{-LARGEST_SCALE:g} to {LARGEST_SCALE:g} (1: as it was trained; 0: without it)"
        )
    return float(value)


def chosen_adapters(value: Any) -> Chosen:
    """The adapters of a sequence, from a name, a mapping of names to scales, or an earlier result."""
    if isinstance(value, str):
        value = {value: 1.0}
    pairs = value.items() if isinstance(value, Mapping) else value
    if not isinstance(pairs, Iterable):
        pairs = [()]
    made: dict[str, tuple[str, float, str]] = {}
    for each in pairs:
        parts = list(each) if isinstance(each, list | tuple) else []
        parts += [""] * (len(parts) == 2)
        if len(parts) != 3 or not (isinstance(parts[0], str) and isinstance(parts[2], str)):
            raise ParameterError(
                f"adapters={value!r:.80}: give a name, or names and scales: {{'name': 0.5}}"
            )
        if parts[0] in made:
            raise ParameterError(f"adapters: {parts[0]!r:.80} is given twice: give it once")
        made[parts[0]] = parts[0], checked_scale(parts[1]), parts[2]
    return tuple(made.values())


def adapter_files(value: Any) -> tuple[AdapterFile, ...]:
    """The adapters to load, from a mapping of names to files or (file, scale), or an earlier result."""
    if isinstance(value, Mapping):
        value = [
            (name, *file) if isinstance(file, tuple | list) else (name, file, 0.0)
            for name, file in value.items()
        ]
    items = value if isinstance(value, Iterable) else [value]
    given = [tuple(each) if isinstance(each, tuple | list) else () for each in items]
    made: dict[str, AdapterFile] = {}
    for each in given:
        if len(each) != 3 or not isinstance(each[1], str | os.PathLike):
            raise ParameterError(f"adapters={value!r:.80}: give {{name: file}}")
        name, file, scale = each
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
            raise ParameterError(
                f"adapters: the name {name!r:.80} is none: give 1 to {LONGEST_NAME} printable characters"
            )
        if name in made:
            raise ParameterError(
                f"adapters: two are called {name!r}: name them apart (command line: --lora NAME=FILE)"
            )
        made[name] = name, os.fspath(file), checked_scale(scale)
    if len(made) > MOST:
        raise ParameterError(f"adapters has {len(made)} entries: give at most {MOST}")
    return tuple(made.values())


def read_words(words: Sequence[str]) -> tuple[AdapterFile, ...]:
    """Parse adapters of the command line: [NAME=]FILE[:SCALE], separated by commas."""
    made: list[AdapterFile] = []
    for text in [each for word in words for each in word.split(",")]:
        file, _, scale = text.rpartition(":")
        try:
            number = float(scale)
        except ValueError:
            file, number = text, 1.0
        name, equals, rest = file.partition("=")
        if not equals or os.sep in name:
            rest, name = file, Path(file).name if Path(file).is_dir() else Path(file).stem
        made.append((name, rest, number))
    return adapter_files(made)
