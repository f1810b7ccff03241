"""The layers of a transformers model: what they store, and whether stored keys can be moved."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from aleator.cache import LayerShape
from aleator.core.errors import UnsupportedModel

_ROPE_MOVES = ("default", "linear", "llama3", "yarn", "proportional")
"""Kinds of rotary embedding whose angles do not depend on the length of the text."""
_FURTHER = 7
"""The second position at which keys are computed."""
_ROUNDINGS = 64
"""Roundings of the largest key by which a rotated key may differ from the one computed at that position."""


Stored = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys [G, D] and values [G, Dv] of each layer for a text of one token."""


def layers_of(model: Any) -> tuple[list[LayerShape], Stored]:
    """Return the layers' shapes, and what they store at position 0.

    UnsupportedModel if a layer has a state, or no keys and values of its own.
    """
    config = model.config.get_text_config(decoder=True)
    stored = _stored(model)
    if len(stored) != config.num_hidden_layers or any(len(k) != len(v) for k, v in stored):
        raise UnsupportedModel(
            f"{config.model_type}: not each of its {config.num_hidden_layers} layers stores keys and values of "
            "its own, as AleatorCache needs"
        )
    shapes = [LayerShape(k.shape[0], k.shape[1], v.shape[1]) for k, v in stored]
    return shapes, stored


def windows_of(model: Any) -> list[int | None]:
    """The number of positions that tokens of each layer see, including their own; None: all.

    UnsupportedModel if a layer stores something other than keys and values.
    """
    config = model.config.get_text_config(decoder=True)
    layers = DynamicCache(config=config).layers
    for layer in layers:
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
            raise UnsupportedModel(
                f"{config.model_type}: transformers caches one of its layers in a {type(layer).__name__}, and "
                "AleatorCache holds keys and values of each layer only: use transformers' DynamicCache"
            )
    return [getattr(layer, "sliding_window", None) for layer in layers]


def held_by(model: Any, cache: Any) -> dict[str, Any]:
    """A cache as the model's keyword argument, which is ``cache`` since transformers 5.24."""
    new = "cache" in inspect.signature(model.forward).parameters
    return {"cache" if new else "past_key_values": cache}


def _stored(model: Any, **given: Any) -> Stored:
    """What the model's layers store for a text of one token."""
    config = model.config.get_text_config(decoder=True)
    padding = getattr(config, "pad_token_id", None)  # its embedding, and so its keys, may be 0
    ids = torch.full((1, 1), 1 if padding == 0 else 0, device=model.device)
    cache = DynamicCache()
    with torch.no_grad():
        decoder = model.get_decoder()
        decoder(input_ids=ids, use_cache=True, **held_by(decoder, cache), **given)
    return [(layer.keys[0, :, 0], layer.values[0, :, 0]) for layer in cache.layers]


def rotation_of(model: Any, here: Stored) -> Any:
    """Return a function that rotates stored keys as the model does; None if that is not possible.

    Models pair channels in different ways, and some layers do not rotate.  A text of one token has the same
    hidden states at every position, so its keys at two positions show whether this is the model's rotation.
    ``here`` is what the layers store at position 0, as :func:`layers_of` returns it.
    """
    frequencies = _frequencies(model, len(here))
    if frequencies is None:
        return None
    at = torch.full((1, 1), _FURTHER, device=model.device)
    there = _stored(model, position_ids=at)
    pairs = list(zip(here, there, strict=True))
    if any(not torch.equal(a, b) for (_, a), (_, b) in pairs):
        return None  # values depend on their position, too
    moved = [(a[None], b[None]) for (a, _), (b, _) in pairs]
    still = {i for i, (a, b) in enumerate(moved) if torch.equal(a, b)}
    if len(still) == len(moved):
        return None  # the model may have ignored the given position

    def rotate(halves: bool, layer: int, keys: Any, deltas: Any) -> Any:
        """Rotate keys [n, G, D] by positions [n]; pairs are in the two ``halves``, or adjacent."""
        if layer in still:
            return keys
        x = torch.as_tensor(keys)
        at = torch.as_tensor(deltas).to(x.device, torch.float64)
        half = len(frequencies[layer])
        one, two = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
        if halves:
            one, two = slice(0, half), slice(half, 2 * half)
        angles = at[:, None, None] * frequencies[layer].to(x.device)
        cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        first, second = x[..., one].clone(), x[..., two].clone()
        x[..., one] = first * cosine - second * sine
        x[..., two] = second * cosine + first * sine
        return keys

    for halves in (True, False):
        as_here = partial(rotate, halves)
        if all(
            _agree(as_here(i, a.float().clone(), [_FURTHER]), b) for i, (a, b) in enumerate(moved)
        ):
            return as_here
    return None


def _frequencies(model: Any, n_layers: int) -> list[torch.Tensor] | None:
    """The angles by which each layer rotates a key per position; None if unknown or not constant."""
    config = model.config.get_text_config(decoder=True)
    rotary = getattr(model.get_decoder(), "rotary_emb", None)
    given = getattr(config, "rope_parameters", None) or {}
    kinds = getattr(config, "layer_types", None) or [""] * n_layers
    found = []
    for kind in kinds:
        # Models whose kinds of layers rotate differently have the parameters and angles of each kind.
        of_kind = given.get(kind, given)
        angles = getattr(rotary, f"{kind}_inv_freq", getattr(rotary, "inv_freq", None))
        if (
            angles is None
            or of_kind is None
            or of_kind.get("rope_type", "default") not in _ROPE_MOVES
        ):
            return None
        found.append(angles.detach().to(torch.float64))
    return found


def _agree(rotated: torch.Tensor, computed: torch.Tensor) -> bool:
    """Whether keys equal those that the model computed, except for rounding; keys of 0 show nothing."""
    largest = float(computed.abs().max())
    off = float((rotated - computed.float()).abs().max())
    return largest > 0 and off <= _ROUNDINGS * torch.finfo(computed.dtype).eps * largest
