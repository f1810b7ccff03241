"""Sampling and KV cache for language models: same seed, same token, everywhere.

``import aleator`` costs next to nothing; NumPy, the native module, torch and the rest load when first
used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aleator.core.errors import (
    AleatorError,
    CacheBusy,
    CacheError,
    CacheFull,
    CannotRewind,
    CannotShift,
    ConstraintError,
    ContextFull,
    Corrupt,
    DeviceOutOfMemory,
    DialectWarning,
    EngineClosed,
    FileFormatError,
    GrammarError,
    HubError,
    Incompatible,
    InvalidBatch,
    LogitsError,
    ModelNotFound,
    NoCells,
    NoLogits,
    NotCopyable,
    OtherSession,
    ParameterError,
    QueueFull,
    SessionInUse,
    StateError,
    TemplateError,
    TokenizerError,
    UnsupportedModel,
)
from aleator.core.on_demand import on_demand
from aleator.core.version import __version__ as __version__

if TYPE_CHECKING:
    from aleator import generate, ops, samplers, text
    from aleator.chat import ChatGeneration, Conversation, Message, ToolCall
    from aleator.device.chain import DeviceChain
    from aleator.device.sharding import ShardedChain
    from aleator.engine import Engine, EngineStats
    from aleator.generate.generation import Generation
    from aleator.generate.session import Session
    from aleator.generate.session_file import SessionFile
    from aleator.language_model import LanguageModel, load
    from aleator.samplers import Candidates, SamplerChain, SamplingParams, preset
    from aleator.samplers.synthid import SynthIDTest, detect_synthid
    from aleator.samplers.watermark import WatermarkKey, WatermarkTest, detect_watermark


__all__ = [
    "AleatorError",
    "CacheBusy",
    "CacheError",
    "CacheFull",
    "Candidates",
    "CannotRewind",
    "CannotShift",
    "ChatGeneration",
    "ConstraintError",
    "ContextFull",
    "Conversation",
    "Corrupt",
    "DeviceChain",
    "DeviceOutOfMemory",
    "DialectWarning",
    "Engine",
    "EngineClosed",
    "EngineStats",
    "FileFormatError",
    "Generation",
    "Grammar",
    "GrammarError",
    "HubError",
    "Incompatible",
    "InvalidBatch",
    "JSONSchema",
    "LanguageModel",
    "Lark",
    "LogitsError",
    "Message",
    "ModelNotFound",
    "NoCells",
    "NoLogits",
    "NotCopyable",
    "OtherSession",
    "ParameterError",
    "QueueFull",
    "Regex",
    "SamplerChain",
    "SamplingParams",
    "Session",
    "SessionFile",
    "SessionInUse",
    "ShardedChain",
    "StateError",
    "SynthIDTest",
    "TemplateError",
    "TokenizerError",
    "ToolCall",
    "UnsupportedModel",
    "WatermarkKey",
    "WatermarkTest",
    "detect_synthid",
    "detect_watermark",
    "generate",
    "load",
    "ops",
    "preset",
    "samplers",
    "text",
]

__getattr__ = on_demand(
    __name__,
    {
        "": "generate ops samplers text",
        "chat": "ChatGeneration Conversation Message ToolCall",
        "device.chain": "DeviceChain",
        "device.sharding": "ShardedChain",
        "engine": "Engine EngineStats",
        "generate.generation": "Generation",
        "generate.session": "Session",
        "generate.session_file": "SessionFile",
        "language_model": "LanguageModel load",
        "samplers": "Candidates Grammar JSONSchema Lark Regex SamplerChain SamplingParams preset",
        "samplers.synthid": "SynthIDTest detect_synthid",
        "samplers.watermark": "WatermarkKey WatermarkTest detect_watermark",
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
