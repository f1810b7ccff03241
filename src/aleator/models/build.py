"""Makes the decoder of a model file, in the form that suits its device."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from aleator.core.errors import ParameterError
from aleator.core.packages import required_torch
from aleator.models.decoder import Decoder, Progress
from aleator.models.encoder import Encoder
from aleator.models.exact import exact_form
from aleator.models.native_decoder import NativeDecoder, why_not_native
from aleator.models.placement import EXACT, ON_CPU, Place, placement
from aleator.models.weights import Weights

log = logging.getLogger(__name__)

FORMS = ("auto", "native", "torch", "triton")


def build_decoder(
    weights: Weights,
    device: object = "cpu",
    dtype: object = None,
    progress: Progress | None = None,
    form: str = "auto",
    places: Sequence[Place] | None = None,
) -> Decoder:
    """Make the decoder of a model file; read and check its weights.

    Args:
        weights: the file.
        device: where it computes; None: CUDA if there is a device, else the CPU.
        dtype: type of weights and activations; None: float32 on the CPU, "exact" on CUDA; "exact": see
            ``form``.
        progress: called with (layers done, layers).
        form: "native": native code, on the CPU in float32; "torch": PyTorch, anywhere; "triton": Triton's
            kernels with the native form's bits, on GPUs, or on the CPU under Triton's interpreter; "auto":
            "triton" on GPUs if the type is "exact", else native if that is possible, else PyTorch.
        places: where each layer computes, instead of ``device`` and ``dtype``
            (:meth:`~aleator.models.placement.Placement.places`).

    Raises:
        UnsupportedModel: rotary scaling that is not supported.
        FileFormatError: a tensor is missing, of the wrong shape, or not finite; names it.
        ParameterError: a device, a type or a form does not exist, or they contradict each other.
        ImportError: PyTorch is needed and not installed; says what to install.
    """
    if form not in FORMS:
        raise ParameterError(f"form={form!r} must be one of {', '.join(FORMS)}")
    if not weights.architecture.causal:
        check_encoder(weights, places or placement(device, dtype).places(weights.config.n_layers))
        if form not in ("auto", "native"):
            raise ParameterError(f"form={form!r}: encoders have only the form 'native'")
        return _log_memory(Encoder(weights, progress))
    if places is None:
        dtype = EXACT if form == "triton" and dtype is None else dtype
        places = placement(device, dtype).places(weights.config.n_layers)
    if form == "auto" and EXACT in (dtype, places[-1].dtype):
        form = exact_form(weights, places)
    if form == "torch" and EXACT in (dtype, places[-1].dtype):
        raise ParameterError("dtype='exact' with form='torch': give form='triton'")
    others = [place for place in places if place != ON_CPU]
    can = not others
    if form == "native" and others:
        raise ParameterError(
            f"form='native' computes on the CPU in float32, not on {others[0].device} in {others[0].dtype}"
        )
    why = why_not_native(weights)
    if form == "native" and why:
        raise ParameterError(f"form='native' does not compute {why}: use form='torch'")
    if can and not why and form in ("auto", "native"):
        return _log_memory(NativeDecoder(weights, progress))
    if form == "triton":
        return _log_memory(_in_triton(weights, places, progress))
    at = f"device={str(others[0].device)!r} with dtype={others[0].dtype!r}" if others else ""
    required_torch(why or at or "form='torch'")
    from aleator.models.torch_decoder import TorchDecoder  # PyTorch is optional

    return _log_memory(TorchDecoder(weights, places, progress))


def check_encoder(weights: Weights, places: Sequence[Place]) -> None:
    """Check that an encoder computes on the CPU, where its only form is."""
    for place in places:
        if not weights.architecture.causal and place not in (ON_CPU, Place(ON_CPU.device, EXACT)):
            raise ParameterError(
                f"{place.device} in {place.dtype}: an encoder ({weights.config.architecture}) computes on the "
                "CPU in float32 only: give device='cpu' and leave dtype out"
            )


def _in_triton(weights: Weights, places: Sequence[Place], progress: Progress | None) -> Decoder:
    """The decoder of Triton's kernels."""
    for place in places:
        if place.dtype not in ("float32", EXACT):
            raise ParameterError(
                f"dtype={place.dtype!r}: form='triton' keeps weights as they are stored and computes in "
                "float32: give dtype='exact', or leave it out"
            )
    if places[-1].dtype != EXACT:
        places = [Place(place.device, EXACT) for place in places]
    exact_form(weights, places)
    from aleator.models.triton.decoder import TritonDecoder  # PyTorch and Triton are optional

    return TritonDecoder(weights, places, progress)


def _log_memory(decoder: Decoder) -> Decoder:
    """Log the memory that the decoder's weights take on each device, and return the decoder."""
    if not log.isEnabledFor(logging.INFO):
        return decoder
    for device, size in decoder.device_bytes.items():
        layers = sum(str(place.device) == device for place in decoder.places)
        log.info("weights: %d layers, %s: %.2f MiB", layers, device, size / 2**20)
    return decoder
