"""Records what llama.cpp computes with the small random models, so that tests need no llama.cpp.

    python tools/golden_models.py [NAME ...]            writes the files of models or architectures
    python tools/golden_models.py --compare [NAME ...]  makes other weights, and compares prefills live

The models are those of make_models.py, delta_models.py (a file for each architecture in tests/data/logits),
dense_models.py and hybrid_models.py (a file for each model in tests/data/golden_dense and golden_hybrid).
Needs llama-cpp-python (the extra ``bench``).  Everything is in float32 (cache too), without flash attention, on
one thread.  Per model: logits of a prefill; a greedy continuation; a script of sequences that share a
prefix, diverge, and are cut, shifted or forked.  For all except make_models.py's models also: the results of
removals, the state of a sequence, and logits after it was restored in another.  ``--compare`` computes the same
prefill with aleator, whose package must be importable, with weights of other seeds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
from delta_models import Delta
from dense_shapes import Dense
from hybrid_models import Hybrid
from llama_peer import VERSION, Context, prompt, save
from make_models import Spec
from run_report import parser
from wide_models import SMALL, AnySpec, write_model

DATA = Path("tests/data")
Arrays = dict[str, npt.NDArray[Any]]
N_GREEDY = 64
N_STATE = 6
"""Tokens of the sequence whose state is kept."""
REMOVALS: dict[type, tuple[tuple[int, int], ...]] = {
    Delta: ((3, -1), (9, 12)),
    Dense: ((4, 5), (3, -1), (9, 12)),
    Hybrid: ((3, -1), (2, 4), (9, 12)),
}
"""Ranges of positions that are removed, by the kind of the model."""
CANNOT_SHIFT = ("qwen2vl", "qwen3vl", "qwen3vlmoe", "hunyuan_vl", "paddleocr")
"""Architectures for which llama.cpp ends the process when positions are shifted: M-RoPE."""
LATE = {"llama4": 8180}
"""Architectures whose logits are also kept at later positions -> the first: the text crosses a chunk's end."""


def greedy(llama: Context, tokens: list[int], logits: npt.NDArray[np.float32]) -> list[int]:
    """The tokens llama.cpp continues with, from the prompt's logits."""
    out: list[int] = []
    while len(out) < N_GREEDY:
        out.append(int(logits[-1].argmax()))
        logits = llama.decode([(out[-1], len(tokens) + len(out) - 1, [0])])
    return out


def cut_and_shifted(llama: Context, tokens: list[int]) -> npt.NDArray[np.float32]:
    """Two sequences share a prefix and diverge; one is cut and shifted."""
    llama.verb("clear")
    rows = [llama.decode([(t, i, [0, 1]) for i, t in enumerate(tokens[:6])])[-1:]]
    rows.append(llama.decode([(tokens[6], 6, [0]), (tokens[7], 6, [1]), (tokens[8], 7, [1])]))
    llama.verb("rm", 1, 2, 4)
    llama.verb("add", 1, 4, -1, -2)
    llama.verb("cp", 1, 2, -1, -1)
    rows.append(llama.decode([(tokens[9], 6, [1]), (tokens[10], 6, [2])]))
    llama.verb("rm", 0, -1, -1)
    rows.append(llama.decode([(tokens[11 + i], 7, [1 + i]) for i in range(2)]))
    return np.concatenate(rows)


def forked(llama: Context, tokens: list[int], relabelled: bool = False) -> npt.NDArray[np.float32]:
    """A sequence is forked (with states only: relabelled); its copies continue side by side in a batch."""
    llama.verb("clear")
    rows = [llama.prefill(tokens[:6])[-1:]]
    llama.verb("cp", 0, 1, -1, -1)
    rows.append(llama.decode([(tokens[6], 6, [0]), (tokens[7], 6, [1])]))
    if relabelled:
        llama.verb("cp", 1, 2, -1, -1)
        llama.verb("add", 2, 0, -1, -2)
        rows.append(llama.decode([(tokens[8], 5, [1]), (tokens[9], 5, [2])]))
    llama.verb("rm", 0, -1, -1)
    at = 6 if relabelled else 7
    fresh = [(tokens[10 + i], i, [0]) for i in range(3)]
    rows.append(llama.decode([(tokens[13 + i], at + i, [1]) for i in range(3)] + fresh))
    return np.concatenate(rows)


def script(spec: AnySpec) -> Callable[[Context, list[int]], npt.NDArray[np.float32]]:
    """What a model's sequences go through."""
    states_alone = spec.arch == "mamba" or (isinstance(spec, Hybrid) and not spec.has_attention)
    if states_alone:
        return lambda llama, tokens: forked(llama, tokens, relabelled=True)
    return forked if isinstance(spec, Hybrid | Delta) or spec.arch == "jamba" else cut_and_shifted


