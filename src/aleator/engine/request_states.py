"""Makes the state of a request: its chain, text stream, drafter, and what ends its text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from aleator.core.contract import Purpose
from aleator.core.errors import ParameterError
from aleator.core.parameter import check_callable
from aleator.core.philox import stream, uniform64
from aleator.engine.prompts import RequestMaker, checked_prompt
from aleator.engine.scheduled_request import MOST_POSITIONS, positions
from aleator.generate.bans import Ban, Bans, Strings
from aleator.generate.beam_options import BeamOptions
from aleator.generate.beams import BeamSearch
from aleator.generate.complete_grammar import EndingSearch, GrammarCompleter
from aleator.generate.completion import Completion, Request
from aleator.generate.expressions import searchers
from aleator.generate.healing import Healing, token_prefixes
from aleator.generate.prompt_lookup import PromptLookup
from aleator.generate.request_state import OnLogits, RequestState, go_on
from aleator.generate.speculative import (
    Drafter,
    Drafts,
    Experience,
    Guesser,
    SharedDrafts,
    Speculation,
)
from aleator.generate.steering import Guidance, ReasoningBudget
from aleator.grammar.spelling import spelling
from aleator.samplers import SamplerChain
from aleator.samplers.logit_bias import biases_of_ids
from aleator.text.tokenizer import StreamDecoder, Tokenizer


class RequestStateMaker:
    """Makes the states of requests.

    ``drafts`` makes what requests of a context share of a draft model or a draft head, from the context's
    numbers of cells and sequences; None: there is neither.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        request_maker: RequestMaker,
        drafts: Callable[[int, int], Drafts | None] | None = None,
    ) -> None:
        self._tokenizer, self._vocab = tokenizer, tokenizer.vocab
        self._request_maker, self._drafts = request_maker, drafts
        # By who guesses, and by the temperature
        self._experience: dict[tuple[str, float], Experience] = {}

    def shared_drafts(self, n_cells: int, n_seq_max: int) -> SharedDrafts:
        """What the requests of a context of this size share for drafting."""
        return SharedDrafts(None if self._drafts is None else self._drafts(n_cells, n_seq_max))

    def make(
        self,
        requests: Sequence[Request],
        on_logits: OnLogits | None = None,
        drafter: Drafter | None = None,
        shared: SharedDrafts | None = None,
    ) -> list[RequestState]:
        """Make the states of requests, with chains of their own that have accepted the prompts.

        ``drafter`` guesses tokens in place of what the requests' options say.  ``shared`` is what the requests
        of the context share; None: make one for these requests.
        """
        check_callable("on_logits", on_logits)
        if drafter is not None and not callable(getattr(drafter, "draft", None)):
            raise ParameterError(
                f"drafter={drafter!r:.60} has no method draft(tokens, n): give an object that has it, or None"
            )
        if shared is None:
            wanted = [positions(request, MOST_POSITIONS) for request in requests]
            shared = self.shared_drafts(sum(wanted), len(requests))
        templates: dict[int, SamplerChain] = {}  # DRY's tables for a vocabulary are shared
        states = []
        for request in requests:
            key = id(request.params)
            if key not in templates:
                templates[key] = request.params.chain(self._tokenizer)
            chain = SamplerChain(
                templates[key],
                request.params.numerics,
                completion=request.completion,
                grammar=templates[key].grammar,
            )
            go_on(chain, request)
            forced = chain.grammar is not None and request.options.jump_forward
            state = RequestState(
                request,
                chain,
                self.stream(request),
                self._vocab,
                on_logits=on_logits,
                spell=spelling(self._tokenizer).tokens if forced else None,
                completer=self._completer(request, chain),
                budget=self._budget(request),
                banned=self._banned(request, chain),
                speculation=self._speculation(request, chain, drafter, shared),
            )
            state.guidance = self._guidance(request)
            state.healing = self._healing(request, chain)
            states.append(state)
        return states

    def of_search(
        self, request: Request, options: BeamOptions, n_seq_max: int, n_ctx: int
    ) -> tuple[RequestState, BeamSearch]:
        """The state of a beam search in a context of ``n_seq_max`` sequences with ``n_ctx`` positions each."""
        (state,) = self.make([request])

        def new_completion(chain: SamplerChain) -> Completion:
            return Completion(request, chain, self.stream(request), self._vocab)

        n_tokens = len(self._vocab)
        search = state.search = BeamSearch(
            n_seq_max, request, state.chain, options, new_completion, n_ctx, n_tokens
        )
        return state, search

    def _budget(self, request: Request) -> ReasoningBudget | None:
        """The reasoning budget; None if reasoning has no limit."""
        budget = request.options.reasoning_budget
        if budget is None:
            return None
        self._vocab.require_text("reasoning_budget")
        for name in request.options.bans:
            raise ParameterError(
                f"{name} and reasoning_budget are both given, and what is forced cannot be drawn anew: give "
                "one"
            )
        (begin, end), message = (
            request.options.reasoning_marks,
            request.options.reasoning_budget_message,
        )
        for text, why in (
            (end, "which ends the reasoning and follows the message in any case"),
            *((stop, "a stop string, which would end the text") for stop in request.options.stop),
        ):
            if text in message:
                raise ParameterError(
                    f"reasoning_budget_message={message!r:.80} has {text!r:.40} in it, {why}: leave it out"
                )
        tokens = self._spelled(message) if message else []
        tokens += self._tokenizer.encode(end, add_special=False, parse_special=True)
        start = len(request.tokens) - request.drawn
        text = self._tokenizer.decode(request.tokens[:start])
        opened = text.rfind(begin) > text.rfind(end)
        grace = request.options.reasoning_budget_grace
        made = ReasoningBudget(budget, begin.encode(), end.encode(), tokens, opened, grace)
        # Drawn by an earlier generation that this one continues
        for token in request.tokens[start:]:
            made.next()
            made.take(token, self._vocab.token_bytes(token))
        return made

    def _spelled(self, message: str) -> list[int]:
        """The tokens of ``reasoning_budget_message``, byte by byte, without control tokens."""
        spelled = spelling(self._tokenizer)
        tokens = spelled.tokens(message.encode())
        if b"".join(spelled.pieces[token] for token in tokens) != message.encode():
            raise ParameterError(
                f"reasoning_budget_message={message!r:.80}: the model's vocabulary cannot spell it: give "
                "characters that it has"
            )
        return tokens

    def _banned(self, request: Request, chain: SamplerChain) -> Bans | None:
        """The request's bans; None without any."""
        options, params, vocab = request.options, request.params, self._vocab
        for name in options.bans:
            vocab.require_text(name)
        bans: list[Ban] = [*searchers(options.banned_regex)]
        if options.banned_strings:
            bans.append(Strings(options.banned_strings))
        if not bans:
            return None
        word = stream(Purpose.BAN, completion=request.completion)
        start = len(request.tokens) - request.drawn
        _, taken = request.taken_back
        silent = {*params.stop_token_ids, *(() if params.ignore_eos else vocab.eog)}

        def bytes_of(token: int) -> bytes:
            hidden = vocab.is_special(token) and token not in options.shown_tokens
            return b"" if hidden or token in silent else vocab.token_bytes(token)

        return Bans(
            bans,
            bytes_of,
            len(vocab),
            lambda place: uniform64(chain.seed, 0, place, word) / 2**64,
            begun=request.tokens[start:],
            skip=len(self._bytes(taken)),
            strip=vocab.add_space_prefix and not request.drawn and self._at_start(request),
        )

    def _speculation(
        self, request: Request, chain: SamplerChain, drafter: Drafter | None, shared: SharedDrafts
    ) -> Speculation | None:
        """The request's speculation; None without any."""
        options = request.options
        if drafter is None and options.spec_type == "none":
            return None
        name = "spec_type" if drafter is None else "drafter"
        if options.multi_step != 1:
            raise ParameterError(
                f"multi_step={options.multi_step} with {name}: a guess is looked at in every step; give 1"
            )
        guesses: Drafter | Guesser | None = drafter
        if guesses is None and options.spec_type == "ngram":
            guesses = PromptLookup(shared.history, request.cache_namespace)
        elif guesses is None:
            if shared.drafts is None:
                raise ParameterError(
                    "spec_type='draft' needs a smaller model or a draft head: load the model with "
                    "model_draft=PATH (command line: --model-draft)"
                )
            guesses = shared.drafts.model(chain)
        experience = None if drafter is not None else self._experience_of(request)
        return Speculation(guesses, options.spec_draft_n_max, len(self._vocab), experience)

    def _experience_of(self, request: Request) -> Experience:
        """What guesses gained in texts of about this temperature; at first only greedy ones are trusted."""
        temperature = round(min(2.0, request.params.temperature), 1)
        key = request.options.spec_type, temperature
        if key not in self._experience:
            self._experience[key] = Experience() if temperature <= 0 else Experience(0.0)
        return self._experience[key]

    def _guidance(self, request: Request) -> Guidance | None:
        """The guidance by a negative prompt; None without one."""
        options = request.options
        if options.guidance_scale == 1.0:
            if options.negative_prompt is not None:
                raise ParameterError(
                    "negative_prompt does nothing without guidance_scale: give it too"
                )
            return None
        if options.context_shift:
            raise ParameterError("guidance_scale and context_shift do not go together: give one")
        negative = "" if options.negative_prompt is None else options.negative_prompt
        prompt = self._request_maker.tokens(
            checked_prompt(negative), options.parse_special, of="negative_prompt"
        )
        return Guidance((*prompt, *request.remaining_drawn), options.guidance_scale)

    def _healing(self, request: Request, chain: SamplerChain) -> Healing | None:
        """The healing of tokens taken back from the prompt; None if none were."""
        if not request.options.heal:
            return None
        other = "a grammar" if chain.constraints else "reasoning_budget"
        if chain.constraints or request.options.reasoning_budget is not None:
            raise ParameterError(
                f"heal=True and {other} are both given, and both say what the first tokens are: give one"
            )
        _, taken = request.taken_back
        return Healing(token_prefixes(self._tokenizer), self._bytes(taken)) if taken else None

    def _bytes(self, tokens: Sequence[int]) -> bytes:
        return b"".join(map(self._vocab.token_bytes, tokens))

    def stream(self, request: Request) -> StreamDecoder:
        """A decoder of tokens to text, which has been given the tokens that an earlier generation drew."""
        start = len(request.tokens) - request.drawn
        _, taken = request.taken_back
        decoder = self._tokenizer.stream(
            at_start=self._at_start(request),
            shown=request.options.shown_tokens,
            skip=len(self._bytes(taken)),
        )
        for token in request.tokens[start:]:
            decoder.push(token)
        return decoder

    def _at_start(self, request: Request) -> bool:
        """Whether no text precedes the request's."""
        start = len(request.tokens) - request.drawn
        return all(map(self._vocab.is_special, request.tokens[:start]))

    def _completer(self, request: Request, chain: SamplerChain) -> GrammarCompleter | None:
        """What completes a constrained text before its tokens run out; None if unnecessary or impossible."""
        wanted = request.options.complete_grammar
        steered = request.options.bans or request.options.reasoning_budget is not None
        if wanted and steered:
            raise ParameterError(
                "complete_grammar=True does not go together with banned_strings, banned_regex or "
                "reasoning_budget, which choose tokens themselves: leave it out, or leave them out"
            )
        if wanted is None:
            wanted = chain.numerics == "portable"
        if not wanted or steered or len(chain.constraints) != 1:
            return None
        all_params = [request.params, *request.params.by_phase().values()]
        biases = [b for p in all_params for b in biases_of_ids(p.logit_bias, self._tokenizer)]
        banned = [token for token, bias in biases if bias == -math.inf]
        return GrammarCompleter(chain, EndingSearch(spelling(self._tokenizer), banned))
