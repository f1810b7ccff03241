"""Aleator in llama-cpp-python: our chains draw there, and texts move between its context and ours.

With ``numerics="llama.cpp"`` in the settings the token is llama.cpp's, with "portable" (the default) ours.
"""

from __future__ import annotations

from aleator.integrations.versions import require

require("llama-cpp-python", at_least="0.3.36", install="aleator[llama]")

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from llama_cpp import Llama, LlamaState

import aleator
from aleator.cache.storage.layer import TYPES
from aleator.core.errors import ParameterError
from aleator.generate.context import Batch, Context
from aleator.integrations.follower import Follower
from aleator.integrations.settings import Settings, sampling_params
from aleator.language_model import LanguageModel
from aleator.samplers import SamplerChain
from aleator.text.tokenizer import Tokenizer
from aleator.text.vocabulary import Vocabulary

_TYPES = {each.ggml: name for name, each in TYPES.items()}
"""ggml's numbers of the types that both caches have -> their names."""
_OF_THE_FILE: dict[str, tuple[float, ...]] = {
    "rope_scaling_type": (-1,),
    "rope_freq_base": (0,),
    "rope_freq_scale": (0,),
    "yarn_ext_factor": (-1,),
    "yarn_attn_factor": (1,),
    "yarn_beta_fast": (32,),
    "yarn_beta_slow": (1,),
    "yarn_orig_ctx": (0,),
    "attention_type": (-1, 0),
}
"""Options of a ``Llama`` that change what its model computes, with their values that leave it to the file."""
_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
"""A ``llama_token_data``."""


class AleatorLogitsProcessor:
    """Leaves only Aleator's token: for ``llama(..., logits_processor=LogitsProcessorList([...]))``.

    One object serves one call; ``temperature=0`` is fastest, others give the same.

    Args:
        llama: the model that generates; its file has the vocabulary.
        settings: the sampling parameters of the chain.
        completion: index among completions of one prompt.

    Raises:
        ParameterError: a parameter is unknown or out of range; or ``llama`` has a draft model, whose guesses
            would be part of the text that processors get.
    """

    def __init__(self, llama: Llama, settings: Settings, *, completion: int = 0) -> None:
        if llama.draft_model is not None:
            raise ParameterError(
                "draft_model",
                "a Llama with draft_model= shows logits processors its guesses as text: make it without one",
            )
        self._chain = _chain(llama, settings, completion)
        self._text: Follower | None = None
        self._prompt: npt.NDArray[np.intc] = np.empty(0, np.intc)

    def __call__(
        self, input_ids: npt.NDArray[np.intc], scores: npt.NDArray[np.single]
    ) -> npt.NDArray[np.single]:
        """Draw the next token.

        Args:
            input_ids: the prompt and the generated tokens, [n].
            scores: the logits, float32 [V].

        Returns:
            float32 [V]: 0 at the token, -inf elsewhere.
        """
        if self._text is None:
            self._prompt = np.array(input_ids)
            self._text = Follower(self._chain, self._prompt)
        n = len(self._prompt)
        if not np.array_equal(input_ids[:n], self._prompt):
            raise ParameterError(
                "input_ids", "another text: make an AleatorLogitsProcessor for each call"
            )
        self._text.follow(input_ids[n:].tolist())
        token = self._text.draw(np.ascontiguousarray(scores, np.float32))
        left = np.full(len(scores), -np.inf, np.float32)
        left[token] = 0.0
        return left


class AleatorSampler:
    """Selects Aleator's token in a ``llama_token_data_array``: for ``LlamaSampler.add_custom``.

    It stands alone, or behind samplers of llama.cpp that mask.  It remembers the tokens that it drew and treats
    them as accepted.

    Args:
        llama: the model; its file has the vocabulary.
        settings: the sampling parameters of the chain.
        prompt: the text so far.
        completion: index among completions of one prompt.
    """

    def __init__(
        self, llama: Llama, settings: Settings, prompt: Sequence[int] = (), *, completion: int = 0
    ) -> None:
        self.chain = _chain(llama, settings, completion)
        self.chain.accept_many(prompt)
        self._n_vocab: int = llama.n_vocab()

    def __call__(self, candidates: Any) -> None:
        """Draw, and set ``selected`` of the array behind the pointer; its order stays."""
        array = candidates.contents
        size = int(array.size)
        memory = (ctypes.c_uint8 * (size * _DATA.itemsize)).from_address(
            ctypes.addressof(array.data.contents)
        )
        data = np.frombuffer(memoryview(memory), _DATA)
        logits = np.full(self._n_vocab, -np.inf, np.float32)
        logits[data["id"]] = data["logit"]
        token = self.chain.sample(logits)
        array.selected = int(np.flatnonzero(data["id"] == token)[0])


