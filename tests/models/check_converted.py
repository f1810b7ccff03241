"""A directory against the GGUF file that it becomes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from aleator.core.errors import UnsupportedModel
from aleator.generate import Batch, Context
from aleator.models import build_decoder, open_weights
from aleator.models.conversion.convert import ConvertedDirectory
from aleator.models.conversion.quantise import Quantisation
from aleator.models.directory import Directory
from aleator.models.files.gguf import GGUFFile
from aleator.models.files.gguf_writer import field
from aleator.models.weights import Weights

NO_VOCABULARY = [field("tokenizer.ggml.model", "no_vocab")]

SUMS_IN_ANOTHER_ORDER = (
    "llama", "smollm3", "granite", "granitemoe", "granitehybrid", "mistral3", "qwen35", "qwen35moe",
    "falcon-h1", "minicpm3", "arcee", "internlm2", "xverse", "minicpm", "deepseek", "bailingmoe",
    "plm", "olmo", "granite_swa", "baichuan", "deci",
)  # fmt: skip
"""Architectures of which llama.cpp wants rows in another order, or a factor within them."""

ROUNDED = ("llama3", "yarn", "longrope")
"""Scalings of which GGUF has a number in float32 that config.json has in float64."""

CANNOT = (
    r"experts\.normalised",  # norm_topk_prob
    r"experts\.layers",  # layers without experts between
    r"rope\.scaling: (dynamic|llama3|yarn)",
    r"rotary scaling of type 'dynamic'",
    r"query_growth",
    r"attention_scale",
    r"unrotated",  # layers without a rotation, other than llama.cpp's
    r"shared keys of other than the two layers before",
    r"residual_scale",
    r"delta\.n_heads",  # another number of heads of states than of attention
    r"channels for \d+ heads",  # heads of keys and of values of different sizes
)
"""What GGUF files cannot say."""


def converted(folder: Path, out: Path, kind: str | None = None) -> ConvertedDirectory:
    gguf = ConvertedDirectory(Directory(folder), NO_VOCABULARY)
    Quantisation(gguf, kind).write(out, 1)
    return gguf


def logits(weights: Weights, ids: list[int]) -> Any:
    decoder = build_decoder(weights, form="native")
    context = Context(decoder, n_ctx=64, n_ubatch=16, type_k="f32", type_v="f32")
    return np.asarray(context.decode(Batch.one(ids, logits=True)))


def check_converted(
    folder: Path, ids: list[int], tolerance: float = 1e-5, whole: bool = False
) -> None:
    """The file gives the directory's logits: the same bits, unless sums have another order.

    Models that GGUF cannot hold are passed over unless ``whole``.
    """
    out = folder / "converted.gguf"
    try:
        gguf = converted(folder, out)
    except UnsupportedModel as error:
        if whole or not any(re.search(each, str(error)) for each in CANNOT):
            raise
        return
    assert not (whole and gguf.left_out), gguf.left_out
    if gguf.left_out:  # such as windows, which shorter texts do not need
        return
    expected, weights = logits(open_weights(folder), ids), open_weights(out)
    assert weights.kind == "gguf"
    file = GGUFFile(out)
    ends = [info.offset + file.stored(name).data.nbytes for name, info in file.tensors.items()]
    assert out.stat().st_size - max(ends) < file.alignment  # nothing behind the last tensor
    weights.kind = "safetensors"  # GELU without the rounding of llama.cpp's table
    rows = logits(weights, ids)
    theirs, ours = open_weights(folder).config, weights.config
    rounded = theirs.rope.scaling in ROUNDED or theirs.rope.theta != ours.rope.theta
    if weights.architecture.name in SUMS_IN_ANOTHER_ORDER or rounded:
        assert np.abs(rows - expected).max() < tolerance * np.ptp(expected)
    else:
        assert rows.tobytes() == expected.tobytes()
