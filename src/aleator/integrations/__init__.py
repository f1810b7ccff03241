"""Adapters to other packages, each in a module of its own; none is imported that is not asked for."""
