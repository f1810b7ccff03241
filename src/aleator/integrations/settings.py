"""Sampling parameters from callers of other engines: an object, or a mapping as from JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aleator.core.errors import ParameterError
from aleator.core.json_text import loads
from aleator.samplers import SamplingParams
from aleator.samplers.params import in_range

Settings = SamplingParams | Mapping[str, object]
"""Sampling parameters, or a mapping of names and values, in which ``preset`` names the base."""


def sampling_params(settings: Settings, engine: str) -> SamplingParams:
    """Check sampling parameters, or a mapping of their names, in which ``preset`` names a preset.

    Without a preset, parameters not given are neutral.  Values that mean "off" in ``engine`` are accepted with
    a warning.  ParameterError names what is unknown or out of range.
    """
    if isinstance(settings, SamplingParams):
        return settings
    if not isinstance(settings, Mapping):
        raise ParameterError(
            "settings",
            f"sampling parameters {settings!r:.60} are neither a SamplingParams nor a mapping of its fields",
        )
    values = in_range(settings, (engine,))
    preset = values.pop("preset", None)
    if preset is None:
        return SamplingParams(**values)
    if not isinstance(preset, str):
        raise ParameterError(f"preset={preset!r:.60} is not a name")
    return SamplingParams.preset(preset, **values)


def read_settings(given: object, name: str, where: str) -> Mapping[str, object]:
    """Read a request's sampling parameters, a mapping or JSON; ParameterError for ``name`` says ``where``."""
    if isinstance(given, str):
        try:
            given = loads(given)
        except ValueError as error:
            raise ParameterError(name, f"{where} is not JSON: {error}") from None
    if not isinstance(given, Mapping):
        raise ParameterError(name, f"{where}={given!r:.60} is not a mapping of sampling parameters")
    return given


def row_params(
    settings: Settings | Sequence[Settings], seeds: Sequence[int] | None, engine: str
) -> list[SamplingParams]:
    """Return the sampling parameters of each text of a batch; a single one if their number is not given.

    ``settings`` are one for all or one per text; ``seeds``, one per text, replace theirs.  ParameterError as in
    :func:`sampling_params`, and if the two lists differ in length.
    """
    if isinstance(settings, Sequence):
        each = [sampling_params(one, engine) for one in settings]
    else:
        each = [sampling_params(settings, engine)] * (1 if seeds is None else len(seeds))
    if seeds is None:
        return each
    if len(seeds) != len(each):
        raise ParameterError("seeds", f"{len(seeds)} seeds for {len(each)} sampling parameters")
    return [one.replace(seed=seed) for one, seed in zip(each, seeds, strict=True)]
