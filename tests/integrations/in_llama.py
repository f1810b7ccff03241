"""llama-cpp-python: its logits drawn from by Aleator's chains; texts out of its context and back.

Run by tools/integrations.py in an environment with llama-cpp-python and Aleator.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np
from llama_cpp import Llama, LogitsProcessorList
from llama_cpp._internals import LlamaSampler

from aleator import ParameterError, SamplerChain, SamplingParams
from aleator.integrations.llama import AleatorLogitsProcessor, AleatorSampler, from_llama, to_llama
from aleator.integrations.settings import sampling_params
from aleator.models.hub.bundled import bundled_model

GIVEN = {
    "preset": "llama.cpp", "repetition_penalty": 1.2, "dry_multiplier": 0.8, "temperature": 1.1,
    "seed": 5,
}  # fmt: skip
N = 40


def llama(**options: Any) -> Llama:
    given = {
        "n_ctx": 256,
        "logits_all": True,
        "n_threads": 1,
        "n_threads_batch": 1,
        "verbose": False,
    }
    return Llama(str(bundled_model()), **{**given, **options})


def replay(model: Llama, chain: SamplerChain, prompt: list[int], tokens: list[int]) -> None:
    """The chain alone draws the same tokens from the logits that the Llama kept."""
    chain.accept_many(prompt)
    for i, token in enumerate(tokens):
        assert chain.sample(np.array(model.scores[len(prompt) - 1 + i])) == token, i


def processors() -> None:
    model = llama()
    prompt = model.tokenize(b"ROMEO: ")
    vocab = from_llama(model).model.tokenizer
    for name, changes in (
        ("portable", {}),
        ("llama.cpp", {"numerics": "llama.cpp"}),
        ("mirostat", {"mirostat": 2}),
        ("a grammar", {"grammar": 'root ::= "thou" [a-z ,.]{20,30}'}),
    ):
        given = GIVEN | changes
        counts = set()
        for temperature in (0.0, 0.8):
            own = AleatorLogitsProcessor(model, given)
            tokens = []
            made = model.generate(
                prompt, temp=temperature, logits_processor=LogitsProcessorList([own])
            )
            for token in made:
                tokens.append(token)
                if len(tokens) == N or token == model.token_eos():
                    break
            model.eval(tokens[-1:])
            replay(model, sampling_params(given, "llama.cpp").chain(vocab), prompt, tokens)
            counts.add(tuple(tokens))
            model.reset()
        assert len(counts) == 1
        print(
            f"  logits processor, {name}: {len(tokens)} tokens at two temperatures, drawn again alone: 0 differ"
        )
    text = model.create_completion(
        "ROMEO: ", max_tokens=8, temperature=0,
        logits_processor=LogitsProcessorList([AleatorLogitsProcessor(model, GIVEN)]),
    )["choices"][0]["text"]  # fmt: skip
    assert text


def samplers() -> None:
    model = llama()
    prompt = model.tokenize(b"JULIET: ")
    own, sampler = AleatorSampler(model, GIVEN, prompt), LlamaSampler()
    sampler.add_top_k(60)  # leaves the candidates in another order
    sampler.add_custom(own)
    model.eval(prompt)
    tokens = []
    for _ in range(N):
        tokens.append(sampler.sample(model._ctx))
        model.eval(tokens[-1:])
    chain = sampling_params(GIVEN, "llama.cpp").chain(from_llama(model).model.tokenizer)
    chain.accept_many(prompt)
    for i, token in enumerate(tokens):
        row = np.array(model.scores[len(prompt) - 1 + i])
        row[np.argsort(-row, kind="stable")[60:]] = -np.inf
        assert chain.sample(row) == token, i
    print(f"  custom sampler behind top-k 60: {N} tokens, drawn again alone: 0 differ")


def states() -> None:
    for options in ({}, {"flash_attn": True}, {"flash_attn": True, "type_k": 8, "type_v": 8}):
        model = llama(**options)
        prompt = model.tokenize(b"First Citizen: Before we proceed any further, hear me speak.")
        model.eval(prompt)
        theirs = np.array(model.scores[len(prompt) - 1])
        taken = from_llama(model)
        assert taken.tokens == prompt
        assert taken.context.cache.state_write() == bytes(model.save_state().llama_state)
        ours = taken.decode()
        apart = float(np.abs(ours - theirs).max())
        assert apart < 0.35, apart
        assert int(ours.argmax()) == int(theirs.argmax())
        more = [int(ours.argmax())]
        for _ in range(5):
            more.append(int(taken.decode(more[-1:]).argmax()))
        other = llama(**options)
        to_llama(taken, other)
        assert bytes(other.save_state().llama_state) == taken.context.cache.state_write()
        whole = [*prompt, *more[:-1]]
        assert list(other._input_ids) == whole
        step = next(other.generate(whole, temp=0.0))
        assert step == more[-1]
        other.reset()
        print(
            f"  {options or 'defaults'}: state taken over byte for byte, next logits {apart:.1e} apart, "
            "6 tokens made here, given back, and gone on with there"
        )


def refusals() -> None:
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    model = llama(draft_model=LlamaPromptLookupDecoding())
    said = ""
    try:
        AleatorLogitsProcessor(model, SamplingParams())
    except ParameterError as error:
        said = str(error)
    assert "draft_model" in said
    print("  a Llama with draft_model= is refused by name")


if __name__ == "__main__":
    print(f"llama-cpp-python {version('llama-cpp-python')}")
    processors()
    samplers()
    states()
    refusals()
