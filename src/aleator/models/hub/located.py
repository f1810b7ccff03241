"""What the name of a model means: a file, a model of the hub, or an installed package."""

from __future__ import annotations

import os
import re
from pathlib import Path

from aleator.models.hub.names import HUB, HubName

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def located(
    model: str | os.PathLike[str], *, token: str | None = None, offline: bool = False
) -> Path:
    """Where a model is on this machine; fetches it if it is one of the hub and not there yet.

    Args:
        model: a path; ``hf:ORG/NAME[:QUANT]``; or the name of an installed package without its ``llm-``.
        token: for the hub; None: what its library finds (``HF_TOKEN``, or what a login left).
        offline: take what was fetched before, and ask nobody.

    Returns:
        The GGUF file (of a split model the first), or the directory.  A path comes back as it is, also if
        nothing is there.

    Raises:
        HubError: the hub has no such model, does not give it, or cannot be reached; in one line.
        ParameterError: a name of the hub that cannot be read.
        ImportError: huggingface_hub is not installed.
        FileFormatError: a package holds several models, or a download is damaged.
    """
    if str(model).startswith(HUB):
        from aleator.models.hub.fetching import fetched

        return fetched(HubName.read(str(model)), token=token, offline=offline)
    path = Path(model)
    if isinstance(model, str) and _PLAIN.fullmatch(model) and not path.exists():
        # Late, as it reads packages' metadata.
        from aleator.models.hub.installed import packaged

        return packaged(model) or path
    return path
