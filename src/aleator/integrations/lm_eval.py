"""A model for EleutherAI's evaluation harness (lm-eval): ``aleator``.

::

    import aleator.integrations.lm_eval
    import lm_eval

    lm_eval.simple_evaluate(model="aleator", model_args={"pretrained": "model.gguf"}, tasks=["arc_easy"])

On the command line ``python -m aleator.integrations.lm_eval`` takes the arguments of ``lm-eval``.  Texts are
tokenised as the harness does for transformers (``hf``): names of control tokens become these tokens.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from aleator.integrations.versions import require

try:
    require("lm_eval", at_least="0.4.13", install="aleator[lm-eval]")
except ImportError as error:
    if __name__ == "__main__":
        raise SystemExit(f"aleator: error: {error}") from None
    raise

import lm_eval.models  # noqa: F401  registers theirs, or the harness would know only ours
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

import aleator
from aleator.core.errors import ParameterError, TemplateError
from aleator.engine.options import EngineOptions
from aleator.samplers.params import in_range
from aleator.text import ChatTemplate

REQUESTS_AT_ONCE = 256
"""Number of texts that are scored before the harness's cache gets the results."""
TOGETHER = 8
"""Default number of texts that are generated together."""
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names that tasks use for the length of a text; the first one given counts."""
GREEDY = ("do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p")
"""A task's sampling parameters, which only count if it samples."""

Pair = tuple[tuple[str, str] | None, list[int], list[int]]
"""Texts for the harness's cache, tokens of the context, tokens of the continuation."""


