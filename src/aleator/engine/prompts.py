"""Prompts, and which of the options of a call are whose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from aleator.core.errors import ParameterError, TokenizerError
from aleator.core.integers import exact
from aleator.core.options import declarations, resolved, takes
from aleator.core.parameter import Parameter
from aleator.core.seeds import fresh_seed
from aleator.generate.beam_options import OF_BEAMS, BeamOptions
from aleator.generate.completion import Request
from aleator.generate.healing import NOTHING, take_back
from aleator.generate.options import GenerateOptions
from aleator.generate.session import Session
from aleator.models.adapters import Adapters, Chosen, key_of
from aleator.models.encoder import no_texts
from aleator.models.weights import Weights
from aleator.samplers import SamplingParams
from aleator.samplers.params import ALL, SAMPLER_SEQ
from aleator.samplers.phase_table import THINKING, Table, with_marks, with_start
from aleator.text.tokenizer import Tokenizer

Prompt = str | list[int] | Session
"""Text, token ids, or a session to go on with."""

GENERATION: Mapping[str, Parameter] = declarations(GenerateOptions)
SAMPLING: Mapping[str, Parameter] = {**ALL, SAMPLER_SEQ.name: SAMPLER_SEQ}
BEAM_OPTIONS: Mapping[str, Parameter] = {
    **{each.name: each for each in OF_BEAMS},
    **declarations(BeamOptions),
}
takes_generation = takes(GENERATION.values(), SAMPLING.values())
"""For functions that generate: one list of these options, made once."""
ALSO = ("preset", "params")
OF_A_RUN = ("sampling_device", "multi_step")
"""Options that all completions of a run share."""


def checked_prompt(prompt: object) -> Prompt:
    """A prompt, its token ids in a list if it has any; ParameterError says what to do with anything else."""
    if isinstance(prompt, str | Session):
        return prompt
    if isinstance(prompt, bytes | Mapping) or not isinstance(prompt, Iterable):
        raise ParameterError(f"prompt={prompt!r:.80}: give text, a list of token ids, or a session")
    items = list(prompt)
    if any(isinstance(each, str) for each in items):
        raise ParameterError("prompt is a list of texts: use generate_batch()")
    if any(isinstance(each, Mapping) for each in items):
        raise ParameterError(
            "prompt is a list of messages: use chat(), or aleator.text.ChatTemplate for its token ids"
        )
    return [_token_id(i, token) for i, token in enumerate(items)]


def checked_prompts(prompts: object, n: object) -> list[Prompt]:
    """The prompts of a batch, each as :func:`checked_prompt` gives it; ``n`` counts completions of each."""
    if isinstance(prompts, str | bytes | Mapping) or not isinstance(prompts, Iterable):
        raise ParameterError(f"prompts={prompts!r:.80}: give a list of at least one prompt")
    checked = [checked_prompt(prompt) for prompt in prompts]
    if not checked:
        raise ParameterError("prompts is empty: give at least one prompt")
    if (exact(n) or 0) < 1:
        raise ParameterError(f"n={n!r:.80}: give an integer, 1 or more")
    return checked


def _token_id(i: int, token: object) -> int:
    number = exact(token)
    if number is None:
        raise ParameterError(f"prompt token {i} is {token!r:.80}: give integers")
    return number


BEAMS = "beams() searches the most probable texts, and generate_batch(n=...) draws several"
ELSEWHERE = {
    "do_sample": "temperature=0 is greedy, and anything above it draws",
    "max_length": "write max_tokens=, which counts the tokens after the prompt",
    "min_length": "write min_tokens=, which counts the tokens after the prompt",
    "num_beams": BEAMS,
    "use_beam_search": BEAMS,
    "length_penalty": BEAMS,
    "early_stopping": BEAMS,
    "num_return_sequences": BEAMS,
    "best_of": "generate_batch(n=...) draws several texts",
    "eos_token_id": "write stop_token_ids=; the model's own ends hold besides",
    "return_full_text": "write echo=True",
    "stream": "iterate over what is returned; it has .text too",
    "streamer": "iterate over what is returned; it has .text too",
}
"""Options of other engines that are spelled too unlike ours to be guessed, and what to write."""


def options_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a call by their names.

    ParameterError: an unknown name (the error says the nearest one, or what to write in place of another
    engine's), a former one, one given twice.
    """
    for word in given:
        if word in ELSEWHERE:
            raise ParameterError(word, f"there is no option {word!r}: {ELSEWHERE[word]}")
    return resolved(given, {**GENERATION, **SAMPLING}, ALSO)


