"""How much a grammar may ask for: one number for every notation (docs/grammar.md, "Limits").

Each notation counts what its memory and time grow with.  GBNF counts the elements of its rules, repetitions
written out (native/grammar/gbnf.hpp).  The others count the expressions that llguidance makes before the first
token; its symbols, whose time grows with their square, weigh more, and so do the units of ``multipleOf``, of
which each is a state of an automaton.
"""

from __future__ import annotations

from aleator.core import host

ELEMENTS: int = host.GRAMMAR_ELEMENTS
"""The most that a grammar may ask for, in elements."""
SYMBOL = 20
"""Elements that a symbol counts for: 50,000 symbols, about 6,000 optional properties, take some seconds."""
MULTIPLE = 4
"""Elements that a unit of ``multipleOf`` counts for: 250,000 units take 90 MiB and some seconds."""
STEP_FUEL = 200_000
STEP_ITEMS = 50_000
"""The work for one mask in llguidance's units: some 20 ms.  Native code counts its own, to some 100 ms."""
STATES = 250_000
"""States of a lexer, made as texts reach them."""

TOO_MUCH = f"it asks for more than {ELEMENTS} elements: repeat less, or shorter parts"
