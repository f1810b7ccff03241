"""What all dialects share: the model, its engine, and the one place where texts are started."""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, TypeVar
from weakref import WeakSet

import anyio
import anyio.to_thread
from starlette.requests import Request

from aleator.chat.prompt import ChatFormat, PreparedChat, prepare_chat
from aleator.core.cancellation import cancelled_by, check_cancelled
from aleator.core.contract import NUMERICS_VERSION
from aleator.core.errors import GrammarError, ParameterError
from aleator.core.version import __version__
from aleator.engine import prompts
from aleator.engine.engine import Engine
from aleator.engine.options import SubmitOptions
from aleator.generate.generation import Generation
from aleator.generate.loops import check_stretch
from aleator.generate.options import BANS, GenerateOptions
from aleator.generate.request_state import OnLogits
from aleator.language_model import LanguageModel
from aleator.models.adapters import Adapters
from aleator.samplers import SamplingParams
from aleator.samplers.params import CONSTRAINTS
from aleator.samplers.watermark import KEY_FILE, KEYED, WATERMARK_KEY_FILE
from aleator.server.adapters import choose
from aleator.server.auth import current_caller, own_namespace
from aleator.server.bodies import body_of, in_thread
from aleator.server.chat import ChatAnswer, ChatChoice, ChatRequest
from aleator.server.errors import ApiError, no_model, readable
from aleator.server.fields import Body, Fields, constrained
from aleator.server.grammar_limits import Trials
from aleator.server.grammars import MAX_CONCURRENT, Grammars
from aleator.server.options import ServerOptions
from aleator.server.streaming import unless_gone
from aleator.server.vectors import TimedWork

R = TypeVar("R")
OF_SEARCH = frozenset({*prompts.BEAM_OPTIONS, *prompts.SAMPLING, "preset"})
"""Options of a request that a search of beams has, too."""
FIRM = ("bad_words", "allowed_token_ids")
"""Samplers of a server that say what a text must obey."""
MOST_KEPT = 16 * 2**20
"""Bytes of the masks of kept tokens that a response may have, before they are written as text."""


