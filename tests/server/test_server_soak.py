from __future__ import annotations

import math

from server_soak import MULTIPLES, run


def test_a_server_at_its_limit_stays_whole() -> None:
    """A short one; tools/server_soak.py takes as long as it is told."""
    soak, told = run(4.0, 8, 3)
    assert soak.wrong == []
    assert sum(soak.counts.values()) > 5
    assert len(told) == 3


def test_the_schemas_that_are_refused_need_all_their_states() -> None:
    # A multiple of 2 or 5 has fewer: such a schema is compiled in time on a fast machine, and answered.
    assert all(math.gcd(each, 10) == 1 for each in MULTIPLES)