def options_of_each(given: Mapping[str, Any], n_prompts: int) -> list[dict[str, Any]]:
    """The options of every prompt of a batch: an option that is a single value may be a list of them."""
    named = options_of(given)
    each: list[dict[str, Any]] = [{} for _ in range(n_prompts)]
    for name, value in named.items():
        declared = GENERATION.get(name) or SAMPLING.get(name)
        several = name in ALSO or (declared is not None and declared.single)
        if not several or not isinstance(value, list | tuple):
            for mine in each:
                mine[name] = value
            continue
        if name in OF_A_RUN:
            raise ParameterError(f"{name}={value!r:.80}: give one value for all prompts")
        if len(value) != n_prompts:
            raise ParameterError(
                f"{name} has {len(value)} values for {n_prompts} prompts: give one for each, or one"
            )
        for mine, own in zip(each, value, strict=True):
            mine[name] = own
    return each


def divided(options: Mapping[str, Any]) -> tuple[GenerateOptions, dict[str, Any]]:
    """Options of the generation, and the sampling parameters among what was given."""
    own = {name: value for name, value in options.items() if name in GENERATION}
    sampling = {name: value for name, value in options.items() if name in SAMPLING}
    return GenerateOptions(**own), sampling


def combined(
    preset: str | None,
    params: SamplingParams | None,
    sampling: Mapping[str, Any],
    recommended: Callable[[], Mapping[str, Any]],
) -> SamplingParams:
    """The parameters of a call; :meth:`RequestMaker.sampling_params` says which of them prevail."""
    if params is not None and not isinstance(params, SamplingParams):
        raise ParameterError(f"params={params!r:.80}: give aleator.SamplingParams(...)")
    if preset is not None and params is not None:
        raise ParameterError("preset and params are both given: choose one")
    if params is not None:
        made: SamplingParams = params.replace(**sampling)
        return made
    return SamplingParams.resolve(sampling, preset, recommended())


def check_without_model(given: Mapping[str, Any]) -> None:
    """See what can be seen of a call's options where there is no model."""
    _, sampling = divided(options := options_of(given))
    combined(options.get("preset"), options.get("params"), sampling, dict)


