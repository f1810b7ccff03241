"""One context for many requests: who joins when, what a step computes, and the streams that come of it."""

from aleator.engine.engine import Engine
from aleator.engine.stats import EngineStats

__all__ = ["Engine", "EngineStats"]
