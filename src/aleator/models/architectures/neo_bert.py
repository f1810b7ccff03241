"""neo-bert: an encoder with norms before each part, a rotary embedding and SwiGLU; from GGUF."""

from aleator.models.architectures.bert import ENCODER

NEO_BERT = ENCODER(
    "neo-bert",
    rope_style="norm",
    norm="rms",
    pre_norm=True,
    sum_norm=False,
    embedding_norm=False,
    output_norm="enc.output_norm",
    fused_gate=True,
)
