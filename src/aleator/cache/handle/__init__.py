"""Handles on sequences: fork, cut, shift, rewind; each operation is exact or refused."""
