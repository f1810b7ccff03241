"""A plug-in for the command line tool llm: models of Aleator."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import click
import llm
from pydantic import Field, create_model

import aleator
from aleator.core.options import declarations
from aleator.core.parameter import Parameter
from aleator.generate.options import GenerateOptions
from aleator.samplers.params import ALL

BUNDLED = "aleator"
"""The name of the model that comes with the package; those that are added have names below it."""
LIST = "aleator-models.json"
"""File in llm's folder: names of models and where they are."""
OF_TEXTS = ("max_tokens", "stop", "banned_strings", "reasoning_budget", "spec_type")
"""Options of ``generate`` that are offered beside sampling parameters."""
LOADING = ("n_ctx", "n_threads")
LISTS = ("stop", "banned_strings")
TYPES = {"int": int, "float": float, "bool": bool, "str": str}


@cache
def loaded(path: str | None, n_ctx: int | None, n_threads: int | None) -> aleator.LanguageModel:
    """A model, which is loaded once in a process."""
    return aleator.load(path, n_ctx=n_ctx, n_threads=n_threads)


def offered() -> dict[str, Parameter]:
    """The options of a prompt that a command line can write: numbers, words and switches."""
    texts = declarations(GenerateOptions)
    chosen = {name: texts[name] for name in OF_TEXTS}
    return {**chosen, **{name: each for name, each in ALL.items() if each.single}}


def options_class() -> type[llm.Options]:
    """The options as llm reads them; Aleator checks their values, and says what is wrong with one."""
    fields: dict[str, Any] = {}
    for name, each in offered().items():
        kind = str if name in LISTS else TYPES[each.typing.partition(" | ")[0]]
        fields[name] = (kind | None, Field(default=None, description=each.help))
    fields["n_ctx"] = (
        int | None,
        Field(default=None, description="positions: prompt and text together"),
    )
    fields["n_threads"] = (
        int | None,
        Field(default=None, description="threads; default: one for each core"),
    )
    return create_model("Options", __base__=llm.Options, **fields)


class Aleator(llm.Model):
    """A model of Aleator.

    Args:
        model_id: What llm calls it.
        path: A GGUF file or a Hugging Face directory; None: the model that comes with the package.
    """

    can_stream = True
    supports_schema = True
    Options = options_class()

    def __init__(self, model_id: str, path: str | None) -> None:
        self.model_id, self.path = model_id, path

    def execute(
        self, prompt: llm.Prompt, stream: bool, response: llm.Response, conversation: Any
    ) -> Iterator[str]:
        """Write the answer, piece by piece."""
        given = {k: v for k, v in prompt.options.model_dump().items() if v is not None}
        loading = {name: given.pop(name, None) for name in LOADING}
        for name in LISTS:
            if name in given:
                given[name] = [given[name]]
        if prompt.schema is not None:
            given["json_schema"] = prompt.schema
        try:
            model = loaded(self.path, **loading)
            made = self._begun(model, messages_of(prompt.messages), given)
            yield from made
        except aleator.AleatorError as error:
            raise llm.ModelError(str(error)) from error
        generation = made.generation if isinstance(made, aleator.ChatGeneration) else made
        response.set_usage(input=len(generation.request.tokens), output=len(generation.tokens))
        response.response_json = {
            "seed": generation.seed,
            "stop_reason": generation.stop_reason,
            "model": model.identity.fingerprint,
        }

    def _begun(
        self, model: aleator.LanguageModel, messages: list[dict[str, str]], given: Mapping[str, Any]
    ) -> aleator.Generation | aleator.ChatGeneration:
        """What writes: a chat where the model has a template for it."""
        if model.vocab.chat_template is not None:
            return model.chat(messages, **given)
        if [each["role"] for each in messages] != ["user"]:
            raise llm.ModelError(
                f"{self.model_id} has no chat template: it continues one prompt, without a system prompt and "
                "without earlier turns"
            )
        return model.generate(messages[0]["content"], **given)


class AleatorVectors(llm.EmbeddingModel):
    """Vectors of texts, by a model of Aleator; arguments are those of :class:`Aleator`."""

    def __init__(self, model_id: str, path: str | None) -> None:
        self.model_id, self.path = model_id, path

    def embed_batch(self, items: Iterable[str | bytes]) -> Iterator[list[float]]:
        """A vector of length 1 for each text."""
        texts = [item.decode() if isinstance(item, bytes) else item for item in items]
        yield from loaded(self.path, None, None).embed(texts).tolist()


def messages_of(messages: Iterable[Any]) -> list[dict[str, str]]:
    """Messages as Aleator takes them; only texts are known here."""
    made = []
    for message in messages:
        texts = [getattr(part, "text", None) for part in message.parts]
        if None in texts:
            raise llm.ModelError(
                "only texts can be sent to Aleator's models, no attachments or tools"
            )
        made.append({"role": message.role, "content": "".join(text or "" for text in texts)})
    return made


def list_file() -> Path:
    """Where the names of models are."""
    return Path(llm.user_dir()) / LIST


def added() -> dict[str, str]:
    """Names and paths of the models that were added."""
    path = list_file()
    return dict(json.loads(path.read_text())) if path.exists() else {}


def keep(models: Mapping[str, str]) -> None:
    """Write the names of models."""
    part = list_file().with_suffix(".part")
    part.write_text(json.dumps(models, indent=1) + "\n")
    part.replace(list_file())


@llm.hookimpl
def register_models(register: Any) -> None:
    """Tell llm of the models."""
    register(Aleator(BUNDLED, None))
    for name, path in added().items():
        register(Aleator(f"{BUNDLED}/{name}", path))


@llm.hookimpl
def register_embedding_models(register: Any) -> None:
    """Tell llm what makes vectors."""
    register(AleatorVectors(BUNDLED, None))
    for name, path in added().items():
        register(AleatorVectors(f"{BUNDLED}/{name}", path))


@llm.hookimpl
def register_commands(cli: Any) -> None:
    """Add ``llm aleator``."""

    @cli.group(name="aleator")
    def group() -> None:
        """Models of Aleator: GGUF files and Hugging Face directories"""

    @group.command(name="add")
    @click.argument("path", type=click.Path(exists=True, resolve_path=True))
    @click.option("--name", help="what to call it; default: the file's name")
    def add(path: str, name: str | None) -> None:
        """Add a model under a name"""
        try:
            aleator.load(path, n_ctx=64)
        except aleator.AleatorError as error:
            raise click.ClickException(str(error)) from error
        keep({**added(), name or Path(path).stem: path})
        click.echo(f"{BUNDLED}/{name or Path(path).stem}")

    @group.command(name="list")
    def show() -> None:
        """List models and where they are"""
        click.echo(f"{BUNDLED}: the model that comes with the package")
        for name, path in added().items():
            click.echo(f"{BUNDLED}/{name}: {path}")

    @group.command(name="remove")
    @click.argument("name")
    def remove(name: str) -> None:
        """Forget a name; the file stays"""
        models = added()
        if name not in models:
            raise click.ClickException(f"there is no model {name!r}: llm aleator list")
        del models[name]
        keep(models)
