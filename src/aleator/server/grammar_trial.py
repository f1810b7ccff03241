"""A process that compiles grammars, one a line, and says how it went; see grammars.py.

python -m aleator.server.grammar_trial MODEL
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

from aleator.core.errors import AleatorError, GrammarError
from aleator.language_model import load_vocabulary
from aleator.models.weights import open_weights
from aleator.server.grammars import prepare, sampler_of
from aleator.text.tokenizer import Tokenizer

PAGESIZE = resource.getpagesize()


def main() -> None:
    """Answer lines until there are no more."""
    tokenizer = Tokenizer(load_vocabulary(open_weights(sys.argv[1])))
    prepare(tokenizer)
    _say({})
    for line in sys.stdin:
        try:
            before = resident()
            constraint = sampler_of(json.loads(line)).bound(tokenizer).constraint.clone()
            if not constraint.waiting:
                constraint.mask()
            _say({"bytes": max(0, resident() - before)})
        except GrammarError as error:
            _say({"error": str(error), "line": error.line, "column": error.column})
        except AleatorError as error:
            _say({"error": str(error), "line": 0, "column": 0})


def resident() -> int:
    """Bytes of this process that are in memory; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * PAGESIZE
    except OSError:
        return 0


def _say(answer: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
