from __future__ import annotations

import torch

from aleator.device.peak import PeakBytes


def test_counts_what_lives_at_once() -> None:
    for device in ("cpu", "meta"):
        with PeakBytes() as peak:
            a = torch.zeros(1000, device=device)
            assert peak.now == 4000
            b = a[:10].view(2, 5)  # a view takes nothing
            c = (a + 1) * 2  # two, of which one goes
            assert (peak.now, peak.most) == (8000, 12000)
            del a
            assert peak.now == 8000  # the view holds it
            del b
            assert peak.now == 4000
            c.add_(1)
            del c
        assert peak.now == 0
        assert peak.most == 12000
