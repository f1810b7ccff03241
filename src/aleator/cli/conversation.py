"""A conversation whose past stays in the KV cache: each turn prefills only what is new."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from aleator.core.errors import ContextFull, FileFormatError, ParameterError, StateError
from aleator.generate.generation import Generation
from aleator.generate.loop import Run
from aleator.generate.options import GenerateOptions
from aleator.generate.request import Request
from aleator.generate.session import Session, load_session, save_session
from aleator.generate.session_file import SessionFile

if TYPE_CHECKING:
    from aleator.language_model import LanguageModel
    from aleator.samplers import SamplingParams
    from aleator.text import ChatTemplate


class Conversation:
    """Messages, and the cache that holds them.

    Args:
        model: answers.
        template: writes messages as the text that the model was trained on.
        params: sampling parameters; one chain draws all answers, so its randomness goes on from answer to
            answer.
        system: a first message that is never forgotten.
        options: ``max_tokens`` and ``stop`` of one answer, beside what ends turns in the template;
            ``context_shift``: when the context is full, forget the oldest exchanges instead of raising.
        progress: called with (done, total) prompt tokens.
    """

    def __init__(
        self,
        model: LanguageModel,
        template: ChatTemplate,
        params: SamplingParams,
        *,
        system: str | None = None,
        options: GenerateOptions | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._model, self._template, self.params = model, template, params
        self._system = [{"role": "system", "content": system}] if system else []
        options = options or GenerateOptions()
        self._options = options.replace(stop=(*model.vocab.chat_stop, *options.stop))
        self._progress = progress
        self._context = model.context(prompt_cache=True)
        self.chain = params.chain(model.tokenizer)
        self._run: Run | None = None
        self._resumed: list[int] = []  # the tokens of a conversation from a file
        self.messages: list[dict[str, str]] = list(self._system)

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.messages = list(self._system)
        self.chain.reset()

    def ask(self, text: str) -> Generation:
        """Say something; the answer is made as it is iterated over.  End it before asking again.

        Raises:
            ContextFull: the conversation is longer than the context; it is as before.
        """
        return self._answer([*self._said(), {"role": "user", "content": text}])

    def again(self) -> Generation | None:
        """Another answer to what was said last; None if nothing was."""
        messages = list(self.messages)
        if messages and messages[-1]["role"] == "assistant":
            del messages[-1]
        if not messages or messages[-1]["role"] != "user":
            return None
        return self._answer(messages)

    def save(self, path: SessionFile) -> int:
        """Write the conversation to a file, for :meth:`resume`; returns tokens written with their keys.

        What is in the file is replaced: it is this conversation's, or was to be replaced.
        """
        tokens = tuple(self._known())
        extra = {"messages": self._said(), "position": self.chain.position}
        session = Session(
            tokens, len(tokens), self.chain.seed, extra, chain=self.chain.state_write()
        )
        self._context.cache.seq_rm(0, -1, -1)
        held = save_session(path, self._context, session, self._model.identity)
        path.holds(tokens, len(tokens))
        return held

    def resume(self, path: SessionFile) -> Session:
        """Take over the conversation in a file.

        Raises:
            FileFormatError: it holds none, or is damaged.
            Incompatible: it was had with another model.
            ParameterError: its system message is another one.
        """
        session = load_session(path, self._context, self._model.identity)
        messages, position = session.extra.get("messages"), session.extra.get("position")
        if not (
            isinstance(messages, list)
            and all(isinstance(m, dict) and {*map(type, m.values())} <= {str} for m in messages)
            and all(m.keys() == {"role", "content"} for m in messages)
            and type(position) is int
            and 0 <= position < 2**63
        ):
            raise FileFormatError(path, "the session is not that of a conversation", field="extra")
        system = [m for m in messages[:1] if m["role"] == "system"]
        if self._system and self._system != system:
            raise ParameterError(
                "system",
                f"the conversation in {path} has its own system message: leave --system out",
            )
        self._system, self.messages, self._resumed = system, messages, list(session.tokens)
        try:
            self.chain.state_read(session.chain)
        except StateError:  # other parameters than before: the randomness goes on where it can
            if self.chain.numerics == "portable":
                self.chain.position = position
        return session

    def _said(self) -> list[dict[str, str]]:
        """All messages, the last answer too."""
        messages = list(self.messages)
        if messages and messages[-1]["role"] == "user" and self._run is not None:
            answer = "".join(self._run.slots[0].completion.pieces)
            messages.append({"role": "assistant", "content": answer})
        return messages

    def _known(self) -> list[int]:
        """The tokens of the conversation so far, the one drawn last too."""
        if self._run is None:
            return self._resumed
        slot = self._run.slots[0]
        return [*slot.tokens, slot.drawn] if slot.drawn >= 0 else slot.tokens

    def _answer(self, messages: list[dict[str, str]]) -> Generation:
        model, known = self._model, self._known()
        tokens = self._tokens(messages, known)
        while len(tokens) >= model.n_ctx:
            oldest = len(self._system)
            if not self._options.context_shift or len(messages) <= oldest + 1:
                raise ContextFull(
                    f"the conversation has {len(tokens)} tokens and the context {model.n_ctx} "
                    "positions: /reset starts anew; -c makes the context larger, and --context-shift "
                    "forgets the oldest exchanges"
                )
            del messages[oldest : oldest + 2]
            tokens = self._tokens(messages, known)
        self._context.cache.seq_rm(0, -1, -1)  # of an answer that was given up before its end
        self._accept(tokens)
        self.chain.restart()
        request = Request(
            tokens=tuple(tokens),
            params=self.params,
            options=self._options,
            n_keep=int(tokens[0] == model.vocab.bos),
        )
        slot = model.slots.with_chain(request, self.chain)
        self._run = Run(self._context, [slot], model.vocab, model.n_ctx, self._progress)
        self.messages = messages
        return self._run.generations[0]

    def _tokens(self, messages: list[dict[str, str]], known: list[int]) -> list[int]:
        """The conversation in tokens, beginning with as many of the known ones as fit its text.

        Tokens that were drawn need not be those that the tokenizer makes of the same text, so the text
        is compared, and only what follows is tokenized.
        """
        vocab, tokenizer = self._model.vocab, self._model.tokenizer
        rendered = self._template.rendered(messages, add_generation_prompt=True)
        whole = rendered.as_prompt(tokenizer)
        text = rendered.text
        data, count = text.encode(), 0
        if known and known[0] == vocab.bos and not data.startswith(vocab.token_bytes(known[0])):
            count = 1
        for token in known[count:]:
            piece = vocab.token_bytes(token)
            if not piece or not data.startswith(piece):
                break
            data, count = data[len(piece) :], count + 1
        try:
            new = rendered.after(len(text) - len(data.decode()))
        except UnicodeDecodeError:  # the known tokens end within a character
            return whole
        if new is None:  # or within the name of a control token, which is text here
            return whole
        rest = new.encode(tokenizer)
        if b"".join(map(vocab.token_bytes, rest)) != data:  # a tokenizer that inserts a space
            return whole
        exact = [*known[:count], *rest]
        return exact if shared(exact, known) > shared(whole, known) else whole

    def _accept(self, tokens: list[int]) -> None:
        """Make the chain's history end with ``tokens``; what it draws goes on from where it was."""
        history = self.chain.history
        known = shared(history, tokens)
        self.chain.rollback(len(history) - known, replay=False)
        self.chain.accept_many(tokens[known:])


def shared(a: list[int], b: list[int]) -> int:
    """Length of the common beginning."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
