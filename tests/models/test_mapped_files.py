"""Files of weights that are written to, or cut short, after they were mapped."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import aleator
from aleator.core.errors import FileFormatError
from aleator.models.files.mapping import MappedFiles, map_file
from aleator.models.hub.bundled import bundled_model

PAGE = os.sysconf("SC_PAGESIZE")


def test_what_becomes_of_a_file(tmp_path: Path) -> None:
    path, other = tmp_path / "a", tmp_path / "b"
    for name in (path, other):
        name.write_bytes(b"1234")
        os.utime(name, (1, 1))
    views = [map_file(each)[:2].reshape(2, 1) for each in (path, other)]
    mapped = MappedFiles([np.zeros(1, np.uint8), *views, *views])
    assert not mapped.changed()
    os.utime(path, (1, 2))
    assert mapped.changed()
    with pytest.raises(FileFormatError, match=rf"^{path}: it was written to"):
        mapped.check()
    (tmp_path / "new").write_bytes(b"5678")
    (tmp_path / "new").replace(path)  # what is mapped is the old file
    assert not mapped.changed()
    path.unlink()
    assert not mapped.changed()
    mapped.check()
    other.write_bytes(b"123")
    assert mapped.changed()


CUT = """
import os, signal, sys
from concurrent.futures import ThreadPoolExecutor
from aleator.models.files.mapping import MappedFiles, map_file
path, page, way = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if way == "behind":  # a handler after which the page is read anew, for ever
    earlier = MappedFiles([map_file(path)])
    earlier.guard()
    signal.signal(signal.SIGBUS, lambda *_: None)
data = map_file(path)
mapped = MappedFiles([data])
mapped.guard()
if way == "alone":  # another file, most likely at the same address
    del mapped, data
    data = map_file(path)
    mapped = MappedFiles([data])
os.rename(path, path + "2")  # so that its state is not seen
os.truncate(path + "2", page)
print(mapped.changed(), data[page - 1], end=" ", flush=True)
with ThreadPoolExecutor(4) as threads:  # in any order, and some at once
    found = threads.map(lambda at: (data[at:].max(), mapped.changed()), range(len(data) - 1, page, -99))
    assert set(found) == {(0, True)}
print(data[page], data[-1], data[0], mapped.changed())
"""


@pytest.mark.parametrize("way", ["guarded", "behind", "alone"])
@pytest.mark.parametrize("traced", [False, True])
def test_pages_that_were_cut_off_are_zeros(way: str, traced: bool, tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"\7" * (99 * PAGE + 9))
    flags = ["-X", "faulthandler"] if traced else []
    program = [sys.executable, *flags, "-c", CUT, str(file), str(PAGE), way]
    made = subprocess.run(program, capture_output=True, text=True, check=False, timeout=60)
    if way != "alone":
        assert (made.stdout, made.returncode) == ("False 7 0 0 7 True\n", 0), made.stderr
    else:  # what handled the signal before does so still
        assert (made.stdout, made.returncode) == ("False 7 ", -signal.SIGBUS)
        assert ("Fatal Python error: Bus error" in made.stderr) == traced


RAISED = """
import ctypes, signal, sys
from aleator.models.files.mapping import MappedFiles, map_file
mapped = MappedFiles([map_file(sys.argv[1])])
mapped.guard()
for number in range(2):
    print(number, flush=True)
    ctypes.CDLL(None)["raise"](signal.SIGBUS)
"""


def test_handlers_that_raise_the_signal_to_each_other_end(tmp_path: Path) -> None:
    """One that steps aside raises it once, and the page's own follows; a second time nothing follows."""
    (tmp_path / "a").write_bytes(b"1234")
    program = [sys.executable, "-c", RAISED, str(tmp_path / "a")]
    made = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (made.stdout, made.returncode) == ("0\n1\n", -signal.SIGBUS), made.stderr


@pytest.mark.parametrize("change", ["cut", "written"])
def test_a_text_under_way_ends_with_an_error(change: str, tmp_path: Path) -> None:
    file = Path(shutil.copy(bundled_model(), tmp_path / "own.gguf"))
    model = aleator.load(file)
    texts = [model.generate(prompt, max_tokens=200, seed=1) for prompt in ("ROMEO:", "JULIET:")]
    with model.engine() as engine:
        submitted = engine.submit("ROMEO:", max_tokens=10**4, ignore_eos=True)
        next(iter(submitted))
        next(iter(texts[0]))
        if change == "cut":
            os.truncate(file, 5000)
        else:
            with file.open("r+b") as writing:
                writing.seek(-1, os.SEEK_END)
                writing.write(b"1")
        for text in (*texts, submitted):
            with pytest.raises(FileFormatError, match="since the model was loaded: load it again"):
                text.text  # noqa: B018
