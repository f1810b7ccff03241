"""Small random models by name (tools/wide_models.py), and what llama.cpp answered with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from wide_models import SMALL, write_model

from aleator.models import build_decoder, open_weights
from aleator.models.decoder import Decoder
from tests.optional import absent

DATA = Path(__file__).parents[1] / "data"
N_PREFILL = 20
FORMS = ("native",) if "torch" in absent() else ("native", "torch")
"""A decoder's forms that run here."""
F32: Any = {"type_k": "f32", "type_v": "f32"}


def decoder_of(name: str, folder: Path, form: str = "auto") -> Decoder:
    path = folder / f"{name}.gguf"
    if not path.exists():
        write_model(path, SMALL[name])
    return build_decoder(open_weights(path), form=form)


def golden_of(name: str) -> dict[str, Any]:
    """Arrays that tools/golden_models.py made: prefill, greedy, script, and of most state and answers."""
    for folder in ("golden_dense", "golden_hybrid"):
        if (path := DATA / folder / f"{name}.npz").exists():
            with np.load(path) as arrays:
                return dict(arrays)
    with np.load(DATA / "logits" / f"{SMALL[name].arch}.npz") as arrays:
        own = [key for key in arrays.files if key.startswith(f"{name}/")]
        return {key.partition("/")[2]: arrays[key] for key in own}


def tokens_of(decoder: Decoder) -> list[int]:
    """The prompt of tools/golden_models.py."""
    n = decoder.config.n_vocab
    return [int(t) for t in np.random.default_rng(7).integers(0, n, N_PREFILL)]
