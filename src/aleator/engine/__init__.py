"""Many requests over one context: who joins when, what a step computes, and the streams of their texts."""

from aleator.engine.engine import Engine
from aleator.engine.stats import EngineStats

__all__ = ["Engine", "EngineStats"]
