"""Random operations on window and recurrent caches, live against llama.cpp.

    python tools/check_pools.py --seeds 6

Needs llama-cpp-python (the extra ``bench``).  It compares positions after every operation, return values,
logits, states, and the results of reading each other's states.  Rewinds that Aleator refuses are skipped in
llama.cpp.  Faults of llama.cpp 0.5:

- A rewind to positions that have left the window is accepted, and gives wrong logits.  Here: CannotRewind.
- With ``swa_full`` cells that have left a window are reused while others are free: after cuts and copies logits
  are wrong.
- A batch of several micro-batches frees, before computing the first, the cells that the last needs: logits are
  wrong.
- Cells that several sequences own are never reused, until decoding fails with 1.
- A copy between streams is delayed until the next decode: a state written before that lacks it.
- A copy of a rewound recurrent sequence takes the wrong state; rewinding one of two that share a state relabels
  the other; a rewind of several tokens is wrong after a short micro-batch; positions below 0 are inconsistent.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from golden_cache import GEMMA3, MAMBA, pooled
from make_models import write_model

from aleator.core.errors import CannotRewind
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights

# gemma3 rounds GELU to float16 (docs/numerics.md), so a last bit may grow to one of float16's.
NEAR = {"gemma3": 3e-3, "mamba": 1e-4}


class Pair:
    """A context of each engine, which must stay alike."""

    def __init__(self, path: Path, seed: int) -> None:
        self.r, self.llama = random.Random(seed), pooled(path)
        cells: dict[str, Any] = {"type_k": "f32", "type_v": "f32", "flash_attn": False}
        decoder = build_decoder(open_weights(path))
        self.ctx = Context(decoder, n_ctx=1024, n_ubatch=16, n_seq_max=4, **cells)
        self.cache: Any = self.ctx.cache
        self.recurrent = self.cache.architecture == "mamba"
        self.worst, self.decodes, self.states = 0.0, 0, 0

    def decode(self) -> None:
        r, cache = self.r, self.cache
        chosen = r.sample(range(4), r.randint(1, 3))
        # With windows, one micro-batch: llama.cpp frees cells for later ones before it computes the first.
        most = 30 if self.recurrent else 16 // len(chosen)
        rows = [
            (r.randrange(self.llama.n_vocab), cache.seq_pos_max(q) + 1 + i, [q])
            for q in chosen
            for i in range(r.randint(1, most))
        ]
        if not self.recurrent and cache.used + len(rows) > cache.size:
            return
        batch = Batch()
        for token, pos, seqs in rows:
            batch.add(token, pos, seqs, logits=True)
        ours, theirs = self.ctx.decode(batch), self.llama.decode(rows)
        self.worst = max(self.worst, float(np.abs(ours - theirs).max() / np.ptp(theirs)))
        self.decodes += 1

    def remove(self, s: int) -> None:
        newest = self.cache.seq_pos_max(s)
        p0, p1 = max(0, newest - self.r.choice([0, 1, 5, 20, 100, 2000])), -1
        if self.recurrent:
            p1 = self.r.choice([-1, self.r.randint(0, 25)])
        try:
            answer = self.cache.seq_rm(s, p0, p1)
        except CannotRewind:
            if not self.recurrent:
                return
            answer = False
        theirs = bool(self.llama.verb("rm", s, p0, p1))
        if answer != theirs:
            raise SystemExit(f"seq_rm({s}, {p0}, {p1}) answers {answer}")

    def copy(self, s: int) -> None:
        to = (s + 1) % 4
        self.cache.seq_rm(to)
        self.cache.seq_cp(s, to)
        self.llama.verb("rm", to, -1, -1)
        self.llama.verb("cp", s, to, -1, -1)

    def relabel(self, s: int) -> None:
        if self.recurrent and self.cache.seq_pos_max(s) > 5:
            self.cache.seq_add(s, 0, -1, -3)
            self.llama.verb("add", s, 0, -1, -3)

    def keep(self, s: int) -> None:
        self.cache.seq_keep(s)
        self.llama.verb("keep", s)

    def exchange(self, s: int) -> None:
        """In both, restore sequence s from the other's state of sequence s + 1."""
        ours, theirs = self.cache.state_write((s + 1) % 4), self.llama.sequence((s + 1) % 4)
        a, b = (np.frombuffer(blob, "<f4", offset=8) for blob in (ours, theirs))
        if len(a) != len(b) or not bool(
            ((a.view("<u4") == b.view("<u4")) | (abs(a - b) < 1e-2)).all()
        ):
            raise SystemExit(f"the states of sequence {(s + 1) % 4} differ")
        done = self.llama.restore(ours, s)
        self.cache.state_read(theirs, s)
        if not done:
            raise SystemExit("llama.cpp does not read our state")
        self.states += 1

    def step(self) -> None:
        action, s = self.r.random(), self.r.randrange(4)
        for share, run in ((0.15, self.remove), (0.27, self.copy), (0.35, self.relabel),
                           (0.39, self.keep), (0.43, self.exchange)):  # fmt: skip
            if action < share:
                run(s)
                break
        else:
            self.decode()
        self.cache.check()
        mine = [[self.cache.seq_pos_min(q), self.cache.seq_pos_max(q)] for q in range(4)]
        if mine != self.llama.ranges():
            raise SystemExit(f"positions {mine}, llama.cpp's {self.llama.ranges()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, spec in (("gemma3", GEMMA3), ("mamba", MAMBA)):
            path = write_model(Path(folder) / f"{name}.gguf", spec)
            pairs = []
            for seed in range(args.seeds):
                pairs.append(pair := Pair(path, seed))
                for _ in range(args.steps):
                    pair.step()
                pair.llama.close()
            worst = max(pair.worst for pair in pairs)
            decodes, states = (sum(getattr(p, n) for p in pairs) for n in ("decodes", "states"))
            print(f"{name}: {decodes} decodes, {states} states, logits apart {worst:.1e}")
            if worst > NEAR[name]:
                raise SystemExit("too far")


if __name__ == "__main__":
    main()
