"""Runs many requests over one context: admission, what each step computes, and the text streams."""

from typing import TYPE_CHECKING

from aleator.core.on_demand import on_demand

if TYPE_CHECKING:
    from aleator.engine.engine import Engine as Engine
    from aleator.engine.stats import EngineStats as EngineStats

__getattr__ = on_demand(__name__, {"engine": "Engine", "stats": "EngineStats"})
