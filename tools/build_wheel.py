"""Builds wheels that need no compiler, and tries them.

    python tools/build_wheel.py [--machines x86_64 aarch64] [--out dist] [--wheel FILE] [--reproduce]
                                [--try] [--pythons PATH ...]

One wheel per machine serves CPython 3.11 and later: the native module uses only the stable ABI, and binds
through the package nanobind-backend. GCC compiles it on this machine; native/compat/old_glibc.cpp restricts it
to functions of glibc 2.28. auditwheel checks that, and abi3audit checks the stable ABI. The wheel contains a
bill of materials (tools/sbom.py), and its files are packed in a fixed order with one time.

--reproduce builds everything twice, in two folders, and compares the bytes. --try installs the wheel into
bare environments of every given or found Python, without a compiler on the path, and runs tools/corpus.py
with every instruction set of this processor: it fails if the module runs another set than requested. A wheel
for aarch64 is tried under QEMU, with Debian's Python.
"""

from __future__ import annotations

import argparse
import base64
import filecmp
import hashlib
import os
import resource
import shutil
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from debian_root import make_root
from instruction_sets import here
from native_module import ROOT
from sbom import sbom

FOLDER = ROOT / "build" / "wheel"
POLICY = "manylinux_2_28"
MOST_BYTES = 7 * 2**19
BUNDLED = ("shakespeare.gguf", "shakespeare-eagle3")
"""The bundled model, and its draft head."""
MOST_SECONDS = 20
KEPT = ("PIP_INDEX_URL", "PIP_CONFIG_FILE", "PIP_FIND_LINKS", "HTTPS_PROXY",
        "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # fmt: skip
"""Variables that a bare environment keeps."""
AUDIT = (
    "import platform, sys; machine = sys.argv.pop(1); platform.machine = lambda: machine; "
    "from auditwheel.main import main; sys.exit(main())"
)
"""auditwheel, which accepts only policies of the machine that it runs on."""
QEMU = {"base": ("-cpu", "cortex-a72"), "dotprod": ("-cpu", "neoverse-n1")}


@dataclass(frozen=True)
class Target:
    """A processor that wheels are built for.

    Attributes:
        compiler: The C++ compiler.
        options: CMake's other options.
    """

    compiler: str
    options: tuple[str, ...] = ()


TARGETS = {
    "x86_64": Target("g++"),
    "aarch64": Target(
        "aarch64-linux-gnu-g++",
        ("-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64"),
    ),
}


def run(*command: object, env: dict[str, str] | None = None, cwd: Path = ROOT) -> str:
    """Return what a command prints; exit if it fails."""
    words = [str(each) for each in command]
    done = subprocess.run(
        words,
        env=env,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stdout}")
    return done.stdout


def tools() -> Path:
    """The programs of requirements/wheel.txt, in an environment of their own."""
    folder, wanted = FOLDER / "tools", (ROOT / "requirements" / "wheel.txt").read_text()
    mark = folder / ".installed"
    if not mark.exists() or mark.read_text() != wanted:
        venv.create(folder, with_pip=True, clear=True)
        run(
            folder / "bin" / "python", "-m", "pip", "install", "-q", "-r",
            ROOT / "requirements" / "wheel.txt",
        )  # fmt: skip
        mark.write_text(wanted)
    return folder / "bin"


def source(folder: Path) -> Path:
    """A copy of the checkout's files, without what git ignores."""
    shutil.rmtree(folder, ignore_errors=True)
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    for name in filter(None, listed):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def without_model(copy: Path) -> Path:
    """The same copy, with the model moved to the package that the extra ``cli`` then needs."""
    package = copy / "packages" / "aleator-shakespeare"
    for name in BUNDLED:
        (copy / "src" / "aleator" / "data" / name).rename(
            package / "src" / "aleator_shakespeare" / name
        )
    project = copy / "pyproject.toml"
    text = project.read_text()
    if text.count("\ncli = [") != 1:
        raise SystemExit("pyproject.toml has no extra 'cli' on a line of its own")
    project.write_text(text.replace("\ncli = [", '\ncli = ["aleator-shakespeare>=1,<2", '))
    return copy


def model_wheel(copy: Path, out: Path) -> Path:
    """The wheel of the model, which is the same for every machine."""
    raw = out / "raw"
    shutil.rmtree(out, ignore_errors=True)
    package = copy / "packages" / "aleator-shakespeare"
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch()}
    run(tools() / "python", "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", raw, package,
        env=environment)  # fmt: skip
    (made,) = raw.glob("*.whl")
    return made


