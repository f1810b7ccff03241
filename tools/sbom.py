"""Lists a wheel's parts besides our own code, as CycloneDX 1.6 in JSON.

The list is short and written here: the browser's modules (page/vendor/manifest.json), nanobind's headers
in the native module, GCC's C++ library if it is linked in, and the packages that the wheel needs.
"""

from __future__ import annotations

import json
import tomllib
import uuid
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
VENDOR = ROOT / "src/aleator/server/playground/page/vendor/manifest.json"


def component(kind: str, name: str, version: str, licence: str, purl: str) -> dict[str, Any]:
    """A part by its name, version, licence (SPDX) and package URL."""
    made: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": name, "purl": purl}
    if version:
        made["version"] = version
    choice = "expression" if " " in licence else "license"
    made["licenses"] = [{choice: licence if choice == "expression" else {"id": licence}}]
    made["properties"] = [{"name": "aleator:how", "value": kind}]
    return made


def sbom(name: str, version: str, nanobind: str, gcc: str, requirements: list[str]) -> str:
    """The bill of materials of a wheel: the same text for the same arguments.

    Args:
        name: The wheel's file name.
        version: The package's version.
        nanobind: Version of nanobind that it was compiled with.
        gcc: Version of the C++ library that is linked in; "" if it is the system's.
        requirements: The requirements in its metadata, without extras.
    """
    parts = [
        component(
            "compiled in", "nanobind", nanobind, "BSD-3-Clause", f"pkg:pypi/nanobind@{nanobind}"
        )
    ]
    # The codebooks of the IQ types (native/layers/grids.cpp).
    parts.append(
        component(
            "compiled in", "ggml-common.h", "0.25.3", "MIT", "pkg:github/ggml-org/ggml@v0.25.3"
        )
    )
    if gcc:
        licence = "GPL-3.0-or-later WITH GCC-exception-3.1"
        parts.append(
            component("linked in", "libstdc++", gcc, licence, f"pkg:generic/libstdc++@{gcc}")
        )
    for each in json.loads(VENDOR.read_text()):
        if each["name"].endswith(".LICENSE"):
            continue
        package, number = each["package"], each["version"]
        url = package.replace("@", "%40", 1) if package.startswith("@") else package
        parts.append(
            component("carried along", package, number, each["licence"], f"pkg:npm/{url}@{number}")
        )
    needed = [
        {"type": "library", "bom-ref": f"pkg:pypi/{each}", "name": each, "purl": f"pkg:pypi/{each}",
         "properties": [{"name": "aleator:how", "value": "required, not contained"}]}
        for each in requirements
    ]  # fmt: skip
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = {
        "type": "library", "bom-ref": f"pkg:pypi/aleator@{version}", "name": project["name"],
        "version": version, "description": project["description"], "purl": f"pkg:pypi/aleator@{version}",
        "licenses": [{"license": {"id": "MIT"}}],
    }  # fmt: skip
    document = {
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, name)}",
        "metadata": {"component": own}, "components": [*parts, *needed],
        "dependencies": [{"ref": own["bom-ref"], "dependsOn": [each["bom-ref"] for each in [*parts, *needed]]}],
    }  # fmt: skip
    return json.dumps(document, indent=1) + "\n"
