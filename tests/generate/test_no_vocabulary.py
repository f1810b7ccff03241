"""Models whose files have no vocabulary: token ids in, token ids out, and what needs text says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from make_models import SPECS, write_model

import aleator
from aleator.cli import main
from aleator.core.errors import AleatorError, TokenizerError
from aleator.generate import Batch, Context
from aleator.language_model import LanguageModel
from aleator.models.files.gguf import GGUFFile
from aleator.text import Vocabulary
from tests.models.builders import model_metadata, write_gguf

PROMPT = [3, 5, 7, 11]
GREEDY: dict[str, Any] = {"max_tokens": 6, "temperature": 0.0}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "m.gguf", SPECS["llama"])


@pytest.fixture(scope="module")
def model(path: Path) -> LanguageModel:
    return aleator.load(path, n_threads=1, n_ctx=128)


def greedy(model: LanguageModel, prompt: list[int]) -> list[int]:
    context, tokens = Context(model, n_ctx=64), list(prompt)
    rows = context.decode(Batch.one(tokens))
    for _ in range(6):
        tokens.append(int(np.argmax(rows[-1])))
        rows = context.decode(Batch.one(tokens[-1:], pos=len(tokens) - 1))
    return tokens[len(prompt) :]


def test_ids_in_ids_out(model: LanguageModel, tmp_path: Path) -> None:
    made = model.generate(PROMPT, **GREEDY)
    assert made.tokens == greedy(model, PROMPT)
    assert made.stop_reason == "length"
    both = model.generate_batch([PROMPT, PROMPT[:2]], **GREEDY)
    assert [each.tokens for each in both] == [greedy(model, p) for p in (PROMPT, PROMPT[:2])]
    reported = model.generate(PROMPT, **GREEDY, logprobs=2).logprobs
    assert reported is not None
    assert [each.chosen.token for each in reported] == made.tokens
    first = model.generate(PROMPT, max_tokens=3, temperature=0.0)
    assert len(first.tokens) == 3
    model.save_session(tmp_path / "session", first)
    rest = model.generate(model.load_session(tmp_path / "session"), max_tokens=3, temperature=0.0)
    assert first.tokens + rest.tokens == made.tokens


NEEDS_TEXT: dict[str, Callable[[LanguageModel], object]] = {
    "prompt": lambda model: model.generate("ROMEO:"),
    "text": lambda model: model.generate(PROMPT, **GREEDY).text,
    "pieces": lambda model: next(model.generate(PROMPT, **GREEDY)),
    "echo": lambda model: model.generate(PROMPT, **GREEDY, echo=True).tokens,
    "stop": lambda model: model.generate(PROMPT, **GREEDY, stop="x").tokens,
    "grammar": lambda model: model.generate(PROMPT, **GREEDY, grammar='root ::= "a"').tokens,
    "breakers": lambda model: model.generate(PROMPT, **GREEDY, dry_multiplier=0.8).tokens,
    "encode": lambda model: model.tokenizer.encode("x"),
    "decode": lambda model: model.tokenizer.decode([3]),
    "token": lambda model: model.vocab.text(3),
    "bytes": lambda model: model.vocab.token_bytes(3),
}


@pytest.mark.parametrize("name", NEEDS_TEXT)
def test_what_needs_text_says_so(model: LanguageModel, name: str) -> None:
    with pytest.raises(TokenizerError, match=r"needs text, and .*m\.gguf has no vocabulary"):
        NEEDS_TEXT[name](model)
    assert model.generate(PROMPT, **GREEDY).tokens == greedy(model, PROMPT)


def test_ids_are_those_of_the_embedding(model: LanguageModel, tmp_path: Path) -> None:
    vocab = model.vocab
    assert (len(vocab), vocab.kind, vocab.eog) == (SPECS["llama"].n_vocab, "none", frozenset())
    assert not vocab.is_special(0)
    with pytest.raises(TokenizerError, match="the vocabulary has tokens 0 to 63"):
        model.generate([len(vocab)])
    named = model_metadata() | {"tokenizer.ggml.model": "no_vocab", "llama.vocab_size": 7}
    file = GGUFFile(write_gguf(tmp_path / "v.gguf", named, {}))
    assert len(Vocabulary.from_gguf(file)) == 7
    for size in (0, 2**31):
        file = GGUFFile(write_gguf(tmp_path / "v.gguf", named | {"llama.vocab_size": size}, {}))
        with pytest.raises(AleatorError, match=r"llama\.vocab_size"):
            Vocabulary.from_gguf(file)


def test_on_the_command_line(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "-m", str(path), "-p", "x", "-n", "2", "-t", "1"]) != 0
    assert "has no vocabulary" in capsys.readouterr().err
    assert main(["chat", "-m", str(path), "-t", "1"]) != 0
    assert "aleator: error" in capsys.readouterr().err
    assert main(["model-info", str(path)]) == 0
    assert main(["bench", "-m", str(path), "-p", "4", "-n", "2", "-r", "1", "-t", "1"]) == 0
