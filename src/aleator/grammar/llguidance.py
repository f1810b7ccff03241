"""JSON schema, regular expressions and Lark grammars through the package llguidance (MIT licence).

llguidance is imported when the first such grammar is made.  Its tokenizer, which holds the vocabulary as a
trie, is built once per vocabulary.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np

from aleator.core import host
from aleator.core.arrays import Int32s
from aleator.core.errors import ConstraintError, GrammarError
from aleator.core.json_text import loads
from aleator.core.parameter import check_unicode
from aleator.grammar import bounds
from aleator.grammar.bounds import TOO_MUCH
from aleator.grammar.schema_checks import check_levels, check_schema, places
from aleator.grammar.spelling import Spelling, once_each, spelling

FULL = "too many states"
"""What llguidance says when a lexer has as many states as it may have."""
FALLBACK = "it cannot be compiled: simplify it"
MOST = 300
"""Maximum characters of llguidance's message in an error."""

KINDS = (
    (r"too many digits", "multipleOf has too many digits"),
    (r"lookarounds", r"looking around a place, as \b does, is not supported"),
    (r"NoExtension", "no text obeys it"),
    (r"expressions constructed|too many (states|items)|row has", "it leaves too many ways open: repeat less"),
    (r"[Tt]oo (big|many|large|complex)|TooComplex|fuel|precomputation|size limit", TOO_MUCH),
    (r"determine if .* empty", "it takes too long to see whether a text obeys it: simplify its patterns"),
)  # fmt: skip
"""Patterns of llguidance's messages, and what to say instead; the first match counts."""

QUOTED = r'"[^"]*"|\'[^\']*\'|`[^`]*`|#/\S*'
"""Quotations of the user's own text."""
INTERNAL = r"\b[A-Z][a-z0-9]+[A-Z]\w*|\b[a-z]+_\w+|::|panic|assert|%\w+|json-schema:"
"""Texts that look like internal names."""


def plain(message: str) -> str:
    """An error message of llguidance in words for a user; unchanged if it is plain."""
    reason = re.search(r"^error: (.*)$", message, re.MULTILINE)
    line = reason[1] if reason else next(iter(message.strip().splitlines()), "")
    line = line.replace("json-schema:///", "")
    for pattern, words in KINDS:
        if re.search(pattern, re.sub(QUOTED, "", line)):
            return words
    if not line or re.search(INTERNAL, re.sub(QUOTED, "", line)):
        return FALLBACK
    return line if len(line) <= MOST else f"{line[:MOST]}..."


_UNSEEN_TOKENS = r"no tokenizer - can't validate <\[\.\.\.\]>( \(\d+ times\))?"
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""One line, as ``json.dumps`` writes: optional white space could repeat without end."""


def load() -> ModuleType:
    """Import and return the package; ImportError says what to install."""
    try:
        import llguidance
    except ImportError:
        raise ImportError(
            "JSON schemas, regular expressions and Lark grammars need llguidance: "
            "pip install 'aleator[grammar]'",
            name="llguidance",
        ) from None
    module: ModuleType = llguidance
    return module


def schema_text(schema: Any) -> str:
    """Return a JSON schema as text; GrammarError, with the place, if it is not JSON or cannot become JSON."""
    if isinstance(schema, str):
        try:
            schema = loads(schema, parse_constant=_no_constant)
        except ValueError as error:
            line, column = getattr(error, "lineno", 0), getattr(error, "colno", 0)
            what = getattr(error, "msg", str(error))
            raise located("the JSON schema is not JSON", what, schema, line, column) from None
    if not isinstance(schema, Mapping | bool):
        raise GrammarError(
            f"a JSON schema is an object or a boolean, not {type(schema).__name__}: {schema!r:.80}"
        )
    if schema is False:
        raise GrammarError("the JSON schema is false, which no text obeys")
    try:
        return json.dumps({} if schema is True else schema, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise GrammarError(f"the JSON schema cannot be written as JSON: {error}") from None


def schema_grammar(text: str) -> str:
    """Check a schema given as text and return it in llguidance's form; errors name keyword and place."""
    schema = loads(text)
    check_levels(schema)
    try:
        grammar: str = load().LLMatcher.grammar_from_json_schema(text, defaults=JSON_STYLE)
    except ValueError as error:
        raise GrammarError(f"the JSON schema is not supported: {plain(str(error))}") from None
    message = _complaint(grammar)
    if message is None:
        check_schema(schema)
        return grammar
    names = re.search(r"Unimplemented keys: (\[.*\])", message)
    if names:
        found = [f"{name} (at {next(places(schema, name), '#')})" for name in loads(names[1])]
        one = len(found) == 1
        raise GrammarError(
            f"the JSON schema uses {', '.join(found)}, which {'is' if one else 'are'} not supported: leave "
            f"{'it' if one else 'them'} out, and check the result for {'it' if one else 'them'}"
        )
    if "coerce_one_of" in message:
        raise GrammarError(
            f"the JSON schema uses oneOf (at {next(places(schema, 'oneOf'), '#')}) with branches that do not "
            "exclude each other, which is not supported: write anyOf"
        )
    raise GrammarError(f"the JSON schema is not supported: {plain(message)}")


