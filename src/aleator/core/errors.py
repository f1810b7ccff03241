"""Every error that Aleator raises on purpose, and copies of errors.

All derive from :class:`AleatorError`, so ``except aleator.AleatorError`` catches what a user can
cause and nothing else.  A message names the parameter or field, its value, what is allowed, and what to
do about it.  A call that raises has changed nothing.

A raised error holds the frames that it passed, and all that these hold, so others get copies.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import FunctionType
from typing import Any, ClassVar, NoReturn


class AleatorError(Exception):
    """Base of all errors raised on purpose; they can be sent between processes."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (type(self),), {"args": self.args, **self.__dict__}


def _received(kind: type[AleatorError]) -> AleatorError:
    """An error of another process, made without its constructor, whose arguments are not stored."""
    return kind.__new__(kind)


class ParameterError(AleatorError, ValueError):
    """A parameter is out of range, of the wrong type, unknown, or contradicts another.

    A single argument is the message, and its first word the parameter.
    """

    def __init__(self, parameter: str, message: str | None = None) -> None:
        super().__init__(parameter if message is None else message)
        self.parameter = re.split(r"\W", parameter, maxsplit=1)[0] if message is None else parameter


class DialectWarning(UserWarning):
    """A number out of range was read as another engine reads it, because that engine's dialect is in use."""


class GrammarError(ParameterError):
    """A grammar that has errors, is not supported, or asks for too much.

    ``line`` and ``column`` count from 1 and are 0 if the place is not known.
    """

    def __init__(self, message: str, line: int = 0, column: int = 0) -> None:
        super().__init__("grammar", message)
        self.line, self.column = line, column


class ConstraintError(AleatorError, ValueError):
    """A ``token`` that the grammar does not allow after those accepted; nothing has changed."""

    def __init__(self, token: int, message: str) -> None:
        super().__init__(message)
        self.token = token


class LogitsError(AleatorError, ValueError):
    """Logits of the wrong shape, type or length, or with nothing finite in them."""


class NoLogits(ParameterError, IndexError):
    """A token of a context's last batch has no logits; ``outputs``: the batch indices of those that have.

    ``outputs`` is None before the first decode.
    """

    def __init__(self, parameter: str, index: object, outputs: Sequence[int] | None) -> None:
        if outputs is None:
            there = "nothing has been decoded yet: decode a batch first"
        elif not outputs:
            there = "no token of the last batch has any: add tokens with logits=True"
        else:
            some = ", ".join(map(str, outputs[:8])) + (", ..." if len(outputs) > 8 else "")
            there = (
                f"the last batch has those of its tokens {some} ({len(outputs)} in all, of which -1 is the "
                "last): give one of these, or add the token with logits=True"
            )
        super().__init__(parameter, f"{parameter}={index} has no logits: {there}")
        self.outputs = outputs


class StateError(AleatorError, ValueError):
    """A chain's state that is damaged, hostile, or of another chain; the chain is unchanged."""


class FileFormatError(AleatorError, ValueError):
    """A file is not what it should be: truncated, damaged, hostile, or of another kind.

    ``field`` names the part of the file, ``offset`` is its place in bytes if known.
    """

    def __init__(
        self, path: object, message: str, *, field: str = "", offset: int | None = None
    ) -> None:
        where = f" (field {field!r}" if field else ""
        if offset is not None:
            where += f"{', ' if where else ' ('}offset {offset}"
        where += ")" if where else ""
        super().__init__(f"{path}: {message}{where}")
        self.path, self.field, self.offset = path, field, offset


class SessionInUse(AleatorError):
    """Another process, or another part of this one, has opened a session's file."""

    def __init__(self, path: object, user: str) -> None:
        super().__init__(
            f"{path}: the session is in use by {user}: wait for its end, or choose another file"
        )
        self.path = path


class OtherSession(ParameterError):
    """A session's file holds another text, which would be lost."""

    def __init__(self, path: object, message: str) -> None:
        super().__init__("session", f"{path}: {message}")
        self.path = path


class ModelNotFound(AleatorError, FileNotFoundError):
    """There is no file or directory of the given name."""

    def __init__(self, path: object) -> None:
        super().__init__(
            f"{path}: no such file; give a GGUF file, a Hugging Face directory, hf:ORG/NAME, or the NAME of an "
            "installed package llm-NAME"
        )
        self.path = path


class HubError(AleatorError):
    """A model on the hub does not exist, is not accessible, or cannot be reached."""


class UnsupportedModel(AleatorError):
    """The file is sound, but its architecture, tensor type or tokenizer is not supported."""


class TokenizerError(AleatorError, ValueError):
    """Text or token ids that the vocabulary cannot represent."""


class TemplateError(AleatorError, ValueError):
    """A chat template that is missing, does not parse, or refuses the conversation."""


class ContextFull(AleatorError):
    """Prompt and generated tokens need more positions than the context has."""


class EngineClosed(AleatorError):
    """A closed engine takes no more requests."""


