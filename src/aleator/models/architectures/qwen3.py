"""qwen3: RMS-normalised query and key heads, no bias, and a head size independent of the width."""

import numpy as np

from aleator.core.errors import UnsupportedModel
from aleator.models.architecture import HEAD_NORMS, OUTER, TRANSFORMER, Architecture, HuggingFace
from aleator.models.files.tensor_types import StoredTensor

# transformers' default head size, whatever the width.
HEAD_DIM = 128
# Default number of layers without a window if config.json switches windows on, as in transformers.
MAX_WINDOW_LAYERS = 28


def as_gguf(name: str, tensor: StoredTensor) -> StoredTensor:
    """Convert a tensor to GGUF's form, in which a head has two rows: the probability of "yes" is the score.

    A second row of zeros makes it the sigmoid of the only output, as sentence-transformers does.
    """
    if name != "cls.output.weight":
        return tensor
    if tensor.shape[0] != 1:
        raise UnsupportedModel(
            f"a head with {tensor.shape[0]} outputs (score.weight), which are classes: rank with 1"
        )
    return tensor.moved_rows(lambda rows: np.concatenate([rows, np.zeros_like(rows)]))


QWEN3 = Architecture(
    "qwen3",
    head_norm=True,
    hugging_face=HuggingFace(
        ("qwen3",),
        options={"head_dim": HEAD_DIM, "max_window_layers": MAX_WINDOW_LAYERS},
        outer=OUTER | {"score": "cls.output"},
        layer=TRANSFORMER | HEAD_NORMS,
        convert=as_gguf,
    ),
)
