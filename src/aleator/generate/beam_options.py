"""Options of a search of beams; their defaults stand here only."""

from __future__ import annotations

from typing import Any

from aleator.core.errors import ParameterError
from aleator.core.options import Option, Options, declarations, option
from aleator.core.records import dataclass
from aleator.generate.options import GenerateOptions


def when_to_stop(value: Any) -> bool | str:
    """Whether a search of beams ends early: True, False or "never"."""
    if value == "never" or isinstance(value, bool):
        made: bool | str = value
        return made
    raise ParameterError(
        f"early_stopping={value!r:.80}: give True, False or 'never' (default: False)"
    )


def spoken_switch(text: Any) -> Any:
    """A word of the command line as a switch; any other word as it is."""
    return {"true": True, "on": True, "false": False, "off": False}.get(text, text)


@dataclass(frozen=True, kw_only=True)
class BeamOptions(Options):
    """Options of :meth:`aleator.LanguageModel.beams` beside sampling parameters and those of a text."""

    num_beams: int = option(
        "texts that the search goes on with at each step",
        4, low=1, high=4096, flags=("--num-beams",),
    )  # fmt: skip
    length_penalty: float = option(
        "a text's score is its log-probability over its number of tokens to this power: above 0 longer texts "
        "gain, below 0 shorter ones",
        1.0, low=-10, high=10, flags=("--length-penalty",),
    )  # fmt: skip
    early_stopping: bool | str = option(
        "true: end with num_beams complete texts; false: when no text that goes on, scored at its present "
        "length, beats the worst of them; never: when none can at any length up to max_tokens",
        False, flags=("--early-stopping",), metavar="WHEN", checker=when_to_stop, reader=spoken_switch,
        shown="false", schema={"enum": [True, False, "never"]},
    )  # fmt: skip
    num_return_sequences: int = option(
        "texts to return, the best first; at most num_beams",
        1, low=1, high=4096, flags=("--num-return-sequences",),
    )  # fmt: skip
    stochastic: bool = option(
        "draw the texts without replacement instead of searching the most probable ones",
        False, flags=("--stochastic-beams",),
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Check every value, and what goes together."""
        super().__post_init__()
        if self.num_return_sequences > self.num_beams:
            raise ParameterError(
                f"num_return_sequences={self.num_return_sequences} with num_beams={self.num_beams}: give at "
                "most num_beams, or more beams"
            )
        for name in ("length_penalty", "early_stopping") if self.stochastic else ():
            if getattr(self, name) != declarations(BeamOptions)[name].neutral:
                raise ParameterError(
                    f"{name}={getattr(self, name)!r} means nothing with stochastic=True, where every text is "
                    "drawn to its end: leave one out"
                )


OF_BEAMS: tuple[Option, ...] = tuple(
    declarations(GenerateOptions)[name]
    for name in ("max_tokens", "stop", "parse_special", "shown_tokens", "adapters", "namespace")
)
"""Options of a text that beams have too."""
