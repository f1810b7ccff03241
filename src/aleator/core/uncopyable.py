"""Objects that can be neither copied nor pickled, and say what to do instead."""

from __future__ import annotations

from typing import ClassVar, NoReturn

from aleator.core.errors import NotCopyable


class Uncopyable:
    """Base of classes whose objects ``copy``, ``deepcopy`` and ``pickle`` refuse with NotCopyable."""

    _instead: ClassVar[str]
    """What to do instead, as the error says it."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Raise NotCopyable; ``copy`` and ``pickle`` call this."""
        raise NotCopyable(type(self).__name__, self._instead)
