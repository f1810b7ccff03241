"""Decoders of small models with random weights, each made once."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from make_models import SPECS, write_model

from aleator.models import build_decoder, open_weights
from aleator.models.decoder import Decoder


@functools.cache
def decoder_of(name: str) -> Decoder:
    with tempfile.TemporaryDirectory() as folder:
        return build_decoder(open_weights(write_model(Path(folder) / "m.gguf", SPECS[name])))
