"""maincoder: llama whose query and key heads are normalised after the rotation.

Such keys cannot be rotated to other positions: a shift is refused.
"""

from aleator.models.architecture import HEAD_NORMS, TRANSFORMER, Architecture, HuggingFace

MAINCODER = Architecture(
    "maincoder",
    rope_style="norm",
    hugging_face=HuggingFace(("maincoder",), layer=TRANSFORMER | HEAD_NORMS, rope_style="norm"),
    head_norm=True,
    head_norm_kind="rotated head",
    shifts=False,
)
