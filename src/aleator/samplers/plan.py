"""Plans: which samplers of a chain run on a device, which on the host after them, and what is transferred."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from aleator.core.records import dataclass
from aleator.samplers.bad_words import BadWords
from aleator.samplers.base import Sampler
from aleator.samplers.dist import Dist
from aleator.samplers.dry import DRY
from aleator.samplers.no_repeat_ngram import NoRepeatNgram
from aleator.samplers.top_k import TopK
from aleator.samplers.user import UserSampler

NAMES = frozenset(
    {
        "adaptive_p", "bad_words", "dry", "epsilon_cutoff", "eta_cutoff", "greedy", "logit_bias", "min_k",
        "min_p", "min_tokens", "mirostat", "mirostat_v2", "no_repeat_ngram", "p_less", "penalties", "smoothing",
        "softmax", "temperature", "token_mask", "top_h", "top_k", "top_n_sigma", "top_p", "typical_p", "xtc",
    }
)  # fmt: skip
"""Samplers that have a device form, except for the settings that `why_not` names."""
DRAWS = ("inverse", "gumbel", "watermark", "synthid")
"""The draws of ``dist`` that have a device form."""
MAX_DRY_WINDOW = 512
"""The longest window in which DRY looks for repetitions on a device.

It compares all pairs: there is no state to roll back, but the cost is quadratic.
"""
MAX_BREAKERS = 64
"""The most sequence breakers of several tokens that DRY can have on a device."""
MAX_BREAKER_TOKENS = 24
"""The most tokens of such a breaker."""

MAX_BAD_WORDS = 256
"""The most bad words of several tokens that a row can have on a device."""
MAX_BAD_WORD_TOKENS = 24
"""The most tokens of such a word."""
MAX_NGRAM = 64
"""The longest run that `no_repeat_ngram` compares on a device."""


def of_several(sequences: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The bad words or the sequence breakers that have several tokens."""
    return [sequence for sequence in sequences if len(sequence) > 1]


def why_not(sampler: Sampler) -> str:
    """Why a chain's sampler cannot run on a device; "" if it can."""
    if isinstance(sampler, UserSampler):
        able = callable(getattr(sampler.user, "apply_device", None))
        return "" if able else f"{sampler.name} has no device form"
    if sampler.name == "phases":
        return (
            "phases with histories of their own, or a sampler that adapts, have no device form: the host "
            "knows what they remember"
        )
    if sampler.name not in NAMES and not isinstance(sampler, Dist):
        return f"{sampler.name} has no device form"
    return "" if sampler.neutral else _beyond_limits(sampler)


def _beyond_limits(sampler: Sampler) -> str:
    """The setting that has no device form; "" if all have one."""
    if isinstance(sampler, Dist) and sampler.draw == "mt19937":
        return "draw='mt19937' takes its numbers one after the other from a generator on the host"
    if isinstance(sampler, Dist) and sampler.draw not in DRAWS:
        return f"draw={sampler.draw!r} has no device form"
    if isinstance(sampler, NoRepeatNgram):
        if sampler.no_repeat_ngram_size > MAX_NGRAM:
            return (
                f"no_repeat_ngram has a device form for runs of at most {MAX_NGRAM} tokens, not for "
                f"no_repeat_ngram_size={sampler.no_repeat_ngram_size}"
            )
    elif isinstance(sampler, BadWords):
        words = of_several(sampler.sequences)
        return _too_many("bad_words", "sequences", words, MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS)
    elif isinstance(sampler, DRY):
        if not 0 <= sampler.dry_penalty_last_n <= MAX_DRY_WINDOW:
            return (
                f"dry has a device form for windows of at most {MAX_DRY_WINDOW} tokens, not for "
                f"dry_penalty_last_n={sampler.dry_penalty_last_n}"
            )
        breakers = of_several(sampler.breakers)
        return _too_many("dry", "sequence breakers", breakers, MAX_BREAKERS, MAX_BREAKER_TOKENS)
    return ""


