"""The layers of a model of transformers: what they store, and whether stored keys can be moved."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from transformers import DynamicCache

from aleator.cache import LayerShape
from aleator.core.errors import UnsupportedModel

_ROPE_MOVES = ("default", "linear", "llama3", "yarn", "proportional")
"""Kinds of rotary embedding whose angles do not depend on how long the text is."""
_FURTHER = 7
"""Position at which keys are looked at a second time."""
_ROUNDINGS = 64
"""By how many roundings, of the largest key, a rotated key may differ from the one computed there."""


Stored = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys [G, D] and values [G, Dv] of each layer for a text of one token."""


def layers_of(model: Any) -> tuple[list[LayerShape], Stored]:
    """What each layer stores, as it does for one token.

    Args:
        model: a decoder-only model.

    Returns:
        The layers' shapes, and what they store at position 0.

    Raises:
        UnsupportedModel: a layer has a window or a state.
    """
    config = model.config.get_text_config(decoder=True)
    kinds = getattr(config, "layer_types", None) or []
    other = next((kind for kind in kinds if kind != "full_attention"), None)
    if (
        other is None
        and getattr(config, "sliding_window", None)
        and not hasattr(config, "layer_types")
    ):
        other = f"sliding_window={config.sliding_window}"
    if other is not None:
        raise UnsupportedModel(
            f"{config.model_type}: a layer has {other}, and AleatorCache holds layers that see every position"
        )
    stored = _stored(model)
    if len(stored) != config.num_hidden_layers or any(len(k) != len(v) for k, v in stored):
        raise UnsupportedModel(
            f"{config.model_type}: not each of its {config.num_hidden_layers} layers stores keys and values of "
            "its own, as AleatorCache needs"
        )
    shapes = [LayerShape(k.shape[0], k.shape[1], v.shape[1]) for k, v in stored]
    return shapes, stored


def _stored(model: Any, **given: Any) -> Stored:
    """What the model's layers store for a text of one token."""
    config = model.config.get_text_config(decoder=True)
    padding = getattr(config, "pad_token_id", None)  # its embedding may be 0, and its keys then
    ids = torch.full((1, 1), 1 if padding == 0 else 0, device=model.device)
    cache = DynamicCache()
    with torch.no_grad():
        model.get_decoder()(input_ids=ids, past_key_values=cache, use_cache=True, **given)
    return [(layer.keys[0, :, 0], layer.values[0, :, 0]) for layer in cache.layers]


def rotation_of(model: Any, here: Stored) -> Any:
    """Rotates stored keys further, as the model does.

    Models pair channels in different ways, and some layers do not rotate.  A text of one token has the same
    hidden states at every position, so its keys at two positions tell whether this is the model's rotation.

    Args:
        model: a decoder-only model.
        here: what its layers store at position 0, as :func:`layers_of` gives it.

    Returns:
        None: keys cannot be rotated, or not as this module does.
    """
    config = model.config.get_text_config(decoder=True)
    rotary = getattr(model.get_decoder(), "rotary_emb", None)
    kind = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rotary is None or kind not in _ROPE_MOVES or not hasattr(rotary, "inv_freq"):
        return None
    at = torch.full((1, 1), _FURTHER, device=model.device)
    there = _stored(model, position_ids=at)
    pairs = list(zip(here, there, strict=True))
    if any(not torch.equal(a, b) for (_, a), (_, b) in pairs):
        return None  # values know their position too
    moved = [(a[None], b[None]) for (a, _), (b, _) in pairs]
    still = {i for i, (a, b) in enumerate(moved) if torch.equal(a, b)}
    if len(still) == len(moved):
        return None  # perhaps the model took no notice of the position that it was given
    frequencies = rotary.inv_freq.detach().to(torch.float64)
    half = len(frequencies)

    def rotate(one: slice, two: slice, layer: int, keys: Any, deltas: Any) -> Any:
        """Rotate keys [n, G, D] by positions [n]; ``one`` and ``two`` are the channels of pairs."""
        if layer in still:
            return keys
        x = torch.as_tensor(keys)
        at = torch.as_tensor(deltas).to(x.device, torch.float64)
        angles = at[:, None, None] * frequencies.to(x.device)
        cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        first, second = x[..., one].clone(), x[..., two].clone()
        x[..., one] = first * cosine - second * sine
        x[..., two] = second * cosine + first * sine
        return keys

    for one, two in (
        (slice(0, half), slice(half, 2 * half)),
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2)),
    ):
        as_here = partial(rotate, one, two)
        if all(
            _agree(as_here(i, a.float().clone(), [_FURTHER]), b) for i, (a, b) in enumerate(moved)
        ):
            return as_here
    return None


def _agree(rotated: torch.Tensor, computed: torch.Tensor) -> bool:
    """Whether keys are those that the model computed, but for roundings; keys of 0 tell nothing."""
    largest = float(computed.abs().max())
    off = float((rotated - computed.float()).abs().max())
    return largest > 0 and off <= _ROUNDINGS * torch.finfo(computed.dtype).eps * largest
