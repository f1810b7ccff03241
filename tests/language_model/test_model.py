from __future__ import annotations

import lzma
import math
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_models import SPECS, write_model

import aleator
from aleator import Conversation
from aleator.engine.prompts import RequestMaker
from aleator.generate import Batch
from aleator.language_model import LanguageModel, load
from aleator.models.hub.bundled import bundled_model

OPTIONS: dict[str, Any] = {"max_tokens": 20, "temperature": 0.8, "seed": 1}


def test_streams_and_repeats(model: LanguageModel) -> None:
    pieces = list(model.generate("ROMEO:", **OPTIONS))
    assert len(pieces) > 5
    again = model.generate("ROMEO:", **OPTIONS)
    assert "".join(pieces) == again.text
    assert again.stop_reason == "length"
    assert len(again.tokens) == 20
    assert again.seed == 1


def test_a_repeated_prompt_is_not_computed_again(model: LanguageModel) -> None:
    prompt = model.prompt_tokens("First Citizen: what a repeated prompt says")
    first = model.generate(prompt, **OPTIONS)
    assert first.text
    second = model.generate(prompt, **OPTIONS)
    assert second.text == first.text
    assert (second.stats.prompt_tokens, second.stats.reused_tokens) == (1, len(prompt) - 1)
    longer = model.generate([*prompt, *first.tokens, 5, 6], **OPTIONS)
    assert longer.text
    assert longer.stats.prompt_tokens == 3  # the last token drawn was not computed
    fork = model.generate([*prompt[:7], 9, *prompt[7:]], **OPTIONS)
    assert fork.text == load(prompt_cache=False).generate(fork.request.tokens, **OPTIONS).text
    assert fork.stats.reused_tokens == 7


def test_kept_texts_make_room() -> None:
    model = load(n_ctx=64)
    plain = load(n_ctx=64, prompt_cache=False)
    for start in range(0, 400, 40):
        prompt = list(range(start + 1, start + 41))
        made = model.generate(prompt, max_tokens=24, temperature=0.0, ignore_eos=True)
        expected = plain.generate(prompt, max_tokens=24, temperature=0.0, ignore_eos=True)
        assert made.tokens == expected.tokens
        assert made.stats.reused_tokens == expected.stats.reused_tokens == 0
    again = model.generate(prompt, max_tokens=1)
    assert len(again.tokens) == again.stats.prompt_tokens == 1


def test_a_generation_given_up_leaves_no_cells(model: LanguageModel) -> None:
    given_up = model.generate("ROMEO: and then", **OPTIONS)
    next(given_up)
    del given_up
    assert model.generate("JULIET:", **OPTIONS).text
    cache = model._context.cache  # type: ignore[union-attr]
    assert cache.seq_pos_max(0) == -1
    cache.seq_rm(-1)
    assert cache.used == 0


def test_the_seed_matters_and_is_reported(model: LanguageModel) -> None:
    drawn = model.generate("ROMEO:", max_tokens=20, temperature=0.8)
    assert drawn.text == model.generate("ROMEO:", **{**OPTIONS, "seed": drawn.seed}).text
    assert drawn.text != model.generate("ROMEO:", **{**OPTIONS, "seed": drawn.seed + 1}).text


def test_is_lazy(model: LanguageModel) -> None:
    generation = model.generate("ROMEO:", **OPTIONS)
    assert generation.stats.prompt_tokens == 0
    next(generation)
    assert generation.stats.sampled_tokens < 4
    assert "1 tokens so far" in repr(generation)


def test_two_generations_under_way_do_not_disturb_each_other(model: LanguageModel) -> None:
    expected = [model.generate(prompt, **OPTIONS).text for prompt in ("ROMEO:", "JULIET:")]
    a, b = (model.generate(prompt, **OPTIONS) for prompt in ("ROMEO:", "JULIET:"))
    texts = ["", ""]
    for x, y in zip(a, b, strict=False):
        texts[0] += x
        texts[1] += y
    assert expected[0].startswith(texts[0])
    assert [a.text, b.text] == expected


def test_an_abandoned_generation_gives_its_context_back(model: LanguageModel) -> None:
    next(model.generate("ROMEO:", **OPTIONS))
    context = model._context
    assert context is not None
    text = model.generate("ROMEO:", **OPTIONS).text
    assert model._context is context
    assert context.cache.used > 0
    assert text == model.generate("ROMEO:", **OPTIONS).text


