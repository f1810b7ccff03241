"""What llguidance complains of, in plain words: none of its names reaches a user."""

from __future__ import annotations

import re

from aleator.grammar.bounds import TOO_MUCH

FALLBACK = "it cannot be compiled: simplify it"
MOST = 300
"""Characters of a complaint that are told."""

KINDS = (
    (r"too many digits", "multipleOf has too many digits"),
    (r"lookarounds", r"looking around a place, as \b does, is not supported"),
    (r"NoExtension", "no text obeys it"),
    (r"expressions constructed|too many (states|items)|row has", "it leaves too many ways open: repeat less"),
    (r"[Tt]oo (big|many|large|complex)|TooComplex|fuel|precomputation|size limit", TOO_MUCH),
    (r"determine if .* empty", "it takes too long to see whether a text obeys it: simplify its patterns"),
)  # fmt: skip
"""Patterns of complaints, and what to say; the first that is found counts."""

QUOTED = re.compile(r'"[^"]*"|\'[^\']*\'|`[^`]*`|#/\S*')
"""What is quoted of the user's own text."""
INTERNAL = re.compile(r"\b[A-Z][a-z0-9]+[A-Z]\w*|\b[a-z]+_\w+|::|panic|assert|%\w+|json-schema:")
"""What looks like a name of the inside."""


def plain(message: str) -> str:
    """A complaint of llguidance in words for a user; its own words where they are plain."""
    reason = re.search(r"^error: (.*)$", message, re.MULTILINE)
    line = reason[1] if reason else next(iter(message.strip().splitlines()), "")
    line = line.replace("json-schema:///", "")
    for pattern, words in KINDS:
        if re.search(pattern, QUOTED.sub("", line)):
            return words
    if not line or INTERNAL.search(QUOTED.sub("", line)):
        return FALLBACK
    return line if len(line) <= MOST else f"{line[:MOST]}..."