class RequestMaker:
    """Makes requests of prompts and options; the model's files may recommend sampling parameters."""

    def __init__(
        self, tokenizer: Tokenizer, weights: Weights, adapters: Adapters | None = None
    ) -> None:
        self._tokenizer, self._vocab = tokenizer, tokenizer.vocab
        self._adapters = Adapters() if adapters is None else adapters
        self._recommended = cache(weights.recommended_sampling)
        self._generates = weights.architecture.causal

    def check(self, given: Mapping[str, Any]) -> None:
        """See whether the options of a request can be; errors are those of :meth:`requests`."""
        _, sampling = divided(given)
        self.sampling_params(given.get("preset"), given.get("params"), **sampling)

    def requests(
        self, prompts: Sequence[Prompt], given: Sequence[Mapping[str, Any]], n: int = 1
    ) -> list[Request]:
        """The requests of some prompts, ``n`` of each; without a seed they share one.

        Prompts are as :func:`checked_prompt` gives them, and each has options by their names.

        Raises:
            ParameterError: an option out of range, or a prompt without tokens.
            TokenizerError: token ids outside the vocabulary.
        """
        if not self._generates:
            raise no_texts("generate")
        seed = fresh_seed(2**32 - 1)  # 32 bits are easy to write
        chosen: dict[tuple[object, ...], SamplingParams] = {}  # equal parameters are one object
        requests: list[Request] = []
        for prompt, own in zip(prompts, given, strict=True):
            options, sampling = divided(self._adapted(prompt, own))
            params = own["params"]
            unseeded = not isinstance(params, SamplingParams) or params.seed is None
            if unseeded and isinstance(prompt, Session) and prompt.seed is not None:
                sampling.setdefault("seed", prompt.seed)
            key = (
                repr(own["preset"]),
                id(params),
                *((name, id(v)) for name, v in sampling.items()),
            )
            if key not in chosen:
                made = self.sampling_params(own["preset"], params, seed, **sampling)
                chosen[key] = made
            first = self._request(prompt, options, chosen[key])
            made = chosen.setdefault((*key, first.params.phases), first.params)
            requests += [replace(first, params=made, completion=each) for each in range(n)]
        return requests

    def _adapted(self, prompt: Prompt, own: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a text with the adapters that it has; a session goes on with its own."""
        given: Chosen | None = GENERATION["adapters"].check(own.get("adapters"))
        before = prompt.adapters if isinstance(prompt, Session) else None
        chosen = self._adapters.chosen(before if given is None else given)
        if isinstance(prompt, Session):
            chosen = self._adapters.begun(chosen, prompt.tokens[: prompt.n_prompt])
            if chosen != before:
                made = {name: scale for name, scale, _ in prompt.adapters}
                raise ParameterError(
                    f"adapters: the session was made with {made or 'none'}: give the same, or leave them out, "
                    "with a model that loaded them in this order"
                )
        return {**own, "adapters": chosen} if self._adapters else dict(own)

    def of_search(self, prompt: object, given: Mapping[str, Any]) -> tuple[Request, BeamOptions]:
        """The request of a search of beams, and the search's options.

        Without a preset or parameters the samplers are neutral, whatever the model's files recommend.
        """
        given = resolved(given, {**SAMPLING, **BEAM_OPTIONS}, ALSO)
        known = declarations(BeamOptions)
        search = BeamOptions(**{name: given.pop(name) for name in known.keys() & given.keys()})
        if given.get("preset") is None and given.get("params") is None:
            given["params"] = SamplingParams()
        given = {"preset": None, "params": None, **given}
        (request,) = self.requests([checked_prompt(prompt)], [given])
        return request, search

    def _request(self, prompt: Prompt, options: GenerateOptions, params: SamplingParams) -> Request:
        if options.logprobs is not None and options.logprobs > len(self._vocab):
            raise ParameterError(
                f"logprobs={options.logprobs}: give 0 to {len(self._vocab)} (the vocabulary)"
            )
        if options.kept and (options.logprobs is None or params.numerics != "portable"):
            raise ParameterError(
                "kept=True: ask for logprobs as well, and give numerics='portable'"
            )
        drawn, session = 0, Session((), 0)
        if isinstance(prompt, Session):
            drawn, session = len(prompt.tokens) - prompt.n_prompt, prompt
            prompt = list(prompt.tokens)
        tokens = self.tokens(prompt, options.parse_special)
        text = prompt
        if options.echo and not isinstance(prompt, str):
            text = self._tokenizer.decode(tokens, skip_special=True)
        taken, phases = NOTHING, self._phases(params, options)
        if phases:
            of = self._vocab.token_bytes if self._vocab.has_text else lambda token: b"."
            phases = with_start(phases, tokens[: len(tokens) - drawn], of)
            params = params.replace(phases=phases)
        if options.heal and not drawn:
            tokens, taken = take_back(tokens, self._tokenizer, phases)
        at_end = taken[1] if taken[0] == len(tokens) else ()
        options = self._begun(options, (*tokens, *at_end))
        return Request(
            tokens=tokens,
            params=params,
            options=options,
            drawn=drawn,
            chain_state=session.chain,
            forgotten=session.forgotten,
            namespace=session.namespace,
            n_keep=self._n_keep(options.n_keep, tokens, drawn),
            echo=str(text) if options.echo else "",
            taken_back=taken,
        )

    def _begun(self, options: GenerateOptions, tokens: Sequence[int]) -> GenerateOptions:
        """The options with where adapters begin, which tell the text's part of the prompt cache apart."""
        if not options.adapters:
            return options
        chosen = self._adapters.begun(options.adapters, tokens)
        moved = options.context_shift or options.guidance_scale != 1
        if moved and any("@" in digest for _, _, digest in chosen):
            raise ParameterError(
                "adapters: one of them begins at its invocation tokens, whose place context_shift and "
                "guidance_scale change: leave these out"
            )
        return replace(options, adapters=chosen, namespace=options.namespace + key_of(chosen))

    def _phases(self, params: SamplingParams, options: GenerateOptions) -> Table:
        """The phases of a text with their marks."""
        table: Table = params.values()["phases"]
        if not table:
            return table
        if options.multi_step != 1:
            raise ParameterError(
                f"multi_step={options.multi_step} with phases: marks are looked for in every step; give 1"
            )
        known = {THINKING: options.reasoning_marks if self._vocab.has_text else None}
        return with_marks(table, known, "the options of a text")

    def tokens(
        self,
        prompt: Prompt,
        parse_special: bool = False,
        of: str = "prompt",
        whole: bool = False,
    ) -> tuple[int, ...]:
        """The tokens of a prompt as a generation prefills them.

        ``parse_special`` reads names of control tokens as those tokens.  Errors name the parameter ``of``.
        ``whole``: the text ends here, with the token that the vocabulary wants at its end.

        Raises:
            ParameterError: there are none.
            TokenizerError: token ids outside the vocabulary.
        """
        vocab = self._vocab
        if isinstance(prompt, str):
            tokens = self._tokenizer.encode(prompt, add_special=True, parse_special=parse_special)
            if vocab.add_eos and not whole:
                del tokens[-1]  # what is to be continued has no end
        else:
            tokens = list(prompt.tokens if isinstance(prompt, Session) else prompt)
        size = len(vocab)
        for i, token in enumerate(tokens):
            if not 0 <= token < size:
                raise TokenizerError(
                    f"{of} token {i} is {token}: the vocabulary has tokens 0 to {size - 1}"
                )
        if not tokens and not isinstance(prompt, str):
            raise ParameterError(f"{of} is empty: give at least one token")
        if not tokens:
            raise ParameterError(
                f"{of} is empty, and this model's tokenizer puts no token before a text: give at least one "
                "character"
            )
        return tuple(tokens)

    def sampling_params(
        self,
        preset: str | None = None,
        params: SamplingParams | None = None,
        default_seed: int | None = None,
        **sampling: Any,
    ) -> SamplingParams:
        """The parameters in effect; without a seed they get ``default_seed``, or one from the system.

        Precedence: ``sampling``, then ``params`` or the named preset, then what the model's files recommend
        (``general.sampling.*`` of a GGUF file, ``generation_config.json`` of a Hugging Face model) on top of
        the default preset.
        """
        chosen = combined(preset, params, sampling, self._recommended)
        if chosen.seed is not None:
            return chosen
        return chosen.replace(seed=fresh_seed(2**32 - 1) if default_seed is None else default_seed)

    def _n_keep(self, n_keep: int | None, tokens: Sequence[int], drawn: int) -> int:
        if n_keep is None:
            return int(self._vocab.add_bos and tokens[0] == self._vocab.bos)
        return len(tokens) - drawn if n_keep == -1 else n_keep
