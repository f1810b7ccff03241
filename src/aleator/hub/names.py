"""What the name of a model means: a file, a model of the hub, or an installed package."""

from __future__ import annotations

import os
import re
from pathlib import Path

from aleator.core.errors import ParameterError
from aleator.core.records import dataclass

HUB = "hf:"
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HUB = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]*/[\w.-]+)(?:@(?P<revision>[\w./-]+?))?"
    r"(?::(?P<quant>[A-Za-z0-9_.-]+)|/(?P<file>[^:]+\.gguf))?"
)


@dataclass(frozen=True)
class HubName:
    """A model of the hub: ``hf:ORG/NAME``, ``hf:ORG/NAME:Q4_K_M``, ``hf:ORG/NAME/file.gguf``.

    Attributes:
        repo: ``ORG/NAME``.
        quant: the type of the tensors; "": llama.cpp's choice.
        file: a GGUF file of the repository; "": chosen by ``quant``.
        revision: a branch, tag or commit, written ``@REVISION`` after the repository.
    """

    repo: str
    quant: str = ""
    file: str = ""
    revision: str = "main"

    @classmethod
    def read(cls, text: str) -> HubName:
        """Read a name, with or without ``hf:``.

        Raises:
            ParameterError: it is not such a name.
        """
        match = _HUB.fullmatch(text.removeprefix(HUB))
        if match is None:
            raise ParameterError(
                "model",
                f"model={text!r}: a model of the hub is written hf:ORG/NAME, hf:ORG/NAME:Q4_K_M or "
                "hf:ORG/NAME/FILE.gguf, with @REVISION after NAME for another than main",
            )
        return cls(
            match["repo"], match["quant"] or "", match["file"] or "", match["revision"] or "main"
        )

    def __str__(self) -> str:
        at = "" if self.revision == "main" else f"@{self.revision}"
        what = f":{self.quant}" if self.quant else f"/{self.file}" if self.file else ""
        return f"{HUB}{self.repo}{at}{what}"


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
        from aleator.hub.fetching import fetched

        return fetched(HubName.read(str(model)), token=token, offline=offline)
    path = Path(model)
    if isinstance(model, str) and _PLAIN.fullmatch(model) and not path.exists():
        from aleator.hub.installed import packaged  # and with it the reader of packages' metadata

        return packaged(model) or path
    return path