class QueueFull(AleatorError):
    """An engine cannot take more requests; ``limit`` is the most that can wait."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"{limit} requests wait already, which is max_queue: wait for one of them, or make the engine with "
            "a larger max_queue"
        )
        self.limit = limit


class CacheError(AleatorError):
    """Base of the KV cache's errors; the cache is unchanged.

    ``code`` is what llama.cpp's ``llama_decode`` returns in that case, or None.
    """

    code: int | None = None


class CacheFull(CacheError):
    """No cells for the batch: the ``free`` ones and the ``evictable`` of cached prefixes are not enough."""

    code = 1

    def __init__(self, needed: int, free: int, evictable: int = 0, message: str = "") -> None:
        kept = f" and {evictable} of cached prefixes" if evictable else ""
        super().__init__(
            message
            or f"the KV cache has {free} free cells{kept} and the batch needs {needed}: remove or shift a "
            "sequence, or create the context with a larger n_ctx"
        )
        self.needed, self.free, self.evictable = needed, free, evictable


class DeviceOutOfMemory(AleatorError, MemoryError):
    """A device has no memory left for a step; the cache is unchanged.

    ``device`` is its name, ``tokens`` the number of tokens of the step.
    """

    # MemoryError's, the next in line, refuses other classes.
    __new__ = AleatorError.__new__  # type: ignore[assignment]

    def __init__(self, device: str, tokens: int, found: str) -> None:
        super().__init__(
            f"{device} has no memory left for a step of {tokens} tokens ({found.splitlines()[0]:.200}): give a "
            "smaller n_ubatch or n_ctx, or fewer layers there with n_gpu_layers"
        )
        self.device, self.tokens = device, tokens


class CacheBusy(CacheError):
    """Another thread has used the cache for longer than ``timeout`` seconds."""

    def __init__(self, timeout: float) -> None:
        super().__init__(
            f"the cache is in use by another thread, which has not ended within lock_timeout={timeout:g} s: "
            "wait longer, or give each thread a context of its own"
        )
        self.timeout = timeout


class InvalidBatch(CacheError, ValueError):
    """A batch breaks a rule; ``index`` is the offending token's index in the batch, or -1."""

    code = -1

    def __init__(self, index: int, message: str) -> None:
        super().__init__(message if index < 0 else f"batch token {index}: {message}")
        self.index = index


class Aborted(CacheError):
    """``abort_callback`` ended a decode after ``done`` of its micro-batches; nothing was stored."""

    code = 2

    def __init__(self, done: int) -> None:
        super().__init__(f"the decode was aborted after {done} micro-batches")
        self.done = done


class NotCopyable(CacheError, TypeError):
    """An object of class ``kind`` can be neither copied nor pickled; the message says what to do instead."""

    def __init__(self, kind: str, instead: str) -> None:
        article = "an" if kind[0] in "AEIO" else "a"
        super().__init__(f"{article} {kind} can be neither copied nor pickled: {instead}")
        self.kind = kind


class NoCells(CacheError):
    """An operation on cells was called on a cache that has only recurrent states."""


class CannotShift(CacheError):
    """Positions cannot be shifted with this model or storage type."""


class CannotRewind(CacheError):
    """A sequence cannot be rewound to the requested position.

    ``oldest_legal`` is the lowest position above 0 to which it can be rewound; None if that does not apply.
    """

    def __init__(self, message: str, oldest_legal: int | None = None) -> None:
        super().__init__(message)
        self.oldest_legal = oldest_legal


class Incompatible(CacheError, ValueError):
    """A state of another kind of cache: ``field`` is ``have`` there and must be ``want`` here."""

    def __init__(self, field: str, have: object, want: object, message: str = "") -> None:
        super().__init__(
            message or f"the state does not fit this cache: {field} is {have}, not {want}"
        )
        self.field, self.have, self.want = field, have, want


class Corrupt(CacheError, ValueError):
    """A state that is damaged, hostile, or not a state; ``offset`` is the place in bytes, or -1."""

    def __init__(self, offset: int, message: str) -> None:
        place = f" (offset {offset})" if offset >= 0 else ""
        super().__init__(f"not a sound state: {message}{place}")
        self.offset = offset


class Uncopyable:
    """Base of classes whose objects ``copy``, ``deepcopy`` and ``pickle`` refuse with NotCopyable."""

    _instead: ClassVar[str]
    """What to do instead, as the error says it."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Raise NotCopyable; ``copy`` and ``pickle`` call this."""
        raise NotCopyable(type(self).__name__, self._instead)


def without_frames(error: BaseException) -> BaseException:
    """A copy of an error and its causes, without traceback and context; itself where it cannot be copied."""
    kind = type(error)
    if any("__slots__" in vars(each) for each in kind.__mro__):  # they are not in what is copied
        return error
    try:
        parts: tuple[Any, ...] = error.__reduce__()  # type: ignore[assignment]
        _, given, state = (*parts, None)[:3]
        made: BaseException = kind.__new__(kind, *given)
        if not isinstance(kind.__init__, FunctionType):  # one in Python may expect other arguments
            made.__init__(*given)  # type: ignore[misc]
        made.args = error.args
        made.__setstate__({**error.__dict__, **(state or {})})
        if hasattr(error, "__notes__"):
            made.__notes__ = list(error.__notes__)
        if error.__cause__ is not None and error.__cause__ is not error:
            made.__cause__ = without_frames(error.__cause__)
        made.__suppress_context__ = error.__suppress_context__
    except Exception:  # a class of a user may do anything here
        return error
    return made


def copies(error: BaseException, n: int) -> list[BaseException]:
    """An error for each of ``n`` readers, the error itself first: what is raised holds its reader's frames."""
    trace = error.__traceback__
    made = [without_frames(error) for _ in range(1, n)]
    return [error, *(each.with_traceback(trace) for each in made)]
