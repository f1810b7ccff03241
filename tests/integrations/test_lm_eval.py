"""The harness's model, on a stand-in for the harness with the interface of lm-eval 0.4.13.

tests/integrations/in_lm_eval.py runs the real one.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator
from importlib import metadata
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import aleator

REGISTERED: dict[str, Any] = {}


class TemplateLM:
    """What our class takes from the harness."""

    def __init__(self) -> None:
        self.kept: list[tuple[Any, ...]] = []
        self.cache_hook = SimpleNamespace(add_partial=lambda *given: self.kept.append(given))

    def loglikelihood(self, requests: list[Any]) -> Any:
        pairs = []
        for context, end in (request.args for request in requests):
            if context == "":
                pairs.append(((context, end), [self.prefix_token_id], self.tok_encode(end, False)))
            else:
                whole, first = self.tok_encode(context + end), self.tok_encode(context)
                pairs.append(((context, end), first, whole[len(first) :]))
        return self._loglikelihood_tokens(pairs, disable_tqdm=True)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def windows(token_list: list[int], prefix_token: int, max_seq_len: int, context_len: int) -> Any:
    """Tokens in windows without common context."""
    for start in range(0, len(token_list), max_seq_len):
        part = token_list[start : start + max_seq_len]
        yield [token_list[start - 1] if start else prefix_token], part


@pytest.fixture(scope="module")
def adapter() -> Iterator[ModuleType]:
    """The module, imported over the stand-in."""
    stand_in = {
        name: ModuleType(name)
        for name in ("lm_eval", "lm_eval.api", "lm_eval.models", "lm_eval.utils")
    }
    stand_in["lm_eval.api.model"] = model = ModuleType("lm_eval.api.model")
    stand_in["lm_eval.api.registry"] = registry = ModuleType("lm_eval.api.registry")
    vars(model)["TemplateLM"] = TemplateLM
    vars(registry)["register_model"] = lambda *names: (
        lambda cls: REGISTERED.update(dict.fromkeys(names, cls))
    )
    vars(stand_in["lm_eval.utils"]).update(
        get_rolling_token_windows=windows, make_disjoint_window=lambda pair: pair
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, module in stand_in.items():
            patch.setitem(sys.modules, name, module)
        patch.setattr(metadata, "version", lambda name: "0.4.13")
        patch.delitem(sys.modules, "aleator.integrations.lm_eval", raising=False)
        yield importlib.import_module("aleator.integrations.lm_eval")
        sys.modules.pop("aleator.integrations.lm_eval")


@pytest.fixture(scope="module")
def lm(adapter: ModuleType) -> Any:
    made = adapter.AleatorLM(batch_size="auto", max_gen_toks=6, n_threads=1)
    vars(made)["_progress"] = None
    return made


@pytest.fixture(autouse=True)
def _no_bar(adapter: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    class Bar:
        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *raised: object) -> None:
            pass

        def update(self, n: int) -> None:
            pass

    monkeypatch.setattr(adapter, "_progress", lambda *given: Bar())


def asked(*args: Any) -> SimpleNamespace:
    return SimpleNamespace(args=args)


def test_it_is_registered(adapter: ModuleType) -> None:
    assert {"aleator": adapter.AleatorLM} == REGISTERED


def test_log_likelihoods_are_those_of_score(lm: Any) -> None:
    pairs = [
        ("O, she doth teach the", " torches"),
        ("ROMEO", ":"),
        ("O, she doth teach the", " ale"),
        ("", "To"),
    ]
    found = lm.loglikelihood([asked(*pair) for pair in pairs])
    model = lm.model
    for (context, end), (logprob, greedy) in zip(pairs, found, strict=True):
        first = lm.tok_encode(context) if context else [lm.prefix_token_id]
        whole = lm.tok_encode(context + end)
        score = model.score(first, whole[len(first) :] if context else lm.tok_encode(end, False))
        assert (logprob, greedy) == (score.logprob, score.greedy)
    kept = {given[1]: given[2] for given in lm.kept if given[0] == "loglikelihood"}
    assert kept == dict(zip(pairs, found, strict=True))


def test_tokens_with_bos_and_without(lm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bare, bos = lm.tok_encode("To be", False), lm.model.vocab.bos
    assert lm.tok_encode("To be") == lm.tok_encode("To be", True) == [bos, *bare]
    monkeypatch.setattr(lm, "_add_bos", False)
    assert lm.tok_encode("To be") == bare
    assert lm.tok_encode("To be", True) == [bos, *bare]


def test_a_vocabulary_without_an_end_or_a_template_is_told(
    lm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocab = lm.model.vocab
    assert lm.eot_token_id == vocab.eos
    assert lm.chat_template(True) == vocab.chat_template
    bare = SimpleNamespace(eos=None, bos=None, chat_template=None)
    monkeypatch.setattr(lm, "model", SimpleNamespace(vocab=bare))
    with pytest.raises(aleator.ParameterError, match="no end-of-text token"):
        _ = lm.prefix_token_id
    with pytest.raises(aleator.TemplateError, match="leave out --apply_chat_template"):
        lm.chat_template(True)


def test_long_texts_lose_their_beginning(adapter: ModuleType, lm: Any) -> None:
    short = adapter.AleatorLM(max_length=8, n_threads=1)
    assert short.max_length == 8
    text = "O, she doth teach the torches to burn bright"
    context, end = lm.tok_encode(text), lm.tok_encode(" ale", False)
    ((found, _),) = short._loglikelihood_tokens([(None, context, end)])
    assert found == lm.model.score(context[-(9 - len(end)) :], end).logprob
    with pytest.raises(aleator.ParameterError, match="max_length=8: give more"):
        short._loglikelihood_tokens([(None, context, context)])


def test_rolling_sums_the_windows(adapter: ModuleType) -> None:
    short = adapter.AleatorLM(max_length=8, n_threads=1)
    text = "But soft, what light through yonder window breaks?"
    tokens = short.tok_encode(text)
    (found,) = short.loglikelihood_rolling([asked(text)])
    pieces = list(windows(tokens, short.prefix_token_id, 8, 1))
    assert len(pieces) > 1
    assert found == math.fsum(short.model.score(*pair).logprob for pair in pieces)


def test_greedy_texts_until_a_string(lm: Any) -> None:
    greedy = {"until": ["\n"], "do_sample": False, "temperature": 0.7, "top_p": 0.3}
    texts = lm.generate_until([asked("ROMEO:", {"until": "zzz"}), asked("ROMEO:\nO", greedy)])
    assert texts[0] == lm.model.generate("ROMEO:", max_tokens=6, temperature=0).text
    assert texts[1] == lm.model.generate("ROMEO:\nO", max_tokens=6, temperature=0, stop="\n").text


def test_drawn_texts_have_seeds_of_their_own(lm: Any) -> None:
    sampled = {"do_sample": True, "temperature": 1.0, "max_gen_toks": 4, "until": []}
    texts = lm.generate_until([asked("ROMEO:", sampled)] * 3)
    params = [aleator.SamplingParams(temperature=1.0, seed=seed) for seed in range(3)]
    assert texts == [lm.model.generate("ROMEO:", max_tokens=4, params=p).text for p in params]
    assert len(set(texts)) > 1


@pytest.mark.parametrize(
    ("asked_for", "error"),
    [
        ({"num_beams": 4, "do_sample": True, "temperature": 1.0}, "num_beams"),
        ({"max_length": 10}, "give max_gen_toks"),
        ({"max_gen_toks": 10**6}, "max_gen_toks=1000000"),
    ],
)
def test_what_a_task_cannot_have_is_named(lm: Any, asked_for: dict[str, Any], error: str) -> None:
    with pytest.raises(aleator.ParameterError, match=error):
        lm.generate_until([asked("ROMEO:", asked_for)])


def test_options_out_of_range(adapter: ModuleType) -> None:
    with pytest.raises(aleator.ParameterError, match="n_seq_max"):
        adapter.AleatorLM(batch_size=0, n_threads=1)
    with pytest.raises(aleator.ParameterError, match="n_thread"):
        adapter.AleatorLM(n_thread=1)


def test_chats(lm: Any) -> None:
    messages = [{"role": "user", "content": "Who goes there?"}]
    text = lm.apply_chat_template(messages)
    assert text.endswith("JULIET:\n") or text
    begun = lm.apply_chat_template(
        [*messages, {"role": "assistant", "content": "A friend "}], add_generation_prompt=False
    )
    assert begun.endswith("A friend")
    assert lm.chat_template(True) == lm.model.vocab.chat_template
    assert lm.chat_template(False) is None
    assert lm.tokenizer_name == f"aleator-{lm.model.identity.fingerprint}"
