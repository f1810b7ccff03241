"""Sessions: a model's texts in files, with what the cache has of them."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

from aleator.generate.context import Context
from aleator.generate.generation import Generation, writing_of
from aleator.generate.session import Session, load_session, save_session, state_of
from aleator.generate.session_file import SessionFile
from aleator.models.fingerprint import ModelIdentity
from aleator.models.weights import Weights


class SavingMixin(Protocol):
    """What :class:`~aleator.LanguageModel` inherits to write and read sessions.

    Attributes:
        weights: the file that the model came from.
    """

    weights: Weights

    @abstractmethod
    def own_context(self) -> Context:
        """The model's own context, in which nothing is under way.

        Raises:
            ParameterError: something is.
        """

    def save_session(
        self,
        path: str | os.PathLike[str] | SessionFile,
        generation: Generation,
        extra: Mapping[str, Any] | None = None,
        *,
        new: bool = False,
    ) -> int:
        """Write a generation's text to a file, with its keys and values as far as the cache still has them.

        ``generate(model.load_session(path))`` goes on with it; with the same sampling parameters the tokens
        are those that would have followed.

        Args:
            path: the file, or the open :class:`~aleator.generate.session_file.SessionFile`; one that exists is
                replaced once the new one is complete.
            generation: made until it ends, if it has not.
            extra: more to write, JSON-ready.
            new: replace what is there even if it is another text, or no session.

        Returns:
            Tokens whose keys and values were written.

        Raises:
            SessionInUse: somebody else has opened the file.
            OtherSession: the file holds a text that does not begin this one, made from another prompt.
            ParameterError: the file cannot be written, a generation is under way, or a device drew the text
                with a sampler that adapts.
        """
        if not isinstance(path, SessionFile):
            with SessionFile(path, new=new) as file:
                return self.save_session(file, generation, extra)
        request, made = generation.request, generation.tokens
        if generation.stop_reason in ("eog", "stop_token"):
            made = made[:-1]
        session = Session(
            tokens=(*request.tokens, *made),
            n_prompt=len(request.tokens) - request.drawn,
            seed=generation.seed,
            extra=dict(extra or {}),
            forgotten=writing_of(generation).completion.forgotten,
            namespace=generation.namespace,
        )
        if not new:
            path.require(session.tokens, session.n_prompt)
        state = state_of(generation.chain, session.tokens, len(made))
        session = replace(session, chain=state)
        held = save_session(path, self.own_context(), session, self.identity)
        path.holds(session.tokens, session.n_prompt)
        return held

    def load_session(self, path: str | os.PathLike[str] | SessionFile) -> Session:
        """Read what :meth:`save_session` wrote; :meth:`generate` need not compute its text again.

        Args:
            path: the file, or the open :class:`~aleator.generate.session_file.SessionFile`.

        Raises:
            FileFormatError: not a session, one of an older format, or a damaged file.
            Incompatible: it was made with another model; says which.
        """
        session = load_session(path, self.own_context(), self.identity)
        if isinstance(path, SessionFile):
            path.holds(session.tokens, session.n_prompt)
        return session

    @cached_property
    def identity(self) -> ModelIdentity:
        """Name, path and fingerprint; the fingerprint reads the file once, when a session is used."""
        return self.weights.identity()

    @property
    def fingerprint(self) -> str:
        """Tells models apart whose states do not fit each other; see :attr:`identity`."""
        return self.identity.fingerprint
