"""jina-bert-v3: bert with a rotary embedding instead of vectors of positions; from GGUF."""

from aleator.models.architectures.bert import ENCODER

JINA_BERT_V3 = ENCODER("jina-bert-v3", gated=False, activation="gelu_exact")