class Service:
    """A model that serves requests of all dialects.

    ``fingerprint`` is OpenAI's ``system_fingerprint``: model, versions of the numerics (of draws, and of the
    decoder), version of the package.  Requests with one fingerprint, equal bodies and equal seeds have equal
    texts and log-probabilities.
    """

    def __init__(
        self,
        model: LanguageModel,
        engine: Engine,  # of the model, for the service alone
        options: ServerOptions | None = None,
        # options of requests that do not give them, by our names
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.engine = model, engine
        self.options = options or ServerOptions()
        path, title = model.weights.path, model.weights.config.name
        known = (*self.options.alias, path.name, path.stem, title)
        self.names = tuple(dict.fromkeys(name for name in known if name))  # for requests
        self.name = self.names[0]  # in responses: the first alias, or the name of the file
        for name in self.names:
            if name in self.adapters.names:
                raise ParameterError(
                    f"adapters: {name!r:.80} is the model's name, too: give the adapter another one (command "
                    "line: --lora NAME=FILE)"
                )
        self.started = int(time.time())
        numerics = f"{NUMERICS_VERSION}.{model.identity.arithmetic}"
        self.fingerprint = f"{model.fingerprint[:16]}-numerics{numerics}-aleator{__version__}"
        self._defaults = prompts.options_of(defaults or {})
        # A key alone is for requests that ask for a watermark, and for the test of texts.
        keyed = {"draw": KEYED[0]} if self._defaults.get(KEY_FILE) is not None else {}
        model.check_options(**{**keyed, **self._defaults})
        self.watermark_key = WATERMARK_KEY_FILE.check(self._defaults.get(KEY_FILE))
        own, of_texts = self.effective()
        drawn = {"draw": [own], "phases": own.by_phase().values()}
        # Options of the server that mark texts.
        self._marks = [k for k, of in drawn.items() if any(each.draw in KEYED for each in of)]
        check_stretch(of_texts.stop_loops, own.temperature, own.numerics, bool(own.phases))
        if self.options.chat_template is not None:
            _ = self.chat_format  # so that a wrong one is refused now
        self._making = threading.Lock()
        self._scoring: anyio.CapacityLimiter | None = None
        self._under_way: WeakSet[Generation | TimedWork] = WeakSet()
        self.grammars = Grammars(model.tokenizer)

    def begin(self) -> None:
        """From now on try grammars in separate processes; they end with ``grammars.close()``."""
        path = str(self.model.weights.path)
        self.grammars.trials = [
            Trials(path, self.options.grammar_timeout) for _ in range(MAX_CONCURRENT)
        ]
        self.grammars.begin()

    @cached_property
    def chat_format(self) -> ChatFormat:
        """The format of chats; TemplateError if there is no template."""
        return self.model.chat_format(self.options.chat_template)

    def check_model(self, name: str | None) -> str:
        """The model's name in a response."""
        if name is None or name in self.names or self.options.any_model:
            return name or self.name
        if name in self.adapters.names:
            return name
        known = " or ".join(map(repr, (*self.names, *self.adapters.names)))
        raise no_model(
            f"model={name!r:.80}: this server has {known}; other names are taken with --alias NAME or "
            "--any-model"
        )

    def check_no_adapter(self, name: str) -> None:
        """Refuse an adapter's name as the model of vectors, whose adapters are the same for all."""
        if name in self.adapters.names:
            message = f"model={name!r:.80} is an adapter, which this endpoint has none of: give {self.name!r}"
            raise ApiError(400, message, "model")

    @property
    def adapters(self) -> Adapters:
        """The adapters that the model was loaded with."""
        return self.model.decoder.adapters

    def effective(self) -> tuple[SamplingParams, GenerateOptions]:
        """The options in effect if a request gives none; the seed is None: each request draws one."""
        given, params = prompts.divided(self._defaults)
        preset = self._defaults.get("preset")
        chosen = self.fitting({}, params, lambda own: self.model.sampling_params(preset, **own))
        return (chosen if params.get("seed") is not None else chosen.replace(seed=None)), given

    async def submit(
        self,
        prompt: str | Sequence[int],
        given: Mapping[str, Any],
        *,
        n: int = 1,
        deadline: float | None = None,
        namespace: str = "",
        on_logits: OnLogits | None = None,
        prompt_logprobs: int | None = None,
        beams: Mapping[str, Any] | None = None,
        begin: bool = True,
    ) -> list[Generation]:
        """Start ``n`` continuations of a prompt; every text without messages starts here.

        ``given`` has options of ``generate`` and sampling parameters under this package's names; ``on_logits``
        is called before each draw of any of them, in the engine's thread.  With ``prompt_logprobs`` the first
        one records the log-probabilities of the prompt's tokens, and of this many of the most probable ones
        at each place.  With ``beams``, the options of a search, one search starts instead.
        With ``begin=False`` nothing starts: the request, which is no search, is only checked.
        Errors are those of ``Engine.submit``; then none has started.
        """

        def work() -> list[Generation]:
            with readable():
                completed = self._completed(given, namespace, beams=beams is not None)
                options = self.grammars.compiled(completed)

                def start(own: Mapping[str, Any]) -> list[Generation]:
                    if beams is not None:
                        return [self._search(prompt, own, beams, deadline)]
                    return self._start(prompt, own, n, deadline, on_logits, prompt_logprobs, begin)

                with self._making:
                    return self.fitting(given, options, start)

        return await self.grammars.in_thread(given, work)

    async def chat(self, request: ChatRequest, begin: bool = True) -> ChatAnswer:
        """Answer messages; the answers of every dialect start here.  If it raises, none has started.

        With ``begin=False`` nothing starts: the request, which is no search, is only checked.
        """
        forced = request.tool_choice not in (None, "auto", "none")
        if not forced and not constrained(request.options):
            return await in_thread(lambda: self._answer(request, self._asked(request), begin))
        # What a schema or a tool asks for becomes a grammar of the whole reply, which may be known.
        with readable():
            await self.grammars.tried(request.options)
        asked = await in_thread(self._asked, request)
        return await self.grammars.in_thread(
            asked.options, partial(self._answer, request, asked, begin)
        )

    async def chat_tokens(self, request: ChatRequest) -> list[int]:
        """The prompt's tokens of some messages; generates nothing."""
        return (await in_thread(self._asked, request)).tokens

    async def scored(self, request: Request, work: Callable[[], R]) -> R:
        """The result of ``work``, which computes with the model itself and is called in a thread.

        It ends early if the client disconnects, after ``request_timeout``, and with :meth:`cut`.
        """
        if self._scoring is None:
            # One request at a time.  The others wait without threads, or those that need one for a moment would
            # wait for all of them.
            self._scoring = anyio.CapacityLimiter(1)
        own = TimedWork(self.options.request_timeout)
        self._under_way.add(own)

        def ended() -> R:
            with cancelled_by(own.check):
                check_cancelled()
                return work()

        running = anyio.to_thread.run_sync(ended, limiter=self._scoring)
        return await unless_gone(request, running, own.cancel)

    def _answer(self, request: ChatRequest, asked: PreparedChat, begin: bool) -> ChatAnswer:
        with readable():
            options: Mapping[str, Any] = asked.options
            if constrained(options):
                options = self.grammars.compiled(options)

            def start(own: Mapping[str, Any]) -> list[Generation]:
                if request.beams is not None:
                    return [self._search(asked.tokens, own, request.beams, request.deadline)]
                return self._start(asked.tokens, own, request.n, request.deadline, begin=begin)

            with self._making:
                made = self.fitting(request.options, options, start)

        def choice(index: int, generation: Generation) -> ChatChoice:
            reply = asked.reply_of(index)
            return ChatChoice(index, generation, reply, not request.parallel_tool_calls)

        return ChatAnswer(made, choice)

    def _asked(self, request: ChatRequest) -> PreparedChat:
        """A chat that is ready to generate."""
        with self._making, readable():
            options = self._completed(
                request.options, request.namespace, bool(request.tools), request.beams is not None
            )
            own = partial(prepare_chat, request, self.chat_format, self.model.tokenizer)
            return self.fitting(request.options, options, own)

    def fitting(
        self,
        given: Mapping[str, Any],
        options: Mapping[str, Any],
        make: Callable[[Mapping[str, Any]], R],
    ) -> R:
        """Call ``make`` with a request's options, of which ``given`` are its own.

        A default of the server that an error names does not fit them, and is left out, unless it restricts or
        marks the text.  An error that names defaults says that they are the server's.
        """
        left, defaults = dict(options), self._defaults.keys() - given.keys()
        firm = {*CONSTRAINTS, *BANS, *FIRM, "draw"}
        while True:
            try:
                return make(left)
            except ParameterError as error:
                name, message = error.parameter, str(error)
                if name in defaults & left.keys() - firm:
                    del left[name]
                    continue
                named = [each for each in sorted(defaults) if re.search(rf"\b{each}\b", message)]
                if not named or isinstance(error, GrammarError):
                    raise
                message += f" (this server was started with {' and '.join(named)})"
                raise ParameterError(name, message) from error

    def _start(
        self,
        prompt: str | Sequence[int],
        options: Mapping[str, Any],
        n: int,
        deadline: float | None,
        on_logits: OnLogits | None = None,
        prompt_logprobs: int | None = None,
        begin: bool = True,
    ) -> list[Generation]:
        given = prompts.options_of({"preset": None, "params": None, **options})
        requests = self.model.request_maker.requests([prompts.checked_prompt(prompt)], [given], n)
        own = self._submitted(deadline)
        made: list[Generation] = []
        try:
            for request in requests:
                wanted = None if made else prompt_logprobs
                made.append(
                    self.engine.start(request, own, on_logits, prompt_logprobs=wanted, begin=begin)
                )
        except BaseException:
            for each in made:
                each.cancel()
            raise
        if begin:
            current_caller().begun.extend(made)
            self.watch(made)
        return made

    def _search(
        self,
        prompt: str | Sequence[int],
        options: Mapping[str, Any],
        beams: Mapping[str, Any],
        deadline: float | None,
    ) -> Generation:
        """Start a search; nothing is drawn at random, so there is no record of it."""
        given = {name: value for name, value in options.items() if name in OF_SEARCH}
        request, search = self.model.request_maker.of_search(prompt, {**given, **beams})
        made = self.engine.start_beams(request, search, self._submitted(deadline))
        self.watch([made])
        return made

    def _submitted(self, deadline: float | None) -> SubmitOptions:
        most = self.options.request_timeout
        return SubmitOptions(
            deadline=min((s for s in (deadline, most) if s is not None), default=None)
        )

    def check_kept(self, body: Body, n: int) -> None:
        """Refuse masks of kept tokens in a stream, or of more tokens in ``n`` texts than may be sent."""
        if not body.options.get("kept"):
            return
        if body.own["stream"]:
            raise ParameterError("kept=true: the masks come with the whole text: leave stream out")
        with body.spelling():
            wanted = {**self._defaults, **body.options}.get("max_tokens")
            most = prompts.GENERATION["max_tokens"].check(wanted)
        size = -(-len(self.model.vocab) // 8)
        allowed = MOST_KEPT // (n * size)
        if most is None or most > allowed:
            remedy = f"give max_tokens, up to {allowed}" if allowed else "ask for fewer texts"
            raise ParameterError(
                f"kept=true: masks have {size} bytes for each token, and {MOST_KEPT} in a response at most: "
                f"{remedy}",
            )

    def watch(self, made: Iterable[Generation]) -> None:
        """Let :meth:`cut` end these texts, too."""
        self._under_way.update(made)

    def cut(self) -> None:
        """End all texts and vectors under way, and the waiting for grammars; called in the event loop."""
        self.grammars.cut()
        for each in list(self._under_way):
            each.cancel()

    def check_beams(self) -> None:
        """Refuse a search if the server's own options have bans or marks, which searches do not apply."""
        held = [*(name for name in BANS if self._defaults.get(name)), *self._marks]
        if held:
            message = f"this server was started with {' and '.join(held)}, which beams do not obey"
            raise ParameterError("use_beam_search", message)

    def enforced(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The server's own options that restrict or mark a text, if a request does not give them.

        The key of watermarks is among them; a request without a watermark leaves it out (:meth:`fitting`).
        """
        names = (*BANS, *FIRM, KEY_FILE)
        return {k: v for k, v in self._defaults.items() if k in names and k not in given}

    def _completed(
        self, given: Mapping[str, Any], namespace: str, tools: bool = False, beams: bool = False
    ) -> dict[str, Any]:
        """Options of a request with the defaults of the server, and a seed."""
        defaults = dict(self._defaults)
        if beams:  # the model's own probabilities, whatever samplers others have
            self.check_beams()
            known = (*prompts.BEAM_OPTIONS, *CONSTRAINTS, *FIRM, "seed", "stop_token_ids")
            defaults = {k: v for k, v in defaults.items() if k in known}
        if tools or constrained(given):
            defaults = {k: v for k, v in defaults.items() if k not in CONSTRAINTS}
        if "preset" in given:  # it says what all other sampling parameters are
            stay = {*prompts.GENERATION, *CONSTRAINTS, *FIRM, KEY_FILE, *self._marks}
            defaults = {k: v for k, v in defaults.items() if k in stay}
        made = {**defaults, **given}
        if made.get("seed") in (None, -1):
            made["seed"] = secrets.randbelow(2**32 - 1)  # 32 bits are easy to write
        if made.get("context_shift") and made.get("max_tokens") in (None, -1):
            # A text that the model does not end would go on for ever; llama-server has this bound, too.
            made["max_tokens"] = self.model.weights.config.context_length
        made["namespace"] = namespace or own_namespace()
        return made


async def read_body(request: Request, fields: Fields) -> tuple[Service, Body]:
    """The service of a request, and its checked body, with "model" as responses name it.

    ApiError if there is no such model.
    """
    service: Service = request.app.state.service
    body = fields.read(await body_of(request), service.options.lenient)
    if "model" in body.own:
        body.own["model"] = service.check_model(body.own["model"])
    if "adapters" in fields.options and (service.adapters or body.own.get("lora")):
        choose(body, service.adapters)
    return service, body
