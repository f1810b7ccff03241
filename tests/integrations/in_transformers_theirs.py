"""transformers' own tests of its caches, run twice: with DynamicCache, and with AleatorCache in its place.

Their file is not in this repository, nor in what pip installs.  ``TRANSFORMERS_TESTS`` names a checkout of
transformers, or the file; without it the file of the installed version is fetched from GitHub.  Where there is
neither, this says so and runs nothing.
Run by tools/integrations.py in an environment with torch, transformers, pytest, parameterized and Aleator.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from importlib.metadata import version
from pathlib import Path
from typing import Any

FILE = "tests/utils/test_cache_utils.py"
ROOT = Path(__file__).resolve().parents[2]


def their_file(folder: Path) -> Path | str:
    """The file of tests, or why there is none."""
    given = os.environ.get("TRANSFORMERS_TESTS")
    if given:
        path = Path(given) / FILE if Path(given).is_dir() else Path(given)
        return path if path.is_file() else f"TRANSFORMERS_TESTS={given}: no {FILE} there"
    url = f"https://raw.githubusercontent.com/huggingface/transformers/v{version('transformers')}/{FILE}"
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            (folder / "test_cache_utils.py").write_bytes(answer.read())
    except (urllib.error.URLError, OSError) as error:
        return f"{url}: {error}; set TRANSFORMERS_TESTS to a checkout of transformers"
    return folder / "test_cache_utils.py"


def outcomes(file: Path, cache: str, report: Path) -> dict[str, dict[str, Any]]:
    """What each test came to with a kind of cache."""
    run = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null",
            "-p", "tests.integrations.their_cache", "--rootdir", str(file.parent), "--noconftest", str(file),
        ],
        capture_output=True, text=True, check=False, cwd=ROOT,
        env={**os.environ, "THEIR_CACHE": cache, "THEIR_CACHE_REPORT": str(report)},
    )  # fmt: skip
    assert report.exists(), run.stdout[-3000:] + run.stderr[-3000:]
    return {line["name"]: line for line in map(json.loads, report.read_text().splitlines())}


def main() -> None:
    """Run both, and compare."""
    folder = Path(tempfile.mkdtemp())
    file = their_file(folder)
    if isinstance(file, str):
        print(f"  not run: {file}")
        return
    theirs = outcomes(file, "dynamic", folder / "dynamic.jsonl")
    ours = outcomes(file, "aleator", folder / "aleator.jsonl")
    about = {name: found for name, found in ours.items() if found["caches"]}
    print(f"  {len(theirs)} tests in {file.name}, {len(about)} of them make a DynamicCache")
    passed = [
        n for n, found in about.items() if found["outcome"] == theirs[n]["outcome"] == "passed"
    ]
    print(f"  {len(passed)} pass with DynamicCache and with AleatorCache: {', '.join(passed)}")
    neither = [n for n, found in about.items() if theirs[n]["outcome"] != "passed"]
    for name in neither:
        equal = "the same texts" if theirs[name]["texts"] == about[name]["texts"] else "other texts"
        print(f"  passes with neither, {equal}: {name} ({theirs[name]['why']})")
    unlike = [n for n in about if n not in passed and n not in neither]
    for name in unlike:
        print(f"  not with AleatorCache: {name} ({about[name]['why']})")
    rest = {
        found["why"]
        for n, found in theirs.items()
        if n not in about and found["outcome"] != "passed"
    }
    print(
        f"  of the others {len(theirs) - len(about)}, what does not pass says: {'; '.join(sorted(rest))}"
    )
    for name in about:
        assert not about[name]["texts"] or about[name]["texts"] == theirs[name]["texts"], name


if __name__ == "__main__":
    print(f"transformers {version('transformers')}, torch {version('torch')}")
    main()
