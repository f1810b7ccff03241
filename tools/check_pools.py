"""Random operations on recurrent states, live against llama.cpp: positions, answers and logits.

    python tools/check_pools.py --seeds 6

Needs llama-cpp-python (the extra ``bench``).  Windows are not compared so: llama.cpp uses window cells again,
even with ``swa_full``, and after a rewind that needs them goes on with wrong logits; tests/cache/test_window.py
compares with texts computed afresh.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

import llama_cpp
import numpy as np
from golden_pools import Pools
from make_models import SPECS, write_model

from aleator.core.errors import CannotRewind
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights


def compare(path: Path, seed: int) -> tuple[int, float]:
    """Decodes that were compared, and how far logits were apart at most."""
    r, llama, m = random.Random(seed), Pools(path), llama_cpp
    memory, ctx = llama.memory, Context(build_decoder(open_weights(path)), n_ubatch=16, n_seq_max=4)
    cache, n, worst = ctx.cache, 0, 0.0
    for _ in range(60):
        action, s = r.random(), r.randrange(4)
        if action < 0.55:
            rows = [
                (r.randrange(llama.n_vocab), cache.seq_pos_max(q) + 1 + i, [q])
                for q in r.sample(range(4), r.randint(1, 3))
                for i in range(r.randint(1, 16))
            ]
            batch = Batch()
            for token, pos, seqs in rows:
                batch.add(token, pos, seqs, logits=True)
            ours, theirs = ctx.decode(batch).numpy(), llama.decode(rows)
            worst, n = max(worst, float(np.abs(ours - theirs).max() / np.ptp(theirs))), n + 1
        elif action < 0.7:
            p0, p1 = r.randint(0, 20), r.choice([-1, r.randint(0, 25)])
            try:
                answer = cache.seq_rm(s, p0, p1)
            except CannotRewind:
                answer = False
            if answer != bool(m.llama_memory_seq_rm(memory, s, p0, p1)):
                raise SystemExit(f"seed {seed}: seq_rm({s}, {p0}, {p1}) answers {answer}")
        elif action < 0.85:
            cache.seq_cp(s, (s + 1) % 4)
            m.llama_memory_seq_cp(memory, s, (s + 1) % 4, -1, -1)
        elif action < 0.93 and cache.seq_pos_max(s) > 5:
            cache.seq_add(s, 0, -1, -3)
            m.llama_memory_seq_add(memory, s, 0, -1, -3)
        elif action >= 0.93:
            cache.seq_keep(s)
            m.llama_memory_seq_keep(memory, s)
        cache.check()
        mine = [[cache.seq_pos_min(q), cache.seq_pos_max(q)] for q in range(4)]
        if mine != llama.ranges():
            raise SystemExit(f"seed {seed}: positions {mine}, llama.cpp's {llama.ranges()}")
    llama.close()
    return n, worst


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=6)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(Path(folder) / "model.gguf", SPECS["mamba"])
        found = [compare(path, seed) for seed in range(args.seeds)]
    worst = max(apart for _, apart in found)
    print(f"mamba: {sum(n for n, _ in found)} decodes, logits apart {worst:.1e} of their range")
    if worst > 1e-4:
        raise SystemExit("too far")


if __name__ == "__main__":
    main()
