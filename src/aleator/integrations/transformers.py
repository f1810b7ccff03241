"""Aleator's chains in transformers: ``generate``, ``custom_generate`` and continuous batching.

Aleator's token is drawn from the logits that transformers computed, whatever else is in the batch.  The KV
cache is in :mod:`aleator.integrations.transformers_cache`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from aleator.integrations.versions import require

require("transformers", at_least="5.23", install="aleator[transformers]")
require("torch", at_least="2.8", install="aleator[transformers]")

import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList
from transformers.generation.continuous_batching.cb_logits_processors import (
    CLASSIC_TO_CB_PROCESSORS_MAP,
    ContinuousBatchingLogitsProcessor,
    ContinuousBatchingLogitsProcessorList,
)

from aleator.core.errors import LogitsError, ParameterError
from aleator.integrations.device_texts import DeviceTexts
from aleator.integrations.follower import Follower, draw_all, leave_drawn
from aleator.integrations.settings import Settings, row_params, sampling_params
from aleator.samplers import SamplingParams

_READ_THE_PROMPT = ("penalties", "dry", "no_repeat_ngram", "bad_words")


class AleatorLogitsProcessor(LogitsProcessor):  # type: ignore[misc]  # transformers has no types
    """Leaves only Aleator's token in each row: for ``generate(logits_processor=[...], do_sample=False)``.

    It can be used with ``assistant_model`` or ``prompt_lookup_num_tokens``: a guess is accepted if the chain
    draws the same token, so the text is the same as without guesses.  One object serves one call.

    Args:
        settings: sampling parameters of all prompts, or a list with one per prompt.
        seeds: one per prompt, instead of those of ``settings``.
        attention_mask: [prompts, T], as ``generate`` gets it: 0 marks padding.  Needed for several prompts if
            a sampler looks at them (penalties, DRY).
        num_return_sequences: completions per prompt, as ``generate`` gets it; they draw independently.
        vocab: an Aleator tokenizer or vocabulary, if a parameter needs text (``ignore_eos``, a grammar).

    Raises:
        ParameterError: a parameter is unknown, out of range, or needs ``vocab``.
    """

    supports_continuous_batching = False

    def __init__(
        self,
        settings: Settings | Sequence[Settings],
        *,
        seeds: Sequence[int] | None = None,
        attention_mask: torch.Tensor | None = None,
        num_return_sequences: int = 1,
        vocab: Any = None,
    ) -> None:
        self._params = row_params(settings, seeds, "transformers")
        self._single = seeds is None and not isinstance(settings, Sequence)
        if num_return_sequences < 1:
            raise ParameterError(f"num_return_sequences={num_return_sequences}: 1 or more")
        self._mask, self._completions, self._vocab = attention_mask, num_return_sequences, vocab
        for params in self._params:
            params.chain(vocab)  # raise errors now
        self._texts: list[Follower] = []
        self._starts = 0
        self._prompts = torch.empty(0, dtype=torch.int64)
        self._device: DeviceTexts | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Draw a token for each row.

        Args:
            input_ids: int64 [rows, T], the prompts and the generated tokens.
            scores: floating [rows, V], the logits.

        Returns:
            [rows, V]: 0 at each row's token, -inf elsewhere.

        Raises:
            ParameterError: the rows are not those that this object was made for, or have other prompts than
                before; or ``generate`` uses beam search.
            LogitsError: no logit is finite in a row; names it.
        """
        if not self._texts:
            self._begin(input_ids, scores)
        if len(input_ids) != len(self._texts):
            raise ParameterError(
                "input_ids",
                f"{len(input_ids)} rows after {len(self._texts)}: make an AleatorLogitsProcessor for each call",
            )
        if not torch.equal(input_ids[:, : self._starts], self._prompts):
            raise ParameterError(
                "input_ids",
                "other prompts than before: make an AleatorLogitsProcessor for each call, and use no assistant "
                "with another tokenizer",
            )
        generated = input_ids[:, self._starts :].tolist()
        rows = []
        for i, (text, tokens) in enumerate(zip(self._texts, generated, strict=True)):
            if text.chain.finished:  # a complete constrained text: transformers pads it
                continue
            rows.append(i)
            if self._device is None:
                text.follow(tokens)
            else:
                self._device.follow(i, tokens)
        left = torch.full_like(scores, -torch.inf)
        if not rows:
            left[:, 0] = 0.0
            return left
        drawn = self._draw(rows, scores)
        if len(rows) < len(self._texts):
            every = torch.zeros(len(scores), dtype=torch.int64, device=scores.device)
            every[torch.as_tensor(rows, device=scores.device)] = drawn
            drawn = every
        return left.scatter_(1, drawn[:, None], 0.0)

    def _draw(self, rows: list[int], scores: torch.Tensor) -> torch.Tensor:
        part = scores if len(rows) == len(scores) else scores[rows]
        if self._device is None:
            return torch.tensor(draw_all([self._texts[i] for i in rows], part.detach()))
        drawn = self._device.draw(rows, part)
        lowest = int(drawn.argmin())
        if drawn[lowest] < 0:
            raise LogitsError(f"row {rows[lowest]} has no finite logit")
        return drawn

    def _begin(self, input_ids: torch.Tensor, scores: torch.Tensor) -> None:
        """Make the chains at the first call."""
        n, each = len(input_ids), self._completions
        if n > 1 and bool((scores.logsumexp(-1).abs() < 1e-3).all()):
            raise ParameterError(
                "num_beams",
                "the scores are log-probabilities, as beam search gives them: a chain draws one token, so "
                "call generate with num_beams=1",
            )
        prompts = n // each
        if n % each or (not self._single and prompts != len(self._params)):
            raise ParameterError(
                "settings",
                f"{n} rows for {len(self._params)} prompts with {each} completions: give one for each prompt, "
                "and num_return_sequences as generate gets it",
            )
        params = self._params * prompts if self._single else self._params
        masks = self._masks(prompts, input_ids.shape[1], params)
        texts = []
        for i, ids in enumerate(input_ids.tolist()):
            mask = None if masks is None else masks[i // each]
            prompt = ids if mask is None else [t for t, real in zip(ids, mask, strict=True) if real]
            texts.append(
                Follower(params[i // each].chain(self._vocab, completion=i % each), prompt)
            )
        if scores.device.type != "cpu" and all(t.chain.numerics == "portable" for t in texts):
            self._device = DeviceTexts(n, scores.shape[1], scores.device)
            for i, text in enumerate(texts):
                self._device.begin(i, text.chain)
        elif scores.device.type != "cpu":
            raise ParameterError(
                "numerics='llama.cpp' are computed on the CPU: choose 'portable' here"
            )
        self._texts, self._starts = texts, input_ids.shape[1]
        self._prompts = input_ids.clone()

    def _masks(
        self, prompts: int, length: int, params: Sequence[SamplingParams]
    ) -> list[list[int]] | None:
        if self._mask is None:
            names = {s.name for p in params for s in p.chain(self._vocab) if not s.neutral}
            reading = [name for name in _READ_THE_PROMPT if name in names]
            if prompts > 1 and reading:
                raise ParameterError(
                    "attention_mask",
                    f"{reading[0]} looks at the prompt, and {prompts} prompts may be padded: give "
                    "attention_mask, as generate gets it",
                )
            return None
        if tuple(self._mask.shape) != (prompts, length):
            raise ParameterError(
                f"attention_mask has shape {tuple(self._mask.shape)}, and the prompts have {(prompts, length)}"
            )
        masks: list[list[int]] = self._mask.tolist()
        return masks


def aleator_generate(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    sampling: Settings | Sequence[Settings] | None = None,
    seeds: Sequence[int] | None = None,
    vocab: Any = None,
    assistant_model: Any = None,
    **model_kwargs: Any,
) -> Any:
    """Generate: for ``model.generate(..., custom_generate=aleator_generate, sampling={...})``.

    transformers' own loop runs, so caches, streamers, stopping criteria and ``return_dict_in_generate`` work as
    in ``generate``; the chain chooses every token.

    Args:
        model: passed by ``generate``, like all arguments not described here.
        input_ids: int64 [rows, T].
        logits_processor: from the generation's config and the caller; applied before the chain.
        stopping_criteria: when to end.
        generation_config: must leave the choice of tokens to the chain.
        sampling: the chain's parameters, for all prompts or for each; None: the preset "llama.cpp".
        seeds: one per prompt.
        vocab: as for :class:`AleatorLogitsProcessor`.
        assistant_model: a smaller model with the same tokens that guesses; the text stays the same.
        model_kwargs: arguments of the model, such as the cache.

    Raises:
        ParameterError: the config uses beam search; or it samples, which is only allowed with
            ``num_return_sequences`` above 1, and without transformers' own sampling parameters.
    """
    mask, each = model_kwargs.get("attention_mask"), generation_config.num_return_sequences or 1
    if each > 1 and generation_config.do_sample:  # transformers needs it for several texts
        _refuse_warpers(logits_processor)
        generation_config = copy.copy(generation_config)
        generation_config.do_sample = False
    refuse_config(generation_config)
    given = {"preset": "llama.cpp"} if sampling is None else sampling
    processor = AleatorLogitsProcessor(
        given,
        seeds=seeds,
        attention_mask=None if mask is None else mask[::each, : input_ids.shape[1]],
        num_return_sequences=each,
        vocab=vocab,
    )
    processors = LogitsProcessorList([*logits_processor, processor])
    kind = type(model)
    if assistant_model is None:
        return kind._sample(
            model, input_ids, processors, stopping_criteria, generation_config, **model_kwargs
        )
    return kind._assisted_decoding(
        model,
        input_ids,
        logits_processor=processors,
        stopping_criteria=stopping_criteria,
        generation_config=generation_config,
        assistant_model=assistant_model,
        **model_kwargs,
    )


def _refuse_warpers(processors: Any) -> None:
    found = [type(each).__name__ for each in processors if type(each).__name__.endswith("Warper")]
    if found:
        raise ParameterError(
            f"do_sample=True with {', '.join(found)} from generate's own parameters: the chain draws; give "
            "top_k=0 and leave temperature, top_p and the like to sampling="
        )


def refuse_config(config: GenerationConfig) -> None:
    """Refuse a generation's config whose choices a chain would override.

    Args:
        config: as ``generate`` has resolved it.

    Raises:
        ParameterError: names the setting, and what to do.
    """
    if (config.num_beams or 1) > 1:
        raise ParameterError(
            f"num_beams={config.num_beams}: a chain draws one token, so beams cannot be searched with it; "
            "use num_beams=1, and num_return_sequences for several texts"
        )
    if config.do_sample:
        raise ParameterError(
            "do_sample=True (the model's generation_config.json may set it): the chain draws; give "
            "do_sample=False, and temperature, top_k and the like in sampling="
        )


class AleatorContinuousBatching(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]
    """Draws for the requests of a ``ContinuousBatchingManager``; see :func:`use_in`.

    A request's parameters are given in ``manager.add_request(..., aleator={...})``; without them transformers
    samples its row.
    """

    supported_kwargs: dict[str, type] = {"aleator": dict}  # noqa: RUF012  # as the base class declares it
    ignored_kwargs: tuple[str, ...] = ()

    def __init__(self, processor: _Asks) -> None:
        self._vocab = processor.vocab
        self._numbers: dict[str, int] = {}
        self._texts: dict[int, Follower] = {}
        self._states: dict[str, Any] = {}

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        """Mark all rows as being without a request."""
        int32_tensor.fill_(-1)

    def prepare_tensor_args(self, requests_with_new_token: Sequence[Any]) -> torch.Tensor:
        """Number the requests of the rows, int32 [rows]; -1 for those without Aleator's parameters."""
        self._forget()
        numbers = [self._number(request.state) for request in requests_with_new_token]
        return torch.tensor(numbers, dtype=torch.int32)

    def _number(self, state: Any) -> int:
        settings = state.logit_processor_kwargs.get("aleator")
        if settings is None:
            return -1
        name = state.request_id
        self._states[name] = state
        first = state._true_initial_tokens or len(state.initial_tokens)
        if name not in self._numbers:
            number = max(self._texts, default=-1) + 1
            chain = sampling_params(settings, "transformers").chain(
                self._vocab, completion=_completion(name)
            )
            self._texts[number] = Follower(chain, state.initial_tokens[:first])
            self._numbers[name] = number
        # What was generated before the request was put off is a part of its prompt now.
        before = state.initial_tokens[first:]
        self._texts[self._numbers[name]].follow([*before, *state.generated_tokens])
        return self._numbers[name]

    def _forget(self) -> None:
        """Drop requests that have ended."""
        for name, state in list(self._states.items()):
            if state.status.name in ("FINISHED", "FAILED"):
                del self._states[name], self._texts[self._numbers.pop(name)]

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        """Leave only each request's token in its row of float32 [rows, V]; ``tensor_arg`` has their numbers."""
        numbers = tensor_arg[: len(scores)].tolist()
        rows = [i for i, number in enumerate(numbers) if number in self._texts]
        if rows:
            leave_drawn([self._texts[numbers[i]] for i in rows], rows, scores)
        return scores


class _Asks(LogitsProcessor):  # type: ignore[misc]
    """Makes the manager create an :class:`AleatorContinuousBatching`."""

    def __init__(self, vocab: Any = None) -> None:
        self.vocab = vocab


def use_in(manager: Any, vocab: Any = None) -> None:
    """Make a ``ContinuousBatchingManager`` draw with Aleator's chains; call this before ``manager.start()``.

    Args:
        manager: from ``model.init_continuous_batching()``.
        vocab: as for :class:`AleatorLogitsProcessor`.

    Raises:
        ParameterError: the manager samples, or computes ahead of the tokens; names the option.
    """
    refuse_config(manager.generation_config)
    config = manager.continuous_batching_config
    for option in ("use_async_batching", "use_cuda_graph"):
        value = getattr(config, option)
        if any(value) if isinstance(value, tuple) else value:
            raise ParameterError(
                f"{option}={value}: chains need each token before the next step; use False"
            )
    CLASSIC_TO_CB_PROCESSORS_MAP[_Asks] = AleatorContinuousBatching
    manager.logit_processor = ContinuousBatchingLogitsProcessorList(
        LogitsProcessorList([*manager.logit_processor.logits_processor, _Asks(vocab)]),
        per_request_processors=True,
    )


def _completion(name: str) -> int:
    """Index among the completions of one request, which transformers puts into the names of copies."""
    number = name.rpartition("__child#")[2]
    return int(number) + 1 if "__child#" in name and number.isdigit() else 0