def built(machine: str, copy: Path, out: Path, turn: str) -> Path:
    """The wheel as pip and auditwheel leave it.

    If CMAKE_CXX_COMPILER_LAUNCHER is ccache, each turn has its own objects, so that the second turn does not
    reuse the first one's, and paths are the same as without ccache.
    """
    bin, target = tools(), TARGETS[machine]
    options = (f"-DCMAKE_CXX_COMPILER={target.compiler}", "-DALEATOR_OLD_GLIBC=ON", *target.options)
    environment = {
        **os.environ, "ALEATOR_WHEEL": "1", "CMAKE_GENERATOR": "Ninja",
        "PATH": f"{bin}:{os.environ['PATH']}", "SOURCE_DATE_EPOCH": epoch(), "CMAKE_ARGS": " ".join(options),
        "_PYTHON_HOST_PLATFORM": f"linux-{machine}", "ARCHFLAGS": "",
        "CCACHE_NAMESPACE": f"aleator-wheel-{turn}", "CCACHE_BASEDIR": "",
    }  # fmt: skip
    raw = out / "raw"
    shutil.rmtree(out, ignore_errors=True)
    run(bin / "python", "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", raw, copy,
        env=environment)  # fmt: skip
    (made,) = raw.glob("*.whl")
    run(bin / "python", "-c", AUDIT, machine, "repair", "--plat", f"{POLICY}_{machine}", "-w", out, made,
        env=environment)  # fmt: skip
    (repaired,) = out.glob("*.whl")
    run(bin / "abi3audit", "--strict", repaired)
    return repaired


def epoch() -> str:
    """Seconds of the last commit: the time of every file in a wheel."""
    return run("git", "log", "-1", "--format=%ct").strip()


def finished(wheel: Path, machine: str, out: Path) -> Path:
    """The wheel with its bill of materials, packed in one order and with one time."""
    with zipfile.ZipFile(wheel) as old:
        files = {name: old.read(name) for name in old.namelist() if not name.endswith("/")}
        modes = {info.filename: info.external_attr for info in old.infolist()}
    record = next(name for name in files if name.endswith(".dist-info/RECORD"))
    about = Path(record).parent.as_posix()
    metadata = files[f"{about}/METADATA"].decode()
    fields = [line.partition(": ") for line in metadata.partition("\n\n")[0].splitlines()]
    version = next(value for name, _, value in fields if name == "Version")
    needed = [
        value for name, _, value in fields if name == "Requires-Dist" and "extra ==" not in value
    ]
    nanobind = run(tools() / "python", "-c", "import nanobind; print(nanobind.__version__)").strip()
    gcc = run(TARGETS[machine].compiler, "-dumpfullversion").strip()
    names = [each.partition(">")[0].partition("<")[0].strip() for each in needed]
    bill = sbom(wheel.name, version, nanobind, gcc, names)
    files[f"{about}/sboms/aleator.cdx.json"] = bill.encode()
    out.mkdir(parents=True, exist_ok=True)
    made = packed(files, out / wheel.name, modes)
    run(tools() / "python", ROOT / "tools" / "zip_again.py", made)
    return made


def packed(files: dict[str, bytes], made: Path, modes: Mapping[str, int] = {}) -> Path:
    """A wheel of these files, in one order and with one time, whose record is written anew."""
    stamp = time.gmtime(int(epoch()))[:6]
    record = next(name for name in files if name.endswith(".dist-info/RECORD"))
    lines = []
    for name in sorted(files):
        if name != record:
            digest = (
                base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
            )
            lines.append(f"{name},sha256={digest},{len(files[name])}\n")
    files[record] = "".join([*lines, f"{record},,\n"]).encode()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
        for name in [*sorted(set(files) - {record}), record]:
            info = zipfile.ZipInfo(name, stamp)
            info.external_attr = modes.get(name, 0o100644 << 16)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3
            new.writestr(info, files[name])
    return made


def make(machine: str, out: Path, turn: str = "1") -> Path:
    """Build a machine's wheel in a folder of its own, and put it into ``out``."""
    copy = without_model(source(FOLDER / f"source-{turn}"))
    made = finished(built(machine, copy, FOLDER / f"{machine}-{turn}", turn), machine, out)
    model = Path(shutil.copy(model_wheel(copy, FOLDER / f"model-{turn}"), out))
    run(tools() / "twine", "check", "--strict", made, model)
    return made


def differing(first: Path, second: Path) -> list[str]:
    """Wheels of the second folder that are not in the first with the same bytes."""
    names = sorted(each.name for each in second.glob("*.whl"))
    equal, _, _ = filecmp.cmpfiles(first, second, names, shallow=False)
    return [name for name in names if name not in equal]


def pythons() -> list[str]:
    """Interpreters from 3.11 on that are installed here: on the path, and pyenv's."""
    places = [*os.environ["PATH"].split(os.pathsep), "/usr/bin"]
    places += [str(each / "bin") for each in sorted(Path.home().glob(".pyenv/versions/*"))]
    found: dict[str, str] = {}
    for place in places:
        for minor in range(11, 20):
            path = Path(place) / f"python3.{minor}"
            if path.exists() and "/shims/" not in str(path):
                found.setdefault(os.path.realpath(path), str(path))
    return sorted(found.values(), key=lambda path: int(path.rpartition(".")[2]))


