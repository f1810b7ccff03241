"""Grammars that constrain the output: GBNF, and engines of other packages behind one interface."""

from __future__ import annotations

from aleator.grammar.gbnf import compile_gbnf

__all__ = ["compile_gbnf"]
