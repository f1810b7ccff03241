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
    """All sampling parameters.  Without arguments everything is neutral: presets hold opinions."""

    mirostat: int
    """Choose tokens by mirostat 1 or 2 in place of the plain draw; 0 is off (0 to 2; default: 0)."""

    repetition_under_grammar: str
    """Whether the repetition penalty applies where a grammar constrains the text: apply, or none as
    Akunu does (apply or none; default: apply)."""

    allowed_token_ids: tuple[int, ...] | None
    """Draw only these tokens; may be repeated."""

    stop_token_ids: tuple[int, ...]
    """Tokens that end a generation, beside the vocabulary's; may be repeated."""

    logit_bias: tuple[tuple[int | str, float], ...]
    """Add BIAS to the logit of token ID, as in 15+1.5 or 15-inf, or of all tokens of a text, as in
    '" the"-2'; may be repeated."""

    min_tokens: int
    """Let no token end the text before this many were generated; 0 is off (0 or more; default: 0)."""

    bad_words: tuple[str | tuple[int, ...], ...]
    """Text that never occurs, as the tokenizer spells it; may be repeated."""

    no_repeat_ngram_size: int
    """Let no run of this many tokens occur twice; 0 is off (0 or more; default: 0)."""

    penalty_last_n: int
    """Window of the penalties in tokens; 0 turns them off, -1 is all (-1 or more; default: 64)."""

    repetition_penalty: float
    """Divide the logits of tokens in the window by this; 1 is off (1e-30 or more; default: 1.0)."""

    frequency_penalty: float
    """Lower a logit by this for each time its token is in the window (default: 0.0)."""

    presence_penalty: float
    """Lower a logit by this if its token is in the window (default: 0.0)."""

    penalty_scope: str
    """Which tokens of the window count: all, generated, or mixed as in vLLM (all or generated or
    mixed; default: all)."""

    repetition_per: str
    """Apply the repetition penalty once per token, or once for each time it is in the window as
    Akunu does (token or occurrence; default: token)."""

    dry_multiplier: float
    """Strength of the penalty on repeated sequences; 0 is off (-1000000 to 1000000; default: 0.0)."""

    dry_base: float
    """How fast that penalty grows with the length of the repetition (1 to 1000000; default: 1.75)."""

    dry_allowed_length: int
    """Repetitions shorter than this are not penalised (0 or more; default: 2)."""

    dry_penalty_last_n: int
    """Window in which repetitions are sought; 0 is off, -1 is all (-1 or more; default: 64)."""

    dry_sequence_breakers: tuple[str | tuple[int, ...], ...]
    """Text at which a repetition ends; may be repeated, 'none' for no breakers."""

    top_n_sigma: float
    """Keep logits within this many deviations of the best; 0 and -1 are off (0 to 1000000, or -1;
    default: -1.0)."""

    min_k_tau: float
    """Keep what stands before the steepest fall of the logits, and at least this over their range;
    -1 is off (0 to 1000000, or -1; default: -1.0)."""

    top_k: int
    """Keep the k most likely tokens; 0 keeps all (0 or more; default: 0)."""

    top_k_limit: int
    """Keep this many where top_k is off or not less than the vocabulary, as Akunu does; 0 is no
    limit (0 or more; default: 0)."""

    top_a: float
    """Keep tokens at least this times the square of the best probability; 0 is off (0 to 1;
    default: 0.0)."""

    tfs_z: float
    """Cut the tail where the curve of probabilities flattens; 1 is off (0 to 1; default: 1.0)."""

    min_keep: int
    """Let truncating samplers keep at least this many tokens (0 or more; default: 0)."""

    typical_p: float
    """Keep the most typical tokens that together hold this probability; 1 is off (0 to 1; default:
    1.0)."""

    top_p: float
    """Keep the most likely tokens that together hold this probability; 1 keeps all (0 to 1;
    default: 1.0)."""

    mass: str
    """Measure against the current candidates, or the full row that Softmax saw (current or full;
    default: current)."""

    min_p: float
    """Keep tokens at least this fraction as likely as the best; 0 keeps all (0 to 1; default: 0.0)."""

    epsilon_cutoff: float
    """Keep tokens of at least this probability; 0 is off (0 to 1; default: 0.0)."""

    eta_cutoff: float
    """Keep tokens of at least this probability, or less where the entropy is high; 0 is off (0 to
    1; default: 0.0)."""

    p_less: str
    """Keep tokens at least as likely as two draws are to agree; normalized keeps more; off keeps
    all (off or on or normalized; default: off)."""

    top_h: float
    """Keep the most likely tokens whose entropy is at most this share of the row's; 1 keeps all (0
    to 1; default: 1.0)."""

    seed: int | None
    """Seed of the random draws, 64 bits; -1 or none draws one from the system and reports it."""

    xtc_probability: float
    """Chance that the top choices are excluded at a step; 0 is off (0 to 1; default: 0.0)."""

    xtc_threshold: float
    """Probability from which a token is a top choice; 1 is off (0 to 0.5, or 1; default: 0.1)."""

    temperature: float
    """Flatness of the distribution: below 1 sharper, above 1 flatter, 0 always the most likely
    token (0 or more; default: 1.0)."""

    dynatemp_range: float
    """Let the temperature vary by this much with the entropy; 0 is off (0 to 1000000; default:
    0.0)."""

    dynatemp_exponent: float
    """How the entropy maps onto the range: above 1 stays low longer (0 to 1000; default: 1.0)."""

    smoothing_factor: float
    """Strength of quadratic sampling, which bends the logits; 0 is off (0 to 1000000; default:
    0.0)."""

    smoothing_curve: float
    """How fast the bent curve falls far from the best token; 1 is a parabola (1 to 10; default:
    1.0)."""

    mirostat_tau: float
    """Surprise per token that mirostat aims at, in bits (0 to 1000; default: 5.0)."""

    mirostat_eta: float
    """How fast mirostat corrects itself (0 to 1000; default: 0.1)."""

    mirostat_m: int
    """Candidates that mirostat 1 estimates the distribution's shape on (2 to 1048576; default:
    100)."""

    adaptive_target: float
    """Probability that chosen tokens should have on average; -1 is off (0 to 1, or -1; default:
    -1.0)."""

    adaptive_decay: float
    """How slowly that average forgets (0 to 0.99; default: 0.9)."""

    draw: str
    """How the token is drawn: by inverse cumulative mass, by a race, as Akunu does on the GPU or
    the CPU, by a race keyed for a watermark, or by SynthID's tournament (inverse or gumbel or
    gumbel-pcg or mt19937 or watermark or synthid; default: inverse)."""

    watermark_key_file: WatermarkKey | None
    """File with the key of draw=watermark or synthid, 16 bytes or more; without it the environment
    variable ALEATOR_WATERMARK_KEY has the key."""

    watermark_ngram: int
    """Tokens before a token that its draw is keyed by with draw=watermark or synthid; fewer survive
    more edits, more repeat less (1 to 16; default: 4)."""

    samplers: tuple[str, ...]
    """Samplers in order, separated by ";" (default:
    penalties;dry;top_n_sigma;top_k;typical_p;top_p;min_p;xtc;temperature)."""

    ignore_eos: bool
    """Never draw a token that ends the text."""

    numerics: str
    """Portable: the same token on every machine; llama.cpp: llama.cpp's own tokens (portable or
    llama.cpp; default: portable)."""

    grammar: ConstraintSampler | None
    """A grammar that the text obeys: GBNF text, or a sampler such as Lark."""

    json_schema: ConstraintSampler | None
    """A JSON schema that the text obeys: mapping or JSON text."""

    regex: ConstraintSampler | None
    """A regular expression that the whole text matches."""

    phases: tuple[tuple[str, Any], ...]
    """Sampling parameters of a part of the text, as in thinking:temperature=0.6, or a preset, as in
    thinking=greedy; parts are thinking, answer, tool, and those with marks of their own; may be
    repeated (docs/samplers.md)."""

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
