"""Chains and kernels that several tests of device chains use."""

from __future__ import annotations

import os

from aleator.samplers import index as S

UNBOUNDED = S.DRY(
    dry_multiplier=0.8, dry_allowed_length=1, dry_penalty_last_n=-1, dry_sequence_breakers=()
)
"""It runs on the host: a device compares within a bounded window."""

# Under Triton's interpreter, in a process of its own: tests/device/test_triton_chain.py.
KERNELS = ("triton",) if os.environ.get("TRITON_INTERPRET") == "1" else ("torch", "host")

TEMPLATE = [
    S.LogitBias(),
    S.Penalties(),
    S.TopK(top_k=40),
    S.TypicalP(),
    S.TopP(top_p=0.9),
    S.MinP(),
    S.XTC(),
    S.Temperature(temperature=0.8),
    S.Dist(),
]
