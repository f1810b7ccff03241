"""The file of a session in use: locked for one user, and protected from being overwritten with another text."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from aleator.cache.formats.state_file import read_state_file
from aleator.core.errors import FileFormatError, OtherSession, ParameterError, SessionInUse


class SessionFile:
    """A session's file, locked until it is closed.

    The lock is a file beside it, ``.NAME.lock``; the system releases it if the process dies.
    Opening checks that the file can be written, and removes what a killed process left of a save.

        with SessionFile("scene.state") as file:
            session = model.load_session(file)
            model.save_session(file, model.generate(session))

    Args:
        path: the file, which need not exist.
        new: whether to replace an existing file, whatever it contains.

    Attributes:
        path: the file, links followed.
        new: see above; False once a session was written.

    Raises:
        SessionInUse: another user has opened it.
        ParameterError: it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], *, new: bool = False) -> None:
        self.given, self.path, self.new = str(path), Path(os.path.realpath(path)), new
        if self.path.exists() and not self.path.is_file():
            what = "a directory" if self.path.is_dir() else "no file"
            raise self._cannot(f"it is {what}")
        self._lock_path = self.path.with_name(f".{self.path.name}.lock")
        self._lock: int | None = self._take()
        self._held: tuple[tuple[int, ...], int] | None = None
        self._remove_stale()

    def __enter__(self) -> SessionFile:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def exists(self) -> bool:
        """Whether there is a session to continue."""
        return not self.new and self.path.exists()

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock_path.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    def require(self, tokens: Sequence[int], n_prompt: int) -> None:
        """Check that writing this text would not lose a different one.

        Args:
            tokens: the text, or its prompt if nothing was generated yet.
            n_prompt: how many of them are the prompt.

        Raises:
            OtherSession: the file holds a text that is not a prefix of this one and has another prompt; or it
                is not a session.
        """
        if not self.exists:
            return
        remedy = (
            "ask for a new session (--session-new, new=True) to replace it, or choose another file"
        )
        if self._held is None:
            self._held = _read(self.path)
        if self._held is None:
            raise OtherSession(self.given, f"it is something else than a session: {remedy}")
        held, prompt = self._held
        goes_on = tuple(tokens[: len(held)]) == held
        same_prompt = n_prompt == prompt and tuple(tokens[:prompt]) == held[:prompt]
        if not goes_on and not same_prompt:
            raise OtherSession(
                self.given,
                f"the session holds another text, of {len(held)} tokens: leave the prompt out to go on with "
                f"it, {remedy}",
            )

    def holds(self, tokens: Sequence[int], n_prompt: int) -> None:
        """Note the text that was read from the file, or written to it."""
        self._held, self.new = (tuple(tokens), n_prompt), False

    def _take(self) -> int:
        while True:
            try:
                lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                raise self._cannot(f"there is no directory {self.path.parent}") from None
            except OSError as error:
                raise self._cannot(
                    f"{self.path.parent} cannot be written: {error.strerror}"
                ) from None
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Its last user may have removed it between opening and locking.
                if os.path.samestat(os.fstat(lock), os.stat(self._lock_path)):
                    os.truncate(lock, 0)
                    os.write(lock, str(os.getpid()).encode())
                    return lock
                os.close(lock)
            except BlockingIOError:
                holder = os.pread(lock, 20, 0).decode(errors="replace")
                os.close(lock)
                mine = holder == str(os.getpid())
                user = "this process" if mine else f"another process ({holder or 'unknown'})"
                raise SessionInUse(self.given, user) from None
            except FileNotFoundError:
                os.close(lock)
            except OSError as error:
                os.close(lock)
                raise self._cannot(
                    f"{self._lock_path} cannot be locked: {error.strerror}"
                ) from None

    def _remove_stale(self) -> None:
        """Remove unfinished files of killed saves; the lock ensures that no other save is running."""
        head, tail = f".{self.path.name}.", ".partial"
        for each in self.path.parent.iterdir():
            middle = each.name.removeprefix(head).removesuffix(tail)
            if each.name == f"{head}{middle}{tail}" and middle.isdigit():
                with suppress(OSError):
                    each.unlink()

    def _cannot(self, why: str) -> ParameterError:
        return ParameterError(f"session={self.given}: {why}; choose another file")


def _read(path: Path) -> tuple[tuple[int, ...], int] | None:
    """Tokens of a session and how many of them are its prompt; None if the file is not a session."""
    try:
        state = read_state_file(path)
        prompt = state.header["n_prompt"]
        tokens = np.frombuffer(state.sections["tokens"], "<i4").tolist()
        sound = state.header["kind"] == "session" and type(prompt) is int
    except (FileFormatError, KeyError, ValueError):
        return None
    return (tuple(tokens), prompt) if sound else None
