"""What ``LanguageModel`` inherits to answer messages."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from aleator.core.errors import ParameterError
from aleator.engine.prompts import RequestMaker, options_of, takes_generation
from aleator.generate.generation import Generation
from aleator.generate.request_state import OnLogits
from aleator.samplers import SamplingParams
from aleator.text.tokenizer import Tokenizer
from aleator.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    from aleator.chat.generation import ChatGeneration
    from aleator.chat.message import Message
    from aleator.chat.prompt import ChatFormat
    from aleator.engine import Engine
    from aleator.keywords import GenerateKeywords


class ChatMixin(Protocol):
    """What :class:`~aleator.LanguageModel` inherits to answer messages.

    Attributes:
        tokenizer: Text to tokens and back.
        vocab: The tokens.
        request_maker: Makes requests.
    """

    tokenizer: Tokenizer
    vocab: Vocabulary
    request_maker: RequestMaker
    _chat_formats: dict[str | None, ChatFormat]

    @abstractmethod
    def generate(
        self,
        prompt: Sequence[int],
        *,
        preset: str | None = None,
        params: SamplingParams | None = None,
        progress: Callable[[int, int], None] | None = None,
        on_logits: OnLogits | None = None,
        **options: Unpack[GenerateKeywords],
    ) -> Generation:
        """Continue a prompt."""

    @takes_generation
    def chat(
        self,
        messages: Sequence[Mapping[str, Any] | Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        enable_thinking: bool | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        known_tokens: Sequence[int] = (),
        engine: Engine | None = None,
        preset: str | None = None,
        params: SamplingParams | None = None,
        progress: Callable[[int, int], None] | None = None,
        on_logits: OnLogits | None = None,
        **options: Unpack[GenerateKeywords],
    ) -> ChatGeneration:
        """Answer messages.

        The result is an iterator over pieces of the answer, made as they are asked for::

            for piece in model.chat([{"role": "user", "content": "Hi"}]):
                print(piece, end="", flush=True)

        and knows the whole ``.message``: content, reasoning and calls of tools.  Names of control tokens in
        messages and tools are text: only the template writes control tokens.

        Args:
            messages: mappings as in OpenAI's interface, with "role" and "content".
            tools: declarations of tools, as in OpenAI's interface; the template shows them to the model.
            tool_choice: "auto": the model chooses, which is the default; "none"; "required": it must call one;
                or a tool's name.  The last two force a call whose arguments satisfy their schema.
            enable_thinking: whether the model reasons first, for templates that read it.
            chat_template: Jinja template that writes messages as text; None: the model's.
            chat_template_kwargs: other variables that the template reads.
            known_tokens: of the conversation so far, to go on with where they fit its text.
            engine: makes the answer, together with other requests; None: the model by itself.
            preset: as for :meth:`generate`.
            params: as for :meth:`generate`.
            progress: as for :meth:`generate`.
            on_logits: as for :meth:`generate`.
            options: as for :meth:`generate`; ``json_schema`` forces the content of the answer.

        Raises:
            ParameterError: a malformed message or tool (names index and field), an option, or something that
                the template cannot show or nothing can enforce.
            TemplateError: the model has no template, or it refuses the messages.
            ContextFull: a conversation longer than ``n_ctx``.
        """
        # Templates, grammars and readers of replies, when there is something to answer: a start goes without.
        from aleator.chat.generation import ChatGeneration
        from aleator.chat.prompt import ChatPrompt, prepare_chat

        asked = prepare_chat(
            ChatPrompt(messages, tools, tool_choice, enable_thinking, chat_template_kwargs),
            self.chat_format(chat_template),
            self.tokenizer,
            options_of(options),
            known_tokens,
        )
        about: dict[str, Any] = {"preset": preset, "params": params, "on_logits": on_logits}
        if engine is None:
            made = self.generate(asked.tokens, progress=progress, **about, **asked.options)
        elif progress is not None:
            raise ParameterError(
                "progress",
                "progress: an engine does not report the prefill of one request: leave it out",
            )
        else:
            made = engine.submit(asked.tokens, **about, **asked.options)
        return ChatGeneration(made, asked.reply_of(0))

    def check_options(self, **options: Unpack[GenerateKeywords]) -> None:
        """Check options of :meth:`generate`; raises the errors that it would raise."""
        self.request_maker.check(options_of(options))

    def chat_format(self, chat_template: str | None = None) -> ChatFormat:
        """How chats are written with a template; None: the model's.

        Raises:
            TemplateError: there is none, or it does not parse.
        """
        source = self.vocab.chat_template if chat_template is None else chat_template
        if source not in self._chat_formats:
            from aleator.chat.prompt import ChatFormat

            self._chat_formats[source] = ChatFormat(self.tokenizer, source)
        return self._chat_formats[source]
