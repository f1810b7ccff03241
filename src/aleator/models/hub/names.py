"""Names of models of the hub."""

from __future__ import annotations

import re

from aleator.core.errors import ParameterError
from aleator.core.records import dataclass

HUB = "hf:"
_HUB = (
    r"(?P<repo>[A-Za-z0-9][\w.-]*/[\w.-]+)(?:@(?P<revision>[\w./-]+?))?"
    r"(?::(?P<quant>[A-Za-z0-9_.-]+)|/(?P<file>[^:]+\.gguf))?"
)


@dataclass(frozen=True)
class HubName:
    """A model of the hub: ``hf:ORG/NAME``, ``hf:ORG/NAME:Q4_K_M``, ``hf:ORG/NAME/file.gguf``."""

    repo: str  # ``ORG/NAME``
    quant: str = ""  # the type of the tensors; "": llama.cpp's choice
    file: str = ""  # a GGUF file of the repository; "": chosen by ``quant``
    revision: str = "main"  # a branch, tag or commit, written ``@REVISION`` after the repository

    @classmethod
    def read(cls, text: str) -> HubName:
        """Read a name, with or without ``hf:``; ParameterError if it is not one."""
        match = re.fullmatch(_HUB, text.removeprefix(HUB))
        if match is None:
            raise ParameterError(
                f"model={text!r}: a model of the hub is written hf:ORG/NAME, hf:ORG/NAME:Q4_K_M or "
                "hf:ORG/NAME/FILE.gguf, with @REVISION after NAME for another than main"
            )
        return cls(
            match["repo"], match["quant"] or "", match["file"] or "", match["revision"] or "main"
        )

    def __str__(self) -> str:
        at = "" if self.revision == "main" else f"@{self.revision}"
        what = f":{self.quant}" if self.quant else f"/{self.file}" if self.file else ""
        return f"{HUB}{self.repo}{at}{what}"