def processor_seconds() -> float:
    """Processor time of this program's children: unlike wall time, it is the same on a busy machine."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def tried(python: str, wheel: Path) -> list[str]:
    """Rows of the table: seconds to install, those of the processor, and what each instruction set draws."""
    folder = FOLDER / "try" / python.strip("/").replace("/", "-")
    shutil.rmtree(folder, ignore_errors=True)
    run(python, "-m", "venv", folder)
    bare = {"PATH": str(folder / "bin"), "HOME": str(folder), "LANG": "C.UTF-8"}  # no compiler
    bare |= {name: os.environ[name] for name in KEPT if name in os.environ}
    own = folder / "bin" / "python"
    start, before = time.monotonic(), processor_seconds()
    pip = ("-m", "pip", "install", "-q", "--no-cache-dir", "--only-binary", ":all:")
    run(own, *pip, wheel, env=bare)
    seconds, used = time.monotonic() - start, processor_seconds() - before
    if used > MOST_SECONDS:
        raise SystemExit(
            f"{python}: pip needed {used:.0f} s of processor time, more than {MOST_SECONDS}"
        )
    version = run(own, "--version").split()[1]
    rows = []
    for isa in here():
        said = run(own, ROOT / "tools" / "corpus.py", "--isa", isa, env=bare, cwd=folder)
        rows.append(f"| {version} | {isa} | {seconds:.0f} | {used:.0f} | {said.splitlines()[-1]} |")
    return rows


def written(python: str, wheel: Path) -> str:
    """The text that the command line generates, with the model from its package."""
    own = FOLDER / "try" / python.strip("/").replace("/", "-") / "bin" / "python"
    run(
        own, "-m", "pip", "install", "-q", "--only-binary", ":all:", "--find-links", wheel.parent,
        f"{wheel}[cli]",
    )  # fmt: skip
    words = ("generate", "-p", "ROMEO:", "-n", "24", "--seed", "4")
    return run(own.with_name("aleator"), *words, cwd=FOLDER).replace("\n", " ")[-60:]


def tried_emulated(wheel: Path) -> list[str]:
    """The same for aarch64: Debian's Python and NumPy, under QEMU."""
    root = make_root("arm64", ROOT / "build" / "roots" / "arm64")
    number = next(root.glob("usr/bin/python3.*")).name.removeprefix("python")
    folder = FOLDER / "try" / "aarch64"
    shutil.rmtree(folder, ignore_errors=True)
    run(tools() / "python", "-m", "pip", "install", "-q", "--target", folder,
        "--platform", f"{POLICY}_aarch64", "--python-version", number, "--only-binary", ":all:", "--no-deps",
        wheel, "nanobind-backend")  # fmt: skip
    rows = []
    for isa, options in QEMU.items():
        start = time.monotonic()
        said = run(
            "qemu-aarch64-static", *options, "-L", root, root / "usr/bin/python3", ROOT / "tools" / "corpus.py",
            "--isa", isa, env={"PYTHONPATH": str(folder), "PATH": "/usr/bin"}, cwd=folder,
        )  # fmt: skip
        seconds = time.monotonic() - start
        rows.append(
            f"| {number}, aarch64 under QEMU | {isa} | | | {said.splitlines()[-1]} in {seconds:.0f} s |"
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--machines", nargs="+", choices=list(TARGETS), default=["x86_64"])
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--wheel", type=Path, help="one that is built, to try")
    parser.add_argument("--reproduce", action="store_true", help="build twice and compare")
    parser.add_argument("--try", action="store_true", dest="trying", help="install and draw")
    parser.add_argument("--pythons", nargs="+", default=pythons(), help="interpreters to try")
    options = parser.parse_args(arguments)
    for machine in options.machines:
        wheel = options.wheel or make(machine, options.out)
        print(f"{wheel.name}: {wheel.stat().st_size:,} bytes", flush=True)
        if wheel.stat().st_size > MOST_BYTES:
            raise SystemExit(f"{wheel.name} is larger than {MOST_BYTES:,} bytes: 3.5 MiB")
        if options.reproduce:
            again = FOLDER / "again"
            shutil.rmtree(again, ignore_errors=True)
            make(machine, again, "2")
            if different := differing(wheel.parent, again):
                raise SystemExit(f"two builds differ: {', '.join(different)}")
            print(f"{wheel.name}, and the model's: two builds are equal", flush=True)
        if options.trying and machine == "aarch64":
            print("\n".join(tried_emulated(wheel)), flush=True)
        elif options.trying:
            for python in options.pythons:
                print("\n".join(tried(python, wheel)), flush=True)
            print(f"aleator generate: ...{written(options.pythons[0], wheel)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
