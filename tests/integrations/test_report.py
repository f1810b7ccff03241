"""What tools/integrations.py writes of what scripts said."""

from __future__ import annotations

from integrations import report


def test_lines_of_a_report() -> None:
    log = "  [2026-11-23 11:40:16,342 I 16680 16680] (raylet) node_manager.cc:3647: Received"
    said = f"ray 2.60.0\n  a worker killed: equal\n{log}\nnot indented\n  240 s"
    made = report({"ray": (True, said), "mlx": (False, "no environment\n  FAILED: pip")})
    assert made.split("\n## ")[1:] == [
        "ray: ray 2.60.0\n\n- a worker killed: equal\n- 240 s\n",
        "mlx: no environment\n\nFAILED\n\n- FAILED: pip\n",
    ]
