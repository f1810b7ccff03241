"""seed_oss: qwen2 with a head size independent of the width."""

from aleator.models.architecture import TRANSFORMER, Architecture, HuggingFace

HEAD_DIM = 128  # if config.json has none

SEED_OSS = Architecture(
    "seed_oss",
    ffn_norm="post_attention_norm",
    hugging_face=HuggingFace(
        ("seed_oss",),
        options={"head_dim": HEAD_DIM},
        layer=TRANSFORMER | {"post_attention_layernorm": "post_attention_norm"},
    ),
)