def test_token_ids_are_a_prompt_too(model: LanguageModel) -> None:
    tokens = model.tokenizer.encode("ROMEO:")
    assert model.generate(tokens, **OPTIONS).text == model.generate("ROMEO:", **OPTIONS).text


def test_a_batch_gives_what_each_prompt_gives_alone(model: LanguageModel) -> None:
    prompts = ["ROMEO:", "JULIET:\nO", "First"]
    batch = model.generate_batch(prompts, n=2, **OPTIONS)
    assert len(batch) == 6
    for i, prompt in enumerate(prompts):
        alone = model.generate(prompt, **OPTIONS)
        assert batch[2 * i].text == alone.text
        assert batch[2 * i + 1].text != alone.text
    assert batch[0].stats is batch[5].stats
    sizes = [len(model.prompt_tokens(prompt)) for prompt in prompts]
    assert batch[0].stats.prompt_tokens == sum(sizes)


def test_completions_share_a_drawn_seed(model: LanguageModel) -> None:
    batch = model.generate_batch(["a", "b"], n=2, max_tokens=1)
    assert len({generation.seed for generation in batch}) == 1


def test_logprobs_are_those_of_the_models_logits(model: LanguageModel) -> None:
    generation = model.generate("ROMEO:", **{**OPTIONS, "max_tokens": 4}, logprobs=2)
    assert generation.logprobs is not None
    tokens = list(generation.request.tokens)
    for token, entry in zip(generation.tokens, generation.logprobs, strict=True):
        row = model.context().decode(Batch.one(tokens))[0].astype(np.float64)
        expected = row - row.max() - math.log(np.exp(row - row.max()).sum())
        assert entry.chosen.token == token
        assert entry.chosen.bytes == model.vocab.token_bytes(token)
        assert entry.chosen.logprob == pytest.approx(expected[token], abs=1e-3)
        assert entry.top[0].token == int(row.argmax())
        assert entry.top[0].logprob == pytest.approx(expected.max(), abs=1e-3)
        tokens.append(token)


def test_greedy_is_the_most_probable_token(model: LanguageModel) -> None:
    generation = model.generate("ROMEO:", max_tokens=5, preset="greedy", logprobs=1)
    assert generation.logprobs is not None
    assert [entry.top[0].token for entry in generation.logprobs] == generation.tokens
    assert generation.text == model.generate("ROMEO:", max_tokens=5, temperature=0).text


def test_eog_ends_the_text_unless_ignored(model: LanguageModel) -> None:
    (eog,) = model.vocab.eog
    bias = {eog: float("inf")}
    ended = model.generate("ROMEO:", **OPTIONS, logit_bias=bias)
    assert (ended.text, ended.tokens, ended.stop_reason) == ("", [eog], "eog")
    ignored = model.generate("ROMEO:", **OPTIONS, logit_bias={eog: 5.0}, ignore_eos=True)
    assert len(ignored.tokens) == 20
    assert eog not in ignored.tokens


