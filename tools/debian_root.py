"""Folders with Debian's packages of another processor or release, without chroot or installing.

apt resolves and fetches with a configuration, lists and cache of its own; dpkg-deb unpacks.  No scripts of the
packages run.  The mirror and its keys are those of this machine.  It needs only permission to write the folder.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

PACKAGES = ("python3-minimal", "python3", "python3-numpy", "libpython3-dev", "libstdc++6",
            "libatomic1", "python3-pytest", "python3-hypothesis")  # fmt: skip
SUITE = "trixie"
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
CONFIGURATION = """
Dir::State "{apt}/state";
Dir::State::status "{apt}/status";
Dir::Cache "{apt}/cache";
Dir::Etc::sourcelist "{apt}/sources.list";
Dir::Etc::sourceparts "-";
Dir::Etc::preferencesparts "-";
APT::Architecture "{architecture}";
APT::Architectures {{ "{architecture}"; }};
APT::Sandbox::User "root";
APT::Install-Recommends "false";
"""


def mirror() -> str:
    """Where this machine's own packages come from."""
    places = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    for place in places:
        if place.is_file() and place.suffix in (".list", ".sources"):
            found = re.search(
                r"^(?:URIs:|deb(?: \[.*\])?) +(\S*debian/?)(?:\s|$)", place.read_text(), re.M
            )
            if found:
                return found[1]
    raise SystemExit("no Debian mirror in /etc/apt: this needs Debian, or a system made of it")


def _run(*command: object) -> None:
    done = subprocess.run(
        [str(each) for each in command], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{command[0]} failed:\n{done.stdout}\n{done.stderr}")


def make_root(architecture: str, root: Path, suite: str = SUITE) -> Path:
    """Fetch and unpack packages with their dependencies, unless that was done before.

    Args:
        architecture: Debian's name: amd64, arm64, riscv64, s390x, ...
        root: The folder; a folder beside it, with ``.apt`` at the end, keeps the fetched packages.
        suite: Debian's release.

    Returns:
        The complete folder.
    """
    done = root / ".done"
    wanted = " ".join((architecture, suite, *PACKAGES))
    if done.exists() and done.read_text() == wanted:
        return root
    apt = Path(f"{root.resolve()}.apt")
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (apt / folder).mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()
    (apt / "apt.conf").write_text(CONFIGURATION.format(apt=apt, architecture=architecture))
    (apt / "sources.list").write_text(f"deb [signed-by={KEYS}] {mirror()} {suite} main\n")
    get = ("apt-get", "-q", "-c", apt / "apt.conf")
    _run(*get, "update")
    _run(*get, "-y", "-d", "install", *PACKAGES)
    for name in ("bin", "lib", "lib64", "sbin"):  # as in every system since 2023
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        if not (root / name).is_symlink():
            (root / name).symlink_to(f"usr/{name}")
    for package in sorted((apt / "cache" / "archives").glob("*.deb")):
        _run("dpkg-deb", "-x", package, root)
    for library in ("blas", "lapack"):  # what alternatives would choose
        for file in root.glob(f"usr/lib/*/{library}/lib{library}.so.3"):
            link = file.parent.parent / file.name
            if not link.is_symlink():
                link.symlink_to(f"{library}/{file.name}")
    done.write_text(wanted)
    return root
