"""Grammars: which token may come next."""

from __future__ import annotations

from aleator.grammar.gbnf import compile_gbnf

__all__ = ["compile_gbnf"]
