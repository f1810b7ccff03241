"""ernie4_5: llama with a head size independent of the width; Hugging Face's files rotate neighbours too."""

from aleator.models.architecture import Architecture, HuggingFace

HEAD_DIM = 128  # if config.json has none

ERNIE4_5 = Architecture(
    "ernie4_5",
    rope_style="norm",
    hugging_face=HuggingFace(
        ("ernie4_5",), options={"head_dim": HEAD_DIM, "tied": True}, rope_style="norm"
    ),
)
