"""A process that compiles grammars, one per line, and reports the results; see grammar_limits.py.

python -m aleator.server.grammar_trial MODEL
"""

from __future__ import annotations

import json
import sys
from typing import Any

from aleator.core.errors import AleatorError, GrammarError
from aleator.language_model import load_vocabulary
from aleator.models.weights import open_weights
from aleator.server.grammars import prepare, sampler_of
from aleator.server.native_memory import allocated_bytes
from aleator.text.tokenizer import Tokenizer


def main() -> None:
    """Answer lines until there are no more."""
    tokenizer = Tokenizer(load_vocabulary(open_weights(sys.argv[1])))
    prepare(tokenizer)
    _say({})
    for line in sys.stdin:
        try:
            _say({"bytes": _taken(json.loads(line), tokenizer)})
        except GrammarError as error:
            _say({"error": str(error), "line": error.line, "column": error.column})
        except AleatorError as error:
            _say({"error": str(error), "line": 0, "column": 0})


def _taken(grammar: dict[str, Any], tokenizer: Tokenizer) -> int:
    """Compile a grammar, up to its first mask; return its bytes of memory."""
    before = allocated_bytes()
    constraint = sampler_of(grammar).bound(tokenizer).constraint.clone()
    if not constraint.waiting:
        constraint.mask()
    return max(0, allocated_bytes() - before)


def _say(answer: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