def test_precedence_of_sampling_parameters(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert model.sampling_params().top_k == 40
    assert model.sampling_params("greedy").temperature == 0.0
    own_values = {"top_k": 7, "temp": 0.25}
    monkeypatch.setattr(model.weights, "recommended_sampling", lambda: own_values)
    monkeypatch.setattr(model, "request_maker", RequestMaker(model.tokenizer, model.weights))
    chosen = model.sampling_params(temp=0.5)
    assert (chosen.top_k, chosen.temperature, chosen.top_p) == (7, 0.5, 0.95)
    assert model.sampling_params("llama.cpp").top_k == 40
    own = aleator.SamplingParams(top_k=3, seed=9)
    chosen = model.sampling_params(params=own, top_p=0.5)
    assert (chosen.top_k, chosen.top_p, chosen.temperature, chosen.seed) == (3, 0.5, 1.0, 9)


@pytest.mark.parametrize(
    ("options", "parameter", "message"),
    [
        ({"logprobs": 5000}, "logprobs", "0 to 2048"),
        ({"n": 2}, "n", "generate_batch"),
        ({"preset": "gredy"}, "preset", "greedy"),
        ({"preset": "greedy", "params": aleator.SamplingParams()}, "preset", "choose one"),
        ({"context_shift": True, "n_keep": 5000}, "n_keep", "can keep 0 to 1022"),
    ],
)
def test_bad_parameters(
    model: LanguageModel, options: dict[str, Any], parameter: str, message: str
) -> None:
    with pytest.raises(aleator.ParameterError, match=message) as caught:
        model.generate("ROMEO:", **options)
    assert caught.value.parameter == parameter


def test_bad_prompts(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(aleator.TokenizerError, match=r"token 1 is 2048: .* 0 to 2047"):
        model.generate([5, 2048])
    with pytest.raises(aleator.TokenizerError, match="token 0 is -1"):
        model.generate([-1])
    with pytest.raises(aleator.TokenizerError, match="negative_prompt token 0 is 2048"):
        model.generate("a", guidance_scale=2.0, negative_prompt=[2048])
    with pytest.raises(aleator.ParameterError, match="prompt is empty: give at least one token"):
        model.generate([])
    with pytest.raises(aleator.ContextFull, match="1025 tokens and the context 1024 positions"):
        model.generate([5] * 1025)
    # With a BOS token an empty text is a prompt.
    assert model.prompt_tokens("") == (model.vocab.bos,)
    assert model.generate("", max_tokens=3, seed=1).text


@pytest.mark.parametrize(
    ("options", "parameter"),
    [
        ({"device": "abacus"}, "device"),
        ({"device": "mps"}, "device"),
        ({"dtype": "int8"}, "dtype"),
    ],
)
def test_bad_load_options(options: dict[str, Any], parameter: str) -> None:
    with pytest.raises(aleator.ParameterError, match=parameter) as caught:
        aleator.load(**options).generate("a")
    assert caught.value.parameter == parameter


def test_what_is_not_a_model(tmp_path: Path) -> None:
    with pytest.raises(aleator.ModelNotFound, match="no such file"):
        aleator.load(tmp_path / "none.gguf")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(bundled_model().read_bytes()[:100_000])
    with pytest.raises(aleator.FileFormatError, match=r"cut\.gguf"):
        aleator.load(cut)


def test_loading_reports_progress() -> None:
    seen: list[tuple[int, int]] = []
    model = aleator.load(progress=lambda *at: seen.append(at))
    layers = model.weights.config.n_layers
    assert seen == [(i, layers) for i in range(layers + 1)]
    assert "Shakespeare" in repr(model)


def test_n_ctx_defaults_to_what_the_model_was_trained_with(model: LanguageModel) -> None:
    assert model.n_ctx == model.weights.config.context_length == 1024
    assert aleator.load(n_ctx=0).n_ctx == 1024


def test_a_context_beyond_the_trained_length_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    aleator.load(n_ctx=2000).context()
    assert caplog.text.count("n_ctx=2000: the model was trained with 1024") == 1


def test_import_costs_no_torch() -> None:
    program = (
        "import sys, aleator; from aleator import samplers, SamplerChain; aleator.ParameterError; "
        "bad = {'torch', 'tokenizers', 'gguf', 'rich'} & set(sys.modules); sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_public_names_exist() -> None:
    for name in aleator.__all__:
        assert getattr(aleator, name) is not None
    assert set(aleator.__all__) <= set(dir(aleator))
    with pytest.raises(AttributeError, match="nothing_such"):
        aleator.nothing_such  # noqa: B018


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    """A model with random weights and Llama 2's vocabulary, whose words begin with a space."""
    folder = tmp_path_factory.mktemp("sentencepiece")
    vocabulary = folder / "vocabulary.gguf"
    packed = Path(__file__).parent.parent / "data" / "vocab" / "llama-spm.gguf.xz"
    vocabulary.write_bytes(lzma.decompress(packed.read_bytes()))
    spec = replace(SPECS["llama"], n_vocab=32000, n_embd=32, n_layers=1)
    write_model(folder / "model.gguf", spec, tokenizer_from=vocabulary)
    return aleator.load(folder / "model.gguf", n_threads=1)


def always(model: LanguageModel, text: str) -> dict[str, Any]:
    """Options with which the model writes the one token of ``text``."""
    (token,) = (i for i in range(len(model.vocab)) if model.vocab.token_bytes(i) == text.encode())
    return {"logit_bias": {token: math.inf}, "max_tokens": 2}


def test_words_after_a_prompt_keep_their_space(sentencepiece: LanguageModel) -> None:
    model, options = sentencepiece, always(sentencepiece, " world")
    assert model.generate("Hello", **options).text == " world world"
    assert model.generate("Hello", **options, echo=True).text == "Hello world world"
    assert model.generate(" Hello", **options, echo=True).text == " Hello world world"
    assert model.generate("Hello", **always(model, "wo")).text == "wowo"
    # A text begins after BOS alone: there the space is the vocabulary's own.
    assert model.generate("", **options).text == "world world"
    assert model.generate("<s>", parse_special=True, **options).text == "world world"


def test_echo_of_token_ids_is_their_text(sentencepiece: LanguageModel) -> None:
    model, options = sentencepiece, always(sentencepiece, " world")
    tokens = model.tokenizer.encode("Hello")
    made = model.generate(tokens, **options, echo=True)
    assert made.text == "Hello world world"
    assert made.text == model.tokenizer.decode([*tokens, *made.tokens], skip_special=True)


def test_answers_in_a_chat_keep_their_space(sentencepiece: LanguageModel) -> None:
    model, options = sentencepiece, always(sentencepiece, " world")
    source = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
    talk = Conversation(model, chat_template=source, **options | {"max_tokens": 2})
    assert talk.say("Hello").text == " world world"
    assert talk.say("Hello").text == " world world"
    assert talk.messages[1]["content"] == " world world"


def test_dry_gets_the_tokenizer(model: LanguageModel) -> None:
    def made(**sampling: Any) -> list[int]:
        generation = model.generate("To be, or not to be", max_tokens=40, temperature=0, **sampling)
        return generation.tokens

    dry: dict[str, Any] = {"dry_multiplier": 100.0, "dry_allowed_length": 1}
    broken = made(**dry, dry_sequence_breakers=["e"])
    assert broken != made()
    assert broken != made(**dry, dry_sequence_breakers=[])


def test_on_logits_sees_every_draw(model: LanguageModel) -> None:
    seen: list[int] = []

    def look(chain: aleator.SamplerChain, logits: Any) -> None:
        draw = chain.explain(logits).draw
        assert draw is not None
        assert draw.position == len(seen)
        seen.append(draw.token.id)

    generation = model.generate("ROMEO:", **OPTIONS, on_logits=look)
    assert generation.tokens == seen == model.generate("ROMEO:", **OPTIONS).tokens


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_while_another_thread_changes_the_cache() -> None:
    model = load()
    want = model.generate("ROMEO:", max_tokens=3, seed=1).tokens
    entered, leave = threading.Event(), threading.Event()

    def change() -> None:
        entered.set()
        leave.wait(60)

    journal = model._cached_context().cache.journal
    other = threading.Thread(target=journal.run, args=(change,))
    other.start()
    entered.wait()
    child = os.fork()
    if not child:
        signal.alarm(20)  # ends a child that waits for ever
        same = [model.generate("ROMEO:", max_tokens=3, seed=1).tokens == want for _ in range(2)]
        os._exit(3 if all(same) else 4)
    leave.set()
    other.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert model.generate("ROMEO:", max_tokens=3, seed=1).tokens == want


def test_what_cannot_be_called_is_refused_at_once(model: LanguageModel) -> None:
    wrong: dict[str, Any] = {"on_logits": 5, "progress": 5, "drafter": 5}
    with model.engine(n_seq_max=1) as engine:
        for name, value in wrong.items():
            with pytest.raises(aleator.ParameterError, match=f"^{name}=5 ") as refused:
                model.generate("To be", **{name: value})
            assert refused.value.parameter == name
            if name != "progress":
                with pytest.raises(aleator.ParameterError, match=f"^{name}=5 "):
                    engine.submit("To be", **{name: value})
        assert engine.stats.submitted == 0
    uses: list[Any] = [load, partial(model.perplexity, "To be or not")]
    for use in uses:
        with pytest.raises(aleator.ParameterError, match=r"^progress=5 cannot be called"):
            use(progress=5)


def test_a_model_is_named_by_a_path() -> None:
    for name in (5, b"x", ""):
        with pytest.raises(aleator.ParameterError, match=f"^model={name!r}: give a path"):
            load(name)  # type: ignore[arg-type]
