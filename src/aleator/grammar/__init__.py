"""Grammars that constrain the output: GBNF, and engines of other packages behind one interface."""

from aleator.grammar.gbnf import compile_gbnf

__all__ = ["compile_gbnf"]
