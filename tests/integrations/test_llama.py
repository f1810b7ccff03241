"""The contract with llama-cpp-python, as recorded from version 0.3.36; it is not needed here.

tests/integrations/in_llama.py runs the package.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aleator import LanguageModel, ParameterError
from aleator.generate.context import Batch, Context
from aleator.models.hub.bundled import bundled_model
from tests.integrations.stand_ins import LLAMA, LlamaState, adapter, install

GIVEN = {"preset": "llama.cpp", "repetition_penalty": 1.3, "temperature": 1.2, "seed": 4}
ROWS = np.random.default_rng(2).normal(size=(20, 1024)).astype(np.float32) * 3


class Data(ctypes.Structure):
    """llama_token_data."""

    _fields_ = (("id", ctypes.c_int32), ("logit", ctypes.c_float), ("p", ctypes.c_float))


class DataArray(ctypes.Structure):
    """llama_token_data_array."""

    _fields_ = (
        ("data", ctypes.POINTER(Data)),
        ("size", ctypes.c_size_t),
        ("selected", ctypes.c_int64),
        ("sorted", ctypes.c_bool),
    )


class FakeLlama:
    """What the adapter uses of a Llama."""

    def __init__(self, type_k: int = 1, n_ctx: int = 64) -> None:
        self.model_path, self.draft_model = str(bundled_model()), None
        self.lora_path: str | None = None
        self.kv_overrides: dict[str, float] | None = None
        self.context_params = SimpleNamespace(
            type_k=type_k, type_v=1, flash_attn_type=1, rope_scaling_type=-1, rope_freq_base=0.0,
            rope_freq_scale=0.0, yarn_ext_factor=-1.0, yarn_attn_factor=1.0, yarn_beta_fast=32.0,
            yarn_beta_slow=1.0, yarn_orig_ctx=0, attention_type=-1,
        )  # fmt: skip
        self.scores = np.zeros((n_ctx, 4), np.float32)
        self.state = LlamaState(np.zeros(n_ctx, np.intc), self.scores[:0], 0, b"", 0, 9)
        self._n_ctx = n_ctx

    def n_ctx(self) -> int:
        return self._n_ctx

    def n_vocab(self) -> int:
        return 1024

    def save_state(self) -> LlamaState:
        return self.state

    def load_state(self, state: LlamaState) -> None:
        self.scores[: state.n_tokens, :] = state.scores.copy()
        self.state = state


@pytest.fixture
def llama(monkeypatch: pytest.MonkeyPatch) -> Any:
    install(monkeypatch, LLAMA, "0.3.36")
    return adapter(monkeypatch, "llama")


def chain(model: LanguageModel, **changes: Any) -> Any:
    from aleator import SamplingParams

    values = {**GIVEN, **changes}
    return SamplingParams.preset(str(values.pop("preset")), **values).chain(model.tokenizer)


@pytest.mark.parametrize("numerics", ["portable", "llama.cpp"])
def test_a_logits_processor(llama: Any, model: LanguageModel, numerics: str) -> None:
    own = llama.AleatorLogitsProcessor(FakeLlama(), GIVEN | {"numerics": numerics})
    one, text = chain(model, numerics=numerics), [5, 6, 5]
    one.accept_many(text)
    for row in ROWS[:8]:
        left = own(np.array(text, np.intc), row)
        token = int(left.argmax())
        assert token == one.sample(row)
        assert np.isinf(np.delete(left, token)).all()
        text.append(token)
    with pytest.raises(ParameterError, match="for each call"):
        own(np.array([7, 7, 7], np.intc), ROWS[0])


def test_a_draft_model_is_refused(llama: Any) -> None:
    guessing = FakeLlama()
    guessing.draft_model = object()  # type: ignore[assignment]
    with pytest.raises(ParameterError, match="draft_model"):
        llama.AleatorLogitsProcessor(guessing, GIVEN)


def test_wrong_settings_are_refused_before_the_file_is_read(llama: Any) -> None:
    absent = FakeLlama()
    absent.model_path = "absent.gguf"
    for kind in (llama.AleatorLogitsProcessor, llama.AleatorSampler):
        with pytest.raises(ParameterError, match="temprature"):
            kind(absent, {"temprature": 1})


def test_a_sampler_among_candidates_in_any_order(llama: Any, model: LanguageModel) -> None:
    sampler = llama.AleatorSampler(FakeLlama(), GIVEN, [5, 6])
    one = chain(model)
    one.accept_many([5, 6])
    for row in ROWS[:6]:
        ids = np.argsort(-row, kind="stable")[:50]
        data = (Data * 50)(*[Data(int(i), float(row[i]), 0.0) for i in ids])
        array = DataArray(data, 50, -1, True)
        sampler(ctypes.pointer(array))
        kept = np.full(1024, -np.inf, np.float32)
        kept[ids] = row[ids]
        assert data[array.selected].id == one.sample(kept)


def test_a_text_goes_over_and_back(llama: Any, model: LanguageModel) -> None:
    tokens = [5, 6, 7, 8, 9]
    source = Context(model, n_ctx=64)
    want = source.decode(Batch.one(tokens))[-1]
    fake = FakeLlama()
    ids = np.zeros(64, np.intc)
    ids[:5] = tokens
    blob = source.state_write()
    fake.state = LlamaState(ids, fake.scores[:5], 5, blob, len(blob), 9)
    taken = llama.from_llama(fake)
    assert taken.tokens == tokens
    assert np.array_equal(taken.decode(), want)
    assert taken.tokens == tokens
    further = taken.decode([11, 12])
    assert np.array_equal(further, source.decode(Batch.one([11, 12], 5))[-1])
    other = FakeLlama()
    llama.to_llama(taken, other)
    assert other.state.n_tokens == 7
    assert other.state.input_ids[:7].tolist() == [*tokens, 11, 12]
    assert other.state.llama_state == source.state_write()
    with pytest.raises(ParameterError, match="n_ctx=4 is too small"):
        llama.to_llama(taken, FakeLlama(n_ctx=4))
    empty = llama.from_llama(FakeLlama())
    assert empty.tokens == []
    with pytest.raises(ParameterError, match="the text is empty"):
        empty.decode()
    with pytest.raises(ParameterError, match="type_k=99"):
        llama.from_llama(FakeLlama(type_k=99))


def test_a_llama_that_changes_its_files_model_is_refused(llama: Any) -> None:
    for name, value in (("rope_freq_base", 1e6), ("yarn_attn_factor", 2.0), ("attention_type", 1)):
        other = FakeLlama()
        setattr(other.context_params, name, value)
        with pytest.raises(ParameterError, match=f"{name}={value:g}".replace("+", r"\+")):
            llama.from_llama(other)
    other = FakeLlama()
    other.lora_path = "some.gguf"
    with pytest.raises(ParameterError, match="lora_path='some"):
        llama.from_llama(other)
    with pytest.raises(ParameterError, match="lora_path"):
        llama.to_llama(llama.from_llama(FakeLlama()), other)
    other = FakeLlama()
    other.kv_overrides = {"llama.attention.layer_norm_rms_epsilon": 0.5}
    with pytest.raises(ParameterError, match="kv_overrides="):
        llama.from_llama(other)
