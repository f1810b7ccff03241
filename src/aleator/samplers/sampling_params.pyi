"""``SamplingParams`` as its declarations make it; made by tools/stubs.py."""

import builtins
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Unpack

from aleator.keywords import SamplingKeywords
from aleator.samplers.base import Sampler
from aleator.samplers.chain import SamplerChain
from aleator.samplers.constrained import ConstraintSampler
from aleator.samplers.watermark import WatermarkKey

@dataclass(frozen=True, init=False)
class SamplingParams:
    """All sampling parameters: SamplingKeywords says what each is.

    Without arguments everything is neutral: presets hold opinions.
    """

    mirostat: int
    repetition_under_grammar: str
    allowed_token_ids: tuple[int, ...] | None
    stop_token_ids: tuple[int, ...]
    logit_bias: tuple[tuple[int | str, float], ...]
    min_tokens: int
    bad_words: tuple[str | tuple[int, ...], ...]
    no_repeat_ngram_size: int
    penalty_last_n: int
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    penalty_scope: str
    repetition_per: str
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: tuple[str | tuple[int, ...], ...]
    top_n_sigma: float
    min_k_tau: float
    top_k: int
    top_k_limit: int
    top_a: float
    tfs_z: float
    min_keep: int
    typical_p: float
    top_p: float
    mass: str
    min_p: float
    epsilon_cutoff: float
    eta_cutoff: float
    p_less: str
    top_h: float
    seed: int | None
    xtc_probability: float
    xtc_threshold: float
    temperature: float
    dynatemp_range: float
    dynatemp_exponent: float
    smoothing_factor: float
    smoothing_curve: float
    mirostat_tau: float
    mirostat_eta: float
    mirostat_m: int
    adaptive_target: float
    adaptive_decay: float
    draw: str
    watermark_key_file: WatermarkKey | None
    watermark_ngram: int
    samplers: tuple[str, ...]
    ignore_eos: bool
    numerics: str
    grammar: ConstraintSampler | None
    json_schema: ConstraintSampler | None
    regex: ConstraintSampler | None
    phases: tuple[tuple[str, Any], ...]
    def __init__(self, **values: Unpack[SamplingKeywords]) -> None: ...
    @classmethod
    def preset(cls, name: str, **changes: Unpack[SamplingKeywords]) -> SamplingParams: ...
    @classmethod
    def resolve(
        cls,
        explicit: Mapping[str, Any],
        preset: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> SamplingParams: ...
    def replace(self, **changes: Unpack[SamplingKeywords]) -> SamplingParams: ...
    def values(self) -> dict[str, Any]: ...
    def by_phase(self) -> dict[str, SamplingParams]: ...
    @property
    def constraint(self) -> ConstraintSampler | None: ...
    def list(self, vocab: Any = None) -> builtins.list[Sampler]: ...
    def chain(self, vocab: Any = None, completion: int = 0) -> SamplerChain: ...

def preset(name: str, **changes: Unpack[SamplingKeywords]) -> SamplingParams: ...
