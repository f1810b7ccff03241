"""The same bits from every instruction set: a digest of many chains, in one process per set."""

from __future__ import annotations

import os
import subprocess
import sys

DIGEST = """
import hashlib, numpy as np
from aleator import samplers as S
from aleator.core import host
digest = hashlib.sha256()
for n in (1, 130, 4096, 40000):
    rng = np.random.default_rng(n)
    for spread in (0.01, 1, 8):
        logits = (rng.normal(size=n) * spread).astype(np.float32)
        for dtype in (np.float32, np.float16):
            row = logits.astype(dtype)
            for samplers in ([S.Dist(5)], [S.Dist(5, draw="gumbel")],
                             [S.TopK(40), S.TopP(0.9), S.Temperature(0.7), S.Dist(5)],
                             [S.Temperature(1.3), S.TopP(0.97), S.Dist(5)],
                             [S.MinP(0.02), S.Dist(5)], [S.Greedy()], [S.TopNSigma(1.0), S.Dist(5)],
                             [S.PLess("on"), S.Dist(5)], [S.MinK(3.0), S.Dist(5)],
                             [S.Temperature(3.0), S.PLess("normalized"), S.Dist(5)],
                             [S.Temperature(2.0), S.TopH(0.8), S.Dist(5)],
                             [S.TypicalP(0.8), S.MirostatV2(seed=5)]):
                chain = S.SamplerChain(samplers)
                candidates = S.Candidates(row)
                chain.apply(candidates)
                digest.update(np.int64(candidates.selected).tobytes())
                digest.update(candidates.ids.tobytes() + candidates.probs.tobytes())
print(host.isa(), digest.hexdigest())
"""


def run(isa: str) -> tuple[str, str]:
    environment = {**os.environ, "ALEATOR_ISA": isa}
    out = subprocess.run(
        [sys.executable, "-c", DIGEST], env=environment, check=True, capture_output=True, text=True
    )
    used, digest = out.stdout.split()
    return used, digest


def test_every_instruction_set_gives_the_same_bits() -> None:
    results = dict(run(isa) for isa in ("base", "v3", "v4"))
    assert "base" in results
    assert len(set(results.values())) == 1
