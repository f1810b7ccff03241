"""Pools: cells with their rows, windows of them, and recurrent states, behind one protocol."""
