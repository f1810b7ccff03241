"""Sampling and KV cache for language models: same seed, same token, everywhere.

``import aleator`` costs next to nothing; NumPy, the native module, torch and the rest load when first
used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

# Names that are imported when first used, and where from; None: a subpackage.
_LAZY = {
    "Candidates": "aleator.samplers",
    "ChatGeneration": "aleator.chat",
    "Conversation": "aleator.chat",
    "Message": "aleator.chat",
    "ToolCall": "aleator.chat",
    "DeviceChain": "aleator.device.chain",
    "Engine": "aleator.engine",
    "EngineStats": "aleator.engine",
    "Grammar": "aleator.samplers",
    "JSONSchema": "aleator.samplers",
    "Lark": "aleator.samplers",
    "Regex": "aleator.samplers",
    "SamplerChain": "aleator.samplers",
    "SamplingParams": "aleator.samplers",
    "preset": "aleator.samplers",
    "WatermarkKey": "aleator.samplers.watermark",
    "WatermarkTest": "aleator.samplers.watermark",
    "SynthIDTest": "aleator.samplers.synthid",
    "detect_synthid": "aleator.samplers.synthid",
    "detect_watermark": "aleator.samplers.watermark",
    "Generation": "aleator.generate.generation",
    "Session": "aleator.generate.session",
    "SessionFile": "aleator.generate.session_file",
    "ShardedChain": "aleator.device.sharding",
    "LanguageModel": "aleator.language_model",
    "load": "aleator.language_model",
    "generate": None,
    "ops": None,
    "samplers": None,
    "text": None,
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _LAZY[name]
    value = import_module(f"aleator.{name}") if home is None else getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
