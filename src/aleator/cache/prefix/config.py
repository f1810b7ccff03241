"""How prefixes are cached."""

from __future__ import annotations

from aleator.core.errors import ParameterError
from aleator.core.integers import integer_in
from aleator.core.records import dataclass


@dataclass(frozen=True)
class PrefixConfig:
    """How prefixes are cached.

    Args:
        block: tokens of a block, 1 to 4,096: the unit in which cached prefixes are found and shortened.
        texts: how many prefixes are cached at most, 1 to 1,024.
        spacing: recurrent layers keep a state after every so many tokens, a multiple of ``block``; twice as
            many, four times and so on of a longer text.
        bytes: memory for these states, or for more cells of window layers, at most; 0 to 2^40.

    """

    block: int = 16
    texts: int = 63
    spacing: int = 64
    bytes: int = 2**27

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name, value, low, high in (
            ("block", self.block, 1, 4096),
            ("texts", self.texts, 1, 1024),
            ("spacing", self.spacing, 1, 2**20),
            ("bytes", self.bytes, 0, 2**40),
        ):
            integer_in(name, value, low, high)


def require_config(prefix: object) -> None:
    """Raise ParameterError unless ``prefix`` is a PrefixConfig, or None."""
    if not (prefix is None or isinstance(prefix, PrefixConfig)):
        raise ParameterError("prefix", f"prefix must be a PrefixConfig or None, not {prefix!r}")
