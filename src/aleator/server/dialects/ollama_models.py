"""What Ollama says of models: here of the one that is served."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

from aleator.core.errors import AleatorError
from aleator.server.dialects.ollama_output import moment
from aleator.server.service import Service


def details(service: Service) -> dict[str, Any]:
    """Family, size and type of the weights."""
    weights = service.model.weights
    family = weights.config.architecture
    types: Counter[str] = Counter()
    for name in weights.names():
        stored = weights.stored(name)
        types[stored.type] += stored.n_elements
    return {
        "parent_model": "",
        "format": weights.kind,
        "family": family,
        "families": [family],
        "parameter_size": _size(weights.n_parameters),
        "quantization_level": types.most_common(1)[0][0].upper(),
    }


def listed(service: Service) -> dict[str, Any]:
    """An entry of the list of models."""
    weights = service.model.weights
    return {
        "name": service.name,
        "model": service.name,
        "modified_at": moment(weights.path.stat().st_mtime),
        "size": weights.size_bytes,
        "digest": service.model.fingerprint,
        "details": details(service),
    }


def running(service: Service) -> dict[str, Any]:
    """An entry of the list of models in memory; it stays there."""
    entry = listed(service)
    del entry["modified_at"]
    forever = datetime.max.replace(microsecond=0, tzinfo=UTC)
    return {
        **entry,
        "expires_at": forever.isoformat().replace("+00:00", "Z"),
        "size_vram": 0,
        "context_length": service.model.n_ctx,
    }


def shown(service: Service) -> dict[str, Any]:
    """A model with its template, dimensions and what it can do."""
    model = service.model
    config, weights = model.weights.config, model.weights
    template = service.options.chat_template or model.vocab.chat_template or ""
    family = config.architecture
    return {
        "modelfile": f"FROM {weights.path.name}\n",
        "parameters": "\n".join(
            f"{name} {value}" for name, value in weights.recommended_sampling().items()
        ),
        "template": template,
        "details": details(service),
        "model_info": {
            "general.architecture": family,
            "general.name": config.name or weights.path.stem,
            "general.parameter_count": weights.n_parameters,
            f"{family}.block_count": config.n_layers,
            f"{family}.context_length": config.context_length,
            f"{family}.embedding_length": config.n_embd,
            f"{family}.vocab_size": config.n_vocab,
        },
        "capabilities": capabilities(service),
        "modified_at": moment(weights.path.stat().st_mtime),
    }


def capabilities(service: Service) -> list[str]:
    """What the model can do, in Ollama's words."""
    made = ["completion"]
    try:
        chat_format = service.model.chat_format(service.options.chat_template)
    except AleatorError:  # without a template it completes texts
        return made
    if chat_format.shows_tools and chat_format.foreign_mark is None:
        made.append("tools")
    if chat_format.thinking is not None:
        made.append("thinking")
    return made


def _size(n_parameters: int) -> str:
    for unit, word in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if n_parameters >= unit:
            return f"{n_parameters / unit:.1f}{word}"
    return str(n_parameters)