def regex_grammar(pattern: str) -> str:
    """Check a regular expression and return it in llguidance's form."""
    if not isinstance(pattern, str):
        raise GrammarError(f"a regular expression is text, not {type(pattern).__name__}")
    check_unicode("regex", pattern)
    body = pattern.removeprefix("^")
    if _backslashes(body) % 2:  # llguidance would ignore it
        what, why = "the regular expression is wrong", "a backslash escapes nothing"
        raise located(what, why, pattern, 1, len(pattern))
    if body.endswith("$") and _backslashes(body[:-1]) % 2 == 0:
        body = body[:-1]
    grammar: str = load().LLMatcher.grammar_from_regex(body)
    message = _complaint(grammar)
    if message is not None:
        caret = re.search(r"^( *)\^", message, re.MULTILINE)
        what, why = "the regular expression is wrong", plain(message)
        column = len(caret[1]) - 3 + len(pattern) - len(pattern.removeprefix("^")) if caret else 0
        # For some mistakes llguidance shows a place in a grammar of its own.
        line = 1 if 0 < column <= len(pattern) else 0
        raise located(what, why, pattern, line, column)
    return grammar


def _backslashes(text: str) -> int:
    """The number of backslashes at the end of a text."""
    return len(text) - len(text.rstrip("\\"))


def lark_grammar(text: str) -> str:
    """Check a Lark grammar and return it in llguidance's form."""
    if not isinstance(text, str):
        raise GrammarError(f"a Lark grammar is text, not {type(text).__name__}")
    grammar: str = load().LLMatcher.grammar_from_lark(text)
    message = _complaint(grammar)
    # Numbers of tokens, <[5]>, are checked when the vocabulary is known.
    if message is not None and not re.fullmatch(_UNSEEN_TOKENS, message):
        place = re.match(r"(?:at )?(\d+)\((\d+)\): (.*)", message)
        line, column, why = (int(place[1]), int(place[2]), place[3]) if place else (0, 0, message)
        raise located("the Lark grammar is wrong", plain(why), text, line, column)
    return grammar


def located(what: str, reason: str, text: str, line: int, column: int) -> GrammarError:
    """An error at a place of a text, with the line shown; line 0 means that the place is not known."""
    if not line:
        return GrammarError(f"{what}: {reason}")
    shown = (text.splitlines() or [""])[min(line, len(text.splitlines()) or 1) - 1]
    start = max(0, column - 60)
    window = shown[start : start + 100].replace("\t", " ")
    return GrammarError(
        f"{what}: line {line}, column {column}: {reason}\n  {window}\n  {' ' * (column - 1 - start)}^",
        line,
        column,
    )


