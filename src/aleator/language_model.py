"""A model with its tokenizer, ready to write text."""

from __future__ import annotations

import importlib.resources
import logging
import math
import os
import secrets
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aleator.cache.devices import checked_device
from aleator.cache.prefix import PrefixConfig
from aleator.cache.recurrent import RecurrentCache
from aleator.core.errors import ParameterError, TokenizerError
from aleator.generate.context import Context
from aleator.generate.ending import Ending, Shortest
from aleator.generate.loop import Run, cells_needed
from aleator.generate.request import Generation, Request
from aleator.generate.session import Session, load_session, save_session
from aleator.grammar.spelling import spelling
from aleator.models.decoder import Decoder, build_decoder
from aleator.models.weights import Weights, open_weights
from aleator.samplers import SamplerChain, SamplingParams
from aleator.text.stream import StreamDecoder
from aleator.text.tokenizer import Tokenizer
from aleator.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

DEFAULT_CONTEXT = 4096
"""Positions of a sequence when ``n_ctx`` is not given and the model was trained with more."""
ROLLBACK, ROLLBACK_BYTES = 8, 2**26
"""Tokens that texts of a recurrent model can be rewound by, which lets a grammar's forced text be decoded
together; fewer where their states would take more memory than that."""


def bundled_model() -> Path:
    """Path of the model that comes with the package."""
    return Path(str(importlib.resources.files("aleator") / "data" / "shakespeare.gguf"))