class AleatorLM(TemplateLM):  # type: ignore[misc]  # the harness has no types here
    """Scores and generates texts for the harness.

    Args:
        pretrained: A GGUF file or a Hugging Face directory; None takes the model that comes with the package.
        model: Another name of ``pretrained``.
        batch_size: Number of texts that are generated together; "auto" is 8.  No score depends on it.
        max_batch_size: As ``batch_size``, for "auto".
        device: As for :func:`aleator.load`.  The harness passes "cuda:0" if no device is given, so that value
            means the default: a CUDA device if there is one, else the CPU.
        max_length: Positions of a text; None takes the model's training length, at most 4096.
        max_gen_toks: Tokens to generate if a task does not say.
        add_bos_token: Whether BOS precedes a text; None follows the model's files.
        seed: Seed of sampled texts; the i-th request for the same text adds i.
        load: Other options of :func:`aleator.load`; keys and values default to float32, as in transformers.

    Attributes:
        model: The model that scores and generates.

    Raises:
        ParameterError: An option is out of range.
    """

    def __init__(
        self,
        pretrained: str | None = None,
        *,
        model: str | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        add_bos_token: bool | None = None,
        seed: int = 0,
        **load: Any,
    ) -> None:
        super().__init__()
        n_ctx = None if max_length is None else int(max_length) + 1
        device = None if device == "cuda:0" else device
        # With float16, scores of short choices differ more from transformers'.
        load = {"type_k": "f32", "type_v": "f32", **load}
        self.model = aleator.load(pretrained or model, device=device, n_ctx=n_ctx, **load)
        self.batch_size = _batch_size(batch_size, max_batch_size)
        self.max_gen_toks, self._seed = int(max_gen_toks), int(seed)
        self._add_bos = self.model.vocab.add_bos if add_bos_token is None else add_bos_token

    @property
    def max_length(self) -> int:
        """The most positions that a text can have before its last token, as the harness counts."""
        return self.model.n_ctx - 1

    @property
    def eot_token_id(self) -> int:
        """The token that ends texts."""
        eos = self.model.vocab.eos
        if eos is None:
            raise ParameterError("model", "the vocabulary has no end-of-text token")
        return int(eos)

    @property
    def prefix_token_id(self) -> int:
        """The token that precedes a text without a context."""
        bos = self.model.vocab.bos
        return self.eot_token_id if bos is None else int(bos)

    @property
    def tokenizer_name(self) -> str:
        """The name of the tokenizer and its template in the harness's cache."""
        return f"aleator-{self.model.identity.fingerprint}"

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The model's template; None if it is not used.

        Raises:
            TemplateError: It has none.
        """
        if chat_template is False or chat_template is None:
            return None
        source = self.model.vocab.chat_template
        if source is None:
            raise TemplateError("the model has no chat template: leave out --apply_chat_template")
        return source

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Messages as a text.

        Raises:
            TemplateError: The model has no template, or it refuses the messages.
        """
        template = ChatTemplate(self.model.vocab.chat_template, self.model.vocab)
        text = template.render(chat_history, add_generation_prompt=add_generation_prompt)
        if add_generation_prompt:
            return text
        last = str(chat_history[-1]["content"]).strip()  # the model continues it
        return text[: text.rindex(last) + len(last)]

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **ignored: Any
    ) -> list[int]:
        """Tokens of a text; names of control tokens become these tokens.

        ``add_special_tokens``: whether BOS precedes it; None adds BOS if the model wants it and the text does
        not begin with it.
        """
        vocab = self.model.vocab
        tokens = self.model.tokenizer.encode(string, add_special=False, parse_special=True)
        bos = vocab.bos
        wanted = self._add_bos and tokens[:1] != [bos] if add_special_tokens is None else False
        if add_special_tokens:
            wanted = vocab.add_bos
        return [int(bos), *tokens] if wanted and bos is not None else list(tokens)

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """Log-likelihoods of whole texts, in windows of :attr:`max_length` as the harness cuts them."""
        windows: list[Pair] = []
        owners: list[int] = []
        for i, request in enumerate(requests):
            (text,) = request.args
            pieces = get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            for context, continuation in map(make_disjoint_window, pieces):
                windows.append((None, context, continuation))
                owners.append(i)
        sums: list[list[float]] = [[] for _ in requests]
        scored = self._loglikelihood_tokens(windows, disable_tqdm=disable_tqdm)
        for owner, (logprob, _) in zip(owners, scored, strict=True):
            sums[owner].append(logprob)
        made = [math.fsum(each) for each in sums]
        for request, value in zip(requests, made, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, value)
        return made

    def _loglikelihood_tokens(
        self, requests: Sequence[Pair], disable_tqdm: bool = False, **ignored: Any
    ) -> list[tuple[float, bool]]:
        """Log-likelihood of each continuation, and whether greedy decoding would generate it.

        A text that is too long loses its first tokens, as in the harness's own models.
        """
        order = sorted(range(len(requests)), key=lambda i: (requests[i][1], requests[i][2]))
        made: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
        with _progress(len(requests), "loglikelihood", disable_tqdm) as shown:
            for start in range(0, len(order), REQUESTS_AT_ONCE):
                part = order[start : start + REQUESTS_AT_ONCE]
                cut = [self._fitting(requests[i][1], requests[i][2]) for i in part]
                scores = self.model.score([c for c, _ in cut], [e for _, e in cut])
                scores = scores if isinstance(scores, list) else [scores]
                for i, score in zip(part, scores, strict=True):
                    made[i] = (score.logprob, score.greedy)
                    if requests[i][0] is not None:
                        self.cache_hook.add_partial("loglikelihood", requests[i][0], made[i])
                shown.update(len(part))
        return made

    def _fitting(self, context: list[int], continuation: list[int]) -> tuple[list[int], list[int]]:
        """Drop the first tokens of a context that is too long."""
        room = self.max_length + 1 - len(continuation)
        if room < 1:
            raise ParameterError(
                "max_length",
                f"a continuation has {len(continuation)} tokens, and max_length={self.max_length}: give more",
            )
        return context[-room:], continuation

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Generate texts up to one of the task's strings, all in one engine.

        Raises:
            ParameterError: A task has an unknown option; names it.
        """
        times: Counter[str] = Counter()
        texts: list[str] = []
        engine_options = {"n_seq_max": self.batch_size, "max_queue": max(1, len(requests))}
        with self.model.engine(**engine_options) as engine:
            made = []
            for request in requests:
                prompt, asked = request.args
                options, params = self._options(asked, times[repr(request.args)])
                times[repr(request.args)] += 1
                room = self.model.n_ctx - options["max_tokens"]
                if room < 1:
                    raise ParameterError(
                        f"max_gen_toks={options['max_tokens']}: the model has {self.model.n_ctx} positions, "
                        "and a prompt needs one: give fewer, or a larger max_length"
                    )
                tokens = self.tok_encode(prompt)[-room:] or [self.prefix_token_id]
                made.append(engine.submit(tokens, params=params, **options))
            with _progress(len(requests), "generate_until", disable_tqdm) as shown:
                for request, generation in zip(requests, made, strict=True):
                    texts.append(generation.text)
                    self.cache_hook.add_partial("generate_until", request.args, texts[-1])
                    shown.update(1)
        return texts

    def _options(
        self, asked: Mapping[str, Any], again: int
    ) -> tuple[dict[str, Any], aleator.SamplingParams]:
        """A request's options and sampling parameters: neutral except for those that the task gives."""
        given = dict(asked)
        stop = given.pop("until", None) or []
        length = next((given[n] for n in LENGTHS if given.get(n) is not None), self.max_gen_toks)
        for name in LENGTHS:
            given.pop(name, None)
        if "max_length" in given:
            raise ParameterError("max_length of a task: give max_gen_toks")
        temperature = float(given.get("temperature") or 0.0)
        samples = given.pop("do_sample", None)
        if samples is False or (samples is None and temperature == 0):
            given = {name: value for name, value in given.items() if name not in GREEDY}
            given["temperature"] = 0.0
        seed = given.pop("seed", None)
        given["seed"] = (self._seed if seed is None else int(seed)) + again
        stop = [stop] if isinstance(stop, str) else list(stop)
        options = {"max_tokens": int(length), "stop": [text for text in stop if text]}
        return options, aleator.SamplingParams(**in_range(given, ("transformers", "vLLM")))


def _batch_size(given: int | str | None, most: int | None) -> int:
    """The number of texts that are generated together; "auto" and None take the default."""
    if given is None or str(given).startswith("auto"):
        given = most or TOGETHER
    number = int(given)
    EngineOptions(n_seq_max=number)  # refuses what is out of range
    return number


def _progress(total: int, what: str, disabled: bool) -> Any:
    """The harness's progress bar."""
    from tqdm import tqdm  # the harness brings it

    return tqdm(total=total, disable=disabled, desc=f"aleator: {what}")


register_model("aleator")(AleatorLM)

if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
