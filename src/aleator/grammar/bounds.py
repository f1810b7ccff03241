"""Limits of grammars: one number for every notation (docs/grammar.md, "Limits").

Each notation counts what determines its memory and time.  GBNF counts the elements of its rules with
repetitions expanded (native/grammar/gbnf.hpp).  The others count the expressions that llguidance makes before
the first token.  Its symbols weigh more, since their time grows quadratically, and so do the units of
``multipleOf``, each of which is a state of an automaton.
"""

from __future__ import annotations

from aleator.core import host

ELEMENTS: int = host.GRAMMAR_ELEMENTS
"""Maximum size of a grammar, in elements."""
SYMBOL = 20
"""Elements that a symbol counts for: 50,000 symbols, some thousand optional properties, take seconds."""
MULTIPLE = 4
"""Elements that a unit of ``multipleOf`` counts for: 250,000 units take some 90 MiB, and seconds."""
STEP_FUEL = 200_000
STEP_ITEMS = 50_000
"""Maximum work for one mask, for which other sequences wait, in llguidance's units; GBNF has its own."""
STATES = 250_000
"""Maximum states of a lexer, which are made when texts reach them."""

TOO_MUCH = f"it asks for more than {ELEMENTS} elements: repeat less, or shorter parts"
