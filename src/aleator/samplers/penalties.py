"""Repetition, frequency and presence penalties on recent tokens.

Effect     for a token seen c > 0 times in the last ``penalty_last_n`` accepted tokens (prompt included;
           -1 means all): first the repetition penalty, z > 0 ? z / r : z * r, then
           z - (c * frequency_penalty + presence_penalty).  Each operation is rounded to float32 once.
Per        ``repetition_per="occurrence"`` applies the repetition penalty c times in turn, as Akunu does.
Scope      "all": every token of the window counts, as in llama.cpp.  "generated": prompt tokens do not, as with
           OpenAI.  "mixed": they count for repetition only, as in vLLM.
Order      a pending temperature is materialised first, so that z / T is penalised.
Masked     stay masked.
Elsewhere  llama.cpp agrees, but has no -1; Keskar et al. 2019 (arXiv:1909.05858) divide negative logits too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from aleator.core.parameter import Off, Parameter, declare, single
from aleator.samplers.base import Place, Row, Sampler, Step, dataclass, host, only_portable

PENALTY_LAST_N = Parameter(
    "penalty_last_n", int, 64, "window of the penalties in tokens; 0 turns them off, -1 is all",
    low=-1, high=2**31 - 1, aliases=("repeat_last_n",), flags=("--repeat-last-n",),
    metadata="penalty_last_n",
)  # fmt: skip
REPETITION_PENALTY = Parameter(
    "repetition_penalty", float, 1.0, "divide the logits of tokens in the window by this; 1 is off",
    low=1e-30, high=1e30, off=(Off(0.0, ("mlx-lm",), 1.0, "penalises no token"),),
    aliases=("repeat_penalty",),
    flags=("--repeat-penalty",), metadata="penalty_repeat",
)  # fmt: skip
FREQUENCY_PENALTY = Parameter(
    "frequency_penalty", float, 0.0, "lower a logit by this for each time its token is in the window",
    low=-1e30, high=1e30, flags=("--frequency-penalty",),
)  # fmt: skip
PRESENCE_PENALTY = Parameter(
    "presence_penalty", float, 0.0, "lower a logit by this if its token is in the window",
    low=-1e30, high=1e30, flags=("--presence-penalty",),
)  # fmt: skip
PENALTY_SCOPE = Parameter(
    "penalty_scope", str, "all", "which tokens of the window count: all, generated, or mixed as in vLLM",
    choices=("all", "generated", "mixed"), flags=("--penalty-scope",),
)  # fmt: skip

REPETITION_PER = Parameter(
    "repetition_per", str, "token",
    "apply the repetition penalty once per token, or once for each time it is in the window as Akunu does",
    choices=("token", "occurrence"), flags=("--repetition-per",),
)  # fmt: skip


@dataclass(frozen=True)
class Penalties(Sampler):
    """Penalise recently accepted tokens."""

    name = "penalties"
    writes = True
    letter = "e"
    kernel = host.Penalties
    llama_kernel = host.LlamaPenalties
    penalty_last_n: int = declare(PENALTY_LAST_N)
    repetition_penalty: float = declare(REPETITION_PENALTY)
    frequency_penalty: float = declare(FREQUENCY_PENALTY)
    presence_penalty: float = declare(PRESENCE_PENALTY)
    penalty_scope: str = declare(PENALTY_SCOPE)
    repetition_per: str = declare(REPETITION_PER)

    @property
    def neutral(self) -> bool:
        return self.penalty_last_n == 0 or (
            single(self.repetition_penalty) == 1
            and single(self.frequency_penalty) == 0
            and single(self.presence_penalty) == 0
        )

    def state(self, kernel: Any, history: Sequence[int]) -> dict[str, float]:
        n = self.penalty_last_n
        window = history if n < 0 else history[-n:]
        return {"window": len(window), "distinct": len(set(window))}

    def arguments(self, place: Place) -> tuple[Any, ...]:
        return (
            *super().arguments(place)[:-2],
            self.penalty_scope != "generated",
            self.penalty_scope == "all",
            self.repetition_per == "occurrence",
        )

    def llama_arguments(self, place: Place) -> tuple[Any, ...]:
        if self.penalty_scope != "all":
            raise only_portable("penalty_scope", self.penalty_scope, "all")
        if self.repetition_per != "token":
            raise only_portable("repetition_per", self.repetition_per, "token")
        return super().arguments(place)[:-2]

    def reference(self, row: Row, step: Step, place: Place) -> None:
        n = len(step.history) if self.penalty_last_n < 0 else self.penalty_last_n
        window = list(zip(step.history, step.generated, strict=True))[-n:]
        every = Counter(token for token, _ in window)
        generated = Counter(token for token, was_generated in window if was_generated)
        repeated = generated if self.penalty_scope == "generated" else every
        counted = every if self.penalty_scope == "all" else generated
        if not every:
            return
        repetition = np.float32(self.repetition_penalty)
        frequency = np.float32(self.frequency_penalty)
        presence = np.float32(self.presence_penalty)
        each = self.repetition_per == "occurrence"

        def penalise(token: int, z: np.float32) -> np.float32:
            for _ in range(repeated[token] if each else min(repeated[token], 1)):
                z = z / repetition if z > 0 else z * repetition
            if counted[token]:
                z = np.float32(z - (np.float32(counted[token]) * frequency + presence))
            return z

        row.edit(penalise)
