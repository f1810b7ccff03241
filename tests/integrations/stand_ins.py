"""Modules of packages that are not installed, with the shapes that their wheels have."""

from __future__ import annotations

import importlib
import sys
from abc import ABC
from dataclasses import dataclass, field
from enum import Enum, auto
from importlib import metadata
from types import ModuleType
from typing import Any

import numpy as np
import pytest


def install(patch: pytest.MonkeyPatch, modules: dict[str, dict[str, Any]], version: str) -> None:
    """Let the names be importable, and every distribution seem to have a version."""
    for name, content in modules.items():
        parts = name.split(".")
        for i in range(1, len(parts) + 1):
            path = ".".join(parts[:i])
            if path not in sys.modules or not hasattr(sys.modules[path], "stands_in"):
                made = ModuleType(path)
                made.__dict__.update(stands_in=True, __path__=[])
                patch.setitem(sys.modules, path, made)
                if i > 1:
                    setattr(sys.modules[".".join(parts[: i - 1])], parts[i - 1], made)
        sys.modules[name].__dict__.update(content)
    patch.setattr(metadata, "version", lambda name: version)


def adapter(patch: pytest.MonkeyPatch, name: str) -> Any:
    """An adapter's module, imported over what stands in for its package."""
    patch.delitem(sys.modules, f"aleator.integrations.{name}", raising=False)
    module = importlib.import_module(f"aleator.integrations.{name}")
    patch.setitem(sys.modules, f"aleator.integrations.{name}", module)
    return module


# vLLM 0.32.0


class MoveDirectionality(Enum):
    UNIDIRECTIONAL = auto()
    SWAP = auto()


class V1LogitsProcessor(ABC):  # noqa: B024
    pass


class V2LogitsProcessor(ABC):  # noqa: B024
    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        raise AssertionError("ours has its own")


@dataclass
class VllmParams:
    """Fields of vllm.SamplingParams that the adapter looks at."""

    extra_args: dict[str, Any] | None = None
    n: int = 1
    seed: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    thinking_token_budget: int | None = None


@dataclass
class BatchUpdate:
    batch_size: int = 0
    removed: list[int] = field(default_factory=list)
    added: list[Any] = field(default_factory=list)
    moved: list[Any] = field(default_factory=list)


class Platform:
    cpu = True

    def is_cpu(self) -> bool:
        return self.cpu


VLLM: dict[str, dict[str, Any]] = {
    "vllm.platforms": {"current_platform": Platform()},
    "vllm.v1.sample.logits_processor": {
        "LogitsProcessor": V1LogitsProcessor,
        "MoveDirectionality": MoveDirectionality,
    },
    "vllm.v1.worker.gpu.sample.logits_processor": {"LogitsProcessor": V2LogitsProcessor},
}


# llama-cpp-python 0.3.36


class LlamaState:
    def __init__(
        self,
        input_ids: Any,
        scores: Any,
        n_tokens: int,
        llama_state: bytes,
        llama_state_size: int,
        seed: int,
    ) -> None:
        self.input_ids, self.scores, self.n_tokens = input_ids, scores, n_tokens
        self.llama_state, self.llama_state_size, self.seed = llama_state, llama_state_size, seed


LLAMA: dict[str, dict[str, Any]] = {"llama_cpp": {"Llama": object, "LlamaState": LlamaState}}


# SGLang 0.5.23


class CustomLogitProcessor(ABC):  # noqa: B024
    @classmethod
    def to_str(cls) -> str:
        return cls.__name__


class Sampler:
    """Only the way from forward to _sample_from_probs."""

    def forward(self, logits_output: Any, sampling_info: Any, positions: Any) -> Any:
        logits = logits_output.next_token_logits
        logits.div_(sampling_info.temperatures)
        logits[:] = logits.softmax(-1)
        return self._sample_from_probs(logits, sampling_info, positions, False)

    def _sample_from_probs(self, *args: Any) -> Any:
        raise NotImplementedError


_REGISTERED: dict[str, Any] = {}
SGLANG: dict[str, dict[str, Any]] = {
    "sglang.srt.sampling.custom_logit_processor": {"CustomLogitProcessor": CustomLogitProcessor},
    "sglang.srt.layers.sampler": {
        "Sampler": Sampler,
        "register_sampler_backend": _REGISTERED.__setitem__,
        "registered": _REGISTERED,
    },
}


# mlx 0.32.4 and mlx-lm 0.32.2


class MlxArray:
    """An array that is not NumPy's, as far as the adapter uses one."""

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)
        self.shape, self.ndim = self.values.shape, self.values.ndim

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self.values, dtype)

    def astype(self, dtype: Any) -> MlxArray:
        return MlxArray(self.values.astype(dtype))


MLX: dict[str, dict[str, Any]] = {"mlx.core": {"array": MlxArray, "float32": np.float32}}
