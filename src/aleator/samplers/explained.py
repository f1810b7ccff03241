"""What an explanation of one step of a chain says: of the candidates, the samplers, the tokens and the draw."""

from __future__ import annotations

from aleator.core.records import dataclass


@dataclass(frozen=True)
class Token:
    """A token: its id, its text (U+FFFD where it is no UTF-8), and its text in quotes or else its id."""

    id: int
    text: str | None
    label: str


@dataclass(frozen=True)
class Shape:
    """How many candidates there are at one point, their entropy in bits, and the best's probability."""

    candidates: int
    entropy: float
    top: float

    @property
    def choices(self) -> float:
        """Effective number of choices: as many equally likely ones have the same entropy."""
        return float(2.0**self.entropy)


@dataclass(frozen=True)
class Removed:
    """A token that a sampler removed, and its probability before that."""

    token: Token
    probability: float


@dataclass(frozen=True)
class Stage:
    """What one sampler did."""

    name: str
    label: str  # the name with its parameters
    neutral: bool
    before: Shape
    after: Shape
    n_removed: int
    mass_cut: float  # probability of all removed tokens
    removed: tuple[Removed, ...]  # the most likely ones
    # Probability that changed hands among the tokens that stay: half the sum of the differences to what a
    # renormalisation alone would have given.
    moved: float
    state: dict[
        str, float
    ]  # what it remembered before, and the pending temperature if it changed it
    microseconds: float


@dataclass(frozen=True)
class Trace:
    """A token's probability from the logits through every sampler, and the index of the one that removed it."""

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
    """What a watermark's draw is keyed by besides its secret."""

    draw: str
    context: tuple[Token, ...]  # the last tokens; none where the draw is an ordinary one
    luck: float | None  # the drawn token's u, or the mean of its coins

    def __str__(self) -> str:
        if self.luck is None:
            return f"{self.draw}: an ordinary draw: tokens before it are too few, or stood together earlier"
        after = " ".join(token.label for token in self.context)
        return f"{self.draw}: {'u' if self.draw == 'watermark' else 'mean coin'} {self.luck:.4f} after {after}"


@dataclass(frozen=True)
class Draw:
    """The token that the chain chooses, its probability before and after it, and what the draw is keyed by."""

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
    traces: tuple[
        Trace, ...
    ]  # of the most likely tokens before or after the chain, and the one drawn
    top: int  # how many of them the table and the picture show
    draw: Draw | None  # None if the chain selects nothing
    phase: str = ""  # of the text, whose chain this is; "" where there are none

    @property
    def after(self) -> Shape:
        """The candidates after the chain."""
        return self.stages[-1].after if self.stages else self.before

    @property
    def active(self) -> tuple[Stage, ...]:
        """The samplers that are not neutral."""
        return tuple(stage for stage in self.stages if not stage.neutral)

    def shown(self, top: int | None = None) -> list[Trace]:
        """The most important traces, and that of the token drawn, by probability before the chain."""
        count = self.top if top is None else top
        drawn = None if self.draw is None else self.draw.token.id
        chosen = [t for i, t in enumerate(self.traces) if i < count or t.token.id == drawn]
        return sorted(chosen, key=lambda t: (-t.before, t.token.id))
