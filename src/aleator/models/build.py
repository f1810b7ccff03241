"""Makes the decoder of a model file, in the form that suits where it computes."""

from __future__ import annotations

from aleator.core.errors import ParameterError
from aleator.core.packages import required_torch
from aleator.models.decoder import Decoder, Progress
from aleator.models.native_decoder import NativeDecoder, why_not_native
from aleator.models.placement import placement
from aleator.models.weights import Weights

FORMS = ("auto", "native", "torch")


def build_decoder(
    weights: Weights,
    device: object = "cpu",
    dtype: object = None,
    progress: Progress | None = None,
    form: str = "auto",
) -> Decoder:
    """Make the decoder of a model file, its weights read and checked.

    Args:
        weights: the file.
        device: where the work is done; None: CUDA where there is one, else the CPU.
        dtype: type of weights and activations; None: float32 on the CPU, bfloat16 on CUDA.
        progress: called with (layers done, layers).
        form: "native": native code, on the CPU in float32; "torch": in PyTorch, anywhere; "auto": native where
            that can be.

    Raises:
        UnsupportedModel: rotary scaling that is not supported.
        FileFormatError: a tensor is missing, of the wrong shape, or not finite; names it.
        ParameterError: a device, a type or a form that there is not, or that do not go together.
        ImportError: PyTorch is needed and not installed; says what to install.
    """
    if form not in FORMS:
        raise ParameterError("form", f"form={form!r} must be one of {', '.join(FORMS)}")
    place, kind = placement(device, dtype)
    can = place.type == "cpu" and kind == "float32"
    if form == "native" and not can:
        raise ParameterError(
            "form", f"form='native' computes on the CPU in float32, not on {place} in {kind}"
        )
    why = why_not_native(weights)
    if form == "native" and why:
        raise ParameterError("form", f"form='native' does not compute {why}: use form='torch'")
    if can and not why and form != "torch":
        return NativeDecoder(weights, progress)
    what = why or ("form='torch'" if can else f"device={str(place)!r} with dtype={kind!r}")
    required_torch(what)
    from aleator.models.torch_decoder import TorchDecoder  # PyTorch is optional

    return TorchDecoder(weights, place, kind, progress)