def edits(llama: Context, spec: AnySpec, tokens: list[int]) -> Arrays:
    """Results of removals, and a sequence that is saved, changed and restored as another."""
    llama.verb("clear")
    llama.prefill(tokens[:N_STATE])
    state = llama.sequence(0)
    answers = [int(llama.verb("rm", 0, p0, p1)) for p0, p1 in REMOVALS[type(spec)]]
    answers.append(int(llama.restore(state, 1)))
    restored = llama.decode([(tokens[N_STATE], N_STATE, [1])])
    if isinstance(spec, Delta):
        answers = [int(llama_cpp.llama_memory_can_shift(llama.memory)), *answers]
    if isinstance(spec, Dense):  # and a batch that does not fit
        llama.verb("clear")
        llama.prefill([t % llama.n_vocab for t in range(250)])
        too_many = [(t % llama.n_vocab, 250 + t, [0]) for t in range(10)]
        answers.append(llama.try_decode(too_many)[0])
    return {
        "answers": np.array(answers, np.int32),
        "restored": restored,
        "state": np.frombuffer(state, np.uint8),
    }


def computed(spec: AnySpec, path: Path) -> Arrays:
    """All that is kept of a model."""
    llama, tokens = Context(path), prompt(spec.n_vocab)
    logits = llama.prefill(tokens)
    made: Arrays = {"prefill": logits if isinstance(spec, Spec | Delta) else logits[3::4]}
    made["greedy"] = np.array(greedy(llama, tokens, logits), np.int32)
    if spec.arch not in CANNOT_SHIFT:
        made["script"] = script(spec)(llama, tokens)
    if spec.arch in LATE:
        llama.verb("clear")
        made["late"] = llama.decode([(t, LATE[spec.arch] + i, [0]) for i, t in enumerate(tokens)])
    if not isinstance(spec, Spec) and spec.context >= 256:
        made |= edits(llama, spec, tokens)
    llama.close()
    return made


def difference(spec: AnySpec, path: Path) -> float:
    """The largest difference from aleator's logits of a prefill, over their range."""
    from aleator.generate import Batch
    from aleator.generate import Context as Ours
    from aleator.models import build_decoder, open_weights

    tokens = prompt(spec.n_vocab, 150 if isinstance(spec, Delta) else 48, spec.seed)
    llama = Context(path)
    theirs = llama.prefill(tokens)
    llama.close()
    decoder = build_decoder(open_weights(path))
    attends = spec.has_attention if isinstance(spec, Hybrid) else spec.arch != "mamba"
    types: dict[str, Any] = {"type_k": "f32", "type_v": "f32"} if attends else {}
    context = Ours(decoder, n_ctx=256, n_threads=1, **types)
    ours = np.asarray(context.decode(Batch.one(tokens, 0, logits=True)))
    return float(np.abs(ours - theirs).max() / (theirs.max() - theirs.min()))


def file_of(name: str) -> Path:
    """The file that a model is kept in."""
    spec = SMALL[name]
    if isinstance(spec, Spec | Delta):
        return DATA / "logits" / f"{spec.arch}.npz"
    return DATA / ("golden_dense" if isinstance(spec, Dense) else "golden_hybrid") / f"{name}.npz"


def main() -> None:
    asked = parser(__doc__)
    asked.add_argument("names", nargs="*", metavar="NAME", help="models or architectures; or all")
    asked.add_argument("--compare", action="store_true", help="compare models with other weights")
    asked.add_argument("--seed", type=int, default=1000, help="added to the models' own")
    args = asked.parse_args()
    known = {*SMALL, *(spec.arch for spec in SMALL.values())}
    if unknown := set(args.names) - known:
        asked.error(f"unknown: {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    chosen = [n for n, s in SMALL.items() if not args.names or {n, s.arch} & set(args.names)]
    with tempfile.TemporaryDirectory() as folder:
        path, worst = Path(folder) / "model.gguf", 0.0
        for name in chosen if args.compare else ():
            spec = replace(SMALL[name], seed=SMALL[name].seed + args.seed)
            found = difference(spec, write_model(path, spec))
            worst = max(worst, found)
            print(f"{name:24} {found:.1e}", flush=True)
        for out in () if args.compare else dict.fromkeys(map(file_of, chosen)):
            arrays: Arrays = {"generator": np.array(f"tools/golden_models.py, {VERSION}")}
            for name in (each for each in SMALL if file_of(each) == out):
                at = f"{name}/" if out.parent.name == "logits" else ""
                made = computed(SMALL[name], write_model(path, SMALL[name]))
                arrays |= {at + key: value for key, value in made.items()}
            save(out, arrays)
    if args.compare:
        print(f"largest difference over the range of logits: {worst:.1e}")


if __name__ == "__main__":
    main()
