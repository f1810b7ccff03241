"""Build the package's wheel for Pyodide, Python in a page.

    make pyodide     into build/pyodide

The native module has the limited API, so any newer Python's headers do, with the numbers of Pyodide's own
pyconfig.h. They come from its npm package, whose release and the wheel's tag (PEP 783) go together.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

from build_wheel import packed, pythons, run
from native_module import ROOT

FOLDER = ROOT / "build" / "pyodide"
PYODIDE = FOLDER / "node_modules" / "pyodide"
OLDEST = 12
"""Python 3.12 has all of the limited API that nanobind needs."""


def lock() -> dict[str, Any]:
    """What Pyodide's npm package says about itself and the packages of its release."""
    read: dict[str, Any] = json.loads((PYODIDE / "pyodide-lock.json").read_text())
    return read


def configuration() -> str:
    """Pyodide's pyconfig.h: its sysconfig module keeps the values."""
    values: dict[str, Any] = {}
    with zipfile.ZipFile(PYODIDE / "python_stdlib.zip") as library:
        [name] = [each for each in library.namelist() if each.startswith("_sysconfigdata")]
        exec(library.read(name), values)
    kinds = ("ALIGNOF_", "HAVE_", "SIZEOF_")
    lines = [
        f"#define {name} {value}"
        for name, value in sorted(values["build_time_vars"].items())
        if name.startswith(kinds) and isinstance(value, int) and value
    ]
    return "\n".join(["#pragma once", *lines, ""])


def headers() -> Path:
    """Headers of the newest Python here, with Pyodide's pyconfig.h."""
    for python in reversed(pythons()):
        say = "import sys, sysconfig; print(sys.version_info[1], sysconfig.get_path('include'))"
        minor, _, place = run(python, "-c", say).strip().partition(" ")
        if int(minor) >= OLDEST and (Path(place) / "Python.h").is_file():
            made = FOLDER / "include"
            shutil.rmtree(made, ignore_errors=True)
            shutil.copytree(place, made)
            (made / "pyconfig.h").write_text(configuration())
            return made
    raise SystemExit(f"the headers of Python 3.{OLDEST} or newer are missing")


def native() -> Path:
    """The native module."""
    folder = FOLDER / "native"
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    configure = ("emcmake", "cmake", "-S", ROOT / "native", "-B", folder, "-G", "Ninja",
                 "-DALEATOR_PYODIDE=ON", f"-DALEATOR_PYTHON_HEADERS={headers()}")  # fmt: skip
    for command in (configure, ("cmake", "--build", folder)):
        subprocess.run([str(each) for each in command], env=environment, check=True)
    return folder / "_native.abi3.so"


def wheel() -> Path:
    """The wheel: pip's of the Python modules and the bundled model, and the native module."""
    raw = FOLDER / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", raw,
        "-C", "wheel.cmake=false", ROOT)  # fmt: skip
    [pure] = raw.glob("*.whl")
    with zipfile.ZipFile(pure) as old:
        files = {each: old.read(each) for each in old.namelist() if not each.endswith((".so", "/"))}
    about = next(name for name in files if name.endswith(".dist-info/WHEEL"))
    tag = f"cp3{OLDEST}-abi3-pyemscripten_{lock()['info']['abi_version']}_wasm32"
    text = files[about].decode().replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
    files[about] = text.replace("Tag: py3-none-any", f"Tag: {tag}").encode()
    metadata = about.removesuffix("WHEEL") + "METADATA"
    lines = files[metadata].decode().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith("Requires-Dist: nanobind-backend")]
    files[metadata] = "".join(kept).encode()  # it is in the module
    files["aleator/_native.abi3.so"] = native().read_bytes()
    return packed(files, FOLDER / pure.name.replace("py3-none-any", tag))


if __name__ == "__main__":
    print(wheel())
