"""Fetch the ES modules of the playground's page and of the npm package, unchanged, with licences and hashes.

``python tools/vendor_browser.py`` fetches the pinned versions with ``npm pack``, and rewrites the folders and
their manifests.  ``--check`` compares the files with the manifests, without a network.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
VENDOR = ROOT / "src/aleator/server/playground/page/vendor"
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Module:
    """A module: its package and version, the file in it, and the package's licence."""

    package: str
    version: str
    file: str
    licence: str
    name: str = ""  # here; "": the file's own

    @property
    def here(self) -> str:
        """The file's name here."""
        return self.name or Path(self.file).name


PAGE = (
    Module("preact", "11.2.0", "dist/preact.mjs", "MIT"),
    Module("htm", "3.1.1", "dist/htm.mjs", "Apache-2.0"),
    Module("@preact/signals-core", "1.14.5", "dist/signals-core.mjs", "MIT"),
)
JAVASCRIPT = (
    Module("@huggingface/jinja", "0.5.11", "dist/index.js", "MIT", "jinja.js"),
    Module("re2js", "2.10.0", "build/index.js", "MIT", "re2.js"),
)
FOLDERS = {VENDOR: PAGE, ROOT / "js/src/vendor": JAVASCRIPT}


def fetched(module: Module, folder: Path) -> dict[str, bytes]:
    """The module and its licence, by their names here."""
    command = ["npm", "pack", "--silent", f"{module.package}@{module.version}"]
    packed = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    name = module.here
    with tarfile.open(folder / packed.stdout.split()[-1]) as archive:
        made = {}
        for wanted, here in ((module.file, name), ("LICENSE", f"{name}.LICENSE")):
            member = archive.extractfile(f"package/{wanted}")
            if member is None:
                raise SystemExit(f"{module.package} has no {wanted}")
            made[here] = member.read()
    return made


def update(vendor: Path, modules: tuple[Module, ...]) -> None:
    """Fetch the modules of a folder, and write its manifest."""
    entries = []
    vendor.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for module in modules:
            for name, data in fetched(module, Path(folder)).items():
                (vendor / name).write_bytes(data)
                entries.append(
                    {
                        "name": name,
                        "package": module.package,
                        "version": module.version,
                        "licence": module.licence,
                        "sha256": hashlib.sha256(data).hexdigest(),
                    }
                )
    (vendor / MANIFEST).write_text(json.dumps(entries, indent=1) + "\n")


def wrong(vendor: Path) -> list[str]:
    """Names of files that differ from a folder's manifest or are not in it."""
    manifest = vendor / MANIFEST
    entries = {entry["name"]: entry["sha256"] for entry in json.loads(manifest.read_text())}
    here = {path.name: path for path in vendor.iterdir() if path != manifest}
    hashes = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in here.items()}
    return sorted(
        name for name in entries.keys() | hashes.keys() if entries.get(name) != hashes.get(name)
    )


def main() -> int:
    """Update, or check."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the manifest only")
    if not parser.parse_args().check:
        for vendor, modules in FOLDERS.items():
            update(vendor, modules)
    differing = [name for vendor in FOLDERS for name in wrong(vendor)]
    for name in differing:
        print(f"{name} is not what the manifest says: run tools/vendor_browser.py")
    return bool(differing)


if __name__ == "__main__":
    sys.exit(main())
