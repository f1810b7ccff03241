"""The command ``aleator``, also ``python -m aleator``."""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """Run the command line of this process; return the exit code.

    Until its command is imported Ctrl-C ends the process at once: some imports turn an interrupt into
    another error.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    from aleator.cli import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
