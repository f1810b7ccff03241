"""Stop strings: found across token boundaries, and never shown."""

from __future__ import annotations

from collections.abc import Iterable

from aleator.core.errors import ParameterError


class StopMatcher:
    """Passes text through until one of several strings appears in it.

    Text that could still become a stop string is held back, so what :meth:`push` returns never has to be
    taken back.  The match that ends first wins, and of those the longest; so the result does not depend
    on how the text was cut into pieces.  Everything from the match's first character on is dropped.

    Args:
        stops: the strings; none of them empty.

    Raises:
        ParameterError: an empty string, or something that is not a string.
    """

    def __init__(self, stops: Iterable[str] = ()) -> None:
        if isinstance(stops, str):
            stops = (stops,)
        self.stops = tuple(dict.fromkeys(stops))
        for stop in self.stops:
            if not isinstance(stop, str) or not stop:
                raise ParameterError(
                    "stop", f"stop={stop!r}: a stop string has at least one character"
                )
        self.matched: str | None = None
        self._held = ""

    def push(self, piece: str) -> str:
        """Take the next piece of text; return what can be shown now.

        After a match (:attr:`matched` is then the stop string) nothing more is returned.
        """
        if self.matched is not None:
            return ""
        if not self.stops:
            return piece
        text = self._held + piece
        ends = [
            (at + len(stop), -len(stop), stop)
            for stop in self.stops
            if (at := text.find(stop)) >= 0
        ]
        if ends:
            end, _, self.matched = min(ends)
            self._held = ""
            return text[: end - len(self.matched)]
        shown = len(text) - self._open_length(text)
        self._held = text[shown:]
        return text[:shown]

    def flush(self) -> str:
        """The text ended without a match: return what was held back."""
        held, self._held = self._held, ""
        return held

    def _open_length(self, text: str) -> int:
        """Length of the longest end of ``text`` that begins some stop string."""
        for length in range(min(len(text), max(map(len, self.stops)) - 1), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self.stops):
                return length
        return 0