def _too_many(name: str, what: str, given: list[tuple[int, ...]], most: int, tokens: int) -> str:
    if len(given) <= most and all(len(each) <= tokens for each in given):
        return ""
    return f"{name} has a device form for at most {most} {what} of several tokens, of {tokens} tokens each"


@dataclass(frozen=True)
class Plan:
    """A chain's split; ``print`` it."""

    where: str  # the device
    device: tuple[str, ...]  # names of the samplers that run there
    host: tuple[str, ...]  # names of those that run on the host after them
    why: str = ""  # why the first of these runs on the host; "" if there is none
    split: int = 0  # how many of the chain's samplers come before the host's
    bound: int = 0  # most candidates that are transferred to the host; 0: all
    grammar: bool = False  # the host makes a mask of a row's grammar before every step
    # what computes the device's part, and why, if there is more than one form; else ""
    kernels: str = ""
    # the plan of each phase by name, if the device runs one phase after another; all other fields are those of
    # the current phase
    phases: tuple[tuple[str, Plan], ...] = ()

    def __str__(self) -> str:
        if self.phases:
            each = [f"phase {name}: {plan}".replace("\n", "\n  ") for name, plan in self.phases]
            return "\n".join(
                [*each, "between phases: the host looks for their marks in every token"]
            )
        lines = [f"device ({self.where}): {' -> '.join(self.device) or 'nothing'}"]
        if self.kernels:
            lines.append(f"kernels: {self.kernels}")
        if self.grammar:
            lines.append("before: the grammar's mask from the host, a bit per token")
        if not self.host:
            return "\n".join([*lines, "host: nothing; only the tokens are transferred"])
        lines.append(f"host: {' -> '.join(self.host)}, because {self.why}")
        transferred = (
            f"the {self.bound} candidates that top_k leaves"
            if self.bound
            else "all logits, since no top_k comes before: put one there"
        )
        return "\n".join([*lines, f"transferred: {transferred}"])


def make_plan(
    samplers: Sequence[Sampler], where: str, *, portable: bool = True, grammar: bool = False
) -> Plan:
    """Split samplers for a device: as many of the first samplers as possible run there.

    Neutral samplers do nothing and can stand anywhere.  Chains with llama.cpp's numbers, which are not
    ``portable``, run on the host only.
    """
    if not portable:
        names = tuple(sampler.name for sampler in samplers if not sampler.neutral)
        return Plan(where, (), names, "numerics='llama.cpp' are made there only")
    able = [not why_not(sampler) for sampler in samplers]
    ends = (i for i, s in enumerate(samplers) if not (able[i] or s.neutral))
    split = next(ends, len(samplers))
    why = why_not(samplers[split]) if split < len(samplers) else ""
    full = next((s.name for s in samplers[split:] if getattr(s, "mass", "") == "full"), "")
    softmax = [i for i, s in enumerate(samplers[:split]) if s.name == "softmax"]
    if full and softmax:  # the mass that Softmax records is not transferred
        split = softmax[-1]
        why = f"{full} with mass='full', which runs there, needs what softmax notes"
    here = tuple(s.name for s, can in zip(samplers[:split], able, strict=False) if can)
    rest = tuple(s.name for s in samplers[split:] if not s.neutral)
    return Plan(where, here, rest, why, split, bound(samplers[:split]), grammar)


def of_phases(chain: Any, plan: Callable[[Any], Plan]) -> Plan:
    """A chain's plan; ``plan`` makes the plan of a chain without phases."""
    plans = {name: plan(each) for name, each in chain.by_phase().items()}
    return replace(plans[chain.phase], phases=tuple(plans.items())) if plans else plan(chain)


def bound(samplers: Sequence[Sampler]) -> int:
    """The most candidates that these samplers leave; 0: all."""
    ks = [s.most for s in samplers if isinstance(s, TopK) and not s.neutral]
    return min(ks, default=0)
