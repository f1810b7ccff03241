"""What the tools that record llama.cpp's answers for small models share: states, comparisons, arguments."""

from __future__ import annotations

import argparse
import ctypes
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import llama_cpp
import numpy as np
import numpy.typing as npt
from golden_logits import LlamaCpp, prompt

N_STATE = 6
"""Tokens of the sequence whose state is kept."""


class Spec(Protocol):
    """What describes a model."""

    @property
    def n_vocab(self) -> int: ...
    @property
    def seed(self) -> int: ...


S = TypeVar("S", bound=Any)


def sequence_state(llama: LlamaCpp, seq: int) -> bytes:
    """What llama_state_seq_get_data gives."""
    size = llama_cpp.llama_state_seq_get_size(llama.context, seq)
    out = (ctypes.c_uint8 * size)()
    return bytes(out[: llama_cpp.llama_state_seq_get_data(llama.context, out, size, seq)])


def edits(
    llama: LlamaCpp, tokens: list[int], removals: Sequence[tuple[int, int]]
) -> tuple[list[int], dict[str, npt.NDArray[Any]]]:
    """What removals of [p0, p1) answer, and a sequence saved and restored as another.

    Returns:
        What the removals answer, and whether the state was read whole; the state, and logits after it.
    """
    m, memory = llama_cpp, llama.memory
    m.llama_memory_clear(memory, True)
    llama.decode([(t, i, [0]) for i, t in enumerate(tokens[:N_STATE])])
    state = sequence_state(llama, 0)
    answers = [int(m.llama_memory_seq_rm(memory, 0, p0, p1)) for p0, p1 in removals]
    data = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
    read = int(m.llama_state_seq_set_data(llama.context, data, len(state), 1))
    answers.append(int(read == len(state)))
    restored = llama.decode([(tokens[N_STATE], N_STATE, [1])])
    return answers, {"restored": restored, "state": np.frombuffer(state, np.uint8)}


def difference(path: Path, spec: Spec, n: int = 48, **options: Any) -> float:
    """The largest difference of a prefill over the range of logits, against aleator.

    Args:
        path: of the model.
        spec: describes it.
        n: tokens of the prompt.
        options: of aleator's context.
    """
    from aleator.generate import Batch, Context
    from aleator.models import build_decoder, open_weights

    tokens = prompt(spec.n_vocab, n, spec.seed)
    llama = LlamaCpp(path)
    theirs = llama.decode([(t, i, [0]) for i, t in enumerate(tokens)])
    llama.close()
    context = Context(build_decoder(open_weights(path)), n_ctx=256, n_threads=1, **options)
    ours = np.asarray(context.decode(Batch.one(tokens, 0, logits=True)))
    return float(np.abs(ours - theirs).max() / (theirs.max() - theirs.min()))


def arguments(doc: str | None) -> argparse.Namespace:
    """The command line: names, ``--compare`` and ``--seed``."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="all if none is given")
    parser.add_argument("--compare", action="store_true", help="compare models with other weights")
    parser.add_argument("--seed", type=int, default=1000, help="added to the models' own")
    return parser.parse_args()


def save(out: Path, generator: str, arrays: dict[str, npt.NDArray[Any]]) -> None:
    """Write a file of arrays that says which tool and version made it."""
    made_by = np.array(f"tools/{generator}, llama-cpp-python {llama_cpp.__version__}")
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out, allow_pickle=False, generator=made_by, **arrays)
    print(f"{out}: {out.stat().st_size / 1024:.1f} KiB")


@dataclass(frozen=True)
class Recorder(Generic[S]):
    """A tool that keeps one file for each model.

    Attributes:
        generator: the tool's file name.
        folder: where its files are.
        specs: the models by name.
        write: makes a model's file.
        computed: what is kept of it.
        compare: its difference from aleator.
    """

    generator: str
    folder: Path
    specs: Mapping[str, S]
    write: Callable[[Path, S], Path]
    computed: Callable[[S, Path], dict[str, npt.NDArray[Any]]]
    compare: Callable[[S, Path], float]

    def run(self, args: argparse.Namespace) -> None:
        """Write the files, or compare with other weights."""
        worst = 0.0
        for name in args.names or self.specs:
            spec = self.specs[name]
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.gguf"
                if args.compare:
                    spec = replace(spec, seed=spec.seed + args.seed)
                    found = self.compare(spec, self.write(path, spec))
                    worst = max(worst, found)
                    print(f"{name:24} {found:.1e}")
                    continue
                arrays = self.computed(spec, self.write(path, spec))
            save(self.folder / f"{name}.npz", self.generator, arrays)
        if args.compare:
            print(f"largest difference over the range of logits: {worst:.1e}")