def load(
    path: str | os.PathLike[str] | None = None,
    *,
    device: str | None = None,
    dtype: torch.dtype | str | None = None,
    n_ctx: int | None = None,
    n_batch: int = 2048,
    n_ubatch: int = 512,
    n_threads: int | None = None,
    n_threads_batch: int | None = None,
    flash_attn: bool = True,
    type_k: str = "f16",
    type_v: str = "f16",
    offload_kqv: bool = True,
    keep_texts: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> LanguageModel:
    """Load a model: a GGUF file, or a Hugging Face directory with safetensors.

    Args:
        path: what to load; None: the model that comes with the package.
        device: "cpu", "cuda", "cuda:1"...; None: CUDA where there is one, else the CPU.
        dtype: type to compute in, such as "float32"; None: float32 on the CPU, bfloat16 on CUDA.
        n_ctx: positions of one sequence, prompt and generated text together.  0: as many as the model was
            trained with; None: that, but at most 4,096.
        n_batch: tokens of one prefill call.
        n_ubatch: tokens computed at once within it.
        n_threads: threads for decoding; None: all cores.
        n_threads_batch: threads for prefill; None: like ``n_threads``.
        flash_attn: fused attention.
        type_k: type of the keys in the cache: "f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1",
            "q4_0" or "iq4_nl".
        type_v: type of the values in the cache.
        offload_kqv: keep the cache on the device that computes.
        keep_texts: keep what :meth:`LanguageModel.generate` computed in the cache while there is room, so that
            a text that begins like an earlier one is computed only from where it parts.
        progress: called with (done, total) while tensors load.

    Raises:
        ModelNotFound: nothing is there.
        FileFormatError: it is not a model, or a damaged one.
        UnsupportedModel: its architecture, tensor types or tokenizer are not supported.
        ParameterError: an option that is out of range.
    """
    weights = open_weights(bundled_model() if path is None else path)
    tokenizer = Tokenizer(load_vocabulary(weights))
    device, torch_dtype = _placement(device, dtype)
    return LanguageModel(
        weights,
        build_decoder(weights, device, torch_dtype, progress=progress),
        tokenizer,
        n_ctx=n_ctx,
        n_batch=n_batch,
        n_ubatch=n_ubatch,
        n_threads=n_threads,
        n_threads_batch=n_threads_batch,
        flash_attn=flash_attn,
        type_k=type_k,
        type_v=type_v,
        offload_kqv=offload_kqv,
        keep_texts=keep_texts,
    )


def load_vocabulary(weights: Weights) -> Vocabulary:
    """The tokens of a model; errors are those of :func:`load`."""
    if weights.gguf is not None:
        return Vocabulary.from_gguf(weights.gguf)
    return Vocabulary.from_directory(weights.path)


def _placement(device: str | None, dtype: torch.dtype | str | None) -> tuple[str, torch.dtype]:
    """The device and the type to compute in, defaults filled in."""
    import torch

    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    kind = checked_device("device", device).type
    if dtype is None:
        dtype = torch.float32 if kind == "cpu" else torch.bfloat16
    names = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
    if isinstance(dtype, str):
        if dtype not in names:
            raise ParameterError("dtype", f"dtype={dtype!r}: give {', '.join(names)}")
        dtype = names[dtype]
    elif dtype not in names.values():
        raise ParameterError("dtype", f"dtype={dtype}: give {', '.join(names)}")
    return device, dtype


class LanguageModel:
    """A loaded model; made by :func:`load`.

    It serves one thread at a time.  Several generations may be under way at once.

    Attributes:
        weights: the file it came from.
        decoder: the network; ``Context(model, ...)`` takes the model itself.
        tokenizer: text to tokens and back.
        vocab: the tokens.
        n_ctx: positions of one sequence.
    """

    def __init__(
        self,
        weights: Weights,
        decoder: Decoder,
        tokenizer: Tokenizer,
        *,
        n_ctx: int | None = None,
        keep_texts: bool = True,
        **context_options: Any,
    ) -> None:
        self.weights, self.decoder, self.tokenizer = weights, decoder, tokenizer
        self.vocab: Vocabulary = tokenizer.vocab
        trained = weights.config.context_length
        if n_ctx is not None and n_ctx < 0:
            raise ParameterError("n_ctx", f"n_ctx={n_ctx}: give 1 or more, or 0 for {trained}")
        self.n_ctx = min(trained, DEFAULT_CONTEXT) if n_ctx is None else n_ctx or trained
        if self.n_ctx > trained:
            log.warning("n_ctx=%d: the model was trained with %d positions", self.n_ctx, trained)
        self._context_options = context_options
        self._keep_texts = keep_texts
        self._context: Context | None = None
        self._user: weakref.ref[Run] | None = None

    def __repr__(self) -> str:
        config = self.weights.config
        return (
            f"<LanguageModel {config.name or self.weights.path!s}: {config.architecture}, "
            f"{self.weights.n_parameters / 1e6:.1f} M parameters, n_ctx {self.n_ctx}>"
        )

    def generate(
        self,
        prompt: str | Sequence[int] | Session,
        *,
        max_tokens: int | None = None,
        stop: str | Iterable[str] = (),
        logprobs: int | None = None,
        preset: str | None = None,
        params: SamplingParams | None = None,
        ignore_eos: bool = False,
        echo: bool = False,
        context_shift: bool = False,
        n_keep: int | None = None,
        parse_special: bool = True,
        progress: Callable[[int, int], None] | None = None,
        observe: Callable[[SamplerChain, Any], None] | None = None,
        finish: bool | None = None,
        jump_forward: bool = True,
        sample_on: str = "auto",
        steps_ahead: int = 1,
        **sampling: Any,
    ) -> Generation:
        """Continue a prompt.

        The result is an iterator over pieces of text, made as they are asked for::

            for piece in model.generate("ROMEO:", max_tokens=100, temperature=0.8, seed=1):
                print(piece, end="", flush=True)

        and knows the whole ``.text``, ``.tokens``, ``.stop_reason``, ``.logprobs`` and ``.stats``.

        The same prompt, parameters and seed give the same text, also with a larger ``max_tokens`` (then
        as its beginning), and in a batch with others as far as the logits are equal: matrix products may
        differ in their last bits between batch shapes.

        Args:
            prompt: text; token ids (then nothing is added to them); or a session, to go on as if it had not
                been interrupted: with its seed, and at the place in the random stream where it ended.
            max_tokens: tokens to generate at most; None or -1: until something else ends it.
            stop: strings that end the text; they are not part of it.
            logprobs: report the natural-log probability of every token and of so many most probable ones,
                from the model's logits as they are before sampling.  None: neither.
            preset: named sampling parameters; None: the model file's own on top of "llama.cpp".
            params: sampling parameters, instead of a preset.
            ignore_eos: never draw an end-of-generation token.
            echo: begin the text with the prompt.
            context_shift: when the context is full, forget the older half of the text and go on.
            n_keep: tokens at the beginning that a context shift keeps; -1: the prompt; None: only what the
                tokenizer puts before every text (BOS).
            parse_special: read the names of special tokens in ``prompt`` as those tokens.
            progress: called with (done, total) prompt tokens during prefill.
            observe: called with the chain and the logits [V] before each token is drawn, to look at them
                (``chain.explain``).
            finish: with a grammar, bring the text to its end before ``max_tokens`` or the context cuts it
                off, with tokens that are not drawn; where even the shortest ending does not fit, ``complete``
                of the result is False.  None: yes with portable numerics, no with llama.cpp's.
            jump_forward: decode together what a grammar forces; the tokens are the same without.
            sample_on: "host": logits come to the CPU, where the native kernels sample; "device": they are
                sampled where they are, by a :class:`DeviceChain` (docs/device.md), with the same tokens;
                "auto": the latter where the model is not on the CPU and nothing stands against it.
            steps_ahead: tokens that the device decodes and draws before the host looks at any, so that text
                comes in bunches; needs ``sample_on="device"``, and a model without windows or states.
            sampling: single sampling parameters, such as ``temperature=0.8, seed=1``; they win over
                ``preset`` and ``params``.  ``grammar`` (GBNF text, or a sampler such as ``Lark``),
                ``json_schema`` (mapping or text) or ``regex`` say what the text must obey (docs/grammar.md).

        Raises:
            ParameterError: an unknown parameter, or one out of range.
            TokenizerError: token ids outside the vocabulary.
            ContextFull: a prompt longer than ``n_ctx``.
        """
        if not isinstance(prompt, str | Session) and any(isinstance(each, str) for each in prompt):
            raise ParameterError("prompt", "prompt is a list of texts: use generate_batch()")
        if "n" in sampling:
            raise ParameterError("n", "n: several completions are made by generate_batch(..., n=n)")
        requests = self._requests(
            [prompt],
            1,
            max_tokens=max_tokens,
            stop=stop,
            logprobs=logprobs,
            preset=preset,
            params=params,
            ignore_eos=ignore_eos,
            echo=echo,
            context_shift=context_shift,
            n_keep=n_keep,
            parse_special=parse_special,
            observe=observe,
            finish=finish,
            jump_forward=jump_forward,
            **sampling,
        )
        return self._run(requests, progress, sample_on, steps_ahead)[0]

    def generate_batch(
        self,
        prompts: Sequence[str | Sequence[int] | Session],
        *,
        n: int = 1,
        progress: Callable[[int, int], None] | None = None,
        sample_on: str = "auto",
        steps_ahead: int = 1,
        **options: Any,
    ) -> list[Generation]:
        """Continue several prompts, ``n`` times each, in one batch.

        Returns ``len(prompts) * n`` generations, those of the first prompt first; equal prompts are
        prefilled once.  They advance together, whichever is read.  Completion i of a prompt draws with the
        random stream of completion i, so completion 0 equals what :meth:`generate` gives.

        Of one completion kept texts are used, as by :meth:`generate`, if nothing else is under way.  Several
        have a context of their own for the time, which neither finds nor keeps texts: their prompts are
        computed, those of sessions too.

        Args:
            prompts: texts or lists of token ids.
            n: completions of each.
            progress: called with (done, total) prompt tokens during prefill.
            sample_on: as for :meth:`generate`.
            steps_ahead: as for :meth:`generate`.
            options: those of :meth:`generate`, and its errors.
        """
        if isinstance(prompts, str) or not prompts:
            raise ParameterError(
                "prompts", f"prompts={prompts!r}: give a list of at least one prompt"
            )
        if n < 1:
            raise ParameterError("n", f"n={n}: give 1 or more")
        requests = self._requests(prompts, n, **options)
        return self._run(requests, progress, sample_on, steps_ahead)

    def _requests(
        self,
        prompts: Sequence[str | Sequence[int] | Session],
        n: int,
        *,
        max_tokens: int | None = None,
        stop: str | Iterable[str] = (),
        logprobs: int | None = None,
        preset: str | None = None,
        params: SamplingParams | None = None,
        ignore_eos: bool = False,
        echo: bool = False,
        context_shift: bool = False,
        n_keep: int | None = None,
        parse_special: bool = True,
        observe: Callable[[SamplerChain, Any], None] | None = None,
        finish: bool | None = None,
        jump_forward: bool = True,
        **sampling: Any,
    ) -> list[Request]:
        if max_tokens is not None and max_tokens < -1:
            raise ParameterError(
                "max_tokens", f"max_tokens={max_tokens}: give 0 or more, or -1 for no limit"
            )
        if logprobs is not None and not 0 <= logprobs <= len(self.vocab):
            raise ParameterError(
                "logprobs", f"logprobs={logprobs}: give 0 to {len(self.vocab)} (the vocabulary)"
            )
        if ignore_eos:
            sampling["ignore_eos"] = True
        sessions = [prompt for prompt in prompts if isinstance(prompt, Session)]
        if sessions and sessions[0].seed is not None and (params is None or params.seed is None):
            sampling.setdefault("seed", sessions[0].seed)
        chosen = self.sampling_params(preset, params, **sampling)
        samplers = chosen.chain(self.tokenizer)  # what DRY prepares from a vocabulary is shared
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        requests = []
        for prompt in prompts:
            drawn, session = 0, Session((), 0)
            if isinstance(prompt, Session):
                drawn, session = len(prompt.tokens) - prompt.n_prompt, prompt
                prompt = prompt.tokens
            tokens = self.prompt_tokens(prompt, parse_special=parse_special)
            text = ""
            if echo:
                text = (
                    prompt
                    if isinstance(prompt, str)
                    else self.tokenizer.decode(tokens, skip_special=True)
                )
            for completion in range(n):
                chain = SamplerChain(
                    samplers, chosen.numerics, completion=completion, grammar=samplers.grammar
                )
                for i, token in enumerate(tokens, drawn - len(tokens)):
                    chain.accept(token, generated=i >= 0)
                requests.append(
                    Request(
                        tokens=tokens,
                        chain=chain,
                        params=chosen,
                        stream=self.stream(tokens, drawn),
                        drawn=drawn,
                        forgotten=session.forgotten,
                        namespace=session.namespace,
                        max_tokens=None if max_tokens == -1 else max_tokens,
                        stop=stops,
                        logprobs=logprobs,
                        context_shift=context_shift,
                        n_keep=self._n_keep(n_keep, tokens, drawn),
                        echo=text,
                        observe=observe,
                        spell=self.spelling(chain) if jump_forward else None,
                        ending=self.ending(chain, chosen, finish),
                    )
                )
        return requests

    def _run(
        self,
        requests: Sequence[Request],
        progress: Callable[[int, int], None] | None,
        sample_on: str,
        steps_ahead: int,
    ) -> list[Generation]:
        """Make the generations, in the model's own context if one sequence is enough and it is free."""
        busy = self._user() if self._user is not None else None
        own = len(requests) == 1 and (busy is None or busy.done)
        if own:
            context = self._own_context()
        else:
            cells = max(1, cells_needed(requests, self.n_ctx))
            context = self.context(n_ctx=cells, n_seq_max=len(requests), device=None)
        run = Run(context, requests, self.vocab, self.n_ctx, progress, sample_on, steps_ahead)
        if own:
            self._user = weakref.ref(run)
        return run.generations

    def stream(self, tokens: Sequence[int], drawn: int = 0) -> StreamDecoder:
        """Turns what is generated after ``tokens`` into text; the last ``drawn`` were part of it."""
        prompt = tokens[: len(tokens) - drawn]
        stream = self.tokenizer.stream(at_start=all(map(self.vocab.is_special, prompt)))
        for token in tokens[len(prompt) :]:
            stream.push(token)
        return stream

    def save_session(
        self,
        path: str | os.PathLike[str],
        generation: Generation,
        extra: Mapping[str, Any] | None = None,
    ) -> int:
        """Write a generation's text to a file, with its keys and values as far as the cache still has them.

        ``generate(model.load_session(path))`` goes on with it.

        Args:
            path: the file; one that exists is replaced once the new one is complete.
            generation: made until it ends, if it has not.
            extra: more to write, JSON-ready.

        Returns:
            Tokens whose keys and values were written.
        """
        request, made = generation.request, generation.tokens
        if generation.stop_reason == "eog":
            made = made[:-1]
        session = Session(
            tokens=(*request.tokens, *made),
            n_prompt=len(request.tokens) - request.drawn,
            seed=generation.seed,
            extra=dict(extra or {}),
            forgotten=generation.forgotten,
            namespace=generation.namespace,
        )
        return save_session(path, self._own_context(), session, self.fingerprint)

    def load_session(self, path: str | os.PathLike[str]) -> Session:
        """Read what :meth:`save_session` wrote; :meth:`generate` need not compute its text again.

        Raises:
            FileFormatError: not a session, or a damaged file.
            Incompatible: it was made with another model.
        """
        return load_session(path, self._own_context(), self.fingerprint)

    @cached_property
    def fingerprint(self) -> str:
        """Tells models apart whose states do not fit each other."""
        return self.weights.fingerprint()

    def _own_context(self) -> Context:
        """The model's own context, in which nothing must be under way."""
        busy = self._user() if self._user is not None else None
        if busy is not None and not busy.done:
            raise ParameterError(
                "session", "a generation is under way: finish or cancel it, then save or load"
            )
        if self._context is None:
            self._context = self.context(keep_texts=self._keep_texts, device=None)
        self._context.cache.seq_rm(0, -1, -1)  # of a run that was given up before its end
        return self._context

    def spelling(self, chain: SamplerChain) -> Callable[[bytes], list[int]] | None:
        """Cuts forced text into tokens; None if nothing in the chain forces any."""
        return spelling(self.tokenizer).tokens if chain.grammar is not None else None

    def ending(
        self, chain: SamplerChain, params: SamplingParams, finish: bool | None = None
    ) -> Ending | None:
        """Brings the chain's constrained text to its end; None if that is not wanted or not possible."""
        if finish is None:
            finish = chain.numerics == "portable"
        if not finish or len(chain.constraints) != 1:
            return None
        banned = [token for token, bias in params.logit_bias if bias == -math.inf]
        return Ending(chain, Shortest(spelling(self.tokenizer), banned))

    def context(
        self,
        n_ctx: int | None = None,
        n_seq_max: int = 1,
        *,
        keep_texts: bool = False,
        device: str | None = "cpu",
    ) -> Context:
        """A new context of this model, with the options it was loaded with.

        ``n_ctx`` counts the cells of all its sequences together; None: :attr:`n_ctx`.  ``keep_texts``: its
        cache keeps texts (:class:`aleator.cache.PrefixConfig`).  ``device``: where logits arrive; None: the
        model's.
        """
        options = dict(self._context_options)
        window = self.decoder.config.window
        if window is not None and self.n_ctx <= 2 * window.size:
            options.setdefault("swa_full", True)  # little more, and every context shift is exact
        if self.decoder.recurrent:
            own = RecurrentCache.bytes_for(self.decoder.recurrent_shapes, n_seq_max=n_seq_max)
            options.setdefault("n_rollback", max(0, min(ROLLBACK, ROLLBACK_BYTES // own - 1)))
        return Context(
            self,
            n_ctx=n_ctx or self.n_ctx,
            n_seq_max=n_seq_max,
            prefix=PrefixConfig() if keep_texts else None,
            device=device,
            **options,
        )

    def prompt_tokens(
        self, prompt: str | Sequence[int], *, parse_special: bool = True
    ) -> tuple[int, ...]:
        """The tokens of a prompt as :meth:`generate` prefills them.

        Raises:
            ParameterError: there are none.
            TokenizerError: token ids outside the vocabulary.
        """
        if isinstance(prompt, str):
            tokens = self.tokenizer.encode(prompt, add_special=True, parse_special=parse_special)
            if self.vocab.add_eos:
                del tokens[-1]  # what is to be continued has no end
        else:
            tokens = [int(token) for token in prompt]
        size = len(self.vocab)
        for index, token in enumerate(tokens):
            if not 0 <= token < size:
                raise TokenizerError(
                    f"prompt token {index} is {token}: the vocabulary has tokens 0 to {size - 1}"
                )
        if not tokens:
            raise ParameterError(
                "prompt",
                "the prompt is empty, and this model's tokenizer puts no token before a text: give at "
                "least one character",
            )
        return tuple(tokens)

    def sampling_params(
        self, preset: str | None = None, params: SamplingParams | None = None, **sampling: Any
    ) -> SamplingParams:
        """The parameters in effect, with a seed drawn if none is given.

        Precedence: ``sampling``, then ``params`` or the named preset, then what the model's files recommend
        (``general.sampling.*`` of a GGUF file, ``generation_config.json`` of a Hugging Face model) on top of
        the default preset.
        """
        if preset is not None and params is not None:
            raise ParameterError("preset", "preset and params are both given: choose one")
        if params is not None:
            chosen = params.replace(**sampling)
        else:
            chosen = SamplingParams.resolve(sampling, preset, self.weights.recommended_sampling())
        # All completions of a call share one seed, which can be reported; 32 bits are easy to write.
        return (
            chosen if chosen.seed is not None else chosen.replace(seed=secrets.randbelow(2**32 - 1))
        )

    def _n_keep(self, n_keep: int | None, tokens: Sequence[int], drawn: int) -> int:
        if n_keep is None:
            return int(self.vocab.add_bos and tokens[0] == self.vocab.bos)
        return len(tokens) - drawn if n_keep == -1 else n_keep