@dataclass
class Taken:
    """A text taken over from a ``Llama``."""

    model: LanguageModel  # of the same file
    context: Context  # holds the text as sequence 0
    tokens: list[int]  # the text

    def decode(self, tokens: Sequence[int] = ()) -> npt.NDArray[np.float32]:
        """Continue the text.

        Args:
            tokens: the next tokens; without any the last token is computed again.

        Returns:
            The logits of the next token, float32 [V].

        Raises:
            ParameterError: there is no text.
        """
        if not tokens and not self.tokens:
            raise ParameterError("tokens", "the text is empty: give its first tokens")
        if not tokens:
            self.context.cache.seq_rm(0, len(self.tokens) - 1)
            tokens = [self.tokens.pop()]
        rows = self.context.decode(Batch.one(tokens, len(self.tokens)))
        self.tokens += tokens
        row: npt.NDArray[np.float32] = rows[-1]
        return row


def from_llama(llama: Llama, **options: Any) -> Taken:
    """Load the model of a ``Llama``, and take over its text with the keys and values that it computed.

    Args:
        llama: not changed.
        options: of :class:`aleator.generate.Context`, besides those that must equal those of ``llama``.

    Raises:
        ParameterError: its cache has a type that ours does not have; or it was made with an option that changes
            what the file's model computes (rotary embedding, LoRA, ``kv_overrides``); names it.
        UnsupportedModel: its architecture is not supported.
        Incompatible: its state is of another kind of cache.
    """
    _require_the_files_model(llama)
    params = llama.context_params
    types = {
        f"type_{side}": _type(f"type_{side}", getattr(params, f"type_{side}")) for side in "kv"
    }
    model = aleator.load(llama.model_path)
    context = Context(
        model,
        n_ctx=llama.n_ctx(),
        flash_attn=int(params.flash_attn_type) == 1,
        **types,  # type: ignore[arg-type]  # names of types
        **options,
    )
    state = llama.save_state()
    if state.n_tokens:
        context.cache.state_read(state.llama_state)
    return Taken(model, context, state.input_ids[: state.n_tokens].tolist())


def to_llama(taken: Taken, llama: Llama) -> None:
    """Let a ``Llama`` continue a text from our keys and values.

    Its next ``generate`` with this text as a prefix of the prompt computes only new tokens and, again, the last
    one.

    Args:
        taken: not changed.
        llama: of the same file, with the same options as the one the text came from; its text is replaced.

    Raises:
        ParameterError: ``llama`` has no room for the text; or it was made with an option that changes what the
            file's model computes; names it.
    """
    _require_the_files_model(llama)
    n = len(taken.tokens)
    if n > llama.n_ctx():
        raise ParameterError(f"n_ctx={llama.n_ctx()} is too small for {n} tokens")
    before = llama.save_state()
    blob = taken.context.cache.state_write()
    ids = np.zeros_like(before.input_ids)
    ids[:n] = taken.tokens
    llama.load_state(
        LlamaState(
            input_ids=ids,
            scores=np.zeros_like(llama.scores[:n]),
            n_tokens=n,
            llama_state=blob,
            llama_state_size=len(blob),
            seed=before.seed,
        )
    )


def _require_the_files_model(llama: Llama) -> None:
    """Refuse a ``Llama`` whose options change what its model computes, as our context would not follow."""
    params = llama.context_params
    for name, neutral in _OF_THE_FILE.items():
        value = getattr(params, name)
        if value not in neutral:
            raise ParameterError(
                f"{name}={value:g} of the Llama changes what the file's model computes, and ours would not: "
                "make it without"
            )
    for name in ("lora_path", "kv_overrides"):
        value = getattr(llama, name)
        if value:
            raise ParameterError(
                f"{name}={value!r:.60} of the Llama changes the file's model, but not ours: make it without"
            )


def _type(parameter: str, number: int) -> str:
    if number not in _TYPES:
        raise ParameterError(
            f"{parameter}={number} of the Llama is not among {', '.join(_TYPES.values())}: make it with one "
            "of these"
        )
    return _TYPES[number]


def _chain(llama: Llama, settings: Settings, completion: int) -> SamplerChain:
    params = sampling_params(settings, "llama.cpp")  # first: it refuses what is wrong
    return params.chain(Tokenizer(Vocabulary.from_gguf(llama.model_path)), completion=completion)