def constraint(grammar: str, vocabulary: Any, what: str) -> host.Constraint:
    """Make a constraint from a grammar in llguidance's form; errors call it ``what``."""
    adapter = LLGuidanceConstraint(_tokenizer(vocabulary), grammar, what)
    adapter.check()
    adapter.mask()  # llguidance reports only here that no text matches
    return host.PyConstraint(adapter)


class _Lexer:
    """The lexer that copies of a matcher share; it keeps the states that any of their texts reached.

    ``full``: it has as many states as it may have, and refuses every text.
    """

    full = False


class LLGuidanceConstraint:
    """A matcher of llguidance, with the methods that native/samplers/constrained.cpp calls.

    If a single text is forced, llguidance's mask allows only the tokens that usually spell it; ``accept``
    also takes others.

    Once texts have filled a shared lexer, each goes on with a new one.  So a text ends with an error only where
    a new lexer, which has read nothing else, is too small for its next token.
    """

    _tokens: list[int]
    _mask: Int32s | None
    # Tokens that its lexer had read when it was new; None: others too, of copies or before a rollback.
    _renewed_at: int | None

    def __init__(self, tokenizer: _Tokenizer, grammar: str, what: str) -> None:
        self._tokenizer, self._grammar, self._what = tokenizer, grammar, what
        self.n_vocab = tokenizer.n_vocab
        self.reset()

    def check(self) -> None:
        """Raise GrammarError if llguidance gave up."""
        if self._matcher.is_error():
            raise GrammarError(self._complaint())

    @property
    def _usable(self) -> Any:
        """The matcher, with a lexer that is not full."""
        if self._lexer.full:
            self._replay(self._tokens)
        return self._matcher

    def _renewed(self) -> bool:
        """Go on with a new lexer if this one is full, and read more than these tokens; return whether."""
        if FULL not in self._matcher.get_error():
            return False
        self._lexer.full = True
        if len(self._tokens) == self._renewed_at:
            return False
        self._replay(self._tokens)
        return True

    def _complaint(self) -> str:
        n, why = len(self._tokens), plain(self._matcher.get_error())
        where = f" after {n} token{'s' * (n != 1)}" if n else ""
        return f"{self._what} cannot be used{where}: {why}"

    def mask(self) -> Int32s:
        if self._ended:
            return self._tokenizer.end_mask
        if self._mask is None:
            made = self._usable.compute_bitmask()
            if self._renewed():
                made = self._matcher.compute_bitmask()
            self.check()
            self._mask = np.frombuffer(made, np.int32)[: -(-self.n_vocab // 32)]
        return self._mask

    def allows(self, token: int) -> bool:
        return 0 <= token < self.n_vocab and bool(self.mask()[token // 32] >> token % 32 & 1)

    def accept(self, token: int) -> None:
        ends = self._tokenizer.ends
        if token in ends or self._ended:
            possible = self.allows(token)
        else:
            possible = 0 <= token < self.n_vocab and self._takes(token)
        if not possible:
            raise ConstraintError(token, f"token {token} is not allowed by the grammar here")
        if token not in ends and not self._consumed(token):
            message = self._complaint()
            self._replay(self._tokens)
            raise ConstraintError(token, f"token {token}: {message}")
        self._tokens.append(token)
        self._mask = None

    def _takes(self, token: int) -> bool:
        if self._usable.validate_tokens([token]) == 1:
            return True
        self._matcher.compute_bitmask()  # which says whether the lexer is full
        return self._renewed() and bool(self._matcher.validate_tokens([token]) == 1)

    def _consumed(self, token: int) -> bool:
        if self._matcher.consume_token(token):
            return True
        return self._renewed() and bool(self._matcher.consume_token(token))

    @property
    def _ended(self) -> bool:
        """Whether an end was accepted; the matcher does not see it, as its rollback does not count ends."""
        return bool(self._tokens) and self._tokens[-1] in self._tokenizer.ends

    def rollback(self, n: int) -> None:
        if not n:
            return
        kept, gone = self._tokens[:-n], self._tokens[-n:]
        consumed = sum(token not in self._tokenizer.ends for token in gone)
        if consumed and (not self._matcher.rollback(consumed) or self._matcher.is_error()):
            self._replay(kept)
        else:
            self._renewed_at = None
        self._tokens, self._mask = kept, None

    def reset(self) -> None:
        self._replay([])
        self._tokens = []

    def _replay(self, tokens: list[int]) -> None:
        matcher = load().LLMatcher(
            self._tokenizer.native, self._grammar, log_level=0, limits=_limits()
        )
        self._lexer, self._matcher = _Lexer(), matcher  # together: other threads may copy this now
        self._mask, self._renewed_at = None, len(tokens)
        consumed = [token for token in tokens if token not in self._tokenizer.ends]
        if consumed:
            self._matcher.consume_tokens(consumed)

    def complete(self) -> bool:
        return bool(self._usable.is_accepting())

    def jump_forward(self) -> bytes:
        """The text that is forced next, up to a special token."""
        if self._ended or self._usable.is_stopped():
            return b""
        # llguidance writes a special token as the byte 255 and its number.
        return bytes(self._matcher.compute_ff_bytes()).partition(b"\xff")[0]

    def clone(self) -> LLGuidanceConstraint:
        matcher = self._usable.deep_copy()
        made = copy.copy(self)
        self._renewed_at = made._renewed_at = None
        made._matcher, made._tokens = matcher, list(self._tokens)
        return made


class _Tokenizer:
    """llguidance's tokenizer over a vocabulary, and the object from which it gets tokens."""

    def __init__(self, spelled: Spelling) -> None:
        self._spelling = spelled
        self.tokens = list(spelled.pieces)
        self.n_vocab = len(self.tokens)
        ends = spelled.ends
        if not ends:  # llguidance needs one: use a token past the end, which no mask contains
            ends = [len(self.tokens)]
            self.tokens.append(b"")
        self.ends = frozenset(ends)
        bits = np.zeros(-(-self.n_vocab // 32) * 32, np.bool_)
        bits[[end for end in ends if end < self.n_vocab]] = True
        packed = np.packbits(bits, bitorder="little").view("<i4")
        self.end_mask: Int32s = packed.astype(np.int32)
        self.eos_token_id, self.bos_token_id = ends[0], None
        self.special_token_ids = [i for i, piece in enumerate(self.tokens) if not piece]
        for i in self.special_token_ids:
            # Without names llguidance would confuse them.
            self.tokens[i] = b"<%d>" % i
        self.is_tokenizer_wrapper = True
        # Of a copy: the garbage collector does not see what native code holds, and frees no cycle with it.
        self.native = load().LLTokenizer(copy.copy(self), eos_token=ends)

    def __call__(self, text: str | bytes) -> list[int]:
        return self._spelling.tokens(text.encode() if isinstance(text, str) else text)


@once_each
def _tokenizer(vocabulary: Any) -> _Tokenizer:
    return _Tokenizer(spelling(vocabulary))


def _limits() -> Any:
    """The limits of all notations, in llguidance's units."""
    return load().LLParserLimits(
        initial_lexer_fuel=bounds.ELEMENTS,
        max_grammar_size=bounds.ELEMENTS // bounds.SYMBOL,
        step_lexer_fuel=bounds.STEP_FUEL,
        step_max_items=bounds.STEP_ITEMS,
        max_lexer_states=bounds.STATES,
    )


def _complaint(grammar: str) -> str | None:
    """The message of llguidance about a wrong grammar; None if nothing is wrong."""
    wrong, messages = load().LLMatcher.validate_grammar_with_warnings(grammar, limits=_limits())
    return "\n".join(messages) if wrong or messages else None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
