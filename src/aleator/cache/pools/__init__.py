"""Pools of cells, of windows and of recurrent states, behind one protocol."""
