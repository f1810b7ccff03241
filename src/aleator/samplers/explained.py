"""The explanation of one step of a chain: candidates, samplers, tokens and the draw."""

from __future__ import annotations

from aleator.core.records import dataclass


@dataclass(frozen=True)
class Token:
    """A token: its id, its text (U+FFFD for invalid UTF-8), and a label: the quoted text, or else the id."""

    id: int
    text: str | None
    label: str


@dataclass(frozen=True)
class Shape:
    """The number of candidates at one point, their entropy in bits, and the probability of the best."""

    candidates: int
    entropy: float
    top: float

    @property
    def choices(self) -> float:
        """Effective number of choices: that many equally likely tokens have the same entropy."""
        return float(2.0**self.entropy)


@dataclass(frozen=True)
class Removed:
    """A token that a sampler removed, and its probability before that."""

    token: Token
    probability: float


@dataclass(frozen=True)
class Stage:
    """The effect of one sampler."""

    name: str
    label: str  # the name with its parameters
    neutral: bool
    before: Shape
    after: Shape
    n_removed: int
    mass_cut: float  # probability of all removed tokens
    removed: tuple[Removed, ...]  # the most likely ones
    # Probability moved between the tokens that stay: half the sum of the absolute differences from a mere
    # renormalisation.
    moved: float
    state: dict[str, float]  # its state before, and the pending temperature if it changed that
    microseconds: float


@dataclass(frozen=True)
class Trace:
    """A token's probability after the logits and each sampler, and the index of the sampler that removed it."""

    token: Token
    probabilities: tuple[float, ...]
    removed_by: int | None

    @property
    def before(self) -> float:
        """Probability from the logits alone."""
        return self.probabilities[0]

    @property
    def after(self) -> float:
        """Probability at the end of the chain."""
        return self.probabilities[-1]


@dataclass(frozen=True)
class Mark:
    """What keys a watermark's draw besides its secret."""

    draw: str
    context: tuple[Token, ...]  # the last tokens; empty if the draw is an ordinary one
    score: float | None  # the drawn token's u, or the mean of its coins

    def __str__(self) -> str:
        if self.score is None:
            return f"{self.draw}: an ordinary draw: tokens before it are too few, or stood together earlier"
        after = " ".join(token.label for token in self.context)
        return f"{self.draw}: {'u' if self.draw == 'watermark' else 'mean coin'} {self.score:.4f} after {after}"


@dataclass(frozen=True)
class Draw:
    """The token that the chain chooses, its probability before and after, and the keys of the draw."""

    token: Token
    before: float
    probability: float
    seed: int
    position: int
    completion: int
    mark: Mark | None = None


@dataclass(frozen=True)
class Explained:
    """One step of a chain."""

    numerics: str
    n_vocab: int
    history: int  # tokens accepted before this step
    before: Shape
    stages: tuple[Stage, ...]  # one per sampler, in order
    # Of the most likely tokens before or after the chain, and of the drawn token
    traces: tuple[Trace, ...]
    top: int  # how many of them the table and the picture show
    draw: Draw | None  # None if the chain selects nothing
    phase: str = ""  # the phase whose chain this is; "" without phases

    @property
    def after(self) -> Shape:
        """The candidates after the chain."""
        return self.stages[-1].after if self.stages else self.before

    @property
    def active(self) -> tuple[Stage, ...]:
        """The samplers that are not neutral."""
        return tuple(stage for stage in self.stages if not stage.neutral)

    def shown(self, top: int | None = None) -> list[Trace]:
        """The most important traces and that of the drawn token, by probability before the chain."""
        count = self.top if top is None else top
        drawn = None if self.draw is None else self.draw.token.id
        chosen = [t for i, t in enumerate(self.traces) if i < count or t.token.id == drawn]
        return sorted(chosen, key=lambda t: (-t.before, t.token.id))
