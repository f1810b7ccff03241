"""hunyuan-dense: llama whose query and key heads are normalised after the rotation.

Such keys cannot be rotated to other positions: a shift is refused.
"""

from __future__ import annotations

from aleator.models.architecture import Architecture, HuggingFace
from aleator.models.architectures.hunyuan_files import LAYER, read_gguf

HUNYUAN_DENSE = Architecture(
    "hunyuan-dense",
    read_gguf=read_gguf,
    hugging_face=HuggingFace(("hunyuan_v1_dense",), layer=LAYER),
    head_norm=True,
    head_norm_kind="rotated head",
    shifts=False,
)
