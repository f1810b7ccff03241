"""Makes everything that a release uploads, checks it, and prints the command that uploads it.

    python tools/release.py [--machines x86_64 aarch64] [--out dist]

It refuses a checkout with changes and a changelog without the version. The source archive and every wheel
are built twice, in two folders, and must have the same bytes; each wheel is installed and draws
(tools/build_wheel.py).
"""

from __future__ import annotations

import argparse
import filecmp
import hashlib
import json
import os
import re
import shutil
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import build_wheel
from build_wheel import FOLDER, TARGETS, run, source, tools
from native_module import ROOT


def unready(version: str, changelog: str, changes: str) -> list[str]:
    """Why this checkout cannot be released.

    Args:
        version: The version in pyproject.toml.
        changelog: The changelog's text.
        changes: Git's list of changed files; "" for none.
    """
    found = []
    if changes.strip():
        found.append("the checkout has changes: commit them, or put them away")
    if not re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", changelog, re.M):
        found.append(f"CHANGELOG.md has no line '## {version} (YYYY-MM-DD)'")
    return found


def archive(out: Path, turn: str) -> Path:
    """The source archive, from a copy of the checkout."""
    copy, folder = source(FOLDER / f"source-{turn}"), FOLDER / f"archive-{turn}"
    shutil.rmtree(folder, ignore_errors=True)
    code = "import sys, scikit_build_core.build as b; print(b.build_sdist(sys.argv[1]))"
    environment = {**os.environ, "SOURCE_DATE_EPOCH": build_wheel.epoch()}
    run(tools() / "python", "-c", code, folder, cwd=copy, env=environment)
    (made,) = folder.glob("*.tar.gz")
    out.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(made, out))


def bill_of(path: Path, out: Path) -> Path | None:
    """A wheel's bill of materials, as a file beside it, after a check of its form.

    None if it has none: the model's wheel holds nothing written by others.
    """
    with zipfile.ZipFile(path) as packed:
        names = [each for each in packed.namelist() if each.endswith(".cdx.json")]
        if not names:
            return None
        text = packed.read(names[0]).decode()
    code = (
        "import sys; from cyclonedx.schema import SchemaVersion; from cyclonedx.validation.json import "
        "JsonStrictValidator; e = JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read()); "
        "sys.exit(str(e) if e else 0)"
    )
    json.loads(text)
    made = out / f"{path.stem}.cdx.json"
    made.write_text(text)
    run(tools() / "python", "-c", code.replace("sys.stdin.read()", f"open({str(made)!r}).read()"))
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--machines", nargs="+", choices=list(TARGETS), default=list(TARGETS))
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument(
        "--anyway", action="store_true", help="for a trial: whatever the checkout is like"
    )
    options = parser.parse_args(arguments)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    changes = run("git", "status", "--porcelain")
    problems = unready(version, (ROOT / "CHANGELOG.md").read_text(), changes)
    if problems and not options.anyway:
        raise SystemExit("\n".join(problems))
    shutil.rmtree(options.out, ignore_errors=True)
    made = [archive(options.out, "1")]
    if not filecmp.cmp(made[0], archive(FOLDER / "again", "2"), shallow=False):
        raise SystemExit(f"two builds of {made[0].name} differ")
    run(tools() / "twine", "check", "--strict", made[0])
    for machine in options.machines:
        arguments = ["--machines", machine, "--out", str(options.out), "--reproduce", "--try"]
        if build_wheel.main(arguments):
            return 1
    made += sorted(options.out.glob("*.whl"))
    bills = [bill for each in made[1:] if (bill := bill_of(each, options.out))]
    sums = [
        f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}" for each in [*made, *bills]
    ]
    (options.out / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    print("\n".join(sums))
    print(
        f"upload: git tag v{version} && twine upload --skip-existing {' '.join(str(each) for each in made)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
