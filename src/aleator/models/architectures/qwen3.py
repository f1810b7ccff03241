"""qwen3: RMS-normalised query and key heads, no bias, and a head size independent of the width."""

from aleator.models.architecture import HEAD_NORMS, TRANSFORMER, Architecture, HuggingFace

# transformers' default head size, whatever the width.
HEAD_DIM = 128
# Default number of layers without a window if config.json switches windows on, as in transformers.
MAX_WINDOW_LAYERS = 28

QWEN3 = Architecture(
    "qwen3",
    head_norm=True,
    hugging_face=HuggingFace(
        ("qwen3",),
        options={"head_dim": HEAD_DIM, "max_window_layers": MAX_WINDOW_LAYERS},
        layer=TRANSFORMER | HEAD_NORMS,
    ),
)
