"""The index of samplers: one line each, in the order of llama.cpp's default chain."""

from __future__ import annotations

from aleator.samplers.base import Sampler
from aleator.samplers.dist import Dist
from aleator.samplers.greedy import Greedy
from aleator.samplers.logit_bias import LogitBias
from aleator.samplers.min_p import MinP
from aleator.samplers.penalties import Penalties
from aleator.samplers.temperature import Temperature
from aleator.samplers.top_k import TopK
from aleator.samplers.top_p import TopP

SAMPLERS: tuple[type[Sampler], ...] = (
    LogitBias,
    Penalties,
    TopK,
    TopP,
    MinP,
    Temperature,
    Greedy,
    Dist,
)

# Names that llama.cpp's orders use for samplers whose parameters cannot be set yet.  At their neutral values
# they do nothing wherever they stand, so an order may name them.
_NEUTRAL = {
    "dry": ("d", ()),
    "top_n_sigma": ("s", ("top-n-sigma", "topnsigma")),
    "typ_p": ("y", ("typ-p", "typp", "typ", "typical_p")),
    "xtc": ("x", ()),
}  # fmt: skip

_LETTERED = {cls.name: (cls.letter, cls.aliases) for cls in SAMPLERS if cls.letter}
_ALL: dict[str, tuple[str | None, tuple[str, ...]]] = {**_LETTERED, **_NEUTRAL}
ORDERED = tuple(sorted(_ALL))
BY_NAME = {spelling: name for name, (_, aliases) in _ALL.items() for spelling in (name, *aliases)}
BY_LETTER = {letter: name for name, (letter, _) in _ALL.items() if letter}
