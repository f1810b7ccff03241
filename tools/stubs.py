"""Write or check src/aleator/_native.pyi, the types of the native module.

python tools/stubs.py            writes it
python tools/stubs.py --check    fails if it is stale
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

STUB = Path(__file__).parent.parent / "src" / "aleator" / "_native.pyi"


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "_native.pyi"
        subprocess.run(
            [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "aleator._native", "-o", made],
            check=True,
        )
        text = made.read_text()
    if "--check" not in sys.argv[1:]:
        STUB.write_text(text)
        return 0
    if STUB.read_text() != text:
        print(f"{STUB} is stale: run 'make stubs'", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
